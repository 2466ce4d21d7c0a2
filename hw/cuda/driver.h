// The part of NVIDIA's CUDA driver API that this package binds. It is declared here so that building needs no toolkit.
// The calls are the documented exports of libcuda.so.1, by their versioned names, which drivers keep.
#ifndef UBC_CUDA_DRIVER_H
#define UBC_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

// CUmemLocation, CUmemAllocationProp, CUmemAccessDesc, CUipcMemHandle, CUlaunchAttribute and CUlaunchConfig, field by
// field.
typedef struct {
	int type;
	int id;
} ubc_location;

typedef struct {
	int type;
	int handle_types;
	ubc_location location;
	void *win32;
	struct {
		uint8_t compression;
		uint8_t rdma;
		uint16_t usage;
		uint8_t reserved[4];
	} flags;
} ubc_prop;

typedef struct {
	ubc_location location;
	int flags;
} ubc_access;

typedef struct {
	char reserved[64];
} ubc_ipc;

typedef struct {
	int id;
	int pad;
	int value; // for attributes with an int value
	char rest[60];
} ubc_launch_attribute;

typedef struct {
	unsigned grid[3], block[3], shared;
	uintptr_t stream;
	ubc_launch_attribute *attributes;
	unsigned count;
} ubc_launch_config;

typedef struct { // the API's first version of the struct, which drivers keep
	uintptr_t function;
	unsigned grid[3], block[3], shared;
	void **params, **extra;
} ubc_kernel_node;

// Their sizes, and where their fields are: ours, the number, and the API's. testdata/parity.c compares these, and the
// values below, with a cuda.h.
#define UBC_SIZES(X) \
	X(ubc_location, 8, CUmemLocation) \
	X(ubc_prop, 32, CUmemAllocationProp) \
	X(ubc_access, 12, CUmemAccessDesc) \
	X(ubc_ipc, 64, CUipcMemHandle) \
	X(ubc_launch_attribute, 72, CUlaunchAttribute) \
	X(ubc_launch_config, 56, CUlaunchConfig) \
	X(ubc_kernel_node, 56, CUDA_KERNEL_NODE_PARAMS_v1) \
	X(uintptr_t, 8, CUdeviceptr) \
	X(uintptr_t, 8, CUstream) \
	X(uint64_t, 8, CUmemGenericAllocationHandle) \
	X(uint64_t, 8, cuuint64_t) \
	X(int, 4, CUdevice) \
	X(int, 4, CUresult) \
	X(int, 4, CUjit_option) \
	X(int, 4, CUpointer_attribute)
#define UBC_FIELDS(X) \
	X(ubc_location, id, 4, CUmemLocation, id) \
	X(ubc_prop, type, 0, CUmemAllocationProp, type) \
	X(ubc_prop, handle_types, 4, CUmemAllocationProp, requestedHandleTypes) \
	X(ubc_prop, location, 8, CUmemAllocationProp, location) \
	X(ubc_prop, win32, 16, CUmemAllocationProp, win32HandleMetaData) \
	X(ubc_prop, flags.compression, 24, CUmemAllocationProp, allocFlags.compressionType) \
	X(ubc_prop, flags.rdma, 25, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) \
	X(ubc_prop, flags.usage, 26, CUmemAllocationProp, allocFlags.usage) \
	X(ubc_access, location, 0, CUmemAccessDesc, location) \
	X(ubc_access, flags, 8, CUmemAccessDesc, flags) \
	X(ubc_launch_attribute, id, 0, CUlaunchAttribute, id) \
	X(ubc_launch_attribute, value, 8, CUlaunchAttribute, value.programmaticStreamSerializationAllowed) \
	X(ubc_launch_config, grid, 0, CUlaunchConfig, gridDimX) \
	X(ubc_launch_config, block, 12, CUlaunchConfig, blockDimX) \
	X(ubc_launch_config, shared, 24, CUlaunchConfig, sharedMemBytes) \
	X(ubc_launch_config, stream, 32, CUlaunchConfig, hStream) \
	X(ubc_launch_config, attributes, 40, CUlaunchConfig, attrs) \
	X(ubc_launch_config, count, 48, CUlaunchConfig, numAttrs) \
	X(ubc_kernel_node, function, 0, CUDA_KERNEL_NODE_PARAMS_v1, func) \
	X(ubc_kernel_node, grid, 8, CUDA_KERNEL_NODE_PARAMS_v1, gridDimX) \
	X(ubc_kernel_node, block, 20, CUDA_KERNEL_NODE_PARAMS_v1, blockDimX) \
	X(ubc_kernel_node, shared, 32, CUDA_KERNEL_NODE_PARAMS_v1, sharedMemBytes) \
	X(ubc_kernel_node, params, 40, CUDA_KERNEL_NODE_PARAMS_v1, kernelParams) \
	X(ubc_kernel_node, extra, 48, CUDA_KERNEL_NODE_PARAMS_v1, extra)

