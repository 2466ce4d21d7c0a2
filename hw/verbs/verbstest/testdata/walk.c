// What the double has to do, rule by rule, in C, since hw/verbs prevents most misuse of it. The argument names a part;
// the test that runs it sets the knobs that the part needs.
#define _GNU_SOURCE
#include "../../abi.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DECLARE(result, name, params) result ibv_##name params;
UBV_CALLS(DECLARE)
UBV_OPTIONAL(DECLARE)
ssize_t _ibv_query_gid_table(ubv_context *, ubv_gid_entry *, size_t, uint32_t, size_t);
int verbstest_set(const char *, const char *);
long verbstest_count(const char *);

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "walk.c:%d: not so: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)
#define FAILS(call, error) CHECK((errno = 0, !(call)) && errno == (error))
#define SET(name, value) CHECK(verbstest_set(name, value))
#define COUNT(what, n) CHECK(verbstest_count(what) == (n))

enum { ALL = UBV_ACCESS_LOCAL_WRITE | UBV_ACCESS_REMOTE_WRITE | UBV_ACCESS_REMOTE_READ | UBV_ACCESS_REMOTE_ATOMIC, N = 4096 };

static ubv_context *dev[2];
static ubv_pd *pd[2];
static ubv_cq *cq[2];
static ubv_comp_channel *channel[2];
static ubv_qp *qp[2];
static ubv_mr *mr[2];
static ubv_srq *srq; // of the second end, if the part wants one
static char *mem[2];
static int rnr_retry = 7, entries = 64, ethernet;

static int to_init(ubv_qp *q) {
	return ibv_modify_qp(q, &(ubv_qp_attr){.qp_state = UBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL},
		UBV_QP_STATE | UBV_QP_PKEY_INDEX | UBV_QP_PORT | UBV_QP_ACCESS_FLAGS);
}

enum { TO_RTR = UBV_QP_STATE | UBV_QP_AV | UBV_QP_PATH_MTU | UBV_QP_DEST_QPN | UBV_QP_RQ_PSN | UBV_QP_MAX_DEST_RD_ATOMIC |
		UBV_QP_MIN_RNR_TIMER, TO_RTS = UBV_QP_STATE | UBV_QP_TIMEOUT | UBV_QP_RETRY_CNT | UBV_QP_RNR_RETRY | UBV_QP_SQ_PSN |
		UBV_QP_MAX_QP_RD_ATOMIC };

static ubv_qp_attr rtr(int to) {
	ubv_port_attr port;
	ubv_gid_entry gids[16];
	CHECK(ibv_query_port(dev[to], 1, &port) == 0);
	ssize_t n = _ibv_query_gid_table(dev[to], gids, 16, 0, sizeof *gids);
	CHECK(n > 0);
	ubv_qp_attr a = {.qp_state = UBV_QPS_RTR, .path_mtu = 3, .dest_qp_num = qp[to]->qp_num, .rq_psn = 5, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 12, .ah = {.port_num = 1, .dlid = port.lid, .is_global = ethernet, .sgid_index = gids[n - 1].index}};
	memcpy(a.ah.dgid, gids[n - 1].gid, 16);
	return a;
}

static ubv_qp_attr rts(void) {
	return (ubv_qp_attr){.qp_state = UBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .sq_psn = 5, .max_rd_atomic = 4};
}

static void connect_pair(void) {
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_modify_qp(qp[i], &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
		CHECK(to_init(qp[i]) == 0);
	}
	for (int i = 0; i < 2; i++) {
		ubv_qp_attr a = rtr(!i), b = rts();
		CHECK(ibv_modify_qp(qp[i], &a, TO_RTR) == 0);
		CHECK(ibv_modify_qp(qp[i], &b, TO_RTS) == 0);
	}
}

static ubv_qp *make_qp(int i) {
	ubv_qp_init_attr a = {.send_cq = cq[i], .recv_cq = cq[i], .srq = i ? srq : 0, .qp_type = UBV_QPT_RC,
		.cap = {.max_send_wr = 7, .max_recv_wr = 5, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 40}};
	ubv_qp *q = ibv_create_qp(pd[i], &a);
	CHECK(q && a.cap.max_send_wr == 8 && a.cap.max_recv_wr == (i && srq ? 0 : 8) && a.cap.max_inline_data == 64);
	return q;
}

