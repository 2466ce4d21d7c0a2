//go:build nvls && linux && cgo && (amd64 || arm64)

#include "call.h"
#include "multicast.h"
#include <dlfcn.h>

static struct {
#define FIELD(name, params) int (*name) params;
	UBC_MULTICAST_CALLS(FIELD)
#undef FIELD
} multicast;

// As TRY of call.h.
#define TRY_MULTICAST(name, ...) \
	do { \
		if (!r.code && (r.code = multicast.name(__VA_ARGS__))) \
			r.call = #name; \
	} while (0)

int ubc_multicast_load(const char **missing, int *emulated) {
	if (!ubc_library)
		return 0;
	*emulated = dlsym(ubc_library, UBC_EMULATED_DRIVER) != 0;
#define LOAD(name, params) \
	if (!(*(void **)&multicast.name = dlsym(ubc_library, #name))) { \
		*missing = #name; \
		return 0; \
	}
	UBC_MULTICAST_CALLS(LOAD)
	return 1;
}

static ubc_multicast_prop prop(unsigned devices, size_t n) {
	ubc_multicast_prop p = {devices, n, UBC_HANDLE_POSIX_FD, 0};
	return p;
}

ubc_result ubc_multicast_granularity(uintptr_t ctx, unsigned devices, size_t n) {
	ENTER(ctx);
	ubc_multicast_prop p = prop(devices, n);
	size_t least = 0, best = 0;
	TRY_MULTICAST(cuMulticastGetGranularity, &least, &p, UBC_MULTICAST_MINIMUM);
	TRY_MULTICAST(cuMulticastGetGranularity, &best, &p, UBC_MULTICAST_RECOMMENDED);
	r.a = least, r.b = best;
	LEAVE();
}

ubc_result ubc_multicast_create(uintptr_t ctx, unsigned devices, size_t n) {
	ENTER(ctx);
	ubc_multicast_prop p = prop(devices, n);
	TRY_MULTICAST(cuMulticastCreate, &r.a, &p);
	LEAVE();
}

ubc_result ubc_multicast_add(uintptr_t ctx, uint64_t h, int ordinal) {
	ENTER(ctx);
	int dev = 0;
	TRY(cuDeviceGet, &dev, ordinal);
	TRY_MULTICAST(cuMulticastAddDevice, h, dev);
	LEAVE();
}

ubc_result ubc_multicast_bind(uintptr_t ctx, uint64_t h, size_t at, uint64_t memory, size_t from, size_t n) {
	ENTER(ctx);
	TRY_MULTICAST(cuMulticastBindMem, h, at, memory, from, n, 0);
	LEAVE();
}

ubc_result ubc_multicast_bind_addr(uintptr_t ctx, uint64_t h, size_t at, uintptr_t p, size_t n) {
	ENTER(ctx);
	TRY_MULTICAST(cuMulticastBindAddr, h, at, p, n, 0);
	LEAVE();
}

ubc_result ubc_multicast_unbind(uintptr_t ctx, uint64_t h, int ordinal, size_t at, size_t n) {
	ENTER(ctx);
	int dev = 0;
	TRY(cuDeviceGet, &dev, ordinal);
	TRY_MULTICAST(cuMulticastUnbind, h, dev, at, n);
	LEAVE();
}
