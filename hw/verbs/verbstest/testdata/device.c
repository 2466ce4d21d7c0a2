// Devices, events, and waiting for events.
#include "double.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static pthread_cond_t acked = PTHREAD_COND_INITIALIZER; // an event was acknowledged
context *contexts;

void push(notes *n, void *of, int type, uint32_t *reported) {
	note **last = &n->first, *x = malloc(sizeof *x);
	while (*last)
		last = &(*last)->next;
	*x = (note){0, of, type, reported};
	*last = x;
	eventfd_write(n->fd, 1); // edge-triggered pollers need one for each
}

static void remove_note(notes *n, note **at) {
	note *x = *at;
	*at = x->next;
	free(x);
	eventfd_t one;
	if (!n->first)
		eventfd_read(n->fd, &one);
}

// forget drops the events of an object that is destroyed.
void forget(notes *n, void *of) {
	for (note **at = &n->first; *at;)
		if ((*at)->of == of)
			remove_note(n, at);
		else
			at = &(*at)->next;
}

// take waits for an event. If the descriptor is non-blocking, it returns -1 instead of waiting.
static int take(notes *n, note *out) {
	for (;;) {
		pthread_mutex_lock(&lock);
		if (n->first) {
			*out = *n->first;
			if (out->reported)
				++*out->reported;
			remove_note(n, &n->first);
			pthread_mutex_unlock(&lock);
			return 0;
		}
		pthread_mutex_unlock(&lock);
		if (fcntl(n->fd, F_GETFL) & O_NONBLOCK)
			return errno = EAGAIN, -1;
		poll(&(struct pollfd){n->fd, POLLIN, 0}, 1, -1);
	}
}

void raise_event(context *c, int type, void *of, uint32_t *reported) { push(&c->events, of, type, reported); }

// wait_acked ends a destruction: it waits until all events that were taken are acknowledged.
void wait_acked(const char *what, uint32_t *reported, uint32_t *acknowledged) {
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += knob.patience;
	while (*reported != *acknowledged)
		if (pthread_cond_timedwait(&acked, &lock, &until) == ETIMEDOUT)
			die("%s waits for ever: %u events were taken, %u acknowledged", what, *reported, *acknowledged);
}

static void acknowledge(const char *what, uint32_t reported, uint32_t *acknowledged, unsigned n) {
	if (n > reported - *acknowledged)
		die("%s: %u events, but %u were taken and %u acknowledged before", what, n, reported, *acknowledged);
	*acknowledged += n;
	pthread_cond_broadcast(&acked);
}

ubv_device **ibv_get_device_list(int *n) {
	ENTER_MAKE(get_device_list);
	ubv_device **list = calloc(n_devices + 1, sizeof *list);
	for (int i = 0; i < n_devices; i++)
		list[i] = &devices[i].v;
	if (n)
		*n = n_devices;
	return list;
}

void ibv_free_device_list(ubv_device **list) {
	LOCKED(free_device_list);
	free(list);
}

int ibv_query_device(ubv_context *v, ubv_device_attr *a) {
	ENTER(query_device);
	*a = (ubv_device_attr){.fw_ver = "1.2.3", .node_guid = of(v)->dev->guid, .sys_image_guid = of(v)->dev->guid,
		.max_mr_size = 1ull << 40, .page_size_cap = ~0ull << 12, .vendor_id = 0xd0b1e, .vendor_part_id = 1, .max_qp = 65535,
		.max_qp_wr = MAX_WORK, .max_sge = MAX_SGE, .max_sge_rd = MAX_SGE, .max_cq = 65535, .max_cqe = MAX_CQE,
		.max_mr = 1 << 22, .max_pd = 65535, .max_qp_rd_atom = MAX_READS, .max_qp_init_rd_atom = MAX_READS,
		.max_res_rd_atom = MAX_READS * 65535, .atomic_cap = knob.atomics, .max_srq = 65535, .max_srq_wr = MAX_WORK,
		.max_srq_sge = MAX_SGE, .max_pkeys = 1, .local_ca_ack_delay = 16, .phys_port_cnt = 1};
	return 0;
}

static int query_device_ex(ubv_context *v, const void *in, ubv_device_attr_ex *a, size_t n) {
	ubv_device_attr_ex all = {.odp = {.general = knob.odp ? UBV_ODP_SUPPORT : 0, .rc = knob.odp}};
	int result = ibv_query_device(v, &all.orig);
	if (in || n < sizeof all.orig)
		return EINVAL;
	if (!result)
		memcpy(a, &all, n < sizeof all ? n : sizeof all);
	return result;
}