// open_pair makes two ends, on two devices if there are two.
static void open_pair(int with_srq) {
	int n;
	ubv_device **list = ibv_get_device_list(&n);
	CHECK(list && n >= 1 && !list[n]);
	for (int i = 0; i < 2; i++) {
		CHECK(dev[i] = ibv_open_device(list[i < n ? i : 0]));
		CHECK(pd[i] = ibv_alloc_pd(dev[i]));
		CHECK(channel[i] = ibv_create_comp_channel(dev[i]));
		CHECK(cq[i] = ibv_create_cq(dev[i], entries, 0, channel[i], 0));
		mem[i] = mmap(0, 2 * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(mr[i] = ibv_reg_mr(pd[i], mem[i], N, ALL));
		for (int k = 0; k < 2 * N; k++)
			mem[i][k] = k + i;
	}
	if (with_srq)
		CHECK(srq = ibv_create_srq(pd[1], &(ubv_srq_init_attr){.max_wr = 8, .max_sge = 1}));
	for (int i = 0; i < 2; i++)
		qp[i] = make_qp(i);
	ibv_free_device_list(list);
	connect_pair();
}

static void close_pair(void) {
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_close_device(dev[i]) == EBUSY);
		CHECK(ibv_dealloc_pd(pd[i]) == EBUSY);
		CHECK(ibv_destroy_cq(cq[i]) == EBUSY);
		CHECK(ibv_destroy_comp_channel(channel[i]) == EBUSY);
		CHECK(!i || !srq || ibv_destroy_srq(srq) == EBUSY);
		CHECK(ibv_destroy_qp(qp[i]) == 0);
		CHECK(ibv_destroy_cq(cq[i]) == 0);
		CHECK(!i || !srq || ibv_destroy_srq(srq) == 0);
		CHECK(ibv_destroy_comp_channel(channel[i]) == 0);
		CHECK(ibv_dealloc_pd(pd[i]) == EBUSY);
		CHECK(ibv_dereg_mr(mr[i]) == 0);
		CHECK(ibv_dealloc_pd(pd[i]) == 0);
		CHECK(ibv_close_device(dev[i]) == 0);
	}
	const char *all[] = {"context", "pd", "mr", "qp", "cq", "srq", "channel", "pinned", "odp"};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		COUNT(all[i], 0);
}

// wr makes a work request of the first end, on n bytes of both ends' memory.
static ubv_sge sge[2];
static ubv_send_wr wr(int op, uint32_t n) {
	sge[0] = (ubv_sge){(uintptr_t)mem[0], n, mr[0]->lkey};
	ubv_send_wr w = {.wr_id = 100 + op, .sg_list = sge, .num_sge = 1, .opcode = op, .send_flags = UBV_SEND_SIGNALED};
	w.wr.rdma.remote_addr = (uintptr_t)mem[1];
	if (op == UBV_WR_CMP_SWAP || op == UBV_WR_FETCH_ADD)
		w.wr.atomic.rkey = mr[1]->rkey;
	else
		w.wr.rdma.rkey = mr[1]->rkey;
	return w;
}

static int post(ubv_send_wr *w) {
	ubv_send_wr *bad = 0;
	int r = qp[0]->context->ops.post_send(qp[0], w, &bad);
	CHECK(!r || bad);
	return r;
}

static int receive(uint64_t id, uint32_t n) {
	ubv_sge s = {(uintptr_t)mem[1], n, mr[1]->lkey};
	ubv_recv_wr w = {.wr_id = id, .sg_list = &s, .num_sge = n != 0}, *bad = 0;
	return srq ? srq->context->ops.post_srq_recv(srq, &w, &bad) : qp[1]->context->ops.post_recv(qp[1], &w, &bad);
}

static ubv_wc wc;
static int poll1(int i) { return cq[i]->context->ops.poll_cq(cq[i], 1, &wc); }
static void completes(int i, uint64_t id, int status) {
	CHECK(poll1(i) == 1);
	if (wc.wr_id != id || wc.status != status || wc.qp_num != qp[i]->qp_num)
		fprintf(stderr, "work request %lu, status %d, vendor %#x\n", (long)wc.wr_id, wc.status, wc.vendor_err);
	CHECK(wc.wr_id == id && wc.status == status && wc.qp_num == qp[i]->qp_num);
}
static void nothing(void) { CHECK(poll1(0) == 0 && poll1(1) == 0); }

static void does(ubv_send_wr w, int status) {
	CHECK(post(&w) == 0);
	completes(0, w.wr_id, status);
}

static ubv_async_event event(int i, int type) {
	ubv_async_event e;
	fcntl(dev[i]->async_fd, F_SETFL, O_NONBLOCK);
	CHECK(ibv_get_async_event(dev[i], &e) == 0);
	if (e.type != type)
		fprintf(stderr, "event %d: %s\n", e.type, ibv_event_type_str(e.type));
	CHECK(e.type == type);
	ibv_ack_async_event(&e);
	return e;
}
static void no_event(int i) {
	ubv_async_event e;
	fcntl(dev[i]->async_fd, F_SETFL, O_NONBLOCK);
	CHECK(ibv_get_async_event(dev[i], &e) == -1 && errno == EAGAIN);
}
static int state(int i) {
	ubv_qp_attr a;
	ubv_qp_init_attr init;
	CHECK(ibv_query_qp(qp[i], &a, UBV_QP_STATE, &init) == 0);
	return a.qp_state;
}

