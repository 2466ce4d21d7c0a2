// Memory: files in memory (memfd), mapped at addresses of a reserved range. What is not mapped there faults.
#include "emulate.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char file_name[] = "emulated-gpu-"; // and the device's number

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// physical is memory without an address. Its bytes count as used in the process that made it.
struct physical {
	int fd;
	size_t size;
	int owner; // device
	bool made_here, exportable;
	~physical() {
		close(fd);
		if (made_here)
			device_at(owner)->used -= size;
	}
};
typedef std::shared_ptr<physical> memory;

enum kind { LINEAR, MAPPED, OPENED, REGISTERED }; // cuMemAlloc, cuMemMap, cuIpcOpenMemHandle, cuMemHostRegister

// mapping is a range of addresses with something behind it.
struct mapping {
	kind what;
	uintptr_t at; // of whole pages
	size_t size;
	uintptr_t user; // what the user was told
	size_t user_size;
	uint64_t id;
	memory m;
	device *d; // its context; the memory's owner is another thing
	int opened;
	ino_t inode;
};
static std::map<uintptr_t, mapping> &mappings = *new std::map<uintptr_t, mapping>;
static std::map<uint64_t, memory> &handles = *new std::map<uint64_t, memory>;
static std::map<uintptr_t, size_t> &reserved = *new std::map<uintptr_t, size_t>; // by cuMemAddressReserve

// Addresses come from one range, lowest first, so that they are soon used again, as the driver does.
static std::map<uintptr_t, size_t> &unused = *new std::map<uintptr_t, size_t>;

static uintptr_t take_addresses(size_t n) {
	static bool first = true;
	if (first) {
		first = false;
		for (size_t size = 1ull << 40; size >= 1ull << 32; size /= 4) {
			void *p = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (p == MAP_FAILED)
				continue;
			uintptr_t from = round_up((uintptr_t)p, granularity);
			unused[from] = (uintptr_t)p + size - from;
			break;
		}
	}
	n = round_up(n + page, granularity); // at least a page that faults
	for (auto i = unused.begin(); i != unused.end(); ++i)
		if (i->second >= n) {
			uintptr_t p = i->first;
			size_t left = i->second - n;
			unused.erase(i);
			if (left)
				unused[p + n] = left;
			return p;
		}
	return 0;
}

static void give_addresses(uintptr_t p, size_t n) {
	n = round_up(n + page, granularity);
	auto next = unused.lower_bound(p);
	if (next != unused.end() && next->first == p + n) {
		n += next->second;
		next = unused.erase(next);
	}
	if (next != unused.begin()) {
		auto before = std::prev(next);
		if (before->first + before->second == p) {
			before->second += n;
			return;
		}
	}
	unused[p] = n;
}

static bool show(uintptr_t p, size_t n, int fd, size_t offset, int prot) {
	return mmap((void *)p, n, prot, MAP_SHARED | MAP_FIXED, fd, offset) != MAP_FAILED;
}

static void hide(uintptr_t p, size_t n) {
	if (mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		perror("emulated GPU: unmapping");
		abort();
	}
}

static mapping *find(uintptr_t p) {
	auto i = mappings.upper_bound(p);
	if (i == mappings.begin())
		return 0;
	mapping &m = (--i)->second;
	return p < m.at + m.size ? &m : 0;
}

bool file_of(uintptr_t p, size_t n, int *fd, size_t *offset) {
	mapping *m = find(p);
	if (!m || m->what == REGISTERED || n > m->at + m->size - p)
		return false;
	*fd = m->m->fd;
	*offset = p - m->at;
	return true;
}

static int make(device *d, size_t n, memory *m) {
	uint64_t all = device_memory();
	if (n > all || d->used + n > all)
		return OUT_OF_MEMORY;
	char name[32];
	snprintf(name, sizeof name, "%s%d", file_name, d->index);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0)
		return OUT_OF_MEMORY;
	if (ftruncate(fd, n)) {
		close(fd);
		return OUT_OF_MEMORY;
	}
	d->used += n;
	m->reset(new physical{fd, n, d->index, true, true});
	return 0;
}

// ours says whether fd is memory of an emulated GPU, and whose and how much.
static bool ours(int fd, int *owner, size_t *size, ino_t *inode) {
	char link[64], to[128];
	struct stat st;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, to, sizeof to - 1);
	if (n <= 0 || fstat(fd, &st))
		return false;
	to[n] = 0;
	std::string prefix = std::string("/memfd:") + file_name;
	if (strncmp(to, prefix.c_str(), prefix.size()))
		return false;
	*owner = atoi(to + prefix.size());
	*size = st.st_size;
	*inode = st.st_ino;
	return device_at(*owner) && *size;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
	BEGIN("cuMemGetInfo_v2");
	*total = device_memory();
	*available = *total > d->used ? *total - d->used : 0;
	return 0;
}