static int query_port(ubv_context *v, uint8_t port, ubv_port_attr *a, size_t n) {
	ENTER(query_port);
	if (port != 1)
		return EINVAL;
	device *d = of(v)->dev;
	ubv_port_attr all = {.state = d->down ? UBV_PORT_DOWN : UBV_PORT_ACTIVE, .max_mtu = 5, .active_mtu = knob.ethernet ? 3 : 5,
		.gid_tbl_len = GIDS, .max_msg_sz = knob.max_msg, .pkey_tbl_len = 1, .lid = d->lid, .sm_lid = !knob.ethernet,
		.active_width = 2, .active_speed = 32, .phys_state = d->down ? 3 : 5,
		.link_layer = knob.ethernet ? UBV_LINK_ETHERNET : UBV_LINK_INFINIBAND, .flags = knob.grh ? UBV_GRH_REQUIRED : 0};
	memcpy(a, &all, n < sizeof all ? n : sizeof all);
	return 0;
}

int ibv_query_port(ubv_context *v, uint8_t port, ubv_port_attr *a) {
	return query_port(v, port, a, offsetof(ubv_port_attr, flags)); // this older function knows a shorter structure
}

int ibv_query_pkey(ubv_context *v, uint8_t port, int index, uint16_t *key) {
	LOCKED(query_pkey);
	*key = htons(0xffff);
	return refused || port != 1 || index ? (errno = refused ? refused : EINVAL, -1) : 0;
}

EXPORT ssize_t _ibv_query_gid_table(ubv_context *v, ubv_gid_entry *out, size_t max, uint32_t flags, size_t size) {
	LOCKED(query_gid_table);
	if (refused || flags || size != sizeof *out)
		return -(refused ? refused : EINVAL);
	size_t n = 0;
	for (int i = 0; i < GIDS; i++)
		if (of(v)->dev->gids[i].port) {
			if (n == max)
				return -EINVAL;
			out[n++] = of(v)->dev->gids[i];
		}
	return n;
}

EXPORT int _ibv_query_gid_ex(ubv_context *v, uint32_t port, uint32_t i, ubv_gid_entry *out, uint32_t flags, size_t size) {
	LOCKED(query_gid_table);
	if (refused || port != 1 || i >= GIDS || flags || size != sizeof *out)
		return refused ? refused : EINVAL;
	*out = of(v)->dev->gids[i];
	return out->port ? 0 : ENODATA;
}

ubv_context *ibv_open_device(ubv_device *v) {
	ENTER_MAKE(open_device);
	context *c = calloc(1, sizeof *c);
	c->dev = (device *)v;
	c->events.fd = eventfd(0, EFD_CLOEXEC);
	c->x.query_port = query_port;
	c->x.query_device_ex = query_device_ex;
	c->x.sz = knob.extension == SHORT ? sizeof c->x - offsetof(ubv_extension, skip2) : sizeof c->x;
	ubv_context *u = &c->x.context;
	u->device = v;
	u->ops.poll_cq = poll_cq;
	u->ops.req_notify_cq = req_notify_cq;
	u->ops.post_srq_recv = post_srq_recv;
	u->ops.post_send = post_send;
	u->ops.post_recv = post_recv;
	u->cmd_fd = -1;
	u->async_fd = c->events.fd;
	u->num_comp_vectors = VECTORS;
	u->abi_compat = knob.extension != WITHOUT ? (void *)UINTPTR_MAX : 0;
	if (c->events.fd < 0) {
		free(c);
		NONE(EMFILE);
	}
	c->next = contexts;
	contexts = c;
	count.context++;
	return u;
}

int ibv_close_device(ubv_context *v) {
	context *c = of(v);
	ENTER(close_device);
	ALIVE(c, "context");
	if (c->children)
		return EBUSY;
	while (c->events.first)
		remove_note(&c->events, &c->events.first);
	close(c->events.fd);
	context **at = &contexts;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->dead = 1;
	count.context--;
	return 0;
}

int ibv_get_async_event(ubv_context *v, ubv_async_event *event) {
	{
		LOCKED(get_async_event);
		if (refused)
			return errno = refused, -1;
	}
	note n;
	if (take(&of(v)->events, &n))
		return -1;
	event->type = n.type;
	if (n.of)
		event->element.qp = n.of; // all members of the union are pointers
	else
		event->element.port = 1;
	return 0;
}

void ibv_ack_async_event(ubv_async_event *event) {
	LOCKED(ack_async_event);
	switch (event->type) {
	case UBV_EVENT_CQ_ERR: {
		cq *c = (cq *)event->element.cq;
		acknowledge("ack_async_event", c->async_reported, &c->v.async_events_completed, 1);
		break;
	}
	case UBV_EVENT_SRQ_LIMIT_REACHED: {
		srq *s = (srq *)event->element.srq;
		acknowledge("ack_async_event", s->reported, &s->v.events_completed, 1);
		break;
	}
	case UBV_EVENT_QP_FATAL:
	case UBV_EVENT_QP_REQ_ERR:
	case UBV_EVENT_QP_ACCESS_ERR:
	case UBV_EVENT_QP_LAST_WQE_REACHED: {
		qp *q = (qp *)event->element.qp;
		acknowledge("ack_async_event", q->reported, &q->v.events_completed, 1);
		break;
	}
	}
}

