// Memory of cuMemAlloc and of the host. A device's memory is memory files (memfd), mapped at addresses of a reserved
// range; unmapped addresses there fault.
#include "multicast.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char file_name[] = "emulated-gpu-"; // followed by the device's number

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::map<uintptr_t, mapping> &mappings = *new std::map<uintptr_t, mapping>;
std::map<uintptr_t, size_t> &reserved = *new std::map<uintptr_t, size_t>;

// Addresses come from one range, lowest first, so that they are soon reused, as with the driver.
static std::map<uintptr_t, size_t> &unused = *new std::map<uintptr_t, size_t>;

uintptr_t take_addresses(size_t n, size_t align) {
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
	n = round_up(n + page, granularity); // leaves at least a page that faults
	for (auto i = unused.begin(); i != unused.end(); ++i) {
		uintptr_t from = i->first, to = from + i->second, p = round_up(from, align);
		if (p > to || to - p < n)
			continue;
		unused.erase(i);
		if (p > from)
			unused[from] = p - from;
		if (to > p + n)
			unused[p + n] = to - (p + n);
		return p;
	}
	return 0;
}

void give_addresses(uintptr_t p, size_t n) {
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

bool show(uintptr_t p, size_t n, const memory &m) {
	return mmap((void *)p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0) != MAP_FAILED;
}

void hide(uintptr_t p, size_t n) {
	if (mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		perror("emulated GPU: unmapping");
		abort();
	}
}

mapping *find(uintptr_t p) {
	auto i = mappings.upper_bound(p);
	if (i == mappings.begin())
		return 0;
	mapping &m = (--i)->second;
	return p < m.at + m.size ? &m : 0;
}

bool file_of(uintptr_t p, size_t n, int *fd, size_t *offset) {
	mapping *m = find(p);
	if (!m || m->what == REGISTERED || m->m->of || n > m->at + m->size - p)
		return false;
	if (fd) {
		*fd = m->m->fd;
		*offset = p - m->at;
	}
	return true;
}

// A GPU can access its own memory, other GPUs' memory to which it was given access, and page-locked host memory. Copies
// can access everything except memory mapped without access.
bool reachable(device *d, uintptr_t p, bool by_kernel) {
	mapping *m = find(p);
	if (!m)
		return !by_kernel;
	switch (m->what) {
	case MAPPED: return m->access.count(d->index);
	case LINEAR: return !by_kernel || m->m->owner == d->index || d->peers.count(m->m->owner);
	case OPENED: return !by_kernel || m->d == d || d->peers.count(m->m->owner);
	default: return true;
	}
}

int make(device *d, size_t n, memory *m) {
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

bool ours(int fd, int *owner, size_t *size, ino_t *inode) {
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

mapping &add(kind what, uintptr_t at, size_t size, device *d, memory m) {
	return mappings[at] = mapping{what, at, size, at, size, new_handle() / 16, m, d, 1, {}, 0};
}

// The memory ends at the end of a page, so that an access more than 511 bytes behind it faults.
int cuMemAlloc_v2(uintptr_t *p, size_t n) {
	BEGIN("cuMemAlloc_v2");
	if (int code = unsafe())
		return code;
	if (!n)
		return INVALID_VALUE;
	memory m;
	size_t size = round_up(n, page);
	if (size < n)
		return OUT_OF_MEMORY;
	if (int code = make(d, size, &m))
		return code;
	uintptr_t at = take_addresses(size);
	if (!at || !show(at, size, m))
		return OUT_OF_MEMORY;
	mapping &x = add(LINEAR, at, size, d, m);
	x.user_size = n;
	*p = x.user = at + size - round_up(n, 512);
	return 0;
}

void drop(mapping *m) {
	uintptr_t at = m->at;
	size_t size = m->size;
	hide(at, size);
	mappings.erase(at);
	give_addresses(at, size);
}

// Calls that take something away from the device wait, as the driver does, even if a kernel never ends. Meanwhile another
// thread may do the same call, so they look again then.
int cuMemFree_v2(uintptr_t p) {
	BEGIN("cuMemFree_v2");
	mapping *m = find(p);
	if (!m || m->what != LINEAR || m->user != p)
		return INVALID_VALUE;
	drain(locked, d);
	if (d->error)
		return d->error;
	m = find(p);
	if (!m || m->what != LINEAR || m->user != p)
		return INVALID_VALUE;
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
	// Also forgets host memory that the device has page-locked.
	for (auto m = mappings.begin(); m != mappings.end();)
		m = m->second.d == d && m->second.what == REGISTERED ? mappings.erase(m) : std::next(m);
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
	BEGIN("cuMemHostRegister_v2");
	(void)flags;
	uintptr_t at = (uintptr_t)p / page * page, end = round_up((uintptr_t)p + n, page);
	if (!p || !n || msync((void *)at, end - at, MS_ASYNC)) // not mapped
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
	drain(locked, d);
	if (d->error)
		return d->error;
	m = find((uintptr_t)p);
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
		case UBC_PTR_DEVICE: v = !m ? -2 : host || m->m->of ? m->d->index : m->m->owner, bytes = 4; break;
		case UBC_PTR_LEGACY_IPC: v = m && m->what == LINEAR, bytes = 1; break;
		case UBC_PTR_RANGE_START:
		case UBC_PTR_RANGE_SIZE: {
			uintptr_t from = m ? m->user : 0;
			size_t size = m ? m->user_size : 0;
			if (m && vmm) { // the driver reports the reserved range
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

