// Memory of other processes, and memory that is separate from its addresses: legacy IPC and virtual memory management.
#include "multicast.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

std::map<uint64_t, memory> &handles = *new std::map<uint64_t, memory>;

// The content of a ubc_ipc.
struct ipc {
	char magic[8];
	int pid, fd, owner;
	ino_t inode;
	size_t size, from; // size of the file, and offset of the user's memory in it
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
	for (auto &m : mappings) // a second open returns the same address
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
	if (!at || !show(at, size, m))
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
	auto m = handles.find(h);
	if (m == handles.end() || !may_go(m->second, "cuMemRelease"))
		return INVALID_VALUE;
	handles.erase(m);
	return 0;
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
	int copy = dup(m->second->fd); // without FD_CLOEXEC, like the driver
	if (copy < 0)
		return UNKNOWN;
	*(int *)fd = copy;
	return 0;
}

// The descriptor is the memory's file, whose position is where the range begins: the double of libibverbs reads that.
int cuMemGetHandleForAddressRange(void *fd, uintptr_t p, size_t n, int type, uint64_t flags) {
	START("cuMemGetHandleForAddressRange");
	int file;
	size_t at;
	if (!number("UBCOLL_EMULATE_DMABUF", 1))
		return NOT_SUPPORTED;
	if (type != UBC_RANGE_DMA_BUF || flags || !n || p % page || n % page || !file_of(p, n, &file, &at))
		return INVALID_VALUE;
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	int own = open(path, O_RDWR); // without O_CLOEXEC, like the driver
	if (own < 0)
		return UNKNOWN;
	if (lseek(own, at, SEEK_SET) < 0) {
		close(own);
		return UNKNOWN;
	}
	*(int *)fd = own;
	return 0;
}

int cuFlushGPUDirectRDMAWrites(int target, int scope) {
	BEGIN("cuFlushGPUDirectRDMAWrites");
	if (target != UBC_RDMA_FLUSH_CURRENT || scope != UBC_RDMA_FLUSH_TO_OWNER)
		return INVALID_VALUE;
	return number("UBCOLL_EMULATE_RDMA", 2) ? 0 : NOT_SUPPORTED;
}

int cuMemImportFromShareableHandle(uint64_t *h, void *fd, int type) {
	BEGIN("cuMemImportFromShareableHandle");
	int owner;
	size_t size;
	ino_t inode;
	team *t = 0;
	if (type != UBC_HANDLE_POSIX_FD || (!ours((int)(intptr_t)fd, &owner, &size, &inode) && !(t = open_team((int)(intptr_t)fd))))
		return INVALID_VALUE;
	int copy = fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0) {
		if (t)
			close_team(t);
		return UNKNOWN;
	}
	if (t) {
		handles[*h = new_handle()] = memory(new physical{copy, team_size(t), 0, false, true, t});
		return 0;
	}
	handles[*h = new_handle()] = memory(new physical{copy, size, owner, false, true});
	return 0;
}

int cuMemAddressReserve(uintptr_t *p, size_t n, size_t align, uintptr_t at, uint64_t flags) {
	START("cuMemAddressReserve");
	(void)at; // only a hint
	if (!n || n % granularity || align & (align - 1) || flags)
		return INVALID_VALUE;
	if (!(*p = take_addresses(n, std::max(align, granularity))))
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

// covered reports whether whole mappings of cuMemMap fill n bytes at p or, with any, whether a mapping touches them.
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
	if (m != handles.end() && m->second->of) {
		if (p % multicast_granularity() || n % multicast_granularity())
			return INVALID_VALUE;
		if (int code = await_team(locked, m->second))
			return code;
		m = handles.find(h);
	}
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
	for (auto m = mappings.lower_bound(p); m != mappings.end() && m->first < p + n; ++m)
		if (!m->second.m->of && !may_go(m->second.m, "cuMemUnmap"))
			return INVALID_VALUE;
	for (auto m = mappings.lower_bound(p); m != mappings.end() && m->first < p + n; ++m)
		if (m->second.m->of)
			forget_windows(m->second.m.get());
	hide(p, n);
	mappings.erase(mappings.lower_bound(p), mappings.lower_bound(p + n));
	return 0;
}

// With access for one device, every device could touch the memory. Launches and copies check which devices may.
int cuMemSetAccess(uintptr_t p, size_t n, const ubc_access *desc, size_t count) {
	BEGIN("cuMemSetAccess");
	if (!n || !is_reserved(p, n) || !covered(p, n, false))
		return INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type != UBC_LOCATION_DEVICE || !device_at(desc[i].location.id) ||
			desc[i].flags != UBC_ACCESS_READ_WRITE)
			return INVALID_VALUE;
		for (auto m = mappings.lower_bound(p); m != mappings.end() && m->first < p + n; ++m)
			if (m->second.m->of && !in_team(m->second.m->of, desc[i].location.id))
				return INVALID_DEVICE;
			else if (!m->second.m->of && !show(m->first, m->second.size, m->second.m))
				return OUT_OF_MEMORY;
			else
				m->second.access.insert(desc[i].location.id);
	}
	return 0;
}