#define UBC_SIZE(type, size, theirs) _Static_assert(sizeof(type) == (size), #type);
UBC_SIZES(UBC_SIZE)
#define UBC_FIELD(type, field, at, Type, Field) _Static_assert(offsetof(type, field) == (at), #type "." #field);
UBC_FIELDS(UBC_FIELD)

// Values of the API's enumerations: our name, the value, and the API's name.
#define UBC_VALUES(X) \
	X(UBC_ATTR_SMS, 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) \
	X(UBC_ATTR_COPY_ENGINES, 40, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT) \
	X(UBC_ATTR_MAJOR, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) \
	X(UBC_ATTR_MINOR, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) \
	X(UBC_ATTR_HOST_ATOMICS, 86, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED) \
	X(UBC_ATTR_SHARED_OPTIN, 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) \
	X(UBC_ATTR_VMM, 102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) \
	X(UBC_ATTR_POSIX_FD, 103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) \
	X(UBC_ATTR_RDMA_VMM, 110, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) \
	X(UBC_ATTR_POOLS, 115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) \
	X(UBC_ATTR_RDMA, 116, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) \
	X(UBC_ATTR_RDMA_FLUSH, 117, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) \
	X(UBC_ATTR_RDMA_ORDER, 118, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) \
	X(UBC_ATTR_DMA_BUF, 124, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) \
	X(UBC_ATTR_FABRIC, 128, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) \
	X(UBC_ATTR_MULTICAST, 132, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) \
	X(UBC_ATTR_MPS, 133, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) \
	\
	X(UBC_PTR_MEMORY_TYPE, 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) \
	X(UBC_PTR_BUFFER_ID, 7, CU_POINTER_ATTRIBUTE_BUFFER_ID) \
	X(UBC_PTR_MANAGED, 8, CU_POINTER_ATTRIBUTE_IS_MANAGED) \
	X(UBC_PTR_DEVICE, 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) \
	X(UBC_PTR_LEGACY_IPC, 10, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) \
	X(UBC_PTR_RANGE_START, 11, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) \
	X(UBC_PTR_RANGE_SIZE, 12, CU_POINTER_ATTRIBUTE_RANGE_SIZE) \
	X(UBC_PTR_HANDLE_TYPES, 14, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) \
	X(UBC_PTR_RDMA, 15, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE) \
	X(UBC_PTR_POOL, 17, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) \
	X(UBC_PTR_MAPPING_SIZE, 18, CU_POINTER_ATTRIBUTE_MAPPING_SIZE) \
	X(UBC_PTR_MAPPING_START, 19, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) \
	\
	X(UBC_P2P_RANK, 1, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK) \
	X(UBC_P2P_ACCESS, 2, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) \
	X(UBC_P2P_ATOMICS, 3, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) \
	\
	X(UBC_MEMORY_HOST, 1, CU_MEMORYTYPE_HOST) \
	X(UBC_MEMORY_DEVICE, 2, CU_MEMORYTYPE_DEVICE) \
	\
	X(UBC_PINNED, 1, CU_MEM_ALLOCATION_TYPE_PINNED) \
	X(UBC_HANDLE_POSIX_FD, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) \
	X(UBC_LOCATION_DEVICE, 1, CU_MEM_LOCATION_TYPE_DEVICE) \
	X(UBC_ACCESS_READ_WRITE, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) \
	X(UBC_GRANULARITY_RECOMMENDED, 1, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) \
	X(UBC_RANGE_DMA_BUF, 1, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) \
	X(UBC_RDMA_FLUSH_HOST, 1, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) \
	X(UBC_RDMA_ORDER_OWNER, 100, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) \
	X(UBC_RDMA_FLUSH_CURRENT, 0, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX) \
	X(UBC_RDMA_FLUSH_TO_OWNER, 100, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER) \
	X(UBC_IPC_LAZY_PEER, 1, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) \
	X(UBC_HOST_PORTABLE, 1, CU_MEMHOSTREGISTER_PORTABLE) \
	X(UBC_HOST_DEVICE_MAP, 2, CU_MEMHOSTREGISTER_DEVICEMAP) \
	X(UBC_STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING) \
	X(UBC_EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING) \
	X(UBC_CAPTURE_RELAXED, 2, CU_STREAM_CAPTURE_MODE_RELAXED) \
	X(UBC_CAPTURE_ACTIVE, 1, CU_STREAM_CAPTURE_STATUS_ACTIVE) \
	X(UBC_CAPTURE_INVALIDATED, 2, CU_STREAM_CAPTURE_STATUS_INVALIDATED) \
	X(UBC_JIT_ERROR_LOG, 5, CU_JIT_ERROR_LOG_BUFFER) \
	X(UBC_JIT_ERROR_LOG_SIZE, 6, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) \
	X(UBC_FUNC_MAX_THREADS, 0, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) \
	X(UBC_FUNC_REGISTERS, 4, CU_FUNC_ATTRIBUTE_NUM_REGS) \
	X(UBC_FUNC_MAX_DYNAMIC_SHARED, 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) \
	X(UBC_LAUNCH_PROGRAMMATIC_SERIALIZATION, 6, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) \
	\
	X(UBC_NOT_FOUND, 500, CUDA_ERROR_NOT_FOUND) \
	X(UBC_NOT_READY, 600, CUDA_ERROR_NOT_READY) \
	X(UBC_PEER_ALREADY_ENABLED, 704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) \
	X(UBC_CAPTURE_BROKEN, 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)

