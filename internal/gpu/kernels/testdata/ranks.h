// The ranks of a check: their memory, the peers' mappings of it, and buffers in it.
#ifndef RANKS_H
#define RANKS_H

#include "coroutines.h"
#include "reference.h"

#include <sys/mman.h>

static scheduler &S = scheduler::self();
static unsigned below(unsigned n) { return S.below(n); }
static bool chance(unsigned percent) { return below(100) < percent; }

enum { GUARD = 64, HEAP = UBC_MANY ? 64 << 20 : 8 << 20, BATCH = 6 };

struct rank {
	char *area = nullptr, *heap = nullptr, *stage = nullptr;
	size_t used = 0;
	unsigned extent = 0;
	std::vector<std::vector<uint64_t>> table;
	ubc_status status;
	launch l;
	unsigned next = 0; // the next operation
	bool running = false;
};

static unsigned N;
static std::vector<rank> ranks;

// Little staging memory, so that small operations take several rounds. Rows have room for packets of 5000 elements,
// twice.
enum { LITTLE = UBC_MANY ? 64 << 10 : 4096, LARGE = 4 * LITTLE, ROW = 256 << 10 };

// lines returns where rows of lines are. A row has room for two turns of the largest grid, 3 blocks of 48 threads.
enum { LINE_ROW = 2 * 3 * 48 * 16 };
static size_t lines() { return UBC_AREA_PACKETS + 2ull * (N - 1) * ROW + 4ull * LITTLE; }

static size_t areaBytes() { return lines() + 4ull * (N - 1) * LINE_ROW; }

static void fresh(char *&p, size_t n) {
	if (p)
		munmap(p, n);
	p = (char *)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		FAIL("no memory");
}

// import maps the ranks' memory, as a separate extent for each operation of a batch: a rank may withdraw an extent when
// it has done the operation.
static void import() {
	for (rank &r : ranks) {
		r.table.assign(N, std::vector<uint64_t>(UBC_MAX_EXTENTS));
		for (unsigned q = 0; q < N; q++) {
			for (unsigned i = 0; i < BATCH; i++)
				r.table[q][ranks[q].extent + i] = (uint64_t)ranks[q].heap;
			r.table[q][ranks[q].extent + BATCH] = (uint64_t)ranks[q].stage;
		}
#ifdef UBC_WIDE
		for (unsigned d = 0; d < N; d++)
			((uint64_t *)(r.area + UBC_AREA_PEERS))[UBC_MAX_RANKS + d] = (uint64_t)r.table[(&r - &ranks[0] + d) % N].data();
#endif
	}
}

static void reset() {
	S.drop();
	ranks = std::vector<rank>(N);
	for (rank &r : ranks) {
		fresh(r.area, areaBytes());
		fresh(r.heap, HEAP);
		fresh(r.stage, 4 * LARGE);
		r.extent = below(UBC_MAX_EXTENTS - BATCH - 1); // the extent behind the batch's is the staging memory
	}
#ifdef UBC_WIDE
	for (unsigned r = 0; r < N; r++) // parameters have no room for them
		for (unsigned d = 0; d < N; d++)
			((uint64_t *)(ranks[r].area + UBC_AREA_PEERS))[d] = (uint64_t)ranks[(r + d) % N].area;
#endif
	uint32_t epoch = chance(50) ? 0 : 0xfffffffc; // also around the wrap
	for (rank &r : ranks) {
		for (unsigned b = 0; b < UBC_MAX_BLOCKS; b++)
			((uint32_t *)r.area)[b] = epoch;
		memset(&r.status, 0, sizeof r.status);
	}
	import();
}

static void release() {
	for (rank &r : ranks) {
		munmap(r.area, areaBytes());
		munmap(r.heap, HEAP);
		munmap(r.stage, 4 * LARGE);
	}
}

struct buffer {
	char *p = nullptr;
	size_t n = 0;
	bool direct = false;
};

// allocate returns n bytes with guards around them, at a random multiple of size, or `odd` bytes behind a multiple of 16.
static buffer allocate(rank &r, size_t n, unsigned size, size_t odd = (size_t)-1) {
	buffer b;
	if (odd == (size_t)-1)
		odd = chance(50) ? 0 : below(16 / size) * size;
	size_t at = (r.used + 15) / 16 * 16 + GUARD + odd;
	r.used = at + n + GUARD;
	if (r.used > HEAP)
		FAIL("the heap is too small");
	b.p = r.heap + at;
	b.n = n;
	b.direct = chance(60);
	memset(b.p - GUARD, 0xa5, n + 2 * GUARD);
	return b;
}

static uint64_t word(rank &r, const buffer &b) {
	return b.direct ? UBC_DIRECT | (uint64_t)(r.extent + r.next) << 48 | (uint64_t)(b.p - r.heap) : 0;
}

// The multicast object's addresses, where nothing is mapped: the ranks' staging memory, and their heaps behind it.
static char *const object = (char *)(1ull << 60);

static uint64_t place(rank &r, const buffer &b) {
	return b.direct ? UBC_DIRECT | (4ull * LARGE + (uint64_t)(b.p - r.heap)) : 0;
}

// reached returns the memory of rank r at a multicast address. A rank may unbind its memory as soon as it has done the
// operation.
static char *reached(const rank &r, const void *p, size_t n) {
	for (const rank &k : ranks)
		if (&k.l == S.current->of && k.next < r.next)
			FAIL("rank %d has done operation %u, and rank %d still uses its memory by multicast", (int)(&r - &ranks[0]), k.next,
				(int)(&k - &ranks[0]));
	size_t at = (const char *)p - object;
	if ((n != 4 && n != 8 && n != 16) || at % n)
		FAIL("%zu bytes at multicast address %p", n, p);
	if (at < 4 * LARGE)
		return r.stage + at;
	if (at >= 4 * (size_t)LARGE + HEAP)
		FAIL("%p is no multicast address", p);
	return r.heap + (at - 4 * LARGE);
}

extern "C" {
// Stores to the ranks in turn, with pauses between.
void emu_multimem_st(void *p, const void *value, size_t n) {
	unsigned first = below(N);
	for (unsigned i = 0; i < N; i++) {
		memcpy(reached(ranks[(first + i) % N], p, n), value, n);
		if (chance(20))
			emu_yield();
	}
}

void emu_multimem_ld_each(const void *p, size_t n, void *sum, void (*take)(void *sum, const void *x)) {
	for (const rank &r : ranks) {
		take(sum, reached(r, p, n));
		if (chance(20))
			emu_yield();
	}
}
}

static uint64_t value(int t) {
	if (t == BOOL && chance(50))
		return 0;
	if (!isFloat(t))
		return S.random();
	switch (below(40)) {
	case 0:
		return bits(t, NAN);
	case 1:
		return bits(t, INFINITY);
	case 2:
		return bits(t, -0.0);
	case 3:
		return bits(t, 0.0);
	case 4:
		return bits(t, -INFINITY);
	case 5:
		return 1 + below(3); // subnormal
	case 6:
		return S.random(); // anything
	}
	return bits(t, (double)(int)below(20001) / 16.0 - 600);
}

#endif
