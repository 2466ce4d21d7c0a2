// Multicast objects. Each is a memory file with a table: which devices were added, and which memory each has bound where.
// A store to a multicast address goes to the memory of every bound device, also of other processes, and a load combines
// them. Kernels do both by functions (emu_multimem_...); a plain load or store there faults, since on a device what it does
// is not defined. Copies and fills only store.
#include "multicast.h"
#include "fiber.h"
#include <fcntl.h>
#include <memory>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern "C" {
int ubc_emulated_driver = 1; // by which hw/cuda knows that no real device is behind this driver
}

static const char magic[16] = "multicast-1";
const int most_slots = 4096;

struct slot {
	int device; // -1: free
	int pid, fd; // where its memory file is open
	ino_t inode;
	size_t at, size, from, file;
};

struct team {
	char magic[16];
	pthread_mutex_t mutex; // guards what follows
	std::atomic<uint64_t> version; // of the table
	size_t size;
	unsigned wanted, added;
	bool has[most_devices];
	slot slots[most_slots];
};
const size_t team_bytes = (sizeof(team) + page - 1) / page * page;

int teams, bindings;
thread_local device *running;
std::atomic<uint64_t> multicast_changes;

static bool has_multicast(void) { return number("UBCOLL_EMULATE_MULTICAST", 1) != 0; }
size_t multicast_granularity(void) { return number("UBCOLL_EMULATE_MULTICAST_GRANULARITY", granularity); }

// A process that dies with the mutex leaves a table that is still good: slots are filled before they get their device.
struct in_table {
	team *t;
	explicit in_table(team *t) : t(t) {
		if (pthread_mutex_lock(&t->mutex) == EOWNERDEAD)
			pthread_mutex_consistent(&t->mutex);
	}
	~in_table() { pthread_mutex_unlock(&t->mutex); }
};

team *open_team(int fd) {
	struct stat st;
	if (fstat(fd, &st) || (size_t)st.st_size != team_bytes)
		return 0;
	team *t = (team *)mmap(0, team_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return 0;
	if (memcmp(t->magic, magic, sizeof magic)) {
		munmap(t, team_bytes);
		return 0;
	}
	teams++;
	return t;
}

void close_team(team *t) {
	multicast_changes++;
	munmap(t, team_bytes);
	teams--;
}

size_t team_size(team *t) { return t->size; }
bool in_team(team *t, int device) {
	in_table in(t);
	return t->has[device];
}

static bool is_power(size_t n) { return n && !(n & (n - 1)); }

static int check(const ubc_multicast_prop *p) {
	if (!has_multicast())
		return NOT_SUPPORTED;
	if (!p->devices || p->devices > (unsigned)device_count() || !p->size || p->handle_types & ~(uint64_t)UBC_HANDLE_POSIX_FD ||
		p->flags || !is_power(multicast_granularity()))
		return INVALID_VALUE;
	return 0;
}

int cuMulticastGetGranularity(size_t *n, const ubc_multicast_prop *prop, int option) {
	START("cuMulticastGetGranularity");
	if (int code = check(prop))
		return code;
	if (option != UBC_MULTICAST_MINIMUM && option != UBC_MULTICAST_RECOMMENDED)
		return INVALID_VALUE;
	*n = multicast_granularity() << (option == UBC_MULTICAST_RECOMMENDED); // the driver's are far apart
	return 0;
}

int cuMulticastCreate(uint64_t *h, const ubc_multicast_prop *prop) {
	START("cuMulticastCreate");
	if (int code = check(prop))
		return code;
	if (prop->size % multicast_granularity())
		return INVALID_VALUE;
	int fd = memfd_create("emulated-multicast", MFD_CLOEXEC);
	if (fd < 0)
		return OUT_OF_MEMORY;
	void *at = ftruncate(fd, team_bytes) ? MAP_FAILED : mmap(0, team_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		close(fd);
		return OUT_OF_MEMORY;
	}
	team *t = (team *)at;
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&t->mutex, &a);
	pthread_mutexattr_destroy(&a);
	t->size = prop->size;
	t->wanted = prop->devices;
	for (slot &s : t->slots)
		s.device = -1;
	memcpy(t->magic, magic, sizeof magic);
	teams++;
	memory m(new physical{fd, t->size, 0, false, (prop->handle_types & UBC_HANDLE_POSIX_FD) != 0, t});
	handles[*h = new_handle()] = m;
	return 0;
}