enum {
#define UBC_VALUE(ours, value, theirs) ours = value,
	UBC_VALUES(UBC_VALUE)
#undef UBC_VALUE
	UBC_CLOSED = -1, // ours: the Go object was closed
};

// Markers in cuLaunchKernelEx's last argument.
#define UBC_PARAM_END ((void *)0)
#define UBC_PARAM_POINTER ((void *)1)
#define UBC_PARAM_SIZE ((void *)2)

// Every call: its name and parameters. Handles (CUcontext, CUstream, ...) and CUdeviceptr are uintptr_t here. All calls
// return CUresult, an int. Those about multicast objects are in multicast.h.
#define UBC_CALLS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuDriverGetVersion, (int *version)) \
	X(cuGetErrorName, (int code, const char **s)) \
	X(cuGetErrorString, (int code, const char **s)) \
	X(cuDeviceGetCount, (int *n)) \
	X(cuDeviceGet, (int *device, int ordinal)) \
	X(cuDeviceGetName, (char *name, int len, int device)) \
	X(cuDeviceGetUuid_v2, (void *uuid, int device)) \
	X(cuDeviceGetPCIBusId, (char *id, int len, int device)) \
	X(cuDeviceTotalMem_v2, (size_t *n, int device)) \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
	X(cuDeviceCanAccessPeer, (int *can, int device, int peer)) \
	X(cuDeviceGetP2PAttribute, (int *value, int attribute, int from, int to)) \
	X(cuDevicePrimaryCtxRetain, (uintptr_t *ctx, int device)) \
	X(cuDevicePrimaryCtxRelease_v2, (int device)) \
	X(cuCtxPushCurrent_v2, (uintptr_t ctx)) \
	X(cuCtxPopCurrent_v2, (uintptr_t *ctx)) \
	X(cuCtxEnablePeerAccess, (uintptr_t peer, unsigned flags)) \
	X(cuThreadExchangeStreamCaptureMode, (int *mode)) \
	X(cuMemGetInfo_v2, (size_t *available, size_t *total)) \
	X(cuMemAlloc_v2, (uintptr_t *p, size_t n)) \
	X(cuMemFree_v2, (uintptr_t p)) \
	X(cuMemHostRegister_v2, (void *p, size_t n, unsigned flags)) \
	X(cuMemHostGetDevicePointer_v2, (uintptr_t *d, void *p, unsigned flags)) \
	X(cuMemHostUnregister, (void *p)) \
	X(cuPointerGetAttributes, (unsigned n, const int *attributes, void **values, uintptr_t p)) \
	X(cuIpcGetMemHandle, (ubc_ipc *h, uintptr_t p)) \
	X(cuIpcOpenMemHandle_v2, (uintptr_t *p, ubc_ipc h, unsigned flags)) \
	X(cuIpcCloseMemHandle, (uintptr_t p)) \
	X(cuMemGetAllocationGranularity, (size_t *n, const ubc_prop *prop, int option)) \
	X(cuMemCreate, (uint64_t *h, size_t n, const ubc_prop *prop, uint64_t flags)) \
	X(cuMemRelease, (uint64_t h)) \
	X(cuMemRetainAllocationHandle, (uint64_t *h, void *p)) \
	X(cuMemExportToShareableHandle, (void *fd, uint64_t h, int type, uint64_t flags)) \
	X(cuMemGetHandleForAddressRange, (void *fd, uintptr_t p, size_t n, int type, uint64_t flags)) \
	X(cuFlushGPUDirectRDMAWrites, (int target, int scope)) \
	X(cuMemImportFromShareableHandle, (uint64_t *h, void *fd, int type)) \
	X(cuMemAddressReserve, (uintptr_t *p, size_t n, size_t align, uintptr_t at, uint64_t flags)) \
	X(cuMemAddressFree, (uintptr_t p, size_t n)) \
	X(cuMemMap, (uintptr_t p, size_t n, size_t offset, uint64_t h, uint64_t flags)) \
	X(cuMemUnmap, (uintptr_t p, size_t n)) \
	X(cuMemSetAccess, (uintptr_t p, size_t n, const ubc_access *desc, size_t count)) \
	X(cuMemcpyAsync, (uintptr_t dst, uintptr_t src, size_t n, uintptr_t stream)) \
	X(cuMemcpyHtoDAsync_v2, (uintptr_t dst, const void *src, size_t n, uintptr_t stream)) \
	X(cuMemcpyDtoHAsync_v2, (void *dst, uintptr_t src, size_t n, uintptr_t stream)) \
	X(cuMemsetD8Async, (uintptr_t dst, unsigned char value, size_t n, uintptr_t stream)) \
	X(cuStreamCreate, (uintptr_t *stream, unsigned flags)) \
	X(cuStreamGetCtx, (uintptr_t stream, uintptr_t *ctx)) \
	X(cuStreamDestroy_v2, (uintptr_t stream)) \
	X(cuStreamQuery, (uintptr_t stream)) \
	X(cuStreamSynchronize, (uintptr_t stream)) \
	X(cuStreamWaitEvent, (uintptr_t stream, uintptr_t event, unsigned flags)) \
	X(cuStreamBeginCapture_v2, (uintptr_t stream, int mode)) \
	X(cuStreamEndCapture, (uintptr_t stream, uintptr_t *graph)) \
	X(cuStreamGetCaptureInfo_v2, (uintptr_t stream, int *status, uint64_t *id, uintptr_t *graph, \
		const uintptr_t **after, size_t *count)) \
	X(cuEventCreate, (uintptr_t *event, unsigned flags)) \
	X(cuEventDestroy_v2, (uintptr_t event)) \
	X(cuEventRecord, (uintptr_t event, uintptr_t stream)) \
	X(cuEventQuery, (uintptr_t event)) \
	X(cuEventSynchronize, (uintptr_t event)) \
	X(cuEventElapsedTime, (float *ms, uintptr_t from, uintptr_t to)) \
	X(cuGraphInstantiateWithFlags, (uintptr_t *exec, uintptr_t graph, uint64_t flags)) \
	X(cuGraphDestroy, (uintptr_t graph)) \
	X(cuGraphLaunch, (uintptr_t exec, uintptr_t stream)) \
	X(cuGraphExecDestroy, (uintptr_t exec)) \
	X(cuGraphExecKernelNodeSetParams, (uintptr_t exec, uintptr_t node, const ubc_kernel_node *params)) \
	X(cuLibraryLoadData, (uintptr_t *library, const void *code, int *options, void **values, unsigned n, \
		int *library_options, void **library_values, unsigned library_n)) \
	X(cuLibraryGetKernel, (uintptr_t *kernel, uintptr_t library, const char *name)) \
	X(cuLibraryUnload, (uintptr_t library)) \
	X(cuKernelGetFunction, (uintptr_t *function, uintptr_t kernel)) \
	X(cuFuncGetAttribute, (int *value, int attribute, uintptr_t function)) \
	X(cuFuncSetAttribute, (uintptr_t function, int attribute, int value)) \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, uintptr_t function, int threads, size_t shared)) \
	X(cuLaunchKernelEx, (const ubc_launch_config *config, uintptr_t function, void **params, void **extra))

