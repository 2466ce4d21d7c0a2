// A switch that does the arithmetic of collectives, for the reference plugin: a daemon that members of groups connect to by TCP.
// It has the data of all members of a call in memory, combines them in the order of ranks, and sends the results.
//
//	ubcoll-switch [-p PORT]   listens, and prints its port; and when SIGTERM ends it, how many calls it has done
#define _GNU_SOURCE
#include "../../hw/collnet/abi.h"
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct group;

struct out { // what is to be sent
	struct out *next;
	char *data;
	size_t bytes, sent;
};

struct member {
	int fd;
	struct group *group;
	uint32_t rank;
	union {
		struct wire_hello hello;
		struct wire_call call;
	} head;
	size_t got;   // of the head, and then of the data
	char *data;   // of the call that comes in, or waits for the others
	int complete; // it waits
	struct out *first, **last;
};

struct group {
	struct group *next;
	uint64_t id;
	uint32_t ranks, joined;
	uint64_t number; // of the last call
	struct member **members;
};

static struct group *groups;
static struct member **all;
static size_t members, room;
static uint64_t calls;

static void *get(size_t bytes) {
	void *p = calloc(1, bytes ? bytes : 1);
	if (!p) {
		fprintf(stderr, "ubcoll-switch: no memory\n");
		exit(1);
	}
	return p;
}

static void drop(struct member *m) {
	if (m->fd < 0)
		return;
	close(m->fd);
	m->fd = -1;
	free(m->data);
	m->data = NULL;
	while (m->first) {
		struct out *o = m->first;
		m->first = o->next;
		free(o->data);
		free(o);
	}
}

// leave ends a member, and with it its group: nobody could complete another call.
static void leave(struct member *m) {
	struct group *g = m->group;
	drop(m);
	if (!g)
		return;
	for (uint32_t r = 0; r < g->ranks; r++)
		if (g->members[r]) {
			g->members[r]->group = NULL;
			drop(g->members[r]);
		}
	for (struct group **p = &groups; *p; p = &(*p)->next)
		if (*p == g) {
			*p = g->next;
			break;
		}
	free(g->members);
	free(g);
}

static void send_later(struct member *m, const void *head, size_t bytes, const char *data, size_t more) {
	struct out *o = get(sizeof *o);
	o->data = get(bytes + more);
	memcpy(o->data, head, bytes);
	if (more)
		memcpy(o->data + bytes, data, more);
	o->bytes = bytes + more;
	*m->last = o;
	m->last = &o->next;
}

static float half(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, f = h & 1023, x;
	if (e == 31)
		x = sign | 0x7f800000 | f << 13;
	else if (e)
		x = sign | (e + 112) << 23 | f << 13;
	else {
		float v = (float)f * 0x1p-24f;
		return sign ? -v : v;
	}
	float v;
	memcpy(&v, &x, 4);
	return v;
}

static uint16_t to_half(float v) {
	uint32_t x;
	memcpy(&x, &v, 4);
	uint32_t sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (a >= 0x477ff000) // rounds to infinity
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000) { // subnormal: by the addition's rounding
		float m;
		memcpy(&m, &a, 4);
		m += 0.5f;
		memcpy(&a, &m, 4);
		return (uint16_t)(sign | (a - 0x3f000000));
	}
	return (uint16_t)(sign | (a + 0xc8000fff + (a >> 13 & 1)) >> 13);
}

static float brain(uint16_t h) {
	uint32_t x = (uint32_t)h << 16;
	float v;
	memcpy(&v, &x, 4);
	return v;
}

