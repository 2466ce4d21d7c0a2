// The protocol for host memory, which peer.c, gloo.cc and hostlimit.c share with `ubcoll bench`. Before each timed call every
// rank rewrites its whole input and reads its whole output, so that data really crosses cores; then the ranks line up.
// Each call is timed separately. The slower rank counts. The result is the median call. The cost of two readings of the
// clock is subtracted.
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, SETTLE = 20 };

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

// settle waits between lining up and the timed call.
static inline void settle(void) {
	for (int i = 0; i < SETTLE; i++) relax();
}

static inline double now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, int n) {
	qsort(v, n, sizeof *v, by_value);
	return v[(n + 1) / 2 - 1];
}

// clock_cost returns the median of back-to-back readings.
static double clock_cost(void) {
	enum { N = 1001 };
	double d[N];
	for (int i = 0; i < N; i++) {
		double start = now_us();
		d[i] = now_us() - start;
	}
	return median(d, N);
}

// calls returns how many calls of this size are timed. A tenth as many come before.
static int calls(size_t bytes, int want) {
	if (want > 0) return want;
	return bytes < 64 << 10 ? 2000 : bytes < 4 << 20 ? 400 : 20;
}

// memory returns page-aligned memory that threads share, with all pages present.
static char *memory(size_t bytes) {
	void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	for (size_t i = 0; i + 4 <= bytes; i += 4) *(float *)((char *)p + i) = (float)(i % 1001);
	return (char *)p; // for C++
}

// change_lines makes this core the owner of every line of p. It changes the lowest bit of a float, so that the numbers
// stay ordinary.
static inline void change_lines(char *p, size_t bytes) {
	for (size_t i = 0; i < bytes; i += LINE) p[i] ^= 1;
}

static volatile char looked_at;

static inline void look_at_lines(const char *p, size_t bytes) {
	char sum = 0;
	for (size_t i = 0; i < bytes; i += LINE) sum += p[i];
	looked_at = sum;
}

#endif