// The result of a call: the driver's code and the name of the failed call, or two values.
typedef struct {
	int code;
	const char *call;
	uint64_t a, b;
} ubc_result;

// Loads the driver, once per process. Returns false with the reason or, if a symbol is missing, its name.
int ubc_load(const char *path, char *why, size_t len, const char **missing);
ubc_result ubc_init(void); // a: devices, b: version
const char *ubc_error_name(int code);
const char *ubc_error_string(int code);

typedef struct {
	char name[256], pci[32];
	uint8_t uuid[16];
	uint64_t memory;
	int major, minor, sms, copy_engines, shared;
	int vmm, posix_fd, fabric, multicast, rdma, rdma_vmm, rdma_flush, rdma_order, dma_buf, host_atomics, pools, mps;
} ubc_device;
ubc_result ubc_describe(int ordinal, ubc_device *d);

typedef struct {
	int access, atomics, rank;
} ubc_link;
ubc_result ubc_p2p(int from, int to, ubc_link *l);

typedef struct {
	uint64_t type, device, id, managed, legacy_ipc, start, size, handle_types, rdma, pool, map_start, map_size;
} ubc_memory;
ubc_result ubc_inspect(uintptr_t p, ubc_memory *m);

ubc_result ubc_retain(int ordinal); // a: context
ubc_result ubc_release(int ordinal);