static const char *const statuses_text[STATUSES] = {"success", "local length error", "local QP operation error",
	"local EE context operation error", "local protection error", "work request flushed", "memory window bind error",
	"bad response", "local access error", "remote invalid request", "remote access error", "remote operation error",
	"retries exceeded", "receiver-not-ready retries exceeded", "local RDD violation", "remote invalid RD request",
	"remote abort", "invalid EE context number", "invalid EE context state", "fatal error", "response time-out",
	"general error"};
static const char *const event_texts[] = {"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
	"local access violation work queue error", "communication established", "send queue drained", "path migrated",
	"path migration failed", "local catastrophic error", "port active", "port error", "LID change", "P_Key change",
	"subnet manager change", "SRQ catastrophic error", "SRQ limit reached", "last work request reached", "client reregistration",
	"GID table change"};
enum { EVENTS = sizeof event_texts / sizeof *event_texts };

const char *ibv_wc_status_str(int s) { return s >= 0 && s < STATUSES ? statuses_text[s] : "unknown"; }
const char *ibv_event_type_str(int e) { return e >= 0 && e < EVENTS ? event_texts[e] : "unknown"; }

static int forks;

int ibv_fork_init(void) {
	ENTER(fork_init);
	if (count.mr && !forks)
		return EINVAL; // too late
	forks = 1;
	return 0;
}

int ibv_is_fork_initialized(void) {
	LOCKED(is_fork_initialized);
	return forks;
}

ubv_comp_channel *ibv_create_comp_channel(ubv_context *v) {
	ENTER_MAKE(create_comp_channel);
	int fd = eventfd(0, EFD_CLOEXEC);
	if (fd < 0)
		NONE(EMFILE);
	channel *c = calloc(1, sizeof *c);
	c->v = (ubv_comp_channel){v, fd, 0};
	c->events.fd = fd;
	of(v)->children++;
	count.channel++;
	return &c->v;
}

int ibv_destroy_comp_channel(ubv_comp_channel *v) {
	channel *c = (channel *)v;
	ENTER(destroy_comp_channel);
	ALIVE(c, "completion channel");
	if (v->refcnt)
		return EBUSY;
	close(v->fd);
	c->dead = 1;
	of(v->context)->children--;
	count.channel--;
	return 0;
}

ubv_cq *ibv_create_cq(ubv_context *v, int n, void *user, ubv_comp_channel *ch, int vector) {
	ENTER_MAKE(create_cq);
	if (n < 1 || n > MAX_CQE || vector < 0 || vector >= VECTORS || (ch && ch->context != v))
		NONE(EINVAL);
	int got = 1;
	while (got - 1 < n)
		got *= 2;
	cq *c = calloc(1, sizeof *c);
	c->v = (ubv_cq){.context = v, .channel = ch, .cq_context = user, .cqe = got - 1};
	c->ring = calloc(got, sizeof *c->ring);
	if (ch)
		ch->refcnt++;
	of(v)->children++;
	count.cq++;
	return &c->v;
}

int ibv_destroy_cq(ubv_cq *v) {
	cq *c = (cq *)v;
	ENTER(destroy_cq);
	ALIVE(c, "completion queue");
	if (c->users)
		return EBUSY;
	c->dead = 1;
	forget(&of(v->context)->events, c);
	if (v->channel)
		forget(&((channel *)v->channel)->events, c);
	wait_acked("destroy_cq", &c->reported, &v->comp_events_completed);
	wait_acked("destroy_cq", &c->async_reported, &v->async_events_completed);
	if (v->channel)
		v->channel->refcnt--;
	free(c->ring);
	of(v->context)->children--;
	count.cq--;
	return 0;
}

int ibv_get_cq_event(ubv_comp_channel *v, ubv_cq **c, void **user) {
	{
		LOCKED(get_cq_event);
		if (refused)
			return errno = refused, -1;
	}
	note n;
	if (take(&((channel *)v)->events, &n))
		return -1;
	*c = n.of;
	*user = (*c)->cq_context;
	return 0;
}

void ibv_ack_cq_events(ubv_cq *v, unsigned n) {
	LOCKED(ack_cq_events);
	acknowledge("ack_cq_events", ((cq *)v)->reported, &v->comp_events_completed, n);
}