static mapping &add(kind what, uintptr_t at, size_t size, device *d, memory m) {
	return mappings[at] = mapping{what, at, size, at, size, new_handle() / 16, m, d, 1, 0};
}

// The end of the memory is the end of a page: who goes past it by more than 511 bytes faults.
int cuMemAlloc_v2(uintptr_t *p, size_t n) {
	BEGIN("cuMemAlloc_v2");
	if (!n)
		return INVALID_VALUE;
	memory m;
	size_t size = round_up(n, page);
	if (size < n)
		return OUT_OF_MEMORY;
	if (int code = make(d, size, &m))
		return code;
	uintptr_t at = take_addresses(size);
	if (!at || !show(at, size, m->fd, 0, PROT_READ | PROT_WRITE))
		return OUT_OF_MEMORY;
	mapping &x = add(LINEAR, at, size, d, m);
	x.user_size = n;
	*p = x.user = at + size - round_up(n, 512);
	return 0;
}

static void drop(mapping *m) {
	uintptr_t at = m->at;
	size_t size = m->size;
	hide(at, size);
	mappings.erase(at);
	give_addresses(at, size);
}

// It waits for the device, as the driver's does.
int cuMemFree_v2(uintptr_t p) {
	BEGIN("cuMemFree_v2");
	mapping *m = find(p);
	if (!m || m->what != LINEAR || m->user != p)
		return INVALID_VALUE;
	drain(locked, d);
	if (d->error)
		return d->error;
	m = find(p);
	if (!m)
		return INVALID_VALUE; // freed twice, at once
	drop(m);
	return 0;
}

void free_memory(device *d) {
	std::vector<uintptr_t> gone;
	for (auto &m : mappings)
		if (m.second.d == d && (m.second.what == LINEAR || m.second.what == OPENED))
			gone.push_back(m.first);
	for (uintptr_t p : gone)
		drop(&mappings[p]);
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
	BEGIN("cuMemHostRegister_v2");
	(void)flags;
	uintptr_t at = (uintptr_t)p / page * page, end = round_up((uintptr_t)p + n, page);
	if (!p || !n || msync((void *)at, end - at, MS_ASYNC)) // nothing is there
		return INVALID_VALUE;
	for (auto &m : mappings)
		if (m.second.at < end && at < m.second.at + m.second.size)
			return m.second.what == REGISTERED ? HOST_MEMORY_ALREADY_REGISTERED : INVALID_VALUE;
	mapping &m = add(REGISTERED, at, end - at, d, nullptr);
	m.user = (uintptr_t)p;
	m.user_size = n;
	return 0;
}

int cuMemHostGetDevicePointer_v2(uintptr_t *q, void *p, unsigned flags) {
	BEGIN("cuMemHostGetDevicePointer_v2");
	mapping *m = find((uintptr_t)p);
	if (!m || m->what != REGISTERED || flags)
		return INVALID_VALUE;
	*q = (uintptr_t)p;
	return 0;
}

int cuMemHostUnregister(void *p) {
	BEGIN("cuMemHostUnregister");
	mapping *m = find((uintptr_t)p);
	if (!m || m->what != REGISTERED || m->user != (uintptr_t)p)
		return HOST_MEMORY_NOT_REGISTERED;
	mappings.erase(m->at);
	return 0;
}

int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, uintptr_t p) {
	START("cuPointerGetAttributes");
	mapping *m = find(p);
	bool host = m && m->what == REGISTERED, vmm = m && m->what == MAPPED;
	if (m && (p < m->user || p >= m->user + m->user_size))
		m = 0;
	for (unsigned i = 0; i < n; i++) {
		uint64_t v = 0;
		size_t bytes = 8;
		switch (attributes[i]) {
		case UBC_PTR_MEMORY_TYPE: v = !m ? 0 : host ? UBC_MEMORY_HOST : UBC_MEMORY_DEVICE, bytes = 4; break;
		case UBC_PTR_BUFFER_ID: v = m ? m->id : 0; break;
		case UBC_PTR_MANAGED: bytes = 1; break;
		case UBC_PTR_DEVICE: v = !m ? -2 : host ? m->d->index : m->m->owner, bytes = 4; break;
		case UBC_PTR_LEGACY_IPC: v = m && m->what == LINEAR, bytes = 1; break;
		case UBC_PTR_RANGE_START:
		case UBC_PTR_RANGE_SIZE: {
			uintptr_t from = m ? m->user : 0;
			size_t size = m ? m->user_size : 0;
			if (m && vmm) { // the reserved range
				auto r = --reserved.upper_bound(p);
				from = r->first, size = r->second;
			}
			v = attributes[i] == UBC_PTR_RANGE_START ? from : size;
			break;
		}
		case UBC_PTR_HANDLE_TYPES: v = m && vmm && m->m->exportable ? UBC_HANDLE_POSIX_FD : 0; break;
		case UBC_PTR_RDMA: bytes = 1; break;
		case UBC_PTR_POOL: break;
		case UBC_PTR_MAPPING_SIZE: v = m ? m->size : 0; break;
		case UBC_PTR_MAPPING_START: v = m ? m->at : 0; break;
		default: return INVALID_VALUE;
		}
		memcpy(values[i], &v, bytes);
	}
	return 0;
}