// Each function below makes ctx current on its thread, calls the driver, and restores the previous context.

// Those that make one call and no more, between ENTER and LEAVE of call.h: the name, the parameters, and the call with its
// arguments. What the call returns goes to the result's a and b: uintptr_t, size_t and uint64_t are one type here.
#define UBC_SHIMS(X) \
	X(ubc_mem_info, (uintptr_t ctx), cuMemGetInfo_v2, &r.a, &r.b) /* free, total */ \
	X(ubc_alloc, (uintptr_t ctx, size_t n), cuMemAlloc_v2, &r.a, n) \
	X(ubc_free, (uintptr_t ctx, uintptr_t p), cuMemFree_v2, p) \
	X(ubc_host_unregister, (uintptr_t ctx, void *p), cuMemHostUnregister, p) \
	X(ubc_ipc_get, (uintptr_t ctx, uintptr_t p, ubc_ipc *h), cuIpcGetMemHandle, h, p) \
	X(ubc_ipc_open, (uintptr_t ctx, const ubc_ipc *h), cuIpcOpenMemHandle_v2, &r.a, *h, UBC_IPC_LAZY_PEER) \
	X(ubc_ipc_close, (uintptr_t ctx, uintptr_t p), cuIpcCloseMemHandle, p) \
	X(ubc_release_handle, (uintptr_t ctx, uint64_t h), cuMemRelease, h) \
	X(ubc_retain_handle, (uintptr_t ctx, uintptr_t p), cuMemRetainAllocationHandle, &r.a, (void *)p) \
	X(ubc_import, (uintptr_t ctx, int fd), cuMemImportFromShareableHandle, &r.a, (void *)(uintptr_t)fd, \
		UBC_HANDLE_POSIX_FD) \
	X(ubc_rdma_flush, (uintptr_t ctx), cuFlushGPUDirectRDMAWrites, UBC_RDMA_FLUSH_CURRENT, UBC_RDMA_FLUSH_TO_OWNER) \
	X(ubc_reserve, (uintptr_t ctx, size_t n, size_t align), cuMemAddressReserve, &r.a, n, align, 0, 0) \
	X(ubc_unreserve, (uintptr_t ctx, uintptr_t p, size_t n), cuMemAddressFree, p, n) \
	X(ubc_map, (uintptr_t ctx, uintptr_t p, size_t n, uint64_t h), cuMemMap, p, n, 0, h, 0) \
	X(ubc_unmap, (uintptr_t ctx, uintptr_t p, size_t n), cuMemUnmap, p, n) \
	X(ubc_stream_create, (uintptr_t ctx), cuStreamCreate, &r.a, UBC_STREAM_NON_BLOCKING) \
	X(ubc_stream_destroy, (uintptr_t ctx, uintptr_t s), cuStreamDestroy_v2, s) \
	X(ubc_stream_sync, (uintptr_t ctx, uintptr_t s), cuStreamSynchronize, s) \
	X(ubc_stream_wait, (uintptr_t ctx, uintptr_t s, uintptr_t event), cuStreamWaitEvent, s, event, 0) \
	X(ubc_copy, (uintptr_t ctx, uintptr_t s, uintptr_t dst, uintptr_t src, size_t n), cuMemcpyAsync, dst, src, n, s) \
	X(ubc_fill, (uintptr_t ctx, uintptr_t s, uintptr_t dst, int value, size_t n), cuMemsetD8Async, dst, value, n, s) \
	X(ubc_event_create, (uintptr_t ctx, int timing), cuEventCreate, &r.a, timing ? 0 : UBC_EVENT_DISABLE_TIMING) \
	X(ubc_event_destroy, (uintptr_t ctx, uintptr_t e), cuEventDestroy_v2, e) \
	X(ubc_event_record, (uintptr_t ctx, uintptr_t e, uintptr_t s), cuEventRecord, e, s) \
	X(ubc_event_sync, (uintptr_t ctx, uintptr_t e), cuEventSynchronize, e) \
	X(ubc_event_elapsed, (uintptr_t ctx, uintptr_t from, uintptr_t to, float *ms), cuEventElapsedTime, ms, from, to) \
	X(ubc_capture_begin, (uintptr_t ctx, uintptr_t s, int how), cuStreamBeginCapture_v2, s, how) \
	X(ubc_module_unload, (uintptr_t ctx, uintptr_t m), cuLibraryUnload, m) \
	X(ubc_function_shared, (uintptr_t ctx, uintptr_t f, int n), cuFuncSetAttribute, f, UBC_FUNC_MAX_DYNAMIC_SHARED, n)

