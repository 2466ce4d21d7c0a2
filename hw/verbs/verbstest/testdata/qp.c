// Queue pairs and shared receive queues.
#include "double.h"
#include <stdlib.h>
#include <unistd.h>

static void make_receives(receives *r, uint32_t max, uint32_t max_sge) {
	*r = (receives){.max = max, .max_sge = max_sge};
	r->ring = calloc(max, sizeof *r->ring);
	r->sges = calloc((size_t)max * max_sge, sizeof *r->sges);
	for (uint32_t i = 0; i < max; i++)
		r->ring[i].sge = r->sges + (size_t)i * max_sge;
}

// round_up gives more than was asked for, as drivers do.
static uint32_t round_up(uint32_t n, uint32_t least) {
	while (least < n)
		least *= 2;
	return least;
}

ubv_srq *ibv_create_srq(ubv_pd *v, ubv_srq_init_attr *a) {
	ENTER_MAKE(create_srq);
	ALIVE((pd *)v, "protection domain");
	if (!a->max_wr || a->max_wr > MAX_WORK || a->max_sge > MAX_SGE)
		NONE(EINVAL);
	srq *s = calloc(1, sizeof *s);
	s->v = (ubv_srq){.context = v->context, .srq_context = a->srq_context, .pd = v};
	a->max_wr = round_up(a->max_wr, 2);
	a->max_sge = a->max_sge ? a->max_sge : 1;
	make_receives(&s->r, a->max_wr, a->max_sge); // the limit is ignored here: ibv_create_srq(3)
	((pd *)v)->children++;
	of(v->context)->children++;
	count.srq++;
	return &s->v;
}

int ibv_modify_srq(ubv_srq *v, ubv_srq_attr *a, int mask) {
	srq *s = (srq *)v;
	ENTER(modify_srq);
	ALIVE(s, "SRQ");
	if (mask != UBV_SRQ_LIMIT || a->srq_limit > s->r.max)
		return EINVAL;
	s->limit = a->srq_limit;
	return 0;
}

int ibv_destroy_srq(ubv_srq *v) {
	srq *s = (srq *)v;
	ENTER(destroy_srq);
	ALIVE(s, "SRQ");
	if (s->users)
		return EBUSY;
	s->dead = 1;
	forget(&of(v->context)->events, s);
	wait_acked("destroy_srq", &s->reported, &v->events_completed);
	free(s->r.ring);
	free(s->r.sges);
	((pd *)v->pd)->children--;
	of(v->context)->children--;
	count.srq--;
	return 0;
}

ubv_qp *ibv_create_qp(ubv_pd *v, ubv_qp_init_attr *a) {
	ENTER_MAKE(create_qp);
	ALIVE((pd *)v, "protection domain");
	ubv_qp_cap *c = &a->cap;
	if (a->qp_type != UBV_QPT_RC)
		NONE(EOPNOTSUPP);
	if (!a->send_cq || !a->recv_cq || a->send_cq->context != v->context || a->recv_cq->context != v->context ||
		(a->srq && a->srq->context != v->context) || c->max_send_wr > MAX_WORK || c->max_recv_wr > MAX_WORK ||
		c->max_send_sge > MAX_SGE || c->max_recv_sge > MAX_SGE || c->max_inline_data > knob.max_inline)
		NONE(EINVAL);
	c->max_send_wr = round_up(c->max_send_wr, 1);
	c->max_recv_wr = a->srq ? 0 : round_up(c->max_recv_wr, 1);
	c->max_send_sge = c->max_send_sge ? c->max_send_sge : 1;
	c->max_recv_sge = a->srq ? 0 : c->max_recv_sge ? c->max_recv_sge : 1;
	uint32_t more = (c->max_inline_data + 32) & ~31; // as with drivers, a caller that asks for none gets some, too
	c->max_inline_data = more < knob.max_inline ? more : knob.max_inline;
	qp *q = calloc(1, sizeof *q);
	device *d = of(v->context)->dev;
	// Each device counts its own queue pairs, so queue pairs of two devices may have the same number, but not those of
	// two processes.
	uint32_t number = (getpid() & 0x7f) << 16 | (++d->qps & 0xffff);
	q->v = (ubv_qp){.context = v->context, .qp_context = a->qp_context, .pd = v, .send_cq = a->send_cq,
		.recv_cq = a->recv_cq, .srq = a->srq, .handle = number, .qp_num = number, .qp_type = UBV_QPT_RC};
	q->dev = d;
	q->attr.cap = *c;
	q->all_signaled = a->sq_sig_all;
	q->ring = calloc(c->max_send_wr, sizeof *q->ring);
	q->sges = calloc((size_t)c->max_send_wr * c->max_send_sge, sizeof *q->sges);
	q->data = calloc(c->max_send_wr, c->max_inline_data + 1);
	for (uint32_t i = 0; i < c->max_send_wr; i++) {
		q->ring[i].sge = q->sges + (size_t)i * c->max_send_sge;
		q->ring[i].data = q->data + (size_t)i * c->max_inline_data;
	}
	if (!a->srq)
		make_receives(&q->own, c->max_recv_wr, c->max_recv_sge);
	else
		((srq *)a->srq)->users++;
	q->r = a->srq ? &((srq *)a->srq)->r : &q->own;
	((cq *)a->send_cq)->users++;
	((cq *)a->recv_cq)->users++;
	((pd *)v)->children++;
	of(v->context)->children++;
	q->next = qps;
	qps = q;
	count.qp++;
	return &q->v;
}

