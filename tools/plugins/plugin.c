// A reference plugin of NCCL's CollNet interface, for tests: ubcoll-switch does the arithmetic, at the address in COLLNET_SWITCH
// (HOST:PORT). It exports version 11, or with -DVERSION=10 version 10, or any other number with no more than a name.
//
// COLLNET_SWITCH_FAULT makes it misbehave: CALL=WHAT[@N], with commas between several, from the N-th such call on (1).
//
//	fail   returns an internal error          hang    does not return
//	abort  ends the process                   never   the request is never complete (test)
//	short  says that one byte less has come (test), or that calls take one byte (properties)
//	null   gives no request                   lie     properties that make no sense
//	signals  installs handlers without SA_ONSTACK (init)
#define _GNU_SOURCE
#include "../../hw/collnet/abi.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 11
#endif
#ifndef GROUPS
#define GROUPS 1024
#endif
#ifndef SPEED
#define SPEED 10000
#endif

static cn_log logger;

#define LOG(level, ...)                                          \
	do {                                                           \
		if (logger)                                                  \
			logger(level, ~0ul, __FILE__, __LINE__, __VA_ARGS__);      \
	} while (0)

// fault returns what a call is to do wrong, or "".
static const char *fault(const char *call) {
	static struct {
		char call[32];
		int n;
	} counts[32];
	static char what[16];
	const char *all = getenv("COLLNET_SWITCH_FAULT");
	if (!all)
		return "";
	int n = 0;
	for (int i = 0; i < 32; i++) {
		if (!counts[i].call[0])
			snprintf(counts[i].call, sizeof counts[i].call, "%s", call);
		if (!strcmp(counts[i].call, call)) {
			n = ++counts[i].n;
			break;
		}
	}
	for (size_t len = strlen(call); *all; all++) {
		if (!strncmp(all, call, len) && all[len] == '=') {
			int from = 1, at = 0;
			sscanf(all + len + 1, "%15[a-z]%n", what, &at);
			if (all[len + 1 + at] == '@')
				from = atoi(all + len + 2 + at);
			if (n >= from)
				return what;
		}
		if (!(all = strchr(all, ',')))
			break;
	}
	return "";
}

// FAULT does what is wrong with a call, but for what only that call can do wrong.
#define FAULT(call)                                              \
	const char *wrong = fault(call);                               \
	if (!strcmp(wrong, "fail")) {                                  \
		LOG(CN_LOG_WARN, "%s fails, as it was told to", call);       \
		return CN_INTERNAL;                                          \
	}                                                              \
	if (!strcmp(wrong, "abort"))                                   \
		abort();                                                     \
	while (!strcmp(wrong, "hang"))                                 \
		pause();                                                     \
	(void)wrong

static void on_signal(int signal) {
	char frames[64 << 10]; // more than goroutines' stacks have
	memset(frames, signal, sizeof frames);
	write(2, frames, frames[0] == 0);
}

static int init(cn_log log) {
	logger = log;
	FAULT("init");
	if (!strcmp(wrong, "signals"))
		for (int s = 1; s < 32; s++)
			if (s != SIGKILL && s != SIGSTOP)
				signal(s, on_signal);
	if (!getenv("COLLNET_SWITCH")) {
		LOG(CN_LOG_WARN, "COLLNET_SWITCH does not name a switch");
		return CN_USAGE;
	}
	LOG(CN_LOG_INFO, "the switch is at %s", getenv("COLLNET_SWITCH"));
	return CN_OK;
}

static int devices(int *n) {
	FAULT("devices");
	*n = strcmp(wrong, "lie") ? 1 : 0;
	return CN_OK;
}

static int properties(int device, cn_props *p) {
	FAULT("properties");
	if (device != 0)
		return CN_ARGUMENT;
	memset(p, 0, VERSION == 10 ? CN_PROPS_V10 : sizeof *p);
	p->name = "switch0";
	p->pointers = CN_PTR_HOST;
	p->speed = SPEED;
	p->max_comms = GROUPS;
	p->max_recvs = 1;
	p->max_p2p = p->max_coll = 64 << 20;
	p->v.ndevs = 1;
	if (!strcmp(wrong, "short"))
		p->max_coll = 1;
	if (!strcmp(wrong, "lie")) {
		p->max_coll = 0;
		p->max_comms = -1;
		p->pointers = 0;
		p->name = NULL;
	}
	return CN_OK;
}

static int listen_on(int device, void *handle, void **listen) {
	FAULT("listen");
	uint64_t group;
	if (device != 0 || getrandom(&group, sizeof group, 0) != sizeof group)
		return CN_SYSTEM;
	memset(handle, 0, CN_HANDLE_BYTES);
	memcpy(handle, &group, sizeof group);
	*listen = malloc(1);
	return *listen ? CN_OK : CN_SYSTEM;
}

struct comm;