#define UBC_DECLARE(name, params, ...) ubc_result name params;
UBC_SHIMS(UBC_DECLARE)

ubc_result ubc_enable_peer(uintptr_t ctx, uintptr_t peer);

ubc_result ubc_host_register(uintptr_t ctx, void *p, size_t n);
ubc_result ubc_granularity(uintptr_t ctx, int device);
ubc_result ubc_create(uintptr_t ctx, int device, int rdma, size_t n);
ubc_result ubc_export(uintptr_t ctx, uint64_t h);
ubc_result ubc_dma_buf(uintptr_t ctx, uintptr_t p, size_t n); // a: the descriptor
ubc_result ubc_set_access(uintptr_t ctx, uintptr_t p, size_t n, int device);

ubc_result ubc_stream_check(uintptr_t ctx, uintptr_t s); // a: whether s belongs to ctx
ubc_result ubc_stream_query(uintptr_t ctx, uintptr_t s); // a: done
ubc_result ubc_upload(uintptr_t ctx, uintptr_t s, uintptr_t dst, const uint8_t *src, size_t n);
ubc_result ubc_download(uintptr_t ctx, uintptr_t s, uint8_t *dst, uintptr_t src, size_t n);
ubc_result ubc_event_query(uintptr_t ctx, uintptr_t e); // a: done