// What a ubc_ipc holds.
struct ipc {
	char magic[8];
	int pid, fd, owner;
	ino_t inode;
	size_t size, from; // of the file, and where the user's memory begins in it
	size_t user_size;
};
static_assert(sizeof(ipc) <= sizeof(ubc_ipc), "a handle has 64 bytes");
static const char ipc_magic[] = "emulate"; // 8 bytes

int cuIpcGetMemHandle(ubc_ipc *h, uintptr_t p) {
	BEGIN("cuIpcGetMemHandle");
	mapping *m = find(p);
	struct stat st;
	if (!m || m->what != LINEAR || fstat(m->m->fd, &st))
		return INVALID_VALUE;
	ipc x = {};
	memcpy(x.magic, ipc_magic, 8);
	x.pid = getpid(), x.fd = m->m->fd, x.owner = m->m->owner;
	x.inode = st.st_ino, x.size = m->size, x.from = m->user - m->at, x.user_size = m->user_size;
	memset(h, 0, sizeof *h);
	memcpy(h, &x, sizeof x);
	return 0;
}

int cuIpcOpenMemHandle_v2(uintptr_t *p, ubc_ipc h, unsigned flags) {
	BEGIN("cuIpcOpenMemHandle_v2");
	ipc x;
	memcpy(&x, &h, sizeof x);
	if (flags != UBC_IPC_LAZY_PEER || memcmp(x.magic, ipc_magic, 8) || !device_at(x.owner))
		return INVALID_VALUE;
	if (x.pid == getpid())
		return INVALID_CONTEXT;
	for (auto &m : mappings) // once mapped, the same address again
		if (m.second.what == OPENED && m.second.d == d && m.second.inode == x.inode) {
			m.second.opened++;
			*p = m.second.user;
			return 0;
		}
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", x.pid, x.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC), owner;
	if (fd < 0)
		return INVALID_VALUE;
	size_t size;
	ino_t inode;
	bool good = ours(fd, &owner, &size, &inode) && inode == x.inode && size == x.size && owner == x.owner &&
		x.from <= size && x.user_size <= size - x.from;
	memory m(new physical{fd, good ? size : 0, x.owner, false, false});
	if (!good)
		return INVALID_VALUE;
	uintptr_t at = take_addresses(size);
	if (!at || !show(at, size, fd, 0, PROT_READ | PROT_WRITE))
		return OUT_OF_MEMORY;
	mapping &y = add(OPENED, at, size, d, m);
	y.inode = inode;
	y.user_size = x.user_size;
	*p = y.user = at + x.from;
	return 0;
}

int cuIpcCloseMemHandle(uintptr_t p) {
	BEGIN("cuIpcCloseMemHandle");
	mapping *m = find(p);
	if (!m || m->what != OPENED || m->user != p)
		return INVALID_VALUE;
	if (!--m->opened)
		drop(m);
	return 0;
}

int cuMemGetAllocationGranularity(size_t *n, const ubc_prop *prop, int option) {
	BEGIN("cuMemGetAllocationGranularity");
	if (!device_at(prop->location.id) || option < 0 || option > 1)
		return INVALID_VALUE;
	*n = granularity;
	return 0;
}

int cuMemCreate(uint64_t *h, size_t n, const ubc_prop *prop, uint64_t flags) {
	BEGIN("cuMemCreate");
	device *owner = device_at(prop->location.id);
	if (!n || n % granularity || flags || prop->type != UBC_PINNED || prop->location.type != UBC_LOCATION_DEVICE || !owner)
		return INVALID_VALUE;
	memory m;
	if (int code = make(owner, n, &m))
		return code;
	m->exportable = prop->handle_types & UBC_HANDLE_POSIX_FD;
	handles[*h = new_handle()] = m;
	return 0;
}

