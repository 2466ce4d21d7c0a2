// The kernels of hw/cuda/testdata/kernels.ptx, for the tests of hw/cuda.
#include "emulate.h"
#include "fiber.h"

static void add(const void *params) {
	struct {
		uintptr_t p;
		uint32_t n, x;
	} const &a = *(decltype(&a))params;
	uint32_t i = emu_block() * emu_threads() + emu_thread();
	if (i < a.n)
		((uint32_t *)a.p)[i] += a.x;
}

static void wait(const void *params) {
	struct {
		uintptr_t flag;
		uint64_t limit;
	} const &a = *(decltype(&a))params;
	uint64_t end = emu_now() + a.limit;
	while (!__atomic_load_n((uint32_t *)a.flag, __ATOMIC_RELAXED) && emu_now() < end)
		emu_yield();
}

static void none(const void *) {}

// Multicast: dst or src is a multicast address.
struct multimem {
	uintptr_t dst, src;
	uint32_t n; // words
};

static void multimem_st(const void *params) {
	multimem const &a = *(const multimem *)params;
	for (uint32_t i = emu_block() * emu_threads() + emu_thread(); i < a.n; i += emu_blocks() * emu_threads()) {
		emu_multimem_st((uint32_t *)a.dst + i, (const uint32_t *)a.src + i, 4);
		emu_yield();
	}
}

static void multimem_ld_reduce(const void *params) {
	multimem const &a = *(const multimem *)params;
	for (uint32_t i = emu_block() * emu_threads() + emu_thread(); i < a.n; i += emu_blocks() * emu_threads()) {
		emu_multimem_ld_reduce((const uint32_t *)a.src + i, (uint32_t *)a.dst + i, 4,
			[](void *sum, const void *x) { *(uint32_t *)sum += *(const uint32_t *)x; });
		emu_yield();
	}
}

const emulated_kernel test_kernels[] = {{"multimem_st", multimem_st}, {"multimem_ld_reduce", multimem_ld_reduce},
	{"add", add}, {"wait", wait}, {"none", none}, {0, 0}};
