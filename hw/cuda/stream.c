//go:build linux && cgo && (amd64 || arm64)

#include "call.h"

// "Not ready" is an answer, not an error.
static void answer(ubc_result *r) {
	r->a = r->code == 0;
	if (r->code == UBC_NOT_READY)
		r->code = 0;
}

ubc_result ubc_stream_check(uintptr_t ctx, uintptr_t s) {
	ENTER(ctx);
	uintptr_t owner = 0;
	TRY(cuStreamGetCtx, s, &owner);
	r.a = owner == ctx;
	LEAVE();
}

ubc_result ubc_stream_query(uintptr_t ctx, uintptr_t s) {
	ENTER(ctx);
	TRY(cuStreamQuery, s);
	answer(&r);
	LEAVE();
}

// These wait, because cgo pins host memory, which may be on the Go heap, only for the length of a call.
ubc_result ubc_upload(uintptr_t ctx, uintptr_t s, uintptr_t dst, const uint8_t *src, size_t n) {
	ENTER(ctx);
	TRY(cuMemcpyHtoDAsync_v2, dst, src, n, s);
	TRY(cuStreamSynchronize, s);
	LEAVE();
}

ubc_result ubc_download(uintptr_t ctx, uintptr_t s, uint8_t *dst, uintptr_t src, size_t n) {
	ENTER(ctx);
	TRY(cuMemcpyDtoHAsync_v2, dst, src, n, s);
	TRY(cuStreamSynchronize, s);
	LEAVE();
}

ubc_result ubc_event_query(uintptr_t ctx, uintptr_t e) {
	ENTER(ctx);
	TRY(cuEventQuery, e);
	answer(&r);
	LEAVE();
}

ubc_result ubc_capture_end(uintptr_t ctx, uintptr_t s, int keep) {
	ENTER(ctx);
	uintptr_t graph = 0, exec = 0;
	TRY(cuStreamEndCapture, s, &graph);
	TRY(cuGraphInstantiateWithFlags, &exec, graph, 0);
	if (graph && (r.code || !keep)) {
		ubc.cuGraphDestroy(graph);
		graph = 0;
	}
	r.a = exec;
	r.b = graph;
	LEAVE();
}

ubc_result ubc_capture_info(uintptr_t ctx, uintptr_t s) {
	ENTER_QUICK(ctx);
	int status = 0;
	uint64_t id = 0;
	TRY(cuStreamGetCaptureInfo_v2, s, &status, &id, 0, 0, 0);
	if (!r.code && status == UBC_CAPTURE_INVALIDATED) {
		r.code = UBC_CAPTURE_BROKEN;
		r.call = "cuStreamGetCaptureInfo_v2";
	}
	r.a = status == UBC_CAPTURE_ACTIVE ? id : 0;
	LEAVE_QUICK();
}

ubc_result ubc_capture_last(uintptr_t ctx, uintptr_t s) {
	ENTER_QUICK(ctx);
	int status = 0;
	uint64_t id = 0;
	uintptr_t graph = 0;
	const uintptr_t *last = 0;
	size_t n = 0;
	TRY(cuStreamGetCaptureInfo_v2, s, &status, &id, &graph, &last, &n);
	if (!r.code && (status != UBC_CAPTURE_ACTIVE || n != 1)) {
		r.code = UBC_CAPTURE_BROKEN;
		r.call = "cuStreamGetCaptureInfo_v2";
	}
	r.a = r.code ? 0 : last[0];
	LEAVE_QUICK();
}

ubc_result ubc_graph_launch(uintptr_t ctx, uintptr_t g, uintptr_t s) {
	ENTER_QUICK(ctx);
	TRY(cuGraphLaunch, g, s);
	LEAVE_QUICK();
}

ubc_result ubc_graph_set(uintptr_t ctx, uintptr_t g, uintptr_t node, uintptr_t f, unsigned grid, unsigned block,
	unsigned shared, const uint8_t *params, size_t n) {
	ENTER_QUICK(ctx);
	void *extra[] = {UBC_PARAM_POINTER, (void *)params, UBC_PARAM_SIZE, &n, UBC_PARAM_END};
	ubc_kernel_node k = {f, {grid, 1, 1}, {block, 1, 1}, shared, 0, extra};
	TRY(cuGraphExecKernelNodeSetParams, g, node, &k);
	LEAVE_QUICK();
}

ubc_result ubc_graph_destroy(uintptr_t ctx, uintptr_t g, uintptr_t kept) {
	ENTER(ctx);
	if (mode >= 0 && kept)
		ubc.cuGraphDestroy(kept);
	TRY(cuGraphExecDestroy, g);
	LEAVE();
}

// Loads PTX as one of the driver's libraries: the driver assembles these without a lock on the context, beside others
// and while kernels run. It would assemble a module (cuModule...) with the lock held.
//
// The driver assembles a library at once and writes the log, but cuLibraryLoadData succeeds even if the text is wrong
// (CUDA 13): the first call that wants something of the library returns the error. So it is asked for a kernel that no
// module has.
ubc_result ubc_module_load(uintptr_t ctx, const char *ptx, char *log, size_t len) {
	ENTER(ctx);
	uintptr_t m = 0;
	int options[] = {UBC_JIT_ERROR_LOG, UBC_JIT_ERROR_LOG_SIZE};
	void *values[] = {log, (void *)(uintptr_t)len};
	TRY(cuLibraryLoadData, &m, ptx, options, values, 2, 0, 0, 0);
	uintptr_t k = 0;
	int loaded = !r.code;
	TRY(cuLibraryGetKernel, &k, m, "?");
	if (r.code == UBC_NOT_FOUND)
		r.code = 0;
	else if (loaded && r.code)
		ubc.cuLibraryUnload(m);
	r.a = m;
	LEAVE();
}

// The first function of a library loads it; for that the driver waits for running kernels. Asking for an attribute also
// loads the function itself. Otherwise the driver might load it at its first launch, and wait for running kernels
// there, forever if these wait for the launched kernel.
ubc_result ubc_function(uintptr_t ctx, uintptr_t m, const char *name, int *threads, int *registers) {
	ENTER(ctx);
	uintptr_t k = 0, f = 0;
	TRY(cuLibraryGetKernel, &k, m, name);
	TRY(cuKernelGetFunction, &f, k);
	TRY(cuFuncGetAttribute, threads, UBC_FUNC_MAX_THREADS, f);
	TRY(cuFuncGetAttribute, registers, UBC_FUNC_REGISTERS, f);
	r.a = f;
	LEAVE();
}

ubc_result ubc_occupancy(uintptr_t ctx, uintptr_t f, int threads, size_t shared) {
	ENTER(ctx);
	int n = 0;
	TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, &n, f, threads, shared);
	r.a = n;
	LEAVE();
}

ubc_result ubc_launch(uintptr_t ctx, uintptr_t f, uintptr_t s, unsigned grid, unsigned block, unsigned shared,
	int early, const uint8_t *params, size_t n) {
	ENTER_QUICK(ctx);
	void *extra[] = {UBC_PARAM_POINTER, (void *)params, UBC_PARAM_SIZE, &n, UBC_PARAM_END};
	ubc_launch_attribute overlap = {.id = UBC_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = 1};
	ubc_launch_config config = {{grid, 1, 1}, {block, 1, 1}, shared, s, &overlap, early};
	TRY(cuLaunchKernelEx, &config, f, 0, extra);
	LEAVE_QUICK();
}
