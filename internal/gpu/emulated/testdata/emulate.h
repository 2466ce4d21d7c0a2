// The inside of the emulated driver. One lock guards all its tables. Nothing is ever destroyed, because threads may
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
#include "../../../../hw/cuda/multicast.h"
#define DECLARE(name, params) int name params;
UBC_CALLS(DECLARE)
UBC_MULTICAST_CALLS(DECLARE)
#undef DECLARE
}

// The values of CUresult that are needed here.
enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	ALREADY_MAPPED = 208,
	PEER_ACCESS_UNSUPPORTED = 217,
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

uint64_t number(const char *name, uint64_t otherwise); // a variable's value

extern std::mutex &lock;                    // guards everything below
extern std::condition_variable &progressed; // some queued work has completed

struct stream;

// A context's work goes to the device through hardware queues. A queue passes work on in the order of submission,
// whichever stream it is of. Work leaves its queue when it may begin, so whatever is behind it waits until then. A
// stream has a queue while it has work.
struct hardware_queue {
	std::deque<stream *> waiting; // the streams of the work in it
	int streams = 0;              // that have it
};
const int most_connections = 32;
extern std::atomic<uint64_t> queues_taken;      // how many times a stream has taken one
extern thread_local uint64_t queue_taken_before; // when this thread's call began
extern int connections; // CUDA_DEVICE_MAX_CONNECTIONS at cuInit: how many queues a context has

// A device and its primary context; the context's handle is the address of this struct.
struct device {
	int index;
	int retained;           // references to the context
	std::atomic<int> error; // what broke the context, until its last reference is released
	uint64_t used;          // bytes that this process has allocated on it
	std::set<int> peers;    // enabled by its context
	std::shared_ptr<stream> legacy; // stream 0
	std::atomic<int> room;          // occupied by blocks, of all multiprocessors, if room_counts
	hardware_queue queues[most_connections];
	int streams;                    // that the context has
	int stream_room;                // as many as it can have before it makes room for more; 0: for the first ones
};
const int streams_at_first = 35, more_streams = 43;
const int whole = 48; // the room of a multiprocessor
int device_count(void);
device *device_at(int ordinal); // null if there is none
uint64_t device_memory(void);
int multiprocessors(void);
bool room_counts(void); // whether kernels of a device share its multiprocessors, and wait for room

// Checks at the beginning of a call: failures by UBCOLL_EMULATE_FAIL, and that the current context is intact.
int injected(const char *name);
void count_objects(void); // by UBCOLL_EMULATE_COUNT
int current(device **d);

// BEGIN begins a call that needs a context, START one that needs none. Both take the lock.
#define START(name) \
	queue_taken_before = queues_taken; \
	std::unique_lock<std::mutex> locked(lock); \
	count_objects(); \
	if (int code = injected(name)) \
		return code
#define BEGIN(name) \
	device *d = 0; \
	START(name); \
	if (int code = current(&d)) \
		return code

int unsafe(void); // an error if a capture forbids unsafe calls

uint64_t new_handle(void); // never reused

// step is what was queued on a stream: work, or a wait for an event, or its record. Only work goes through a hardware
// queue: as in the driver, waits belong to the work behind them, and records to the work before them.
struct event_state;
struct step {
	std::function<void()> work; // for the stream's thread
	std::shared_ptr<event_state> of;
	uint64_t n = 0;      // number of the record of that event
	bool wait = false;   // for it
	bool queues = false; // it goes through a hardware queue: work, and a record that takes the time
};

// A stream's thread does the work queued on it. The first work starts the thread, which ends with the stream.
struct capture;
struct stream : std::enable_shared_from_this<stream> {
	uint64_t handle;
	device *d;
	std::deque<step> steps;                  // not done, in order; the first one may have begun
	uint64_t queued = 0, done = 0;           // numbers of steps
	uint64_t submitted = 0, finished = 0;    // numbers of those that go through a hardware queue
	hardware_queue *queue = nullptr;         // while finished < submitted
	bool begun = false;                      // the first step: the thread has it
	std::function<void()> work;              // for the thread to take
	bool started = false, closing = false, ended = false; // states of its thread
	std::condition_variable wake;
	std::shared_ptr<capture> capturing;
	std::vector<uintptr_t> last; // result of cuStreamGetCaptureInfo_v2, valid until its next call
};
int stream_of(device *d, uintptr_t handle, std::shared_ptr<stream> *s);
int enqueue(const std::shared_ptr<stream> &s, std::function<void()> work); // or captures it; work runs without the lock
int set_node(uintptr_t exec, uintptr_t node, std::function<void()> work);  // replaces a node's work in a graph
void drain(std::unique_lock<std::mutex> &locked, device *d);               // waits until no work runs that d has by now
void close_streams(device *d);                                             // also closes events: the context ends
void close_graphs(device *d);
void close_libraries(device *d); // forgets what the device has of libraries
void free_memory(device *d);

// STREAM defines s, the stream of a handle, in a call that began with BEGIN.
#define STREAM(s, handle) \
	std::shared_ptr<stream> s; \
	if (int code = stream_of(d, handle, &s)) \
		return code

bool reachable(device *d, uintptr_t p, bool by_kernel); // whether d's kernels, or its copies, can access p

// Whether n bytes at p are device memory of one mapping. If so, and requested, where they are in the mapping's file.
bool file_of(uintptr_t p, size_t n, int *fd, size_t *offset);

struct emulated_kernel {
	const char *name;
	void (*f)(const void *params);
};
extern const emulated_kernel test_kernels[]; // kernels of the tests of hw/cuda

#endif
