// A libibverbs for tests: NICs of one process, with reliable connected queue pairs between them, in memory. It is a
// fake. It produces what the kernel's soft-RoCE cannot (a call that fails, a port that goes down, an InfiniBand link, a
// status of the test's choice, keys that come back), and it enforces rules that soft-RoCE does not. The tests of
// hw/verbs run on both, unless they are about this file.
//
// It does what NICs do: access rules of regions, keys, states and their attributes, capacities, order within a queue
// pair, errors at both ends and what they flush, completion channels, asynchronous events. Where NICs may differ, it
// does what a careless user does not expect: lkey and rkey differ, a failed completion has no opcode, the end of a
// message is written before its beginning, and a completion raises an event only if it comes after the request for one.
//
// It does not do: time (retries run out at once; it waits only for a peer in INIT, which is about to be connected),
// packets (a message has one PSN), other processes (nobody is there), pinning (writes to memory that was unmapped after
// its registration are lost, and reads return 0xdb, but a new mapping at the same address is hit). A misuse that verbs
// leave undefined (use of a destroyed object, an event acknowledged twice or never) ends the process with a message.
//
// Knobs are environment variables, VERBSTEST_ plus a name below. They are read when the library is loaded;
// verbstest_set changes one later.
//   DEVICES=n                      NICs, "double0" and so on (1); at load only
//   LINK=InfiniBand | Ethernet     LIDs, or GIDs as RoCE has them (InfiniBand); at load only
//   FAIL=call:n[:errno],...        the n-th call of this name ("reg_mr") from here on, or every one (*), fails (EIO)
//   STATUS=op:n:status[:vendor]    the n-th work request of this kind ("WRITE", "RECV") from here on, or every one (*),
//                                  completes with this status ("RETRY_EXC_ERR"); NEVER: it never completes
//   PORT=[device=]down | up | down_after:n   down after n more work requests
//   SILENT=1                       work to a peer that does not answer never completes, as on soft-RoCE; else RETRY_EXC_ERR
//   MAX_MSG, MAX_INLINE, MEMLOCK   bytes (1 GiB, 220, no limit)
//   ODP=mask                       the operations of rc_odp_caps (0: no on-demand paging; 31: all)
//   ATOMICS=0 | 1 | 2              enum ibv_atomic_cap (1)
//   DMABUF=1                       descriptors of memory files count as dma-bufs (0)
//   IN_ORDER=1                     data are written in order, and query_qp_data_in_order says so (0)
//   GRH=1                          InfiniBand ports demand a global header on all packets (0)
//   TAGS=n                         a key comes back when its entry was used n times (256)
//   EXTENSION=none | short         contexts without the structure that precedes them, or with a shorter one
//   PATIENCE=seconds               how long a destruction waits for an event to be acknowledged (10)
//   SYSFS=folder                   stands for /sys/class/infiniband; counters are kept there
#ifndef VERBSTEST_DOUBLE_H
#define VERBSTEST_DOUBLE_H

#define _GNU_SOURCE
#include "../../abi.h"
#include <errno.h>

// Only these are exported.
#define EXPORT __attribute__((visibility("default")))
#define DECLARE(result, name, params) EXPORT result ibv_##name params;
UBV_CALLS(DECLARE)
UBV_OPTIONAL(DECLARE)
#undef DECLARE

enum {
#define CALL(result, name, params) CALL_##name,
	UBV_CALLS(CALL) UBV_OPTIONAL(CALL) CALL_query_gid_table, CALL_post_send, CALL_post_recv, CALL_post_srq_recv, CALL_poll_cq,
	CALL_req_notify_cq, CALLS
#undef CALL
};

// One lock guards everything. Callers that block release it meanwhile.
extern pthread_mutex_t lock;

__attribute__((noreturn)) void die(const char *format, ...);
int enter(int call); // locks, counts the call, and returns the errno to fail with
void leave(int *unused);

// LOCKED is for functions some of whose answers are no failure, ENTER for those that return an errno, ENTER_MAKE for
// those that return a pointer and set errno. All unlock at the end of their scope.
#define LOCKED(name) __attribute__((cleanup(leave), unused)) int refused = enter(CALL_##name)
#define ENTER(name) \
	LOCKED(name); \
	if (refused) \
	return refused
#define ENTER_MAKE(name) \
	LOCKED(name); \
	if (refused) \
	return errno = refused, (void *)0
#define NONE(error) return errno = (error), (void *)0

enum { GIDS = 16, MAX_WORK = 16384, MAX_SGE = 30, MAX_CQE = 65535, MAX_READS = 16, VECTORS = 4 };
typedef struct note { // an event that waits to be taken
	struct note *next;
	void *of;
	int type;
	uint32_t *reported; // counts the events that were taken
} note;

typedef struct { // its descriptor is readable while it holds something
	int fd;
	note *first;
} notes;

enum { XMIT_DATA, RCV_DATA, XMIT_PACKETS, RCV_PACKETS, LINK_DOWNED, RNR, TIMEOUT, ACCESS_REQ, ACCESS_RESP, COUNTERS };

