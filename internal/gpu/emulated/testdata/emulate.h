// The emulated driver, inside. It keeps all its tables under one lock, and nothing of it is ever destroyed: threads may
// still run when the process exits.
#ifndef UBC_EMULATE_H
#define UBC_EMULATE_H
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

#define _Static_assert static_assert
extern "C" {
#include "../../../../hw/cuda/driver.h"
#define DECLARE(name, params) int name params;
UBC_CALLS(DECLARE)
#undef DECLARE
}

// CUresult, as far as it is needed.
enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	ALREADY_MAPPED = 208,
	INVALID_PTX = 218,
	UNSUPPORTED_PTX_VERSION = 222,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_FOUND = 500,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	LAUNCH_OUT_OF_RESOURCES = 701,
	PEER_ACCESS_ALREADY_ENABLED = 704,
	CONTEXT_IS_DESTROYED = 709,
	HOST_MEMORY_ALREADY_REGISTERED = 712,
	HOST_MEMORY_NOT_REGISTERED = 713,
	LAUNCH_FAILED = 719,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	CAPTURE_MERGE = 902,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
	UNKNOWN = 999,
};

const int most_devices = 72;
const size_t page = 4096, granularity = 2 << 20;
const int max_blocks_a_multiprocessor = 32, threads_a_multiprocessor = 1024;
const size_t shared_default = 48 << 10, shared_most = 227 << 10;

extern std::mutex &lock;                    // of everything below
extern std::condition_variable &progressed; // some queued work is done

struct stream;

// A device and its primary context, whose address is the context's handle.
struct device {
	int index;
	int retained;           // references of the context
	std::atomic<int> error; // what broke the context, until the last reference goes
	uint64_t used;          // bytes that this process has made on it
	std::set<int> peers;    // that its context has enabled
	std::shared_ptr<stream> legacy; // stream 0
	std::atomic<int> room;          // that blocks take of all multiprocessors, if that is counted
};
const int whole = 12; // a multiprocessor's room
int device_count(void);
device *device_at(int ordinal); // null if there is none
uint64_t device_memory(void);
int multiprocessors(void);
bool room_counts(void); // whether kernels of a device leave each other's blocks only the room that there is

// Asks that a call begins with: what UBCOLL_EMULATE_FAIL wants of it, and the current context, if it is in order.
int injected(const char *name);
int current(device **d);

// BEGIN is how a call that needs a context begins, START one that needs none. Both take the lock.
#define START(name) \
	std::unique_lock<std::mutex> locked(lock); \
	if (int code = injected(name)) \
		return code
#define BEGIN(name) \
	device *d = 0; \
	START(name); \
	if (int code = current(&d)) \
		return code

int unsafe(void); // fails where a capture forbids what it does not know

uint64_t new_handle(void); // never the same again

// Work is queued on a stream and done by the stream's thread, which the first work starts and which ends with the
// stream.
struct capture;
struct stream {
	uint64_t handle;
	device *d;
	std::deque<std::function<void()>> queue;
	uint64_t queued = 0, done = 0;
	bool started = false, closing = false, ended = false; // its thread
	std::condition_variable wake;
	std::shared_ptr<capture> capturing;
	std::vector<uintptr_t> last; // nodes that a capture of it was asked for, until its next call
};
int stream_of(device *d, uintptr_t handle, std::shared_ptr<stream> *s);
int enqueue(const std::shared_ptr<stream> &s, std::function<void()> work); // or captures it; it runs without the lock
int set_node(uintptr_t exec, uintptr_t node, std::function<void()> work);  // of a graph
void drain(std::unique_lock<std::mutex> &locked, device *d);               // waits for all that is queued on d
void close_streams(device *d);                                             // and events: the context goes
void close_graphs(device *d);
void close_libraries(device *d); // what the device has of them
void free_memory(device *d);

// STREAM is the stream of a handle in a call that began with BEGIN.
#define STREAM(s, handle) \
	std::shared_ptr<stream> s; \
	if (int code = stream_of(d, handle, &s)) \
		return code

bool reachable(device *d, uintptr_t p, bool by_kernel); // whether d's kernels, or its copies, reach p

// Whether n bytes at p are the device memory of one mapping; if so, and asked, where they are in its file.
bool file_of(uintptr_t p, size_t n, int *fd, size_t *offset);

struct emulated_kernel {
	const char *name;
	void (*f)(const void *params);
};
extern const emulated_kernel test_kernels[]; // kernels of the tests of hw/cuda

#endif
