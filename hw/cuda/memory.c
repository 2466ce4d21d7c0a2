//go:build linux && cgo && (amd64 || arm64)

#include "call.h"
#include <fcntl.h>

ubc_result ubc_inspect(uintptr_t p, ubc_memory *m) {
	ubc_result r = {0};
	static const int what[] = {UBC_PTR_MEMORY_TYPE, UBC_PTR_DEVICE, UBC_PTR_BUFFER_ID, UBC_PTR_MANAGED,
		UBC_PTR_LEGACY_IPC, UBC_PTR_RANGE_START, UBC_PTR_RANGE_SIZE, UBC_PTR_HANDLE_TYPES, UBC_PTR_RDMA, UBC_PTR_POOL,
		UBC_PTR_MAPPING_START, UBC_PTR_MAPPING_SIZE};
	// The driver writes 1 to 8 bytes, depending on the attribute, to zeroed words; these machines are little-endian.
	void *to[] = {&m->type, &m->device, &m->id, &m->managed, &m->legacy_ipc, &m->start, &m->size, &m->handle_types,
		&m->rdma, &m->pool, &m->map_start, &m->map_size};
	TRY(cuPointerGetAttributes, sizeof what / sizeof *what, what, to, p);
	return r;
}

ubc_result ubc_host_register(uintptr_t ctx, void *p, size_t n) {
	ENTER(ctx);
	uintptr_t d = 0;
	TRY(cuMemHostRegister_v2, p, n, UBC_HOST_PORTABLE | UBC_HOST_DEVICE_MAP);
	int registered = !r.code;
	TRY(cuMemHostGetDevicePointer_v2, &d, p, 0);
	if (r.code && registered)
		ubc.cuMemHostUnregister(p);
	r.a = d;
	LEAVE();
}

static ubc_prop prop(int device, int rdma) {
	ubc_prop p = {.type = UBC_PINNED, .handle_types = UBC_HANDLE_POSIX_FD,
		.location = {UBC_LOCATION_DEVICE, device}, .flags = {.rdma = rdma}};
	return p;
}

ubc_result ubc_granularity(uintptr_t ctx, int device) {
	ENTER(ctx);
	ubc_prop p = prop(device, 0);
	size_t n = 0;
	TRY(cuMemGetAllocationGranularity, &n, &p, UBC_GRANULARITY_RECOMMENDED);
	r.a = n;
	LEAVE();
}

ubc_result ubc_create(uintptr_t ctx, int device, int rdma, size_t n) {
	ENTER(ctx);
	ubc_prop p = prop(device, rdma);
	TRY(cuMemCreate, &r.a, n, &p, 0);
	LEAVE();
}

ubc_result ubc_export(uintptr_t ctx, uint64_t h) {
	ENTER(ctx);
	int fd = -1;
	TRY(cuMemExportToShareableHandle, &fd, h, UBC_HANDLE_POSIX_FD, 0);
	if (!r.code)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	r.a = fd;
	LEAVE();
}

ubc_result ubc_dma_buf(uintptr_t ctx, uintptr_t p, size_t n) {
	ENTER(ctx);
	int fd = -1;
	TRY(cuMemGetHandleForAddressRange, &fd, p, n, UBC_RANGE_DMA_BUF, 0);
	if (!r.code)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	r.a = fd;
	LEAVE();
}

ubc_result ubc_set_access(uintptr_t ctx, uintptr_t p, size_t n, int device) {
	ENTER(ctx);
	ubc_access a = {{UBC_LOCATION_DEVICE, device}, UBC_ACCESS_READ_WRITE};
	TRY(cuMemSetAccess, p, n, &a, 1);
	LEAVE();
}