static void data(void) {
	open_pair(0);
	memset(mem[1], 0, N);
	does(wr(UBV_WR_WRITE, 1000), 0);
	CHECK(wc.opcode == UBV_WC_WRITE && memcmp(mem[0], mem[1], 1000) == 0 && mem[1][1000] == 0);
	memset(mem[0], 0, N);
	does(wr(UBV_WR_READ, 999), 0);
	CHECK(wc.opcode == UBV_WC_READ && wc.byte_len == 999 && memcmp(mem[0], mem[1], 999) == 0 && mem[0][999] == 0);
	// Two segments, an immediate, two destinations.
	ubv_send_wr w = wr(UBV_WR_SEND_WITH_IMM, 10);
	sge[0] = (ubv_sge){(uintptr_t)mem[0], 10, mr[0]->lkey};
	sge[1] = (ubv_sge){(uintptr_t)mem[0] + 100, 20, mr[0]->lkey};
	w.num_sge = 2;
	w.imm_data = htonl(77);
	ubv_sge places[2] = {{(uintptr_t)mem[1] + 2000, 25, mr[1]->lkey}, {(uintptr_t)mem[1] + 3000, 100, mr[1]->lkey}};
	ubv_recv_wr r = {.wr_id = 9, .sg_list = places, .num_sge = 2}, *bad;
	CHECK(dev[1]->ops.post_recv(qp[1], &r, &bad) == 0);
	does(w, 0);
	completes(1, 9, 0);
	CHECK(wc.opcode == UBV_WC_RECV && wc.byte_len == 30 && wc.wc_flags == UBV_WC_WITH_IMM && wc.imm_data == htonl(77));
	CHECK(wc.src_qp == qp[0]->qp_num && !memcmp(mem[1] + 2000, mem[0], 10) && !memcmp(mem[1] + 2010, mem[0] + 100, 15) &&
		!memcmp(mem[1] + 3000, mem[0] + 115, 5));
	CHECK(receive(10, 0) == 0);
	w = wr(UBV_WR_WRITE_WITH_IMM, 8);
	w.imm_data = htonl(5);
	does(w, 0);
	completes(1, 10, 0);
	CHECK(wc.opcode == UBV_WC_RECV_WITH_IMM && wc.byte_len == 8 && wc.imm_data == htonl(5));
	uint64_t *here = (uint64_t *)mem[0], *there = (uint64_t *)mem[1];
	*there = 40;
	w = wr(UBV_WR_FETCH_ADD, 8);
	w.wr.atomic.compare_add = 2;
	does(w, 0);
	CHECK(*here == 40 && *there == 42 && wc.opcode == UBV_WC_FETCH_ADD);
	for (int hit = 0; hit < 2; hit++) {
		w = wr(UBV_WR_CMP_SWAP, 8);
		w.wr.atomic.compare_add = 41 + hit;
		w.wr.atomic.swap = 7;
		does(w, 0);
		CHECK(*here == 42 && *there == (hit ? 7u : 42u));
	}
	// Inline data are copied when they are posted, whatever the key, and counted; unsignaled work raises no completion.
	sge[0] = (ubv_sge){(uintptr_t)mem[0], 30, 0xbad};
	w = wr(UBV_WR_WRITE, 30);
	sge[0].lkey = 0xbad;
	w.send_flags = UBV_SEND_INLINE;
	CHECK(post(&w) == 0);
	nothing();
	COUNT("inline", 1);
	CHECK(memcmp(mem[0], mem[1], 30) == 0);
	w = wr(UBV_WR_WRITE, 65);
	w.send_flags |= UBV_SEND_INLINE;
	CHECK(post(&w) == EINVAL);
	// Work without data needs no key.
	w = wr(UBV_WR_WRITE, 0);
	w.num_sge = 0;
	w.wr.rdma.rkey = 0xbad;
	does(w, 0);
	nothing();
	close_pair();
}

static void refused_at_remote(ubv_send_wr w, int status, int what) {
	char before[2 * N];
	connect_pair();
	memcpy(before, mem[1], sizeof before);
	CHECK(receive(50, 100) == 0);
	ubv_send_wr next = w;
	next.wr_id = 200;
	next.send_flags = 0;
	w.next = &next;
	CHECK(post(&w) == 0);
	completes(0, w.wr_id, status);
	completes(0, 200, UBV_WC_WR_FLUSH_ERR);
	completes(1, 50, UBV_WC_WR_FLUSH_ERR);
	nothing();
	CHECK(state(0) == UBV_QPS_ERR && state(1) == UBV_QPS_ERR);
	ubv_async_event e = event(1, what);
	CHECK(e.element.qp == qp[1]);
	no_event(0);
	no_event(1);
	CHECK(memcmp(mem[1], before, sizeof before) == 0);
	ubv_send_wr late = wr(UBV_WR_WRITE, 8);
	CHECK(post(&late) == 0);
	completes(0, late.wr_id, UBV_WC_WR_FLUSH_ERR);
	CHECK(receive(51, 100) == 0);
	completes(1, 51, UBV_WC_WR_FLUSH_ERR);
}