// address checks the address of the peer to connect to.
static int address(qp *q, const ubv_ah_attr *ah) {
	if (ah->port_num != 1 || (knob.ethernet ? !ah->is_global : !ah->dlid) || (knob.grh && !ah->is_global))
		return EINVAL;
	if (ah->is_global && (ah->sgid_index >= GIDS || !q->dev->gids[ah->sgid_index].port))
		return ah->sgid_index >= GIDS ? EINVAL : ENODATA;
	return 0;
}

int ibv_modify_qp(ubv_qp *v, ubv_qp_attr *a, int mask) {
	// The attributes that each transition must and may have: InfiniBand specification, section 11.2.5.3.
	static const struct {
		int from, to, has, may;
	} ways[] = {
		{UBV_QPS_RESET, UBV_QPS_INIT, UBV_QP_PKEY_INDEX | UBV_QP_PORT | UBV_QP_ACCESS_FLAGS, 0},
		{UBV_QPS_INIT, UBV_QPS_INIT, 0, UBV_QP_PKEY_INDEX | UBV_QP_PORT | UBV_QP_ACCESS_FLAGS},
		{UBV_QPS_INIT, UBV_QPS_RTR, UBV_QP_AV | UBV_QP_PATH_MTU | UBV_QP_DEST_QPN | UBV_QP_RQ_PSN |
			UBV_QP_MAX_DEST_RD_ATOMIC | UBV_QP_MIN_RNR_TIMER, UBV_QP_ACCESS_FLAGS | UBV_QP_PKEY_INDEX},
		{UBV_QPS_RTR, UBV_QPS_RTS, UBV_QP_TIMEOUT | UBV_QP_RETRY_CNT | UBV_QP_RNR_RETRY | UBV_QP_SQ_PSN |
			UBV_QP_MAX_QP_RD_ATOMIC, UBV_QP_ACCESS_FLAGS | UBV_QP_MIN_RNR_TIMER},
		{UBV_QPS_RTS, UBV_QPS_RTS, 0, UBV_QP_ACCESS_FLAGS | UBV_QP_MIN_RNR_TIMER},
	};
	qp *q = (qp *)v;
	ENTER(modify_qp);
	ALIVE(q, "queue pair");
	int to = mask & UBV_QP_STATE ? a->qp_state : q->state, given = mask & ~UBV_QP_STATE;
	if (to == UBV_QPS_RESET || to == UBV_QPS_ERR) {
		if (given)
			return EINVAL;
		if (to == UBV_QPS_ERR && q->state != UBV_QPS_RESET)
			to_error(q, -1);
		q->state = v->state = to;
		if (to == UBV_QPS_RESET) {
			purge((cq *)v->send_cq, q);
			purge((cq *)v->recv_cq, q);
			q->posted = q->done = q->freed = q->own.posted = q->own.taken = q->own.freed = 0;
			q->stuck = 0;
			q->attr = (ubv_qp_attr){.cap = q->attr.cap};
		}
		dirty = 1;
		settle();
		return 0;
	}
	size_t i = 0, n = sizeof ways / sizeof *ways;
	while (i < n && (ways[i].from != q->state || ways[i].to != to))
		i++;
	if (i == n || ways[i].has & ~given || given & ~(ways[i].has | ways[i].may))
		return EINVAL;
	const unsigned remote = UBV_ACCESS_LOCAL_WRITE | UBV_ACCESS_REMOTE_WRITE | UBV_ACCESS_REMOTE_READ | UBV_ACCESS_REMOTE_ATOMIC;
	if ((given & UBV_QP_PKEY_INDEX && a->pkey_index) || (given & UBV_QP_PORT && a->port_num != 1) ||
		(given & UBV_QP_ACCESS_FLAGS && a->qp_access_flags & ~remote) ||
		(given & UBV_QP_PATH_MTU && (a->path_mtu < 1 || a->path_mtu > (knob.ethernet ? 3 : 5))) ||
		(given & UBV_QP_DEST_QPN && a->dest_qp_num >> 24) || (given & UBV_QP_RQ_PSN && a->rq_psn >> 24) ||
		(given & UBV_QP_SQ_PSN && a->sq_psn >> 24) || (given & UBV_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > MAX_READS) ||
		(given & UBV_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > MAX_READS) || (given & UBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31) ||
		(given & UBV_QP_TIMEOUT && a->timeout > 31) || (given & UBV_QP_RETRY_CNT && a->retry_cnt > 7) ||
		(given & UBV_QP_RNR_RETRY && a->rnr_retry > 7))
		return EINVAL;
	int bad = given & UBV_QP_AV ? address(q, &a->ah) : 0;
	if (bad)
		return bad;
#define SET(bit, field) \
	if (given & (bit)) \
	q->attr.field = a->field
	SET(UBV_QP_PKEY_INDEX, pkey_index);
	SET(UBV_QP_PORT, port_num);
	SET(UBV_QP_ACCESS_FLAGS, qp_access_flags);
	SET(UBV_QP_AV, ah);
	SET(UBV_QP_PATH_MTU, path_mtu);
	SET(UBV_QP_DEST_QPN, dest_qp_num);
	SET(UBV_QP_RQ_PSN, rq_psn);
	SET(UBV_QP_SQ_PSN, sq_psn);
	SET(UBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	SET(UBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	SET(UBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	SET(UBV_QP_TIMEOUT, timeout);
	SET(UBV_QP_RETRY_CNT, retry_cnt);
	SET(UBV_QP_RNR_RETRY, rnr_retry);
	if (given & UBV_QP_RQ_PSN)
		q->rq_psn = a->rq_psn;
	if (given & UBV_QP_SQ_PSN)
		q->sq_psn = a->sq_psn;
	q->state = v->state = to;
	dirty = 1;
	settle();
	return 0;
}

int ibv_query_qp(ubv_qp *v, ubv_qp_attr *a, int mask, ubv_qp_init_attr *init) {
	qp *q = (qp *)v;
	ENTER(query_qp);
	ALIVE(q, "queue pair");
	*a = q->attr;
	a->qp_state = a->cur_qp_state = v->state = q->state;
	a->sq_psn = q->sq_psn;
	a->rq_psn = q->rq_psn;
	*init = (ubv_qp_init_attr){v->qp_context, v->send_cq, v->recv_cq, v->srq, q->attr.cap, UBV_QPT_RC, q->all_signaled};
	return 0;
}

int ibv_query_qp_data_in_order(ubv_qp *v, int op, uint32_t flags) {
	LOCKED(query_qp_data_in_order);
	return !refused && knob.in_order;
}

int ibv_destroy_qp(ubv_qp *v) {
	qp *q = (qp *)v;
	ENTER(destroy_qp);
	ALIVE(q, "queue pair");
	qp **at = &qps;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	q->dead = 1;
	purge((cq *)v->send_cq, q);
	purge((cq *)v->recv_cq, q);
	forget(&of(v->context)->events, q);
	wait_acked("destroy_qp", &q->reported, &v->events_completed);
	((cq *)v->send_cq)->users--;
	((cq *)v->recv_cq)->users--;
	if (v->srq)
		((srq *)v->srq)->users--;
	free(q->ring);
	free(q->sges);
	free(q->data);
	free(q->own.ring);
	free(q->own.sges);
	((pd *)v->pd)->children--;
	of(v->context)->children--;
	count.qp--;
	dirty = 1;
	settle(); // for peers that wait for this transition
	return 0;
}