typedef struct {
	ubv_device v;
	ubv_gid_entry gids[GIDS];
	uint64_t guid;
	uint16_t lid;
	int down;
	long work, down_after; // work requests so far; down_after 0: never goes down
	uint32_t qps;          // made so far
	uint64_t counters[COUNTERS];
} device;

typedef struct context {
	struct context *next;
	device *dev;
	notes events;
	int children, dead;
	ubv_extension x; // its last member is the context that the user has
} context;

typedef struct {
	ubv_pd v;
	int children, dead;
} pd;

typedef struct {
	ubv_mr v;
	char *base; // where iova is in this process
	uint64_t iova;
	unsigned access;
	long pinned;
	void *mapped; // of a dma-buf
	size_t mapped_length;
} mr;

typedef struct {
	ubv_comp_channel v;
	notes events;
	int dead;
} channel;

typedef struct { // a receive queue
	struct receive {
		uint64_t id;
		int n;
		ubv_sge *sge;
	} *ring;
	ubv_sge *sges;
	uint32_t max, max_sge;
	uint64_t posted, taken, freed; // a place is free once its completion was polled
} receives;

typedef struct {
	ubv_srq v;
	receives r;
	uint32_t limit, reported, users;
	int dead;
} srq;

typedef struct qp qp;

typedef struct {
	ubv_wc wc;
	qp *of;
	receives *queue; // for a receive
	uint64_t upto;   // for a send: polling this frees all places before it
} entry;

typedef struct {
	ubv_cq v;
	entry *ring;
	uint32_t first, n;
	enum { IDLE, ARMED, ARMED_SOLICITED } armed;
	uint32_t reported, async_reported, users;
	int overrun, dead;
} cq;

typedef struct {
	uint64_t id, remote, compare, swap;
	uint32_t rkey, imm;
	int op, n, tried;
	unsigned flags;
	ubv_sge *sge;
	char *data; // room for inline data
} request;

struct qp {
	ubv_qp v;
	qp *next;
	device *dev;
	int state, all_signaled, stuck, dead;
	ubv_qp_attr attr; // the attributes that were set so far
	request *ring;
	ubv_sge *sges;
	char *data;
	uint64_t posted, done, freed;
	uint32_t sq_psn, rq_psn, reported;
	receives own, *r; // the queue pair's receives, or its SRQ's
};

// Destroyed objects are kept, to detect their use.
#define ALIVE(object, what) ((object)->dead ? die("%s: this " what " was destroyed", __func__) : (void)0)

extern device devices[16];
extern int n_devices;
extern context *contexts;
extern qp *qps;
extern struct knobs {
	long max_msg, max_inline, memlock, odp, atomics, dmabuf, in_order, grh, tags, silent, patience;
	int ethernet;
	enum { WITHOUT, SHORT, WHOLE } extension;
	char sysfs[200];
} knob;
extern struct counts { // work posted so far; objects that exist
	long work, inlined, signaled, receives, context, pd, mr, qp, cq, srq, channel, pinned, odp;
} count;

static inline context *of(ubv_context *c) { return (context *)((char *)c - offsetof(context, x.context)); }

// knobs.c
typedef struct { // an item of FAIL or STATUS
	int what;   // a call, or an operation
	long n, at; // n: which one fails, 0 for all; at: how many there were
	int result, vendor;
} rule;
enum { LATER = -1, NEVER = -2, OP_RECV = 7, OPS = 8, STATUSES = 22 };
extern const char *const status_names[STATUSES];
rule *told(int op); // what STATUS says about the next one of this kind
void bump(device *d, int counter, uint64_t n);
void turn_port(device *d, int down);

// device.c
void push(notes *n, void *of, int type, uint32_t *reported);
void raise_event(context *c, int type, void *of, uint32_t *reported);
void forget(notes *n, void *of);
void wait_acked(const char *what, uint32_t *reported, uint32_t *acknowledged);

// memory.c
typedef struct {
	char *p;
	size_t n;
} place;
char *reach(ubv_pd *pd, uint32_t key, int remote, uint64_t at, uint64_t n, unsigned access);
int places(ubv_pd *pd, const ubv_sge *sge, int n, unsigned access, place *out);
void transfer(place *to, place *from, int n_from);
uint64_t update(char *at, const request *r);

// work.c
extern int dirty; // set if a change may let some queue proceed
void settle(void);
void to_error(qp *q, int event);
void purge(cq *c, qp *q);
int post_send(ubv_qp *v, ubv_send_wr *wr, ubv_send_wr **bad);
int post_recv(ubv_qp *v, ubv_recv_wr *wr, ubv_recv_wr **bad);
int post_srq_recv(ubv_srq *v, ubv_recv_wr *wr, ubv_recv_wr **bad);
int poll_cq(ubv_cq *v, int max, ubv_wc *wc);
int req_notify_cq(ubv_cq *v, int solicited);

#endif
