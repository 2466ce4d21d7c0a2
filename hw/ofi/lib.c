//go:build linux && cgo && (amd64 || arm64)

// libfabric is loaded once and never unloaded: its providers do not survive unloading.
#include "lib.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const uof_info *, uof_info **);
	void (*freeinfo)(uof_info *);
	uof_info *(*dupinfo)(const uof_info *);
	int (*fabric)(uof_fabric_attr *, uof_fabric **, void *);
	uint32_t (*version)(void);
	const char *(*strerror)(int);
} uof;

// The version of the interface that this package asks for.
enum { ASKED = UOF_VERSION(1, 9) };

// Variables of C's environment that are set while the library starts, unless the user has set them.
typedef struct {
	const char *name, *value;
	int set;
} variable;

static void set(variable *v, int n) {
	for (int i = 0; i < n; i++)
		v[i].set = !getenv(v[i].name) && setenv(v[i].name, v[i].value, 0) == 0;
}

static void unset(const variable *v, int n) {
	for (int i = 0; i < n; i++)
		if (v[i].set)
			unsetenv(v[i].name);
}

int uof_load(const char *path, char *why, size_t len, const char **missing, uint32_t *version, int *before) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	*before = lib != 0;
	if (!lib) {
		// libinfinipath and libpsm, on which distributions' builds depend, print backtraces of their own at fatal signals
		// unless these are set.
		variable v[] = {{"IPATH_NO_BACKTRACE", "1", 0}, {"HFI_NO_BACKTRACE", "1", 0}};
		set(v, 2);
		dlerror();
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			snprintf(why, len, "%s", dlerror());
		unset(v, 2);
		if (!lib)
			return 0;
	}
	// Builds without versions of symbols have the newest, of which the structures here are a prefix, too.