static uint16_t to_brain(float v) {
	uint32_t x;
	memcpy(&x, &v, 4);
	if ((x & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(x >> 16 | 64);
	return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

#define BETTER(x, y, than) (x != x ? x : y != y ? y : x than y ? x : y)

// COMBINE combines elements of type T, which are stored as S, by UP and DOWN.
#define COMBINE(T, S, UP, DOWN)                                                  \
	for (size_t i = 0; i < n; i++) {                                               \
		T x = UP(((S *)a)[i]), y = UP(((const S *)b)[i]), z;                         \
		z = op == CN_SUM ? (T)(x + y) : op == CN_PROD ? (T)(x * y)                   \
			: op == CN_MAX                  ? BETTER(x, y, >)                            \
											: BETTER(x, y, <);                           \
		((S *)a)[i] = DOWN(z);                                                       \
	}
#define SAME(x) (x)

static size_t size_of(uint32_t type) {
	static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
	return type < sizeof sizes / sizeof *sizes ? sizes[type] : 0;
}

static void combine(void *a, const void *b, size_t bytes, uint32_t type, uint32_t op) {
	size_t n = bytes / size_of(type);
	switch (type) {
	case CN_INT8: // sums and products wrap, as those of unsigned integers
		if (op == CN_SUM || op == CN_PROD)
			COMBINE(uint8_t, uint8_t, SAME, SAME)
		else
			COMBINE(int8_t, int8_t, SAME, SAME)
		break;
	case CN_UINT8:
		COMBINE(uint8_t, uint8_t, SAME, SAME)
		break;
	case CN_INT32:
		if (op == CN_SUM || op == CN_PROD)
			COMBINE(uint32_t, uint32_t, SAME, SAME)
		else
			COMBINE(int32_t, int32_t, SAME, SAME)
		break;
	case CN_UINT32:
		COMBINE(uint32_t, uint32_t, SAME, SAME)
		break;
	case CN_INT64:
		if (op == CN_SUM || op == CN_PROD)
			COMBINE(uint64_t, uint64_t, SAME, SAME)
		else
			COMBINE(int64_t, int64_t, SAME, SAME)
		break;
	case CN_UINT64:
		COMBINE(uint64_t, uint64_t, SAME, SAME)
		break;
	case CN_FLOAT16:
		COMBINE(float, uint16_t, half, to_half)
		break;
	case CN_BFLOAT16:
		COMBINE(float, uint16_t, brain, to_brain)
		break;
	case CN_FLOAT32:
		COMBINE(float, float, SAME, SAME)
		break;
	case CN_FLOAT64:
		COMBINE(double, double, SAME, SAME)
		break;
	}
}

// own returns the part of a window that a rank has: where in its own data it begins, and how long it is.
static size_t own(const struct wire_call *c, uint64_t rank, uint64_t *begin) {
	uint64_t from = rank * c->bytes_per_rank, to = from + c->bytes_per_rank;
	uint64_t a = from > c->window ? from : c->window;
	uint64_t b = to < c->window + c->window_bytes ? to : c->window + c->window_bytes;
	*begin = a;
	return b > a ? b - a : 0;
}

// finish does the call that all members have made.
static void finish(struct group *g) {
	struct wire_call *c = &g->members[0]->head.call;
	uint32_t error = 0;
	calls++;
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct wire_call *d = &g->members[r]->head.call;
		uint64_t begin;
		size_t mine = own(d, r, &begin);
		if (d->kind != c->kind || d->type != c->type || d->op != c->op || d->bytes_per_rank != c->bytes_per_rank ||
			d->window != c->window || d->window_bytes != c->window_bytes || d->number != c->number)
			error = CN_USAGE;
		else if (d->kind == ALL_REDUCE ? d->send != c->send || d->receive != c->send
				: d->kind == ALL_GATHER ? d->send != mine || d->receive != d->window_bytes
				: d->kind == REDUCE_SCATTER ? d->send != d->window_bytes || d->receive != mine : 1)
			error = CN_ARGUMENT;
		else if (d->kind != ALL_GATHER && (size_of(d->type) == 0 || d->op > CN_MIN || d->send % size_of(d->type)))
			error = CN_ARGUMENT;
	}
	size_t bytes = c->kind == ALL_GATHER ? c->window_bytes : c->send;
	char *result = error ? NULL : get(bytes);
	for (uint32_t r = 0; !error && r < g->ranks; r++) {
		struct member *m = g->members[r];
		uint64_t begin;
		size_t mine = own(c, r, &begin);
		if (c->kind == ALL_GATHER)
			memcpy(result + (mine ? begin - c->window : 0), m->data, mine);
		else if (r == 0)
			memcpy(result, m->data, bytes);
		else
			combine(result, m->data, bytes, c->type, c->op);
	}
	struct wire_call call = *c;
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct member *m = g->members[r];
		struct wire_result out = {WIRE_RESULT, error, call.number, 0};
		const char *from = result;
		if (!error) {
			uint64_t begin;
			size_t mine = own(&call, r, &begin);
			out.bytes = bytes;
			if (call.kind == REDUCE_SCATTER) {
				from += mine ? begin - call.window : 0;
				out.bytes = mine;
			}
		}
		send_later(m, &out, sizeof out, from, out.bytes);
		free(m->data);
		m->data = NULL;
		m->got = 0;
		m->complete = 0;
	}
	free(result);
}

static struct group *group_of(const struct wire_hello *h) {
	for (struct group *g = groups; g; g = g->next)
		if (g->id == h->group)
			return g;
	struct group *g = get(sizeof *g);
	g->id = h->group;
	g->ranks = h->ranks;
	g->members = get(h->ranks * sizeof *g->members);
	g->next = groups;
	groups = g;
	return g;
}

// join handles a member's hello. It returns 0 if that is wrong.
static int join(struct member *m) {
	struct wire_hello h = m->head.hello;
	if (h.magic != WIRE_HELLO || h.ranks == 0 || h.ranks > 1 << 16 || h.rank >= h.ranks)
		return 0;
	struct group *g = group_of(&h);
	if (g->ranks != h.ranks || g->members[h.rank])
		return 0;
	m->group = g;
	m->rank = h.rank;
	m->got = 0;
	g->members[h.rank] = m;
	if (++g->joined == g->ranks)
		for (uint32_t r = 0; r < g->ranks; r++)
			send_later(g->members[r], &h, sizeof h, NULL, 0);
	return 1;
}

// take reads what has come from a member. It returns 0 if the member is gone, or has sent what makes no sense.
static int take(struct member *m) {
	while (!m->complete) {
		size_t head = m->group ? sizeof m->head.call : sizeof m->head.hello, want = head;
		char *to = (char *)&m->head + m->got;
		if (m->got >= head) {
			want = head + m->head.call.send;
			to = m->data + (m->got - head);
		}
		if (m->got < want) {
			ssize_t n = recv(m->fd, to, want - m->got, MSG_DONTWAIT);
			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				return 1;
			if (n <= 0)
				return 0;
			m->got += (size_t)n;
			if (m->got < want)
				continue;
		}
		if (!m->group) {
			if (!join(m))
				return 0;
			continue;
		}
		struct wire_call *c = &m->head.call;
		if (!m->data) { // the head is complete
			if (c->magic != WIRE_CALL || c->send > (uint64_t)1 << 32 || c->window_bytes > (uint64_t)1 << 32)
				return 0;
			m->data = get(c->send);
			if (c->send > 0)
				continue;
		}
		m->complete = 1;
		struct group *g = m->group;
		uint32_t n = 0;
		for (uint32_t r = 0; r < g->ranks; r++)
			n += g->members[r] && g->members[r]->complete;
		if (n == g->ranks)
			finish(g);
	}
	return 1;
}

static int flush_out(struct member *m) {
	while (m->first) {
		struct out *o = m->first;
		ssize_t n = send(m->fd, o->data + o->sent, o->bytes - o->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		if ((o->sent += (size_t)n) < o->bytes)
			continue;
		if (!(m->first = o->next))
			m->last = &m->first;
		free(o->data);
		free(o);
	}
	return 1;
}

static volatile sig_atomic_t ends;

static void end(int signal) {
	(void)signal;
	ends = 1;
}

int main(int argc, char **argv) {
	sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL);
	struct sockaddr_in at = {.sin_family = AF_INET};
	for (int o; (o = getopt(argc, argv, "p:")) != -1;) {
		if (o != 'p') {
			fprintf(stderr, "usage: ubcoll-switch [-p PORT]\n");
			return 2;
		}
		at.sin_port = htons((uint16_t)atoi(optarg));
	}
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	socklen_t len = sizeof at;
	if (l < 0 || bind(l, (struct sockaddr *)&at, sizeof at) || listen(l, 1024) || getsockname(l, (struct sockaddr *)&at, &len)) {
		perror("ubcoll-switch");
		return 1;
	}
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	while (!ends) {
		struct pollfd *p = get((members + 1) * sizeof *p);
		p[0] = (struct pollfd){l, POLLIN, 0};
		for (size_t i = 0; i < members; i++)
			p[i + 1] = (struct pollfd){all[i]->fd, (short)(POLLRDHUP | (all[i]->complete ? 0 : POLLIN) | (all[i]->first ? POLLOUT : 0)), 0};
		size_t n = members;
		if (poll(p, n + 1, -1) < 0 && errno != EINTR) {
			perror("ubcoll-switch");
			return 1;
		}
		for (size_t i = 0; i < n; i++) {
			struct member *m = all[i];
			if (m->fd < 0 || !p[i + 1].revents)
				continue;
			if (m->complete && p[i + 1].revents & (POLLRDHUP | POLLHUP | POLLERR) || !take(m) || !flush_out(m))
				leave(m);
		}
		for (size_t i = 0; i < n; i++) // also to those whose results have come of others' data
			if (all[i]->fd >= 0 && all[i]->first && !flush_out(all[i]))
				leave(all[i]);
		if (p[0].revents & POLLIN) {
			int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
			if (fd >= 0) {
				setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
				if (members == room) {
					room = room ? 2 * room : 16;
					if (!(all = realloc(all, room * sizeof *all)))
						return 1;
				}
				struct member *m = get(sizeof *m);
				m->fd = fd;
				m->last = &m->first;
				all[members++] = m;
			}
		}
		size_t kept = 0;
		for (size_t i = 0; i < members; i++)
			if (all[i]->fd >= 0)
				all[kept++] = all[i];
			else
				free(all[i]);
		members = kept;
		free(p);
	}
	printf("ubcoll-switch: %" PRIu64 " calls\n", calls);
	return 0;
}