static void refusals(void) {
	open_pair(0);
	ubv_pd *other = ibv_alloc_pd(dev[1]);
	ubv_mr *foreign = ibv_reg_mr(other, mem[1], N, ALL), *mute = ibv_reg_mr(pd[1], mem[1], N, 0);
	ubv_mr *gone = ibv_reg_mr(pd[1], mem[1], N, ALL);
	uint32_t stale = gone->rkey;
	CHECK(ibv_dereg_mr(gone) == 0);
	struct {
		int op;
		uint32_t n, rkey;
		long offset;
		int status, event;
	} all[] = {
		{UBV_WR_WRITE, 8, mr[1]->lkey, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE, 8, mr[1]->rkey + 1, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE, 8, foreign->rkey, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE, 8, mute->rkey, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_READ, 8, mute->rkey, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_FETCH_ADD, 8, mute->rkey, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE, 8, stale, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE_WITH_IMM, 8, stale, 0, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_WRITE, 8, mr[1]->rkey, N - 7, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_READ, 8, mr[1]->rkey, -1, UBV_WC_REM_ACCESS_ERR, UBV_EVENT_QP_ACCESS_ERR},
		{UBV_WR_CMP_SWAP, 8, mr[1]->rkey, 4, UBV_WC_REM_INV_REQ_ERR, UBV_EVENT_QP_REQ_ERR},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		ubv_send_wr w = wr(all[i].op, all[i].n);
		w.wr.rdma.remote_addr += all[i].offset;
		if (all[i].op == UBV_WR_CMP_SWAP || all[i].op == UBV_WR_FETCH_ADD)
			w.wr.atomic.rkey = all[i].rkey;
		else
			w.wr.rdma.rkey = all[i].rkey;
		fprintf(stderr, "case %zu\n", i);
		refused_at_remote(w, all[i].status, all[i].event);
	}
	// The access flags of the queue pair itself.
	connect_pair();
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_access_flags = UBV_ACCESS_REMOTE_READ}, UBV_QP_ACCESS_FLAGS) == 0);
	does(wr(UBV_WR_READ, 8), 0);
	does(wr(UBV_WR_WRITE, 8), UBV_WC_REM_INV_REQ_ERR);
	event(1, UBV_EVENT_QP_REQ_ERR);
	// Memory of this end.
	connect_pair();
	ubv_mr *local = ibv_reg_mr(pd[0], mem[0], N, 0);
	ubv_send_wr w = wr(UBV_WR_WRITE, 8);
	sge[0].lkey = local->lkey;
	does(w, 0);
	w = wr(UBV_WR_READ, 8);
	sge[0].lkey = local->lkey; // which the read would write
	does(w, UBV_WC_LOC_PROT_ERR);
	for (int i = 0; i < 3; i++) {
		connect_pair();
		w = wr(UBV_WR_WRITE, i == 0 ? N + 1 : 8);
		if (i == 1)
			sge[0].lkey = mr[0]->rkey;
		if (i == 2)
			sge[0].addr--;
		does(w, UBV_WC_LOC_PROT_ERR);
		CHECK(state(1) == UBV_QPS_RTS);
	}
	// Receives that are too small, or whose memory is not registered.
	connect_pair();
	CHECK(receive(1, 10) == 0);
	does(wr(UBV_WR_SEND, 11), UBV_WC_REM_INV_REQ_ERR);
	completes(1, 1, UBV_WC_LOC_LEN_ERR);
	connect_pair();
	CHECK(receive(1, N + 10) == 0);
	does(wr(UBV_WR_SEND, 11), UBV_WC_REM_OP_ERR);
	completes(1, 1, UBV_WC_LOC_PROT_ERR);
	// Longer than the port allows; reads that the peer was not told to expect.
	connect_pair();
	SET("MAX_MSG", "100");
	does(wr(UBV_WR_WRITE, 101), UBV_WC_LOC_LEN_ERR);
	connect_pair();
	does(wr(UBV_WR_WRITE, 100), 0);
	CHECK(ibv_dereg_mr(local) == 0 && ibv_dereg_mr(mute) == 0 && ibv_dereg_mr(foreign) == 0 && ibv_dealloc_pd(other) == 0);
	close_pair();
}