ubc_result ubc_capture_end(uintptr_t ctx, uintptr_t s, int keep); // a: an executable graph, b: the graph it was made
                                                                  // from, if kept
ubc_result ubc_capture_info(uintptr_t ctx, uintptr_t s); // a: the capture's id, 0 for none
ubc_result ubc_capture_last(uintptr_t ctx, uintptr_t s); // a: the node that was captured last
ubc_result ubc_graph_launch(uintptr_t ctx, uintptr_t g, uintptr_t s);
ubc_result ubc_graph_set(uintptr_t ctx, uintptr_t g, uintptr_t node, uintptr_t f, unsigned grid, unsigned block,
	unsigned shared, const uint8_t *params, size_t n);
ubc_result ubc_graph_destroy(uintptr_t ctx, uintptr_t g, uintptr_t kept);

// Multicast objects, in builds with tag nvls. ubc_multicast_load returns 1 if the driver has the calls, 0 with the missing
// one if it has not, and -1 in other builds; whether the driver is the emulated one is told in either of the first cases.
int ubc_multicast_load(const char **missing, int *emulated);
#define UBC_MULTICAST_SHIMS(X) \
	X(ubc_multicast_granularity, (uintptr_t ctx, unsigned devices, size_t n)) /* a: least, b: for speed */ \
	X(ubc_multicast_create, (uintptr_t ctx, unsigned devices, size_t n)) \
	X(ubc_multicast_add, (uintptr_t ctx, uint64_t h, int ordinal)) \
	X(ubc_multicast_bind, (uintptr_t ctx, uint64_t h, size_t at, uint64_t memory, size_t from, size_t n)) \
	X(ubc_multicast_bind_addr, (uintptr_t ctx, uint64_t h, size_t at, uintptr_t p, size_t n)) \
	X(ubc_multicast_unbind, (uintptr_t ctx, uint64_t h, int ordinal, size_t at, size_t n))
UBC_MULTICAST_SHIMS(UBC_DECLARE)

ubc_result ubc_module_load(uintptr_t ctx, const char *ptx, char *log, size_t len);
ubc_result ubc_function(uintptr_t ctx, uintptr_t m, const char *name, int *threads, int *registers);
ubc_result ubc_occupancy(uintptr_t ctx, uintptr_t f, int threads, size_t shared);
ubc_result ubc_launch(uintptr_t ctx, uintptr_t f, uintptr_t s, unsigned grid, unsigned block, unsigned shared,
	int early, const uint8_t *params, size_t n);

#endif
