//go:build linux && cgo && (amd64 || arm64)

// libibverbs is loaded once and never unloaded: its providers do not survive unloading.
#include "lib.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FIELD(result, name, params) result(*name) params;
static struct {
	UBV_CALLS(FIELD)
	UBV_OPTIONAL(FIELD)
	ssize_t (*query_gid_table)(ubv_context *, ubv_gid_entry *, size_t, uint32_t, size_t);
} ubv;

int ubv_load(const char *path, char *why, size_t len, const char **missing) {
	dlerror();
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, len, "%s", dlerror());
		return 0;
	}
#define LOAD(result, name, params) \
	if (!(*(void **)&ubv.name = dlsym(lib, "ibv_" #name))) { \
		*missing = "ibv_" #name; \
		return 0; \
	}
#define TRY(result, name, params) *(void **)&ubv.name = dlsym(lib, "ibv_" #name);
	UBV_CALLS(LOAD)
	UBV_OPTIONAL(TRY)
	if (!(*(void **)&ubv.query_gid_table = dlsym(lib, "_ibv_query_gid_table"))) {
		*missing = "_ibv_query_gid_table";
		return 0;
	}
	return 1;
}

int ubv_has_dmabuf(void) { return ubv.reg_dmabuf_mr != 0; }
const char *ubv_status(int status) { return ubv.wc_status_str(status); }
const char *ubv_event_name(int type) { return ubv.event_type_str(type); }

// error turns the result of a call into an errno: calls return an errno, its negative, or -1 and set errno.
static int error(int r) {
	if (r == 0)
		return 0;
	if (r > 0)
		return r;
	if (r < -1)
		return -r;
	return errno ? errno : EIO;
}

// MAKE is for calls that return a pointer, or null and set errno. If they set none, the result is EIO.
#define MAKE(to, call) \
	do { \
		errno = 0; \
		*(to) = (call); \
		return *(to) ? 0 : errno ? errno : EIO; \
	} while (0)
#define DO(call) \
	do { \
		errno = 0; \
		return error(call); \
	} while (0)

// Kernels that copy registered pages at a fork (UBV_FORK_UNNEEDED) do not need ibv_fork_init. There it would cost a
// madvise for each registration and split huge pages, and it does not check for this itself.
void ubv_fork_init(void) {
	if (!ubv.is_fork_initialized || ubv.is_fork_initialized() != UBV_FORK_UNNEEDED)
		ubv.fork_init();
}

int ubv_devices(ubv_device ***list, int *n) { MAKE(list, ubv.get_device_list(n)); }
void ubv_free_devices(ubv_device **list) { ubv.free_device_list(list); }
ubv_device *ubv_device_at(ubv_device **list, int i) { return list[i]; }
int ubv_open(ubv_device *device, ubv_context **context) { MAKE(context, ubv.open_device(device)); }
int ubv_close(ubv_context *context) { DO(ubv.close_device(context)); }

// extension returns the structure that precedes a context, or 0 if it is too old to have the field at offset.
static ubv_extension *extension(ubv_context *context, size_t offset) {
	if ((uintptr_t)context->abi_compat != UINTPTR_MAX)
		return 0;
	ubv_extension *x = (ubv_extension *)((char *)context - offsetof(ubv_extension, context));
	return x->sz >= sizeof *x - offset ? x : 0;
}

int ubv_describe(ubv_context *context, ubv_device_attr_ex *attr) {
	memset(attr, 0, sizeof *attr);
	ubv_extension *x = extension(context, offsetof(ubv_extension, query_device_ex));
	if (x && x->query_device_ex && x->query_device_ex(context, 0, attr, sizeof *attr) == 0)
		return 0;
	memset(attr, 0, sizeof *attr);
	DO(ubv.query_device(context, &attr->orig));
}

int ubv_port(ubv_context *context, int port, ubv_port_attr *attr) {
	memset(attr, 0, sizeof *attr);
	ubv_extension *x = extension(context, offsetof(ubv_extension, query_port));
	if (x && x->query_port)
		DO(x->query_port(context, port, attr, sizeof *attr));
	DO(ubv.query_port(context, port, attr)); // fills in only the fields of an older struct ibv_port_attr
}

int ubv_pkey(ubv_context *context, int port, int index, uint16_t *key) {
	uint16_t raw = 0;
	errno = 0;
	int r = error(ubv.query_pkey(context, port, index, &raw));
	*key = ntohs(raw);
	return r;
}

int ubv_gids(ubv_context *context, ubv_gid_entry *entries, int max, int *n) {
	errno = 0;
	ssize_t r = ubv.query_gid_table(context, entries, max, 0, sizeof *entries);
	*n = r < 0 ? 0 : (int)r;
	return r < 0 ? error((int)r) : 0;
}

int ubv_alloc_pd(ubv_context *context, ubv_pd **pd) { MAKE(pd, ubv.alloc_pd(context)); }
int ubv_dealloc_pd(ubv_pd *pd) { DO(ubv.dealloc_pd(pd)); }

// Plain ibv_reg_mr passes optional flags to kernels that refuse them; ibv_reg_mr_iova2 drops them for such kernels.
int ubv_reg(ubv_pd *pd, uintptr_t address, size_t length, unsigned access, ubv_mr **mr) {
	if (access & UBV_ACCESS_RELAXED_ORDERING)
		MAKE(mr, ubv.reg_mr_iova2(pd, (void *)address, length, address, access));
	MAKE(mr, ubv.reg_mr(pd, (void *)address, length, access));
}

int ubv_reg_dmabuf(ubv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned access, ubv_mr **mr) {
	if (!ubv.reg_dmabuf_mr)
		return EOPNOTSUPP;
	MAKE(mr, ubv.reg_dmabuf_mr(pd, offset, length, iova, fd, access));
}

// ibv_rereg_mr returns numbers of its own (enum ibv_rereg_mr_err_code), and sets errno where the kernel has refused.
int ubv_rereg(ubv_mr *mr, unsigned access) {
	errno = 0;
	int r = ubv.rereg_mr(mr, UBV_REREG_ACCESS, 0, 0, 0, access);
	return r == 0 ? 0 : r > 0 ? r : errno ? errno : EINVAL;
}

int ubv_dereg(ubv_mr *mr) { DO(ubv.dereg_mr(mr)); }

int ubv_create_channel(ubv_context *context, ubv_comp_channel **channel) {
	MAKE(channel, ubv.create_comp_channel(context));
}
int ubv_destroy_channel(ubv_comp_channel *channel) { DO(ubv.destroy_comp_channel(channel)); }

int ubv_get_event(ubv_comp_channel *channel, ubv_cq **cq) {
	void *context = 0;
	DO(ubv.get_cq_event(channel, cq, &context));
}

void ubv_ack(ubv_cq *cq, unsigned n) { ubv.ack_cq_events(cq, n); }

int ubv_create_cq(ubv_context *context, int entries, ubv_comp_channel *channel, int vector, ubv_cq **cq) {
	MAKE(cq, ubv.create_cq(context, entries, 0, channel, vector));
}
int ubv_destroy_cq(ubv_cq *cq) { DO(ubv.destroy_cq(cq)); }

int ubv_poll(ubv_cq *cq, ubv_wc *done, int max, int tries, int *n) {
	int (*poll)(ubv_cq *, int, ubv_wc *) = cq->context->ops.poll_cq;
	int got;
	do
		got = poll(cq, max, done);
	while (got == 0 && --tries > 0);
	*n = got < 0 ? 0 : got;
	for (int i = 0; i < got; i++)
		done[i].imm_data = ntohl(done[i].imm_data);
	return got < 0 ? EIO : 0;
}

int ubv_notify(ubv_cq *cq, int solicited) { DO(cq->context->ops.req_notify_cq(cq, solicited)); }

int ubv_create_srq(ubv_pd *pd, uint32_t work, uint32_t limit, ubv_srq **srq, uint32_t *got) {
	ubv_srq_init_attr attr = {.max_wr = work, .max_sge = 1};
	errno = 0;
	*srq = ubv.create_srq(pd, &attr);
	*got = attr.max_wr;
	if (!*srq)
		return errno ? errno : EIO;
	if (!limit)
		return 0;
	// Drivers may ignore the limit when they create the queue: ibv_create_srq(3).
	int r = error(ubv.modify_srq(*srq, &(ubv_srq_attr){.srq_limit = limit}, UBV_SRQ_LIMIT));
	if (r)
		ubv.destroy_srq(*srq);
	return r;
}
int ubv_destroy_srq(ubv_srq *srq) { DO(ubv.destroy_srq(srq)); }

int ubv_create_qp(ubv_pd *pd, ubv_cq *send, ubv_cq *receive, ubv_srq *srq, ubv_qp_cap *cap, ubv_qp **qp) {
	ubv_qp_init_attr attr = {.send_cq = send, .recv_cq = receive, .srq = srq, .cap = *cap, .qp_type = UBV_QPT_RC};
	errno = 0;
	*qp = ubv.create_qp(pd, &attr);
	*cap = attr.cap;
	return *qp ? 0 : errno ? errno : EIO;
}
int ubv_modify_qp(ubv_qp *qp, ubv_qp_attr *attr, int mask) { DO(ubv.modify_qp(qp, attr, mask)); }

int ubv_query_qp(ubv_qp *qp, int *state) {
	ubv_qp_attr attr = {0};
	ubv_qp_init_attr init = {0};
	errno = 0;
	int r = error(ubv.query_qp(qp, &attr, UBV_QP_STATE, &init));
	*state = attr.qp_state;
	return r;
}
int ubv_destroy_qp(ubv_qp *qp) { DO(ubv.destroy_qp(qp)); }

int ubv_in_order(ubv_qp *qp, int op) {
	return ubv.query_qp_data_in_order && ubv.query_qp_data_in_order(qp, op, 0) == 1;
}

enum { BATCH = 32 }; // work requests for one call of the provider

int ubv_post(ubv_qp *qp, const ubv_work *work, int n, uint32_t inline_max, int *posted, int *inlined) {
	ubv_send_wr wr[BATCH];
	ubv_sge sge[BATCH];
	for (*posted = 0; *posted < n;) {
		int batch = n - *posted < BATCH ? n - *posted : BATCH, in = 0;
		for (int i = 0; i < batch; i++) {
			const ubv_work *w = &work[*posted + i];
			ubv_send_wr *r = &wr[i];
			sge[i] = (ubv_sge){w->local, w->length, w->lkey};
			r->wr_id = w->id;
			r->next = i + 1 < batch ? r + 1 : 0;
			r->sg_list = &sge[i];
			r->num_sge = w->length != 0;
			r->opcode = w->op;
			r->send_flags = w->flags;
			r->imm_data = htonl(w->immediate);
			if (w->op == UBV_WR_CMP_SWAP || w->op == UBV_WR_FETCH_ADD) {
				r->wr.atomic.remote_addr = w->remote;
				r->wr.atomic.compare_add = w->add_or_compare;
				r->wr.atomic.swap = w->swap;
				r->wr.atomic.rkey = w->rkey;
			} else {
				r->wr.rdma.remote_addr = w->remote;
				r->wr.rdma.rkey = w->rkey;
				if (w->op != UBV_WR_READ && w->length != 0 && w->length <= inline_max) {
					r->send_flags |= UBV_SEND_INLINE;
					in++;
				}
			}
		}
		ubv_send_wr *bad = 0;
		errno = 0;
		int r = error(qp->context->ops.post_send(qp, wr, &bad));
		if (r) {
			int took = bad ? (int)(bad - wr) : 0;
			for (int i = took; i < batch; i++)
				in -= (wr[i].send_flags & UBV_SEND_INLINE) != 0;
			*posted += took;
			*inlined += in;
			return r;
		}
		*posted += batch;
		*inlined += in;
	}
	return 0;
}

int ubv_post_receive(ubv_qp *qp, ubv_srq *srq, const ubv_receive *work, int n, int *posted) {
	ubv_recv_wr wr[BATCH];
	ubv_sge sge[BATCH];
	for (*posted = 0; *posted < n;) {
		int batch = n - *posted < BATCH ? n - *posted : BATCH;
		for (int i = 0; i < batch; i++) {
			const ubv_receive *w = &work[*posted + i];
			sge[i] = (ubv_sge){w->local, w->length, w->lkey};
			wr[i] = (ubv_recv_wr){w->id, i + 1 < batch ? wr + i + 1 : 0, &sge[i], w->length != 0};
		}
		ubv_recv_wr *bad = 0;
		errno = 0;
		int r = error(srq ? srq->context->ops.post_srq_recv(srq, wr, &bad) : qp->context->ops.post_recv(qp, wr, &bad));
		if (r) {
			*posted += bad ? (int)(bad - wr) : 0;
			return r;
		}
		*posted += batch;
	}
	return 0;
}

// Acknowledges the event at once: else the object that it is about could not be destroyed.
int ubv_get_async(ubv_context *context, int *type, int *port, uint32_t *qp) {
	ubv_async_event event = {0};
	errno = 0;
	int r = error(ubv.get_async_event(context, &event));
	*type = event.type, *port = 0, *qp = 0;
	if (r)
		return r;
	switch (event.type) {
	case UBV_EVENT_PORT_ACTIVE:
	case UBV_EVENT_PORT_ERR:
	case UBV_EVENT_LID_CHANGE:
	case UBV_EVENT_PKEY_CHANGE:
	case UBV_EVENT_SM_CHANGE:
	case UBV_EVENT_CLIENT_REREGISTER:
	case UBV_EVENT_GID_CHANGE:
		*port = event.element.port;
		break;
	case UBV_EVENT_QP_FATAL:
	case UBV_EVENT_QP_REQ_ERR:
	case UBV_EVENT_QP_ACCESS_ERR:
	case UBV_EVENT_COMM_EST:
	case UBV_EVENT_SQ_DRAINED:
	case UBV_EVENT_PATH_MIG:
	case UBV_EVENT_PATH_MIG_ERR:
	case UBV_EVENT_QP_LAST_WQE_REACHED:
		*qp = event.element.qp->qp_num;
	}
	ubv.ack_async_event(&event);
	return 0;
}
