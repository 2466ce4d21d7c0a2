// Protection domains, memory regions, and access to their memory.
#include "double.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
	mr *mr;
	uint32_t tag, next_free;
} *keys; // indexed by bits 8 to 30 of a key; 0 is not used
static uint32_t n_keys = 1, free_key;

static int sink; // open from the beginning, since tests count descriptors

__attribute__((constructor)) static void open_sink(void) {
	if ((sink = memfd_create("verbstest", MFD_CLOEXEC)) < 0)
		die("no memory file");
}

// present reports whether all n bytes can be read: the kernel tries a byte of each page.
static int present(const char *p, size_t n) {
	const uintptr_t page = 4096;
	struct iovec some[256];
	for (uintptr_t at = (uintptr_t)p, end = at + n; at < end;) {
		int k = 0;
		for (; k < 256 && at < end; k++, at = (at / page + 1) * page)
			some[k] = (struct iovec){(void *)at, 1};
		if (pwritev(sink, some, k, 0) != k)
			return 0;
	}
	return 1;
}

// writable reports whether all n bytes are mapped for writing.
static int writable(const char *p, size_t n) {
	FILE *maps = fopen("/proc/self/maps", "re");
	if (!maps)
		die("no /proc/self/maps");
	uintptr_t at = (uintptr_t)p, end = at + n;
	char line[512], mode[5];
	unsigned long from, to;
	int ok = 0;
	while (!ok && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || to <= at)
			continue; // another mapping, or the rest of a long line
		if (from > at || mode[1] != 'w')
			break;
		at = to;
		ok = at >= end;
	}
	fclose(maps);
	return ok;
}

// reach returns the address that a key and an address lead to; 0 if there is none, or if the region does not allow the
// access.
char *reach(ubv_pd *pd, uint32_t key, int remote, uint64_t at, uint64_t n, unsigned access) {
	uint32_t i = (key & 0x7fffffff) >> 8;
	mr *m = i && i < n_keys ? keys[i].mr : 0;
	if (!m || key != (remote ? m->v.rkey : m->v.lkey) || m->v.pd != pd || access & ~m->access || at < m->iova ||
		at - m->iova > m->v.length || n > m->v.length - (at - m->iova))
		return 0;
	char *p = m->base + (at - m->iova);
	return m->access & UBV_ACCESS_ON_DEMAND && !present(p, n) ? 0 : p;
}

// places finds the memory of a request's segments.
int places(ubv_pd *pd, const ubv_sge *sge, int n, unsigned access, place *out) {
	for (int i = 0; i < n; i++) {
		out[i] = (place){0, sge[i].length};
		if (sge[i].length && !(out[i].p = reach(pd, sge[i].lkey, 0, sge[i].addr, sge[i].length, access)))
			return 0;
	}
	return 1;
}

// copy writes in order if IN_ORDER is set, else the end first.
static void copy(char *to, const char *from, size_t n) {
	if (!present(to, n))
		return; // unmapped since registration: a NIC would write to pages that nobody sees
	if (!present(from, n)) {
		memset(to, 0xdb, n);
	} else if (!knob.in_order) {
		memcpy(to + n / 2, from + n / 2, n - n / 2);
		if (n > 8)
			sched_yield(); // so that a poller of the last byte finds the first ones missing
		memcpy(to, from, n / 2);
	} else if ((uintptr_t)to % 8 == 0 && n % 8 == 0) {
		for (size_t i = 0; i < n; i += 8) {
			uint64_t word;
			memcpy(&word, from + i, 8);
			__atomic_store_n((uint64_t *)(to + i), word, __ATOMIC_RELEASE);
		}
	} else {
		for (size_t i = 0; i < n; i++)
			__atomic_store_n(to + i, from[i], __ATOMIC_RELEASE);
	}
}

