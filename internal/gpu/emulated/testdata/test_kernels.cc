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

const emulated_kernel test_kernels[] = {{"add", add}, {"wait", wait}, {"none", none}, {0, 0}};
