//go:build linux && cgo && (amd64 || arm64)

// Loading the driver, calls that need no current context, and those that only need one.
#define _POSIX_C_SOURCE 200112L // setenv
#include "call.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

ubc_driver ubc;
void *ubc_library;

int ubc_load(const char *path, char *why, size_t len, const char **missing) {
	dlerror();
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, len, "%s", dlerror());
		return 0;
	}
	ubc_library = lib; // never unloaded: the driver would not survive that
#define LOAD(name, params) \
	if (!(*(void **)&ubc.name = dlsym(lib, #name))) { \
		*missing = #name; \
		return 0; \
	}
	UBC_CALLS(LOAD)
	return 1;
}

ubc_result ubc_init(void) {
	ubc_result r = {0};
	int n = 0, version = 0;
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); // cuInit reads it
	TRY(cuInit, 0);
	TRY(cuDeviceGetCount, &n);
	TRY(cuDriverGetVersion, &version);
	r.a = n, r.b = version;
	return r;
}

const char *ubc_error_name(int code) {
	const char *s = 0;
	ubc.cuGetErrorName(code, &s);
	return s ? s : "";
}

const char *ubc_error_string(int code) {
	const char *s = 0;
	ubc.cuGetErrorString(code, &s);
	return s ? s : "";
}

// An older driver refuses an attribute that it does not know; then it does not support the feature, either.
static int attribute(int a, int device) {
	int v = 0;
	return ubc.cuDeviceGetAttribute(&v, a, device) ? 0 : v;
}

ubc_result ubc_describe(int ordinal, ubc_device *d) {
	ubc_result r = {0};
	int dev = 0;
	size_t memory = 0;
	TRY(cuDeviceGet, &dev, ordinal);
	TRY(cuDeviceGetName, d->name, sizeof d->name, dev);
	TRY(cuDeviceGetUuid_v2, d->uuid, dev);
	TRY(cuDeviceGetPCIBusId, d->pci, sizeof d->pci, dev);
	TRY(cuDeviceTotalMem_v2, &memory, dev);
	if (r.code)
		return r;
	d->memory = memory;
	d->major = attribute(UBC_ATTR_MAJOR, dev);
	d->minor = attribute(UBC_ATTR_MINOR, dev);
	d->sms = attribute(UBC_ATTR_SMS, dev);
	d->copy_engines = attribute(UBC_ATTR_COPY_ENGINES, dev);
	d->shared = attribute(UBC_ATTR_SHARED_OPTIN, dev);
	d->vmm = attribute(UBC_ATTR_VMM, dev);
	d->posix_fd = attribute(UBC_ATTR_POSIX_FD, dev);
	d->fabric = attribute(UBC_ATTR_FABRIC, dev);
	d->multicast = attribute(UBC_ATTR_MULTICAST, dev);
	d->rdma = attribute(UBC_ATTR_RDMA, dev);
	d->rdma_vmm = attribute(UBC_ATTR_RDMA_VMM, dev);
	d->rdma_flush = attribute(UBC_ATTR_RDMA_FLUSH, dev);
	d->rdma_order = attribute(UBC_ATTR_RDMA_ORDER, dev);
	d->dma_buf = attribute(UBC_ATTR_DMA_BUF, dev);
	d->host_atomics = attribute(UBC_ATTR_HOST_ATOMICS, dev);
	d->pools = attribute(UBC_ATTR_POOLS, dev);
	d->mps = attribute(UBC_ATTR_MPS, dev);
	return r;
}

ubc_result ubc_p2p(int from, int to, ubc_link *l) {
	ubc_result r = {0};
	int can = 0;
	TRY(cuDeviceCanAccessPeer, &can, from, to);
	TRY(cuDeviceGetP2PAttribute, &l->access, UBC_P2P_ACCESS, from, to);
	TRY(cuDeviceGetP2PAttribute, &l->atomics, UBC_P2P_ATOMICS, from, to);
	TRY(cuDeviceGetP2PAttribute, &l->rank, UBC_P2P_RANK, from, to);
	l->access = l->access && can;
	return r;
}

ubc_result ubc_retain(int ordinal) {
	ubc_result r = {0};
	int dev = 0;
	uintptr_t ctx = 0;
	TRY(cuDeviceGet, &dev, ordinal);
	TRY(cuDevicePrimaryCtxRetain, &ctx, dev);
	r.a = ctx;
	return r;
}

ubc_result ubc_release(int ordinal) {
	ubc_result r = {0};
	int dev = 0;
	TRY(cuDeviceGet, &dev, ordinal);
	TRY(cuDevicePrimaryCtxRelease_v2, dev);
	return r;
}

int ubc_push(ubc_result *r, uintptr_t ctx) {
	r->code = ctx ? ubc.cuCtxPushCurrent_v2(ctx) : UBC_CLOSED;
	if (r->code)
		r->call = "cuCtxPushCurrent_v2";
	return !r->code;
}

void ubc_pop(ubc_result *r) {
	uintptr_t ctx;
	int code = ubc.cuCtxPopCurrent_v2(&ctx);
	if (code && !r->code) {
		r->code = code;
		r->call = "cuCtxPopCurrent_v2";
	}
}

int ubc_enter(ubc_result *r, uintptr_t ctx) {
	int mode = UBC_CAPTURE_RELAXED;
	if (!ubc_push(r, ctx))
		return -1;
	if ((r->code = ubc.cuThreadExchangeStreamCaptureMode(&mode))) {
		r->call = "cuThreadExchangeStreamCaptureMode";
		ubc_pop(r);
		return -1;
	}
	return mode;
}

void ubc_leave(ubc_result *r, int mode) {
	if (mode < 0)
		return;
	ubc.cuThreadExchangeStreamCaptureMode(&mode);
	ubc_pop(r);
}

ubc_result ubc_enable_peer(uintptr_t ctx, uintptr_t peer) {
	ENTER(ctx);
	TRY(cuCtxEnablePeerAccess, peer, 0);
	if (r.code == UBC_PEER_ALREADY_ENABLED)
		r.code = 0;
	LEAVE();
}

#define DEFINE(name, params, ...) \
	ubc_result name params { \
		ENTER(ctx); \
		TRY(__VA_ARGS__); \
		LEAVE(); \
	}
UBC_SHIMS(DEFINE)
