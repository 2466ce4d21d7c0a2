// Devices, contexts, errors.
#include "emulate.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

std::mutex &lock = *new std::mutex;
std::condition_variable &progressed = *new std::condition_variable;

uint64_t number(const char *name, uint64_t otherwise) {
	const char *s = getenv(name);
	return s && *s ? strtoull(s, 0, 0) : otherwise;
}

int device_count(void) {
	static int n = [] {
		uint64_t n = number("UBCOLL_EMULATE_DEVICES", 4);
		return n > most_devices ? most_devices : (int)n;
	}();
	return n;
}

device *device_at(int i) {
	static device *all = [] {
		device *a = new device[most_devices]();
		for (int i = 0; i < most_devices; i++)
			a[i].index = i;
		return a;
	}();
	return i >= 0 && i < device_count() ? &all[i] : 0;
}

int connections = 8;

bool room_counts(void) { return number("UBCOLL_EMULATE_SMS", 0) != 0; }
int multiprocessors(void) { return (int)number("UBCOLL_EMULATE_SMS", 10); }
uint64_t device_memory(void) { return number("UBCOLL_EMULATE_MEMORY", 4ull << 30); }

uint64_t new_handle(void) {
	static uint64_t last = 0x10000;
	return last += 16;
}

// "cuMemCreate:3" fails the third call after the variable was set; "cuMemCreate:3=1" fails it with code 1.
int injected(const char *name) {
	struct fault {
		std::string name;
		long left;
		int code;
	};
	static std::string &was = *new std::string;
	static std::vector<fault> &faults = *new std::vector<fault>;
	const char *now = getenv("UBCOLL_EMULATE_FAIL");
	if (!now)
		now = "";
	if (was != now) {
		was = now;
		faults.clear();
		for (const char *s = now; *s;) {
			size_t n = strcspn(s, " ,");
			std::string word(s, n), call = word.substr(0, word.find_first_of(":="));
			const char *count = strchr(word.c_str(), ':'), *code = strchr(word.c_str(), '=');
			int usual = call.compare(0, 5, "cuMem") ? UNKNOWN : OUT_OF_MEMORY;
			faults.push_back({call, count ? atol(count + 1) : 1, code ? atoi(code + 1) : usual});
			s += n + strspn(s + n, " ,");
		}
	}
	for (fault &f : faults) {
		size_t n = f.name.size();
		if (!strncmp(f.name.c_str(), name, n) && (!name[n] || !strncmp(name + n, "_v", 2)) && !--f.left)
			return f.code;
	}
	return 0;
}