int cuMemRelease(uint64_t h) {
	START("cuMemRelease");
	return handles.erase(h) ? 0 : INVALID_VALUE;
}

int cuMemRetainAllocationHandle(uint64_t *h, void *p) {
	START("cuMemRetainAllocationHandle");
	mapping *m = find((uintptr_t)p);
	if (!m || m->what != MAPPED)
		return INVALID_VALUE;
	handles[*h = new_handle()] = m->m;
	return 0;
}

int cuMemExportToShareableHandle(void *fd, uint64_t h, int type, uint64_t flags) {
	START("cuMemExportToShareableHandle");
	auto m = handles.find(h);
	if (m == handles.end() || type != UBC_HANDLE_POSIX_FD || flags || !m->second->exportable)
		return INVALID_VALUE;
	int copy = dup(m->second->fd); // without FD_CLOEXEC, as the driver does
	if (copy < 0)
		return UNKNOWN;
	*(int *)fd = copy;
	return 0;
}

int cuMemImportFromShareableHandle(uint64_t *h, void *fd, int type) {
	BEGIN("cuMemImportFromShareableHandle");
	int owner;
	size_t size;
	ino_t inode;
	if (type != UBC_HANDLE_POSIX_FD || !ours((int)(intptr_t)fd, &owner, &size, &inode))
		return INVALID_VALUE;
	int copy = fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return UNKNOWN;
	handles[*h = new_handle()] = memory(new physical{copy, size, owner, false, true});
	return 0;
}

int cuMemAddressReserve(uintptr_t *p, size_t n, size_t align, uintptr_t at, uint64_t flags) {
	START("cuMemAddressReserve");
	(void)at; // a wish
	if (!n || n % granularity || align > granularity || flags)
		return INVALID_VALUE;
	if (!(*p = take_addresses(n)))
		return OUT_OF_MEMORY;
	reserved[*p] = n;
	return 0;
}

static bool is_reserved(uintptr_t p, size_t n) {
	auto r = reserved.upper_bound(p);
	if (r == reserved.begin())
		return false;
	--r;
	return p - r->first <= r->second && n <= r->second - (p - r->first);
}

// covered says whether whole mappings of cuMemMap fill n bytes at p, or with any whether one touches them.
static bool covered(uintptr_t p, size_t n, bool any) {
	uintptr_t end = p + n, at = p;
	for (auto i = mappings.begin(); i != mappings.end(); ++i) {
		mapping &m = i->second;
		if (m.at + m.size <= p || m.at >= end)
			continue;
		if (any)
			return true;
		if (m.what != MAPPED || m.at != at || m.at + m.size > end)
			return false;
		at += m.size;
	}
	return !any && at == end;
}

int cuMemAddressFree(uintptr_t p, size_t n) {
	START("cuMemAddressFree");
	auto r = reserved.find(p);
	if (r == reserved.end() || r->second != n || covered(p, n, true))
		return INVALID_VALUE;
	reserved.erase(r);
	give_addresses(p, n);
	return 0;
}

int cuMemMap(uintptr_t p, size_t n, size_t offset, uint64_t h, uint64_t flags) {
	BEGIN("cuMemMap");
	auto m = handles.find(h);
	if (m == handles.end() || offset || flags || !n || n % granularity || p % granularity || n > m->second->size ||
		!is_reserved(p, n))
		return INVALID_VALUE;
	if (covered(p, n, true))
		return ALREADY_MAPPED;
	add(MAPPED, p, n, d, m->second);
	return 0;
}

int cuMemUnmap(uintptr_t p, size_t n) {
	BEGIN("cuMemUnmap");
	if (!n || !is_reserved(p, n) || !covered(p, n, false))
		return INVALID_VALUE;
	hide(p, n);
	mappings.erase(mappings.lower_bound(p), mappings.lower_bound(p + n));
	return 0;
}

// Access of one device is access of all here: a forgotten call for another device of this process goes unnoticed.
int cuMemSetAccess(uintptr_t p, size_t n, const ubc_access *desc, size_t count) {
	BEGIN("cuMemSetAccess");
	if (!n || !is_reserved(p, n) || !covered(p, n, false))
		return INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type != UBC_LOCATION_DEVICE || !device_at(desc[i].location.id) ||
			desc[i].flags != UBC_ACCESS_READ_WRITE)
			return INVALID_VALUE;
		for (auto m = mappings.lower_bound(p); m != mappings.end() && m->first < p + n; ++m)
			if (!show(m->first, m->second.size, m->second.m->fd, 0, PROT_READ | PROT_WRITE))
				return OUT_OF_MEMORY;
	}
	return 0;
}