static void regions(void) {
	open_pair(0);
	char *p = mem[0];
	FAILS(ibv_reg_mr(pd[0], p, N, UBV_ACCESS_REMOTE_WRITE), EINVAL);
	FAILS(ibv_reg_mr(pd[0], p, N, UBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	FAILS(ibv_reg_mr(pd[0], p, 0, ALL), EINVAL);
	FAILS(ibv_reg_mr(pd[0], p, N, 1 << 15), EINVAL);
	FAILS(ibv_reg_mr(pd[0], p, N, UBV_ACCESS_RELAXED_ORDERING), EINVAL);
	FAILS(ibv_reg_mr(pd[0], p, N, UBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	FAILS(ibv_reg_dmabuf_mr(pd[0], 0, N, 0, 0, ALL), EOPNOTSUPP);
	char *hole = mmap(0, 3 * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(hole + N, N);
	mprotect(hole + 2 * N, N, PROT_READ);
	FAILS(ibv_reg_mr(pd[0], hole, N + 1, ALL), EFAULT);
	FAILS(ibv_reg_mr(pd[0], hole + N, N, 0), EFAULT);
	FAILS(ibv_reg_mr(pd[0], hole + 2 * N, N, UBV_ACCESS_LOCAL_WRITE), EFAULT);
	ubv_mr *m = ibv_reg_mr(pd[0], hole + 2 * N, N, UBV_ACCESS_REMOTE_READ);
	CHECK(m && m->lkey != m->rkey && m->addr == hole + 2 * N && m->length == N && m->pd == pd[0]);
	CHECK(ibv_dereg_mr(m) == 0);
	int fd = memfd_create("short", 0);
	CHECK(ftruncate(fd, N) == 0);
	char *cut = mmap(0, 2 * N, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); // its second page faults
	FAILS(ibv_reg_mr(pd[0], cut, 2 * N, ALL), EFAULT);
	// Keys come back, at once if TAGS says so.
	SET("TAGS", "2");
	uint32_t key[5];
	for (int i = 0; i < 5; i++) {
		CHECK(m = ibv_reg_mr_iova2(pd[0], p, N, (uintptr_t)p, ALL | UBV_ACCESS_RELAXED_ORDERING));
		key[i] = m->rkey;
		CHECK(ibv_dereg_mr(m) == 0);
	}
	CHECK(key[0] != key[1] && key[0] == key[2] && key[1] == key[3] && key[0] == key[4]);
	// The limit of locked memory.
	COUNT("pinned", 2 * N);
	SET("MEMLOCK", "16384");
	FAILS(ibv_reg_mr(pd[0], p + 1, 2 * N, ALL), ENOMEM); // three pages
	CHECK(m = ibv_reg_mr(pd[0], p, 2 * N, ALL));
	COUNT("pinned", 4 * N);
	FAILS(ibv_reg_mr(pd[0], p, 1, ALL), ENOMEM);
	CHECK(ibv_dereg_mr(m) == 0);
	// With on-demand paging, memory may be mapped later; if it is missing, the access fails.
	SET("ODP", "31");
	CHECK(m = ibv_reg_mr(pd[1], hole + N, N, ALL | UBV_ACCESS_ON_DEMAND));
	COUNT("odp", 1);
	ubv_send_wr w = wr(UBV_WR_WRITE, 8);
	w.wr.rdma.remote_addr = (uintptr_t)hole + N;
	w.wr.rdma.rkey = m->rkey;
	does(w, UBV_WC_REM_ACCESS_ERR);
	event(1, UBV_EVENT_QP_ACCESS_ERR);
	connect_pair();
	CHECK(mmap(hole + N, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole + N);
	does(w, 0);
	CHECK(memcmp(hole + N, mem[0], 8) == 0 && ibv_dereg_mr(m) == 0);
	// A dma-buf, with an address of the caller's choice.
	SET("DMABUF", "1");
	CHECK(m = ibv_reg_dmabuf_mr(pd[1], 0, N, 0x10000, fd, ALL));
	w.wr.rdma.remote_addr = 0x10000 + 8;
	w.wr.rdma.rkey = m->rkey;
	does(w, 0);
	CHECK(memcmp(cut + 8, mem[0], 8) == 0 && ibv_dereg_mr(m) == 0);
	FAILS(ibv_reg_dmabuf_mr(pd[1], 0, 2 * N, 0, fd, ALL), EINVAL);
	FAILS(ibv_reg_dmabuf_mr(pd[1], 0, N, 0, -1, ALL), EBADF);
	// Memory that is unmapped later stays pinned.
	char *later = mmap(0, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m = ibv_reg_mr(pd[1], later, N, ALL));
	munmap(later, N);
	w.wr.rdma.remote_addr = (uintptr_t)later;
	w.wr.rdma.rkey = m->rkey;
	does(w, 0);
	CHECK(ibv_dereg_mr(m) == 0);
	close_pair();
}

static void states(void) {
	open_pair(0);
	ubv_qp *q = make_qp(0);
	ubv_recv_wr r = {.wr_id = 1}, *bad_r;
	ubv_send_wr w = wr(UBV_WR_WRITE, 8), *bad;
	ubv_qp_attr a = rtr(1), b = rts();
	CHECK(dev[0]->ops.post_recv(q, &r, &bad_r) == EINVAL && bad_r == &r);
	CHECK(dev[0]->ops.post_send(q, &w, &bad) == EINVAL && bad == &w);
	CHECK(ibv_modify_qp(q, &a, TO_RTR) == EINVAL);
	CHECK(ibv_modify_qp(q, &(ubv_qp_attr){.qp_state = UBV_QPS_INIT, .port_num = 1}, UBV_QP_STATE | UBV_QP_PORT) == EINVAL);
	CHECK(ibv_modify_qp(q, &(ubv_qp_attr){.qp_state = UBV_QPS_INIT, .port_num = 2},
		UBV_QP_STATE | UBV_QP_PKEY_INDEX | UBV_QP_PORT | UBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(to_init(q) == 0 && q->state == UBV_QPS_INIT);
	CHECK(dev[0]->ops.post_recv(q, &r, &bad_r) == 0);
	CHECK(dev[0]->ops.post_send(q, &w, &bad) == EINVAL);
	CHECK(ibv_modify_qp(q, &b, TO_RTS) == EINVAL);
	for (int bit = 0; bit < 21; bit++)
		if (TO_RTR & ~UBV_QP_STATE & 1 << bit)
			CHECK(ibv_modify_qp(q, &a, TO_RTR & ~(1 << bit)) == EINVAL);
	CHECK(ibv_modify_qp(q, &a, TO_RTR | UBV_QP_TIMEOUT) == EINVAL);
	ubv_qp_attr bad_attr = a;
	bad_attr.max_dest_rd_atomic = 17;
	CHECK(ibv_modify_qp(q, &bad_attr, TO_RTR) == EINVAL);
	bad_attr = a;
	bad_attr.path_mtu = 6;
	CHECK(ibv_modify_qp(q, &bad_attr, TO_RTR) == EINVAL);
	bad_attr = a;
	bad_attr.ah.dlid = 0;
	bad_attr.ah.is_global = 0;
	CHECK(ibv_modify_qp(q, &bad_attr, TO_RTR) == EINVAL);
	bad_attr = a;
	bad_attr.ah.is_global = 1;
	bad_attr.ah.sgid_index = ethernet ? 2 : 1;
	CHECK(ibv_modify_qp(q, &bad_attr, TO_RTR) == ENODATA);
	CHECK(ibv_modify_qp(q, &a, TO_RTR) == 0);
	CHECK(dev[0]->ops.post_send(q, &w, &bad) == EINVAL);
	for (int bit = 0; bit < 21; bit++)
		if (TO_RTS & ~UBV_QP_STATE & 1 << bit)
			CHECK(ibv_modify_qp(q, &b, TO_RTS & ~(1 << bit)) == EINVAL);
	CHECK(ibv_modify_qp(q, &b, TO_RTS) == 0);
	CHECK(ibv_modify_qp(q, &(ubv_qp_attr){.qp_state = UBV_QPS_ERR}, UBV_QP_STATE) == 0);
	CHECK(poll1(0) == 1 && wc.wr_id == 1 && wc.status == UBV_WC_WR_FLUSH_ERR && wc.qp_num == q->qp_num);
	CHECK(ibv_modify_qp(q, &b, TO_RTS) == EINVAL);
	CHECK(dev[0]->ops.post_recv(q, &r, &bad_r) == 0);
	CHECK(ibv_modify_qp(q, &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
	nothing(); // RESET removes its completions from the queue
	CHECK(ibv_destroy_qp(q) == 0);
	close_pair();
}

static void capacity(void) {
	open_pair(0);
	ubv_send_wr w = wr(UBV_WR_WRITE, 8);
	w.num_sge = 3;
	CHECK(post(&w) == EINVAL);
	// Places are free once a later completion was polled.
	w = wr(UBV_WR_WRITE, 8);
	w.send_flags = 0;
	for (int i = 0; i < 7; i++)
		CHECK(post(&w) == 0);
	w.send_flags = UBV_SEND_SIGNALED;
	w.next = &(ubv_send_wr){.wr_id = 5, .opcode = UBV_WR_WRITE};
	ubv_send_wr *bad = 0;
	CHECK(dev[0]->ops.post_send(qp[0], &w, &bad) == ENOMEM && bad == w.next);
	CHECK(post(w.next) == ENOMEM);
	completes(0, w.wr_id, 0);
	for (int i = 0; i < 8; i++)
		CHECK(post(w.next) == 0);
	connect_pair();
	for (int i = 0; i < 8; i++)
		CHECK(receive(i, 8) == 0);
	CHECK(receive(8, 8) == ENOMEM);
	does(wr(UBV_WR_SEND, 8), 0);
	CHECK(receive(8, 8) == ENOMEM);
	completes(1, 0, 0);
	CHECK(receive(8, 8) == 0);
	close_pair();
}

static void overrun(void) {
	entries = 3;
	open_pair(0);
	CHECK(cq[0]->cqe == 3);
	ubv_send_wr w = wr(UBV_WR_WRITE, 8);
	for (int i = 0; i < 4; i++) {
		CHECK(state(0) == UBV_QPS_RTS);
		CHECK(post(&w) == 0);
	}
	CHECK(state(0) == UBV_QPS_ERR);
	ubv_async_event e = event(0, UBV_EVENT_CQ_ERR);
	CHECK(e.element.cq == cq[0]);
	event(0, UBV_EVENT_QP_FATAL);
	CHECK(poll1(0) == 1 && poll1(0) == 1 && poll1(0) == 1 && poll1(0) == 0);
	close_pair();
}

static void waits(void) {
	open_pair(0);
	CHECK(receive(1, 8) == 0);
	ubv_send_wr w = wr(UBV_WR_SEND, 8), then = wr(UBV_WR_WRITE, 8);
	CHECK(post(&w) == 0);
	completes(0, w.wr_id, 0);
	completes(1, 1, 0);
	CHECK(post(&w) == 0 && post(&then) == 0); // waits for a receive, and holds up the work behind it
	nothing();
	CHECK(receive(2, 8) == 0);
	completes(0, w.wr_id, 0);
	completes(0, then.wr_id, 0);
	completes(1, 2, 0);
	CHECK(post(&w) == 0);
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_ERR}, UBV_QP_STATE) == 0);
	completes(0, w.wr_id, UBV_WC_RETRY_EXC_ERR);
	rnr_retry = 6;
	connect_pair();
	does(w, UBV_WC_RNR_RETRY_EXC_ERR);
	// The double waits for a peer that is being connected, but not for one that is gone or expects another packet
	// number.
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_modify_qp(qp[i], &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
		CHECK(to_init(qp[i]) == 0);
	}
	ubv_qp_attr a = rtr(1), b = rts();
	CHECK(ibv_modify_qp(qp[0], &a, TO_RTR) == 0 && ibv_modify_qp(qp[0], &b, TO_RTS) == 0);
	CHECK(post(&then) == 0);
	nothing();
	a = rtr(0);
	CHECK(ibv_modify_qp(qp[1], &a, TO_RTR) == 0);
	completes(0, then.wr_id, 0);
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
	does(then, UBV_WC_RETRY_EXC_ERR);
	connect_pair();
	does(then, 0);
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
	CHECK(to_init(qp[1]) == 0);
	CHECK(ibv_modify_qp(qp[1], &a, TO_RTR) == 0);
	does(then, UBV_WC_RETRY_EXC_ERR);
	connect_pair();
	SET("SILENT", "1");
	CHECK(ibv_destroy_qp(qp[1]) == 0);
	CHECK(post(&then) == 0);
	nothing();
	CHECK(ibv_modify_qp(qp[0], &(ubv_qp_attr){.qp_state = UBV_QPS_ERR}, UBV_QP_STATE) == 0);
	completes(0, then.wr_id, UBV_WC_WR_FLUSH_ERR);
	qp[1] = make_qp(1);
	close_pair();
}

static void shared(void) {
	open_pair(1);
	ubv_recv_wr r = {.wr_id = 1}, *bad;
	CHECK(dev[1]->ops.post_recv(qp[1], &r, &bad) == EINVAL);
	for (int i = 0; i < 8; i++)
		CHECK(receive(i, 100) == 0);
	CHECK(receive(8, 100) == ENOMEM);
	CHECK(ibv_modify_srq(srq, &(ubv_srq_attr){.srq_limit = 7}, UBV_SRQ_LIMIT) == 0);
	does(wr(UBV_WR_SEND, 8), 0);
	no_event(1);
	for (int i = 0; i < 3; i++)
		does(wr(UBV_WR_SEND, 8), 0);
	ubv_async_event e = event(1, UBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(e.element.srq == srq);
	no_event(1); // once
	for (int i = 0; i < 4; i++)
		completes(1, i, 0);
	CHECK(receive(9, 100) == 0);
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_ERR}, UBV_QP_STATE) == 0);
	event(1, UBV_EVENT_QP_LAST_WQE_REACHED);
	nothing(); // the posted receives are the shared queue's
	// When a queue pair takes its completions along, their places are free.
	connect_pair();
	does(wr(UBV_WR_SEND, 8), 0);
	for (int i = 0; i < 3; i++)
		CHECK(receive(i, 8) == 0);
	CHECK(receive(3, 8) == ENOMEM);
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_RESET}, UBV_QP_STATE) == 0);
	CHECK(receive(3, 8) == 0);
	connect_pair();
	close_pair();
}

static void channels(void) {
	open_pair(0);
	ubv_cq *c;
	void *user;
	struct pollfd fd = {channel[1]->fd, POLLIN, 0};
	fcntl(channel[1]->fd, F_SETFL, O_NONBLOCK);
	CHECK(ibv_get_cq_event(channel[1], &c, &user) == -1 && errno == EAGAIN);
	for (int i = 0; i < 6; i++)
		CHECK(receive(i, 8) == 0);
	ubv_send_wr w = wr(UBV_WR_SEND, 8);
	does(w, 0);
	CHECK(poll(&fd, 1, 0) == 0); // nobody has asked for an event
	CHECK(dev[1]->ops.req_notify_cq(cq[1], 0) == 0);
	CHECK(poll(&fd, 1, 0) == 0); // earlier completions do not count
	does(w, 0);
	does(w, 0);
	CHECK(poll(&fd, 1, 0) == 1);
	CHECK(ibv_get_cq_event(channel[1], &c, &user) == 0 && c == cq[1]);
	CHECK(poll(&fd, 1, 0) == 0); // once
	CHECK(dev[1]->ops.req_notify_cq(cq[1], 1) == 0);
	does(w, 0);
	CHECK(poll(&fd, 1, 0) == 0);
	w.send_flags |= UBV_SEND_SOLICITED;
	does(w, 0);
	CHECK(poll(&fd, 1, 0) == 1);
	fcntl(channel[1]->fd, F_SETFL, 0);
	CHECK(ibv_get_cq_event(channel[1], &c, &user) == 0 && c == cq[1]);
	ibv_ack_cq_events(cq[1], 2);
	CHECK(dev[1]->ops.req_notify_cq(cq[1], 1) == 0); // failures raise an event in any case
	CHECK(ibv_modify_qp(qp[1], &(ubv_qp_attr){.qp_state = UBV_QPS_ERR}, UBV_QP_STATE) == 0);
	CHECK(poll(&fd, 1, 0) == 1); // not taken: the event goes with its queue
	close_pair();
}

static void unacknowledged(void) {
	open_pair(0);
	ubv_cq *c;
	void *user;
	CHECK(dev[0]->ops.req_notify_cq(cq[0], 0) == 0);
	does(wr(UBV_WR_WRITE, 8), 0);
	CHECK(ibv_get_cq_event(channel[0], &c, &user) == 0);
	close_pair();
}

static void overacknowledged(void) {
	open_pair(0);
	ibv_ack_cq_events(cq[0], 1);
}

static void destroyed(void) {
	open_pair(0);
	ubv_send_wr w = wr(UBV_WR_WRITE, 8);
	CHECK(ibv_destroy_qp(qp[0]) == 0);
	post(&w);
}

static void ports(void) {
	open_pair(0);
	ubv_port_attr p;
	SET("PORT", "double0=down_after:2");
	does(wr(UBV_WR_WRITE, 8), 0);
	does(wr(UBV_WR_WRITE, 8), 0);
	no_event(0);
	does(wr(UBV_WR_WRITE, 8), UBV_WC_RETRY_EXC_ERR);
	ubv_async_event e = event(0, UBV_EVENT_PORT_ERR);
	CHECK(e.element.port == 1 && ibv_query_port(dev[0], 1, &p) == 0 && p.state == UBV_PORT_DOWN);
	CHECK(ibv_query_port(dev[1], 1, &p) == 0 && p.state == UBV_PORT_ACTIVE);
	no_event(1);
	connect_pair();
	does(wr(UBV_WR_WRITE, 8), UBV_WC_RETRY_EXC_ERR);
	SET("PORT", "up");
	event(0, UBV_EVENT_PORT_ACTIVE);
	connect_pair();
	does(wr(UBV_WR_WRITE, 8), 0);
	SET("PORT", "double1=down"); // the peer's port
	does(wr(UBV_WR_WRITE, 8), UBV_WC_RETRY_EXC_ERR);
	event(1, UBV_EVENT_PORT_ERR);
	close_pair();
}

static void told(void) {
	open_pair(0);
	SET("STATUS", "WRITE:2:REM_OP_ERR:0x77,READ:1:NEVER,RECV:1:LOC_ACCESS_ERR");
	does(wr(UBV_WR_WRITE, 8), 0);
	memset(mem[1], 0, N);
	does(wr(UBV_WR_WRITE, 8), UBV_WC_REM_OP_ERR);
	CHECK(wc.vendor_err == 0x77 && mem[1][1] == 0 && state(0) == UBV_QPS_ERR);
	connect_pair();
	does(wr(UBV_WR_WRITE, 8), 0);
	CHECK(receive(1, 8) == 0);
	does(wr(UBV_WR_SEND, 8), UBV_WC_REM_OP_ERR);
	completes(1, 1, UBV_WC_LOC_ACCESS_ERR);
	connect_pair();
	ubv_send_wr w = wr(UBV_WR_READ, 8);
	CHECK(post(&w) == 0);
	nothing();
	connect_pair();
	does(wr(UBV_WR_READ, 8), 0);
	SET("FAIL", "reg_mr:2:ENOMEM,dereg_mr:1,alloc_pd:*:12,post_send:1:EAGAIN");
	ubv_mr *m = ibv_reg_mr(pd[0], mem[0], N, ALL);
	CHECK(m);
	FAILS(ibv_reg_mr(pd[0], mem[0], N, ALL), ENOMEM);
	CHECK(ibv_dereg_mr(m) == EIO && ibv_dereg_mr(m) == 0);
	FAILS(ibv_alloc_pd(dev[0]), ENOMEM);
	FAILS(ibv_alloc_pd(dev[0]), ENOMEM);
	w = wr(UBV_WR_READ, 8);
	CHECK(post(&w) == EAGAIN && post(&w) == 0);
	COUNT("alloc_pd", 4);
	SET("FAIL", "");
	close_pair();
}

// described checks what a device says about itself against the arguments.
static void described(int argc, char **argv) {
	open_pair(0);
	ubv_port_attr p;
	ubv_device_attr d;
	uint16_t key;
	CHECK(ibv_query_device(dev[0], &d) == 0 && d.phys_port_cnt == 1 && d.atomic_cap == UBV_ATOMIC_HCA);
	CHECK(ibv_query_port(dev[0], 1, &p) == 0 && ibv_query_port(dev[0], 2, &p) == EINVAL);
	CHECK(p.link_layer == (ethernet ? UBV_LINK_ETHERNET : UBV_LINK_INFINIBAND) && (p.lid == 0) == ethernet);
	CHECK(ibv_query_pkey(dev[0], 1, 0, &key) == 0 && key == htons(0xffff) && ibv_query_pkey(dev[0], 1, 1, &key) == -1);
	ubv_gid_entry g[16];
	CHECK(_ibv_query_gid_table(dev[0], g, 16, 0, sizeof *g) == (ethernet ? 4 : 1));
	ubv_extension *x = (ubv_extension *)((char *)dev[0] - offsetof(ubv_extension, context));
	const char *how = argc ? argv[0] : "";
	if (!strcmp(how, "none")) {
		CHECK(!dev[0]->abi_compat);
	} else {
		ubv_device_attr_ex ex;
		CHECK(dev[0]->abi_compat == (void *)UINTPTR_MAX);
		CHECK(x->sz >= sizeof *x - offsetof(ubv_extension, query_device_ex) || !strcmp(how, "short"));
		CHECK(x->sz < sizeof *x - offsetof(ubv_extension, query_port) || strcmp(how, "short"));
		CHECK(x->query_device_ex(dev[0], 0, &ex, sizeof ex) == 0 && ex.odp.general == 0);
	}
	does(wr(UBV_WR_WRITE, 100), 0);
	close_pair();
}

int main(int argc, char **argv) {
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"data", data}, {"refusals", refusals}, {"regions", regions}, {"states", states}, {"capacity", capacity},
		{"overrun", overrun}, {"waits", waits}, {"shared", shared}, {"channels", channels}, {"unacknowledged", unacknowledged},
		{"overacknowledged", overacknowledged}, {"destroyed", destroyed}, {"ports", ports}, {"told", told}};
	const char *link = getenv("VERBSTEST_LINK");
	ethernet = link && !strcmp(link, "Ethernet");
	if (argc > 1 && !strcmp(argv[1], "described"))
		return described(argc - 2, argv + 2), 0;
	for (size_t i = 0; argc > 1 && i < sizeof parts / sizeof *parts; i++)
		if (!strcmp(parts[i].name, argv[1]))
			return parts[i].run(), 0;
	fprintf(stderr, "which part?\n");
	return 2;
}