static const struct {
	int code;
	const char *name, *text;
} errors[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
	{206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
	{208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
	{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
	{304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	{719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
	{907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int cuGetErrorName(int code, const char **s) {
	*s = 0;
	for (auto &e : errors)
		if (e.code == code)
			*s = e.name;
	return *s ? 0 : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **s) {
	*s = 0;
	for (auto &e : errors)
		if (e.code == code)
			*s = e.text;
	return *s ? 0 : INVALID_VALUE;
}

int cuInit(unsigned flags) {
	START("cuInit");
	if (flags)
		return INVALID_VALUE;
	static bool first = true;
	if (first)
		connections = std::max(1, std::min(most_connections, (int)number("CUDA_DEVICE_MAX_CONNECTIONS", connections)));
	first = false;
	return device_count() ? 0 : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
	START("cuDriverGetVersion");
	*version = 13000;
	return 0;
}

int cuDeviceGetCount(int *n) {
	START("cuDeviceGetCount");
	*n = device_count();
	return 0;
}

#define DEVICE(name, i) \
	START(name); \
	if (!device_at(i)) \
	return INVALID_DEVICE

int cuDeviceGet(int *device, int ordinal) {
	DEVICE("cuDeviceGet", ordinal);
	*device = ordinal;
	return 0;
}

int cuDeviceGetName(char *name, int len, int device) {
	DEVICE("cuDeviceGetName", device);
	snprintf(name, len, "Emulated GPU (tests only)");
	return 0;
}

int cuDeviceGetUuid_v2(void *uuid, int device) {
	DEVICE("cuDeviceGetUuid_v2", device);
	memcpy(uuid, "emulated GPU\0\0\0", 16);
	((unsigned char *)uuid)[15] = device + 1;
	return 0;
}

int cuDeviceGetPCIBusId(char *id, int len, int device) {
	DEVICE("cuDeviceGetPCIBusId", device);
	snprintf(id, len, "ffff:%02x:00.0", device + 1);
	return 0;
}

int cuDeviceTotalMem_v2(size_t *n, int device) {
	DEVICE("cuDeviceTotalMem_v2", device);
	*n = device_memory();
	return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
	DEVICE("cuDeviceGetAttribute", device);
	switch (attribute) {
	case UBC_ATTR_SMS: *value = multiprocessors(); break;
	case UBC_ATTR_COPY_ENGINES: *value = 2; break;
	case UBC_ATTR_MAJOR: *value = 9; break;
	case UBC_ATTR_SHARED_OPTIN: *value = shared_most; break;
	case UBC_ATTR_VMM: *value = 1; break;
	case UBC_ATTR_POSIX_FD: *value = 1; break;
	case UBC_ATTR_RDMA: *value = 1; break;
	case UBC_ATTR_RDMA_VMM: *value = 1; break;
	case UBC_ATTR_RDMA_FLUSH: *value = number("UBCOLL_EMULATE_RDMA", 2) ? UBC_RDMA_FLUSH_HOST : 0; break;
	case UBC_ATTR_RDMA_ORDER: *value = number("UBCOLL_EMULATE_RDMA", 2) == 2 ? UBC_RDMA_ORDER_OWNER : 0; break;
	case UBC_ATTR_DMA_BUF: *value = number("UBCOLL_EMULATE_DMABUF", 1) != 0; break;
	case UBC_ATTR_MULTICAST: *value = number("UBCOLL_EMULATE_MULTICAST", 1) != 0; break;
	case UBC_ATTR_MPS: *value = number("UBCOLL_EMULATE_MPS", 0); break;
	default: *value = 0;
	}
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
	DEVICE("cuDeviceCanAccessPeer", device);
	if (!device_at(peer))
		return INVALID_DEVICE;
	*can = device != peer;
	return 0;
}

int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to) {
	DEVICE("cuDeviceGetP2PAttribute", from);
	if (!device_at(to) || from == to)
		return INVALID_DEVICE;
	*value = attribute == UBC_P2P_ACCESS || (attribute == UBC_P2P_ATOMICS && number("UBCOLL_EMULATE_ATOMICS", 1));
	return 0;
}

// The context's handle is the device's address, and is valid while the context is retained.
int cuDevicePrimaryCtxRetain(uintptr_t *ctx, int i) {
	DEVICE("cuDevicePrimaryCtxRetain", i);
	device *d = device_at(i);
	d->retained++;
	*ctx = (uintptr_t)d;
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int i) {
	DEVICE("cuDevicePrimaryCtxRelease_v2", i);
	device *d = device_at(i);
	if (!d->retained)
		return INVALID_CONTEXT;
	if (d->retained == 1) {
		drain(locked, d);
		close_streams(d);
		close_graphs(d);
		close_libraries(d);
		free_memory(d);
		d->peers.clear();
		d->error = 0;
	}
	d->retained--;
	return 0;
}

static thread_local uintptr_t stacked[16];
static thread_local int depth;

static device *context(uintptr_t ctx) {
	for (int i = 0; i < device_count(); i++)
		if ((uintptr_t)device_at(i) == ctx)
			return device_at(i);
	return 0;
}

int current(device **d) {
	if (!depth)
		return INVALID_CONTEXT;
	*d = (device *)stacked[depth - 1];
	if (!(*d)->retained)
		return CONTEXT_IS_DESTROYED;
	return (*d)->error;
}

int cuCtxPushCurrent_v2(uintptr_t ctx) {
	START("cuCtxPushCurrent_v2");
	device *d = context(ctx);
	if (!d || depth == 16)
		return INVALID_CONTEXT;
	if (!d->retained)
		return CONTEXT_IS_DESTROYED;
	stacked[depth++] = ctx;
	return 0;
}

int cuCtxPopCurrent_v2(uintptr_t *ctx) {
	START("cuCtxPopCurrent_v2");
	if (!depth)
		return INVALID_CONTEXT;
	*ctx = stacked[--depth];
	return 0;
}

int cuCtxEnablePeerAccess(uintptr_t peer, unsigned flags) {
	BEGIN("cuCtxEnablePeerAccess");
	device *p = context(peer);
	if (!p)
		return INVALID_CONTEXT;
	if (p == d)
		return PEER_ACCESS_UNSUPPORTED;
	if (flags)
		return INVALID_VALUE;
	return d->peers.insert(p->index).second ? 0 : PEER_ACCESS_ALREADY_ENABLED;
}

