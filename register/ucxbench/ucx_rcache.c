// One lookup of UCX's registration cache: get and put of a random region among N, as BenchmarkHit of package register
// does it: regions of 4096 bytes at stride 8192, looked up at offset 64 for 1024 bytes, in xorshift order.
// Prints the nanoseconds of one lookup. Usage: ucx_rcache REGIONS LOOKUPS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/memory/rcache.h>

static ucs_status_t mem_reg(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region, uint16_t flags)
{
	return UCS_OK;
}

static void mem_dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region) {}

static void dump_region(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *buf, size_t max)
{
	if (max)
		*buf = 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv)
{
	uint64_t regions = argc > 1 ? strtoull(argv[1], 0, 0) : 1000, lookups = argc > 2 ? strtoull(argv[2], 0, 0) : 1000000;
	ucs_rcache_ops_t ops = {.mem_reg = mem_reg, .mem_dereg = mem_dereg, .dump_region = dump_region};
	// No page check and no unmap events: nothing but the lookup is measured.
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(ucs_rcache_region_t), .alignment = 64, .max_alignment = 4096, .ops = &ops,
		.flags = UCS_RCACHE_FLAG_NO_PFN_CHECK, .max_regions = -1ul, .max_size = -1ul, .max_unreleased = -1ul,
	};
	ucs_rcache_t *rcache;
	ucs_rcache_region_t *region;

	// The memory is never touched, but UCX looks in /proc/self/maps when it registers, so it must be there.
	char *base = mmap(0, regions * 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED || ucs_rcache_create(&params, "bench", NULL, &rcache) != UCS_OK) {
		fprintf(stderr, "no memory or no cache\n");
		return 1;
	}
	for (uint64_t i = 0; i < regions; i++) {
		if (ucs_rcache_get(rcache, base + i * 8192, 4096, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK)
			return 1;
		ucs_rcache_region_put(rcache, region);
	}
	uint64_t x = 88172645463325252ull;
	double begin = 0;
	for (int timed = 0; timed < 2; timed++) {
		begin = now();
		for (uint64_t i = 0; i < lookups; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			uint64_t r = (x >> 32) * regions >> 32;
			if (ucs_rcache_get(rcache, base + r * 8192 + 64, 1024, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK)
				return 1;
			ucs_rcache_region_put(rcache, region);
		}
	}
	printf("%.1f\n", (now() - begin) / lookups);
	return 0;
}