#define LOAD(name, version) \
	if (!(*(void **)&uof.name = dlvsym(lib, "fi_" #name, version)) && !(*(void **)&uof.name = dlsym(lib, "fi_" #name))) { \
		*missing = "fi_" #name; \
		return 0; \
	}
	LOAD(getinfo, "FABRIC_1.3")
	LOAD(freeinfo, "FABRIC_1.3")
	LOAD(dupinfo, "FABRIC_1.3")
	LOAD(fabric, "FABRIC_1.1")
	LOAD(version, "FABRIC_1.0")
	LOAD(strerror, "FABRIC_1.0")
	*version = uof.version();
	return 1;
}

const char *uof_text(int error) { return uof.strerror(error); }

// error turns a result into a positive number.
static int error(ssize_t r) { return r < 0 ? (int)-r : 0; }

int uof_getinfo(const char *provider, const char *domain, uint64_t caps, uint64_t mode, int mr_mode, int ep_type,
	uof_info **all) {
	*all = 0;
	uof_info *hints = uof.dupinfo(0);
	if (!hints)
		return ENOMEM;
	hints->caps = caps;
	hints->mode = mode;
	hints->ep_attr->type = ep_type;
	hints->domain_attr->mr_mode = mr_mode;
	if (provider)
		hints->fabric_attr->prov_name = strdup(provider);
	if (domain)
		hints->domain_attr->name = strdup(domain);
	// Read at the first call only: a cache of registrations below the cache that asks would hide that memory was freed.
	variable v[] = {{"FI_MR_CACHE_MAX_COUNT", "0", 0}};
	static int asked;
	if (!asked)
		set(v, 1);
	int r = error(uof.getinfo(ASKED, 0, 0, 0, hints, all));
	if (!asked)
		unset(v, 1);
	asked = 1;
	uof.freeinfo(hints);
	return r;
}

uof_info *uof_dup(const uof_info *info) { return uof.dupinfo(info); }
void uof_free(uof_info *info) { uof.freeinfo(info); }

int uof_close(void *fid) { return fid ? error(((uof_fid *)fid)->ops->close(fid)) : 0; }

int uof_open(uof_info *info, uof_fabric **fabric, uof_domain **domain) {
	*fabric = 0, *domain = 0;
	int r = error(uof.fabric(info->fabric_attr, fabric, 0));
	if (!r && (r = error((*fabric)->ops->domain(*fabric, info, domain, 0)))) {
		uof_close(*fabric);
		*fabric = 0;
	}
	return r;
}

// A slot is the context of one operation: what the provider may use until it completes, then whose it is.
typedef struct {
	void *internal[8]; // struct fi_context2, the longer of the two
	uint64_t id;
	uint64_t operand, compare; // of an atomic: read by the provider until it completes
	uint32_t next; // free: the index + 1 of the next one
	uint8_t op;
} slot;

struct uof_end {
	uof_ep *ep;
	uof_cq *cq;
	uof_av *av;
	uof_fabric *fabric;
	int fd;
	slot *slots;
	uint32_t n;
	uof_mr *operands; // the slots' registration, where the provider wants one
	_Atomic uint64_t free; // its lower half: the index + 1 of the first free slot; its upper half counts changes
};

static slot *take(uof_end *e) {
	uint64_t head = atomic_load_explicit(&e->free, memory_order_acquire), next;
	do {
		if (!(uint32_t)head)
			return 0;
		next = (((head >> 32) + 1) << 32) | __atomic_load_n(&e->slots[(uint32_t)head - 1].next, __ATOMIC_RELAXED);
	} while (!atomic_compare_exchange_weak_explicit(&e->free, &head, next, memory_order_acq_rel, memory_order_acquire));
	return &e->slots[(uint32_t)head - 1];
}

static void give(uof_end *e, slot *s) {
	uint64_t head = atomic_load_explicit(&e->free, memory_order_relaxed), next;
	do {
		__atomic_store_n(&s->next, (uint32_t)head, __ATOMIC_RELAXED);
		next = (((head >> 32) + 1) << 32) | (uint32_t)(s - e->slots + 1);
	} while (!atomic_compare_exchange_weak_explicit(&e->free, &head, next, memory_order_acq_rel, memory_order_relaxed));
}

int uof_end_close(uof_end *e) {
	int r = uof_close(e->operands);
	if (r)
		return r;
	e->operands = 0;
	if ((r = uof_close(e->ep)))
		return r;
	e->ep = 0;
	if ((r = uof_close(e->cq)))
		return r;
	e->cq = 0;
	if ((r = uof_close(e->av)))
		return r;
	free(e->slots);
	free(e);
	return 0;
}

static int open_queue(uof_domain *domain, uint32_t slots, int waits, uof_end *e) {
	// Twice as many: what peers write with data completes here, too. A queue that is full holds back the provider.
	uof_cq_attr attr = {.size = 2 * (size_t)slots, .format = UOF_CQ_FORMAT_DATA, .wait_obj = UOF_WAIT_FD};
	e->fd = -1;
	if (waits && domain->ops->cq_open(domain, &attr, &e->cq, 0) == 0)
		return e->cq->fid.ops->control(&e->cq->fid, UOF_GETWAIT, &e->fd) ? (e->fd = -1, 0) : 0;
	attr.wait_obj = UOF_WAIT_NONE;
	return error(domain->ops->cq_open(domain, &attr, &e->cq, 0));
}

int uof_endpoint(uof_fabric *fabric, uof_domain *domain, uof_info *info, uint32_t slots, int waits, uint64_t key, uof_end **end,
	const char **call) {
	*call = "fi_endpoint";
	uof_end *e = calloc(1, sizeof *e);
	if (!e || !(e->slots = calloc(slots, sizeof *e->slots))) {
		free(e);
		return ENOMEM;
	}
	e->fabric = fabric, e->n = slots;
	for (uint32_t i = slots; i > 0; i--)
		give(e, &e->slots[i - 1]);
	uof_av_attr attr = {.type = info->domain_attr->av_type ? info->domain_attr->av_type : UOF_AV_TABLE};
	*call = "fi_cq_open";
	int r = open_queue(domain, slots, waits, e);
	if (!r)
		*call = "fi_av_open", r = error(domain->ops->av_open(domain, &attr, &e->av, 0));
	if (!r)
		*call = "fi_endpoint", r = error(domain->ops->endpoint(domain, info, &e->ep, 0));
	if (!r)
		*call = "fi_ep_bind", r = error(e->ep->fid.ops->bind(&e->ep->fid, &e->cq->fid, UOF_SEND | UOF_RECV));
	if (!r)
		r = error(e->ep->fid.ops->bind(&e->ep->fid, &e->av->fid, 0));
	if (!r)
		*call = "fi_enable", r = error(e->ep->fid.ops->control(&e->ep->fid, UOF_ENABLE, 0));
	// Atomics take their operands from the slots.
	if (!r && info->caps & UOF_ATOMIC && info->domain_attr->mr_mode & UOF_MR_LOCAL)
		*call = "fi_mr_regattr", r = uof_register(domain, info->domain_attr->mr_mode & UOF_MR_ENDPOINT ? e : 0, (uintptr_t)e->slots, slots * sizeof *e->slots,
			UOF_READ | UOF_WRITE, key, -1, &e->operands);
	if (r)
		uof_end_close(e);
	else
		*end = e;
	return r;
}

int uof_end_fd(uof_end *e) { return e->fd; }

int uof_may_wait(uof_end *e) {
	uof_fid *fid = &e->cq->fid;
	return error(e->fabric->ops->trywait(e->fabric, &fid, 1));
}

int uof_name(uof_end *e, void *name, size_t *length) { return error(e->ep->cm->getname(&e->ep->fid, name, length)); }

int uof_insert(uof_end *e, const void *address, uof_addr *peer) {
	int r = e->av->ops->insert(e->av, address, 1, peer, 0, 0);
	return r == 1 ? 0 : r < 0 ? -r : EINVAL;
}

int uof_remove(uof_end *e, uof_addr peer) { return error(e->av->ops->remove(e->av, &peer, 1, 0)); }

int uof_atomics(uof_end *e) {
	size_t n = 0, m = 0;
	return e->ep->atomic && e->ep->atomic->readwritevalid(e->ep, UOF_UINT64, UOF_SUM, &n) == 0 &&
		e->ep->atomic->compwritevalid(e->ep, UOF_UINT64, UOF_CSWAP, &m) == 0 && n > 0 && m > 0;
}

int uof_register(uof_domain *domain, uof_end *bind, uintptr_t address, size_t length, uint64_t access, uint64_t key, int cuda,
	uof_mr **mr) {
	struct iovec v = {(void *)address, length};
	uof_mr_attr attr = {.mr_iov = &v, .iov_count = 1, .access = access, .requested_key = key};
	if (cuda >= 0)
		attr.iface = 1, attr.device.cuda = cuda;
	*mr = 0;
	int r = error(domain->mr->regattr(&domain->fid, &attr, 0, mr));
	if (r || !bind)
		return r;
	r = error((*mr)->fid.ops->bind(&(*mr)->fid, &bind->ep->fid, 0));
	if (!r)
		r = error((*mr)->fid.ops->control(&(*mr)->fid, UOF_ENABLE, 0));
	if (r) {
		uof_close(*mr);
		*mr = 0;
	}
	return r;
}

// post hands one operation to the provider. s is 0 for those that complete in silence.
static ssize_t post(uof_end *e, const uof_work *w, slot *s) {
	int data = w->flags & UOF_FLAG_DATA;
	void *local = (void *)(uintptr_t)w->local, *desc = w->desc;
	struct iovec v = {local, w->length};
	uof_rma_iov remote = {w->remote, w->length, w->key};
	uint64_t flags = UOF_COMPLETION | (data ? UOF_REMOTE_CQ_DATA : 0) | (w->flags & UOF_FLAG_DELIVERED ? UOF_DELIVERY_COMPLETE : 0);
	size_t n = w->length != 0;
	switch (w->op) {
	case UOF_OP_SEND:
		if (!s)
			return data ? e->ep->msg->injectdata(e->ep, local, w->length, w->data, w->peer)
				: e->ep->msg->inject(e->ep, local, w->length, w->peer);
		return e->ep->msg->sendmsg(e->ep, &(uof_msg){&v, &desc, n, w->peer, s, w->data}, flags);
	case UOF_OP_RECEIVE:
		return e->ep->msg->recvmsg(e->ep, &(uof_msg){&v, &desc, n, w->peer, s, 0}, UOF_COMPLETION);
	case UOF_OP_WRITE:
		if (!s)
			return data ? e->ep->rma->injectdata(e->ep, local, w->length, w->data, w->peer, w->remote, w->key)
				: e->ep->rma->inject(e->ep, local, w->length, w->peer, w->remote, w->key);
		return e->ep->rma->writemsg(e->ep, &(uof_msg_rma){&v, &desc, n, w->peer, &remote, 1, s, w->data}, flags);
	case UOF_OP_READ:
		return e->ep->rma->readmsg(e->ep, &(uof_msg_rma){&v, &desc, n, w->peer, &remote, 1, s, 0}, UOF_COMPLETION);
	}
	// Atomics: operands are copied into the slot, since the provider may read them until the completion.
	s->operand = w->op == UOF_OP_FETCH_ADD ? w->add_or_compare : w->swap;
	s->compare = w->add_or_compare;
	uof_ioc operand = {&s->operand, 1}, compare = {&s->compare, 1}, result = {local, 1};
	remote.len = 1;
	void *from = e->operands ? e->operands->mem_desc : 0;
	uof_msg_atomic m = {&operand, &from, 1, w->peer, &remote, 1, UOF_UINT64, w->op == UOF_OP_FETCH_ADD ? UOF_SUM : UOF_CSWAP, s, 0};
	if (w->op == UOF_OP_FETCH_ADD)
		return e->ep->atomic->readwritemsg(e->ep, &m, &result, &desc, 1, UOF_COMPLETION);
	return e->ep->atomic->compwritemsg(e->ep, &m, &compare, &from, 1, &result, &desc, 1, UOF_COMPLETION);
}

int uof_post(uof_end *e, const uof_work *w) {
	slot *s = 0;
	if (!(w->flags & UOF_FLAG_INLINE)) {
		if (!(s = take(e)))
			return EAGAIN;
		s->id = w->id, s->op = w->op;
	}
	ssize_t r = post(e, w, s);
	if (r && s)
		give(e, s);
	return error(r);
}

// finish fills in what is known of the operation whose context came back.
static void finish(uof_end *e, uof_done *d, void *context) {
	slot *s = context;
	d->ours = s >= e->slots && s < e->slots + e->n;
	if (!d->ours)
		return;
	d->id = s->id, d->op = s->op;
	give(e, s);
}

// failed takes one failed completion.
static int failed(uof_end *e, uof_done *d) {
	uof_cq_err_entry x = {0};
	ssize_t r = e->cq->ops->readerr(e->cq, &x, 0);
	if (r <= 0)
		return r == 0 || r == -EAGAIN ? EAGAIN : (int)-r;
	*d = (uof_done){.flags = x.flags, .length = x.len, .data = x.data, .err = x.err ? x.err : EIO, .prov = x.prov_errno};
	char text[sizeof d->text] = "";
	const char *t = e->cq->ops->strerror(e->cq, x.prov_errno, x.err_data, text, sizeof text);
	snprintf(d->text, sizeof d->text, "%s", t ? t : "");
	finish(e, d, x.op_context);
	return 0;
}

int uof_poll(uof_end *e, uof_done *done, int max, int tries, int *n) {
	enum { BATCH = 32 };
	uof_cq_data_entry entries[BATCH];
	ssize_t r;
	*n = 0;
	do
		r = e->cq->ops->read(e->cq, entries, max < BATCH ? max : BATCH);
	while ((r == -EAGAIN || r == 0) && --tries > 0);
	if (r == -UOF_EAVAIL) {
		int code = failed(e, done);
		*n = code == 0;
		return code == EAGAIN ? 0 : code;
	}
	if (r == -EAGAIN)
		return 0;
	if (r < 0)
		return (int)-r;
	for (ssize_t i = 0; i < r; i++) {
		done[i] = (uof_done){.flags = entries[i].flags, .length = entries[i].len, .data = entries[i].data};
		finish(e, &done[i], entries[i].op_context);
	}
	*n = (int)r;
	return 0;
}