struct request {
	struct comm *comm;
	int used, sent, done, error;
	struct wire_call call;
	size_t out, in; // bytes that have gone, with the head, and that have come
	struct wire_result result;
	const char *from;
	char *to;
};

struct comm {
	int fd, failed;
	uint64_t number;
	uint32_t ranks, rank;
	int registered; // handles that have not been given back
	struct request requests[CN_REQUESTS]; // a ring
	unsigned begun, sent, ended;
};

// whole sends or receives all of a hello.
static int whole(int fd, void *p, size_t n, int out) {
	while (n > 0) {
		ssize_t k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return 0;
		p = (char *)p + k;
		n -= (size_t)k;
	}
	return 1;
}

static int connect_all(void *handles[], int ranks, int rank, void *listen, void **comm) {
	FAULT("connect");
	(void)listen;
	char at[256], *colon;
	snprintf(at, sizeof at, "%s", getenv("COLLNET_SWITCH"));
	if (!(colon = strrchr(at, ':')))
		return CN_USAGE;
	*colon = 0;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	if (getaddrinfo(at, colon + 1, &hints, &found))
		return CN_SYSTEM;
	int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	int bad = fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	struct wire_hello h = {WIRE_HELLO, (uint32_t)ranks, (uint32_t)rank, 0, 0};
	memcpy(&h.group, handles[0], sizeof h.group);
	if (bad || !whole(fd, &h, sizeof h, 1) || !whole(fd, &h, sizeof h, 0)) {
		LOG(CN_LOG_WARN, "no group of %d at the switch %s:%s: %s", ranks, at, colon + 1, strerror(errno));
		if (fd >= 0)
			close(fd);
		return CN_REMOTE;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct comm *c = calloc(1, sizeof *c);
	if (!c) {
		close(fd);
		return CN_SYSTEM;
	}
	c->fd = fd;
	c->ranks = (uint32_t)ranks;
	c->rank = (uint32_t)rank;
	*comm = c;
	return CN_OK;
}

static int reduce_support(int type, int op, int *supported) {
	FAULT("reduceSupport");
	*supported = type >= 0 && type <= CN_BFLOAT16 && op >= 0 && op <= CN_MIN;
	return CN_OK;
}

static int reg(void *comm, void *data, size_t bytes, int pointer, void **handle) {
	FAULT("regMr");
	(void)data, (void)bytes;
	if (pointer != CN_PTR_HOST)
		return CN_ARGUMENT;
	((struct comm *)comm)->registered++;
	*handle = malloc(1);
	return CN_OK;
}

static int reg_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd, void **handle) {
	FAULT("regMrDmaBuf");
	(void)comm, (void)data, (void)bytes, (void)pointer, (void)offset, (void)fd, (void)handle;
	return CN_ARGUMENT;
}

static int dereg(void *comm, void *handle) {
	FAULT("deregMr");
	((struct comm *)comm)->registered--;
	free(handle);
	return CN_OK;
}