void transfer(place *to, place *from, int n_from) {
	for (int i = 0; i < n_from; i++)
		while (from[i].n) {
			if (!to->n) {
				to++;
				continue;
			}
			size_t n = to->n < from[i].n ? to->n : from[i].n;
			copy(to->p, from[i].p, n);
			*to = (place){to->p + n, to->n - n};
			from[i] = (place){from[i].p + n, from[i].n - n};
		}
}

// update does an atomic operation and returns the old value. As with most devices, processors' are not atomic with it.
uint64_t update(char *at, const request *r) {
	uint64_t old = r->compare;
	if (!present(at, 8))
		return 0xdbdbdbdbdbdbdbdb; // as in copy
	if (knob.atomics != UBV_ATOMIC_GLOB) {
		uint64_t *word = (uint64_t *)at, was = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		for (int i = 0; i < 100; i++)
			__asm__ volatile("");
		if (r->op == UBV_WR_FETCH_ADD)
			__atomic_store_n(word, was + r->compare, __ATOMIC_RELEASE);
		else if (was == r->compare)
			__atomic_store_n(word, r->swap, __ATOMIC_RELEASE);
		return was;
	}
	if (r->op == UBV_WR_FETCH_ADD)
		return __atomic_fetch_add((uint64_t *)at, r->compare, __ATOMIC_SEQ_CST);
	__atomic_compare_exchange_n((uint64_t *)at, &old, r->swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return old; // if they differ, the builtin has stored the old value here
}

ubv_pd *ibv_alloc_pd(ubv_context *v) {
	ENTER_MAKE(alloc_pd);
	pd *p = calloc(1, sizeof *p);
	p->v.context = v;
	of(v)->children++;
	count.pd++;
	return &p->v;
}

int ibv_dealloc_pd(ubv_pd *v) {
	pd *p = (pd *)v;
	ENTER(dealloc_pd);
	ALIVE(p, "protection domain");
	if (p->children)
		return EBUSY;
	p->dead = 1;
	of(v->context)->children--;
	count.pd--;
	return 0;
}

// new_mr makes a region of n bytes at base. Peers and work requests name it by iova.
static ubv_mr *new_mr(ubv_pd *v, void *base, size_t n, uint64_t iova, unsigned access, long pinned) {
	uint32_t i = free_key;
	if (i) {
		free_key = keys[i].next_free;
	} else {
		if (n_keys == 1 << 22)
			NONE(ENOMEM);
		if ((n_keys & (n_keys - 1)) == 0) // the array is full at a power of 2
			keys = realloc(keys, 2 * n_keys * sizeof *keys);
		memset(&keys[i = n_keys++], 0, sizeof *keys);
	}
	mr *m = calloc(1, sizeof *m);
	uint32_t key = i << 8 | (keys[i].tag++ % knob.tags & 0xff);
	*m = (mr){.v = {.context = v->context, .pd = v, .addr = base, .length = n, .handle = i, .lkey = key,
		.rkey = key | 1u << 31}, .base = base, .iova = iova, .access = access, .pinned = pinned};
	keys[i].mr = m;
	((pd *)v)->children++;
	count.mr++;
	count.pinned += pinned;
	count.odp += (access & UBV_ACCESS_ON_DEMAND) != 0;
	return &m->v;
}

static int bad_access(unsigned access) {
	const unsigned writes = UBV_ACCESS_REMOTE_WRITE | UBV_ACCESS_REMOTE_ATOMIC, known = UBV_ACCESS_LOCAL_WRITE | writes |
		UBV_ACCESS_REMOTE_READ | UBV_ACCESS_ON_DEMAND;
	if (access & ~known || (access & writes && !(access & UBV_ACCESS_LOCAL_WRITE)))
		return EINVAL;
	return access & UBV_ACCESS_ON_DEMAND && !knob.odp ? EOPNOTSUPP : 0;
}

static ubv_mr *reg(ubv_pd *v, void *p, size_t n, uint64_t iova, unsigned access) {
	ALIVE((pd *)v, "protection domain");
	int bad = bad_access(access);
	if (bad)
		NONE(bad);
	if (!n || n > 1ull << 40 || (uintptr_t)p + n < n)
		NONE(EINVAL);
	long pages = (((uintptr_t)p + n - 1) / 4096 - (uintptr_t)p / 4096 + 1) * 4096;
	if (access & UBV_ACCESS_ON_DEMAND)
		pages = 0;
	else if (knob.memlock && count.pinned + pages > knob.memlock)
		NONE(ENOMEM);
	else if (!present(p, n) || (access & UBV_ACCESS_LOCAL_WRITE && !writable(p, n)))
		NONE(EFAULT);
	return new_mr(v, p, n, iova, access, pages);
}

ubv_mr *ibv_reg_mr(ubv_pd *v, void *p, size_t n, int access) {
	ENTER_MAKE(reg_mr);
	return reg(v, p, n, (uintptr_t)p, access);
}

// Flags that a device may ignore. Here ibv_reg_mr refuses them, as older kernels do.
enum { OPTIONAL = 0x3ff << 20 };

ubv_mr *ibv_reg_mr_iova2(ubv_pd *v, void *p, size_t n, uint64_t iova, unsigned access) {
	ENTER_MAKE(reg_mr_iova2);
	return reg(v, p, n, iova, access & ~OPTIONAL);
}

// The buffer begins where the file is positioned, as the emulated GPU driver has it.
ubv_mr *ibv_reg_dmabuf_mr(ubv_pd *v, uint64_t offset, size_t n, uint64_t iova, int fd, int access) {
	ENTER_MAKE(reg_dmabuf_mr);
	ALIVE((pd *)v, "protection domain");
	int bad = knob.dmabuf ? bad_access(access & ~OPTIONAL) : EOPNOTSUPP;
	if (bad)
		NONE(bad);
	off_t begin = lseek(fd, 0, SEEK_CUR), end = lseek(fd, 0, SEEK_END);
	if (begin < 0 || end < begin || lseek(fd, begin, SEEK_SET) < 0)
		NONE(EBADF);
	if (!n || offset > (uint64_t)(end - begin) || n > end - begin - offset || (offset ^ iova) % 4096)
		NONE(EINVAL);
	offset += begin;
	size_t all = offset + n;
	char *p = mmap(0, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		NONE(EBADF);
	ubv_mr *m = new_mr(v, p + offset, n, iova, access, 0);
	if (!m) {
		munmap(p, all);
		return 0;
	}
	((mr *)m)->mapped = p;
	((mr *)m)->mapped_length = all;
	m->addr = 0; // the memory has no address here
	return m;
}

// The keys change, as they may.
int ibv_rereg_mr(ubv_mr *v, int flags, ubv_pd *p, void *address, size_t n, int access) {
	mr *m = (mr *)v;
	ENTER(rereg_mr);
	uint32_t i = v->handle;
	if (i >= n_keys || keys[i].mr != m)
		die("rereg_mr: this region was deregistered");
	if (flags != UBV_REREG_ACCESS || p || address || n)
		return EINVAL;
	int bad = bad_access(access & ~OPTIONAL);
	if (bad)
		return bad;
	if (access & UBV_ACCESS_LOCAL_WRITE && !writable(m->base, v->length))
		return EFAULT;
	m->access = access & ~OPTIONAL;
	v->lkey = i << 8 | (keys[i].tag++ % knob.tags & 0xff);
	v->rkey = v->lkey | 1u << 31;
	return 0;
}

int ibv_dereg_mr(ubv_mr *v) {
	mr *m = (mr *)v;
	ENTER(dereg_mr);
	uint32_t i = v->handle;
	if (i >= n_keys || keys[i].mr != m)
		die("dereg_mr: this region was deregistered");
	keys[i].mr = 0;
	keys[i].next_free = free_key;
	free_key = i;
	((pd *)v->pd)->children--;
	count.mr--;
	count.pinned -= m->pinned;
	count.odp -= (m->access & UBV_ACCESS_ON_DEMAND) != 0;
	if (m->mapped)
		munmap(m->mapped, m->mapped_length);
	free(m);
	return 0;
}