// TEAM defines the object of a handle.
#define TEAM(m, h) \
	auto m##_at = handles.find(h); \
	if (m##_at == handles.end() || !m##_at->second->of) \
		return INVALID_VALUE; \
	memory m = m##_at->second

int cuMulticastAddDevice(uint64_t h, int device) {
	START("cuMulticastAddDevice");
	TEAM(m, h);
	if (!device_at(device))
		return INVALID_DEVICE;
	in_table in(m->of);
	if (m->of->has[device] || m->of->added == m->of->wanted)
		return INVALID_VALUE;
	m->of->has[device] = true;
	m->of->added++;
	return 0;
}

int await_team(std::unique_lock<std::mutex> &locked, const memory &m) {
	memory mine = m;
	const uint64_t step = 500; // us
	for (uint64_t waited = 0, limit = number("UBCOLL_EMULATE_MULTICAST_WAIT", 10000) * 1000;; waited += step) {
		unsigned added;
		{
			in_table in(mine->of);
			added = mine->of->added;
			if (added == mine->of->wanted)
				return 0;
		}
		if (waited >= limit) {
			fprintf(stderr, "emulated GPU: %u of %u devices were added to a multicast object: the driver waits for ever\n", added,
				mine->of->wanted);
			return ILLEGAL_STATE;
		}
		locked.unlock();
		usleep(step);
		locked.lock();
	}
}

// bind_memory binds n bytes of memory x, from byte from on.
static int bind_memory(const memory &m, size_t at, const memory &x, size_t from, size_t n) {
	size_t grain = multicast_granularity();
	struct stat st;
	if (!n || at % grain || from % grain || n % grain || n > m->size || at > m->size - n || n > x->size || from > x->size - n ||
		fstat(x->fd, &st))
		return INVALID_VALUE;
	if (m->exportable && !x->exportable)
		return INVALID_VALUE;
	team *t = m->of;
	in_table in(t);
	if (!t->has[x->owner])
		return INVALID_DEVICE;
	slot *free = 0;
	int i = 0, chosen = 0;
	for (slot &s : t->slots) {
		if (s.device < 0 && !free)
			free = &s, chosen = i;
		if (s.device == x->owner && at < s.at + s.size && s.at < at + n)
			return INVALID_VALUE; // one piece of memory at a time
		i++;
	}
	if (!free)
		return OUT_OF_MEMORY;
	*free = {-1, getpid(), x->fd, st.st_ino, at, n, from, x->size};
	free->device = x->owner;
	t->version++;
	m->bound[chosen] = x;
	x->bindings++;
	bindings++;
	return 0;
}

int cuMulticastBindMem(uint64_t h, size_t at, uint64_t handle, size_t from, size_t n, uint64_t flags) {
	START("cuMulticastBindMem");
	TEAM(m, h);
	if (flags)
		return INVALID_VALUE;
	if (int code = await_team(locked, m))
		return code;
	auto x = handles.find(handle);
	if (x == handles.end() || x->second->of)
		return INVALID_VALUE;
	return bind_memory(m, at, x->second, from, n);
}

int cuMulticastBindAddr(uint64_t h, size_t at, uintptr_t p, size_t n, uint64_t flags) {
	START("cuMulticastBindAddr");
	TEAM(m, h);
	if (flags || p % multicast_granularity())
		return INVALID_VALUE;
	if (int code = await_team(locked, m))
		return code;
	mapping *x = find(p);
	if (!x || x->what != MAPPED || x->m->of || n > x->at + x->size - p)
		return INVALID_VALUE;
	return bind_memory(m, at, x->m, p - x->at, n);
}

int cuMulticastUnbind(uint64_t h, int device, size_t at, size_t n) {
	START("cuMulticastUnbind");
	TEAM(m, h);
	if (!device_at(device))
		return INVALID_DEVICE;
	team *t = m->of;
	in_table in(t);
	// What was bound by another reference to the object is not this caller's. On a device, other numbers than the binding's
	// are not defined.
	for (auto b = m->bound.begin(); b != m->bound.end(); ++b) {
		slot &s = t->slots[b->first];
		if (s.device != device || s.at != at || s.size != n)
			continue;
		s.device = -1;
		t->version++;
		b->second->bindings--;
		bindings--;
		m->bound.erase(b);
		return 0;
	}
	return INVALID_VALUE;
}

bool may_go(const memory &m, const char *what) {
	if (m->of ? m->bound.empty() : !m->bindings)
		return true;
	long others = 0;
	for (auto &h : handles)
		others += h.second == m;
	if (!m->of)
		for (auto &x : mappings)
			others += x.second.what == MAPPED && x.second.m == m;
	if (others > 1)
		return true;
	fprintf(stderr, "emulated GPU: %s: %s\n", what,
		m->of ? "a multicast object goes while memory is bound to it" : "memory goes while it is bound to a multicast object");
	return false;
}

mapping *find_team(uintptr_t p) {
	mapping *m = find(p);
	return m && m->what == MAPPED && m->m->of ? m : 0;
}

// A window is where this process has mapped memory that is bound to an object.
struct window {
	void *at;
	size_t size;
};
static std::map<std::pair<const physical *, ino_t>, window> &windows =
	*new std::map<std::pair<const physical *, ino_t>, window>;

void forget_windows(const physical *of) {
	multicast_changes++;
	for (auto w = windows.begin(); w != windows.end();)
		if (w->first.first == of) {
			munmap(w->second.at, w->second.size);
			w = windows.erase(w);
		} else {
			++w;
		}
}

static char *look_at(const physical *of, const slot &s) {
	auto w = windows.find({of, s.inode});
	if (w == windows.end()) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%d/fd/%d", s.pid, s.fd);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return 0;
		struct stat st;
		void *at = fstat(fd, &st) || st.st_ino != s.inode || (size_t)st.st_size != s.file
			? MAP_FAILED
			: mmap(0, s.file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (at == MAP_FAILED)
			return 0;
		w = windows.insert({{of, s.inode}, {at, s.file}}).first;
	}
	return (char *)w->second.at;
}

size_t piece(device *d, uintptr_t p, size_t n, void **to, int *count) {
	mapping *x = find_team(p);
	if (!x || !d || !x->access.count(d->index))
		return 0;
	size_t at = p - x->at;
	n = std::min(n, x->size - at);
	team *t = x->m->of;
	in_table in(t);
	*count = 0;
	for (slot &s : t->slots) {
		if (s.device < 0 || at < s.at || at >= s.at + s.size)
			continue;
		char *base = look_at(x->m.get(), s);
		if (!base)
			return 0;
		n = std::min(n, s.at + s.size - at);
		to[(*count)++] = base + s.from + (at - s.at);
	}
	return (unsigned)*count == t->wanted ? n : 0;
}

// What a thread remembers about the multicast addresses that it used last: of a source, a destination, and staging memory.
struct piece_at {
	uintptr_t from, to;
	device *d;
	uint64_t changes, version;
	team *t;
	int count;
	void *at[most_devices];
};
struct pieces {
	piece_at of[4];
	unsigned oldest;
};
static thread_local std::unique_ptr<pieces> recent; // there is little room for thread-local memory

// behind finds the memory behind n bytes at p, and faults if there is none for every device.
static int behind(const void *address, size_t n, void **to) {
	uintptr_t p = (uintptr_t)address;
	if (n != 4 && n != 8 && n != 16)
		__builtin_trap();
	if (p % n) {
		fprintf(stderr, "emulated GPU: %zu bytes at multicast address %p are not aligned\n", n, address);
		__builtin_trap();
	}
	piece_at *found = 0;
	if (!recent)
		recent.reset(new pieces());
	for (piece_at &x : recent->of)
		if (x.d == running && p >= x.from && p + n <= x.to && x.changes == multicast_changes && x.version == x.t->version)
			found = &x;
	if (!found) {
		piece_at &last = *(found = &recent->of[recent->oldest++ % 4]);
		std::unique_lock<std::mutex> locked(lock);
		mapping *x = find_team(p);
		last.to = 0;
		uint64_t version = x ? x->m->of->version.load() : 0;
		size_t long_piece = x ? piece(running, p / page * page, x->size, last.at, &last.count) : 0;
		if (!long_piece) {
			locked.unlock();
			fprintf(stderr, "emulated GPU: %p is no multicast address that this device has access to, and where all have memory bound\n",
				address);
			*(volatile char *)0 = 0; // a fault
			return 0;
		}
		last.from = p / page * page, last.to = last.from + long_piece;
		last.d = running, last.changes = multicast_changes, last.t = x->m->of, last.version = version;
	}
	for (int i = 0; i < found->count; i++)
		to[i] = (char *)found->at[i] + (p - found->from);
	return found->count;
}

// Words are whole, as on a device.
static void copy_words(void *to, const void *from, size_t n) {
	if (n == 4)
		return __atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	for (size_t i = 0; i < n / 8; i++)
		__atomic_store_n((uint64_t *)to + i, __atomic_load_n((const uint64_t *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

void emu_multimem_st(void *p, const void *value, size_t n) {
	void *to[most_devices];
	int count = behind(p, n, to);
	for (int i = 0; i < count; i++)
		copy_words(to[i], value, n);
}

void emu_multimem_ld_reduce(const void *p, void *value, size_t n, void (*combine)(void *sum, const void *x)) {
	void *to[most_devices];
	int count = behind(p, n, to);
	for (int i = 0; i < count; i++) {
		alignas(16) char x[16];
		copy_words(i ? x : value, to[i], n);
		if (i)
			combine(value, x);
	}
}

void emu_multimem_ld_each(const void *p, size_t n, void *sum, void (*take)(void *sum, const void *x)) {
	void *to[most_devices];
	int count = behind(p, n, to);
	for (int i = 0; i < count; i++) {
		alignas(16) char x[16];
		copy_words(x, to[i], n);
		take(sum, x);
	}
}

// UBCOLL_EMULATE_COUNT names a file that gets the numbers of live objects as a call begins.
void count_objects(void) {
	const char *name = getenv("UBCOLL_EMULATE_COUNT");
	if (!name || !*name)
		return;
	size_t mapped = 0;
	for (auto &m : mappings)
		mapped += m.second.what == MAPPED;
	FILE *f = fopen(name, "w");
	if (!f)
		return;
	fprintf(f, "handles %zu\nmapped %zu\nreserved %zu\nmulticast %d\nbound %d\n", handles.size(), mapped, reserved.size(), teams,
		bindings);
	fclose(f);
}