// progress moves what can be moved.
static void progress(struct comm *c) {
	while (!c->failed && c->sent != c->begun) {
		struct request *r = &c->requests[c->sent % CN_REQUESTS];
		size_t head = sizeof r->call, all = head + r->call.send;
		if (r->out < all) {
			const char *p = r->out < head ? (const char *)&r->call + r->out : r->from + (r->out - head);
			ssize_t n = send(c->fd, p, r->out < head ? head - r->out : all - r->out, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				break;
			if (n < 0)
				c->failed = 1;
			else
				r->out += (size_t)n;
			continue;
		}
		c->sent++;
	}
	while (!c->failed && c->ended != c->begun) {
		struct request *r = &c->requests[c->ended % CN_REQUESTS];
		size_t head = sizeof r->result, all = head + (r->in >= head ? r->result.bytes : 0);
		if (r->in >= head && (r->result.magic != WIRE_RESULT || r->result.number != r->call.number ||
				(r->result.error == 0 && r->result.bytes != r->call.receive))) {
			c->failed = 1;
			break;
		}
		if (r->in >= head && r->in == all) {
			r->error = (int)r->result.error;
			r->done = 1;
			c->ended++;
			continue;
		}
		char *p = r->in < head ? (char *)&r->result + r->in : r->to + (r->in - head);
		ssize_t n = recv(c->fd, p, r->in < head ? head - r->in : all - r->in, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n <= 0)
			c->failed = 1;
		else
			r->in += (size_t)n;
	}
}

static int begin(struct comm *c, struct wire_call call, const void *from, void *to, void **request) {
	*request = NULL;
	struct request *r = &c->requests[c->begun % CN_REQUESTS];
	if (r->used) // all are
		return CN_OK;
	*r = (struct request){.comm = c, .used = 1, .call = call, .from = from, .to = to};
	r->call.magic = WIRE_CALL;
	r->call.number = ++c->number;
	c->begun++;
	*request = r;
	return CN_OK;
}

// own is how much of a window this rank has.
static size_t own(struct comm *c, size_t bytes_per_rank, size_t window, size_t window_bytes) {
	size_t from = c->rank * bytes_per_rank, to = from + bytes_per_rank, end = window + window_bytes;
	size_t a = from > window ? from : window, b = to < end ? to : end;
	return b > a ? b - a : 0;
}

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

#define CALL(name)                 \
	FAULT(name);                     \
	if (!strcmp(wrong, "null")) {    \
		*request = NULL;               \
		return CN_OK;                  \
	}

static int all_reduce(void *comm, void *send, void *receive, size_t count, int type, int op, void *send_handle,
	void *receive_handle, void **request) {
	CALL("iallreduce");
	if (!send_handle || !receive_handle)
		return CN_ARGUMENT;
	size_t bytes = count * sizes[type];
	return begin(comm, (struct wire_call){.kind = ALL_REDUCE, .type = (uint32_t)type, .op = (uint32_t)op, .send = bytes,
		.receive = bytes}, send, receive, request);
}

static int all_gather(void *comm, void *send, int parts, cn_part *receive, size_t bytes_per_rank, size_t window,
	size_t window_bytes, void *send_handle, void **request) {
	CALL("iallgather");
	if (parts != 1 || !send_handle || !receive->handle || receive->size < window_bytes)
		return CN_ARGUMENT;
	return begin(comm, (struct wire_call){.kind = ALL_GATHER, .send = own(comm, bytes_per_rank, window, window_bytes),
		.receive = window_bytes, .bytes_per_rank = bytes_per_rank, .window = window, .window_bytes = window_bytes}, send,
		receive->address, request);
}

static int reduce_scatter(void *comm, int parts, cn_part *send, void *receive, size_t bytes_per_rank, size_t window,
	size_t window_bytes, int type, int op, void *receive_handle, void **request) {
	CALL("ireducescatter");
	if (parts != 1 || !receive_handle || !send->handle || send->size < window_bytes)
		return CN_ARGUMENT;
	return begin(comm, (struct wire_call){.kind = REDUCE_SCATTER, .type = (uint32_t)type, .op = (uint32_t)op,
		.send = window_bytes, .receive = own(comm, bytes_per_rank, window, window_bytes), .bytes_per_rank = bytes_per_rank,
		.window = window, .window_bytes = window_bytes}, send->address, receive, request);
}

static int flush_data(void *comm, void *data, int bytes, void *handle, void **request) {
	FAULT("iflush");
	(void)comm, (void)data, (void)bytes, (void)handle;
	*request = NULL;
	return CN_OK;
}

static int test(void *request, int *done, int *bytes) {
	FAULT("test");
	struct request *r = request;
	*done = 0;
	if (!strcmp(wrong, "never"))
		return CN_OK;
	progress(r->comm);
	if (r->comm->failed && !r->done) {
		LOG(CN_LOG_WARN, "the switch, or a member of the group, is gone");
		return CN_REMOTE;
	}
	if (!r->done)
		return CN_OK;
	*done = 1;
	if (bytes)
		*bytes = (int)r->call.receive - !strcmp(wrong, "short");
	r->used = 0;
	return r->error;
}

static int close_comm(void *comm) {
	FAULT("closeColl");
	struct comm *c = comm;
	if (c->registered > 0)
		LOG(CN_LOG_WARN, "a group ends with %d registrations left", c->registered);
	close(c->fd);
	free(c);
	return CN_OK;
}

static int close_listen(void *listen) {
	FAULT("closeListen");
	free(listen);
	return CN_OK;
}

#if VERSION == 10
__attribute__((visibility("default"))) cn_v10 ncclCollNetPlugin_v10 = {"switch", init, devices, properties, listen_on,
	connect_all, reduce_support, reg, reg_dmabuf, dereg, all_reduce, all_gather, reduce_scatter, flush_data, test,
	close_comm, close_listen, NULL};
#elif VERSION == 11
static int init11(void **context, uint64_t id, cn_log log) {
	(void)id;
	*context = (void *)&logger;
	return init(log);
}

static int listen11(void *context, int device, void *handle, void **listen) {
	return context ? listen_on(device, handle, listen) : CN_ARGUMENT;
}

static int finalize(void *context) {
	FAULT("finalize");
	(void)context;
	return CN_OK;
}

__attribute__((visibility("default"))) cn_v11 ncclCollNetPlugin_v11 = {"switch", init11, devices, properties, listen11,
	connect_all, reduce_support, reg, reg_dmabuf, dereg, all_reduce, all_gather, reduce_scatter, flush_data, test,
	close_comm, close_listen, NULL, finalize};
#else
#define NAMED(n) ncclCollNetPlugin_v##n
#define OF(n) NAMED(n)
__attribute__((visibility("default"))) struct {
	const char *name;
	void *calls[24];
} OF(VERSION) = {"switch", {NULL}};
#endif
