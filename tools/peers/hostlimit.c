// hostlimit measures how fast two cores of a host can do an all-reduce (float32 sum) when each sees all buffers of
// both: the bound that no library beats by much. It runs two threads on the first two processors that the process may
// use, by the protocol of protocol.h. The time includes the synchronization at entry and exit. The bound is the lesser
// of
//
//	push: each reduces its half of the elements and writes it to both outputs,
//	pull: each reduces all elements into its own output.
//
// It prints a line "bytes microseconds push pull" for each size.
//
//	cc -O3 -pthread -o hostlimit hostlimit.c && ./hostlimit 4 67108864 4 [calls]
#define _GNU_SOURCE
#include "protocol.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { STREAM = 8 << 20 }; // outputs of this size or more bypass the caches

// A sum adds n floats of a and b into x and, unless that is NULL, y.
typedef void sum_func(float *x, float *y, const float *a, const float *b, size_t n, int stream);

static void sum_portable(float *x, float *y, const float *a, const float *b, size_t n, int stream) {
	(void)stream;
	for (size_t i = 0; i < n; i++) x[i] = a[i] + b[i];
	if (y) memcpy(y, x, n * sizeof *x);
}

#if defined(__x86_64__)
// Both wide versions share this text. Streaming stores need aligned outputs.
#define WIDE(name, isa, vec, width, load, add, store, nontemporal)                                              \
	__attribute__((target(isa))) static void name(float *x, float *y, const float *a, const float *b, size_t n, \
	                                              int stream) {                                                 \
		size_t i = 0;                                                                                           \
		for (; i + width <= n; i += width) {                                                                    \
			vec s = add(load(a + i), load(b + i));                                                              \
			if (stream) {                                                                                       \
				nontemporal(x + i, s);                                                                          \
				if (y) nontemporal(y + i, s);                                                                   \
			} else {                                                                                            \
				store(x + i, s);                                                                                \
				if (y) store(y + i, s);                                                                         \
			}                                                                                                   \
		}                                                                                                       \
		if (stream) _mm_sfence();                                                                               \
		if (i < n) sum_portable(x + i, y ? y + i : NULL, a + i, b + i, n - i, 0);                               \
	}
WIDE(sum_avx512, "avx512f", __m512, 16, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps)
WIDE(sum_avx2, "avx2", __m256, 8, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps, _mm256_stream_ps)
#endif

static sum_func *best(void) {
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) return sum_avx512;
	if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
	return sum_portable;
}

// Each side writes its own words, each on cache lines of its own (two, since some processors fetch pairs).
struct side {
	_Alignas(128) _Atomic uint64_t start;
	_Alignas(128) _Atomic uint64_t enter;
	_Alignas(128) _Atomic uint64_t leave;
	_Alignas(128) float *in;
	float *out;
	double *us;
	int cpu;
};

static struct side sides[2];
static sum_func *sum;
static double clock_us;
static size_t count; // elements at the current size
static int timed, pull;
static uint64_t base; // where sequence numbers start

// meet announces that this side has reached step s, and waits for the other side.
static inline void meet(_Atomic uint64_t *mine, _Atomic uint64_t *other, uint64_t s) {
	atomic_store_explicit(mine, s, memory_order_release);
	while (atomic_load_explicit(other, memory_order_acquire) < s) relax();
}

static void *run(void *arg) {
	int me = (int)(intptr_t)arg;
	struct side *mine = &sides[me], *other = &sides[1 - me];
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(mine->cpu, &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set);
	size_t bytes = count * sizeof(float), half = count / 2, mine_at = me ? half : 0, n = me ? count - half : half;
	int stream = bytes >= STREAM && half * sizeof(float) % LINE == 0, warmup = timed / 10 + 1;
	for (int i = 0; i < warmup + timed; i++) {
		uint64_t s = base + i + 1;
		change_lines((char *)mine->in, bytes);
		look_at_lines((char *)mine->out, bytes);
		meet(&mine->start, &other->start, s);
		settle();
		double start = now_us();
		meet(&mine->enter, &other->enter, s);
		if (pull)
			sum(mine->out, NULL, sides[0].in, sides[1].in, count, stream);
		else
			sum(mine->out + mine_at, other->out + mine_at, sides[0].in + mine_at, sides[1].in + mine_at, n, stream);
		meet(&mine->leave, &other->leave, s);
		double t = now_us() - start - clock_us;
		if (i >= warmup) mine->us[i - warmup] = t > 0 ? t : 0;
	}
	return NULL;
}

static double measure(size_t bytes, int want) {
	count = bytes / sizeof(float);
	timed = calls(bytes, want);
	pthread_t threads[2];
	for (intptr_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, (void *)i);
	for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
	base += timed + timed / 10 + 2;
	double *a = sides[0].us, *b = sides[1].us;
	for (int i = 0; i < timed; i++)
		if (b[i] > a[i]) a[i] = b[i];
	return median(a, timed);
}

int main(int argc, char **argv) {
	size_t low = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, high = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	size_t factor = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	int want = argc > 4 ? atoi(argv[4]) : 0;
	if (low < sizeof(float) || high < low || factor < 2) {
		fprintf(stderr, "usage: hostlimit MINBYTES MAXBYTES FACTOR [CALLS]\n");
		return 6;
	}
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	int found = 0;
	for (int c = 0; c < CPU_SETSIZE && found < 2; c++)
		if (CPU_ISSET(c, &set)) sides[found++].cpu = c;
	if (found < 2) {
		fprintf(stderr, "hostlimit: two processors are needed, and this process may use one\n");
		return 5;
	}
	sum = best();
	clock_us = clock_cost();
	for (int i = 0; i < 2; i++) {
		sides[i].in = (float *)memory(high);
		sides[i].out = (float *)memory(high);
		sides[i].us = malloc(sizeof(double) * (want > 2000 ? want : 2000));
	}
	for (size_t bytes = low; bytes <= high; bytes *= factor) {
		pull = 0;
		double push_us = measure(bytes, want);
		pull = 1;
		double pull_us = measure(bytes, want);
		printf("%zu %.3f %.3f %.3f\n", bytes, push_us < pull_us ? push_us : pull_us, push_us, pull_us);
		fflush(stdout);
	}
	return 0;
}
