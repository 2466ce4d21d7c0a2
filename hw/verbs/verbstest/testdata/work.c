// Work requests, their effects at both ends, and completions.
#include "double.h"
#include <string.h>

int dirty;
static int waiting; // some queue waits
qp *qps;

static void complete(cq *c, entry e, int solicited) {
	if (c->overrun)
		return;
	if (c->n == (uint32_t)c->v.cqe) {
		c->overrun = 1;
		raise_event(of(c->v.context), UBV_EVENT_CQ_ERR, c, &c->async_reported);
		for (qp *q = qps; q; q = q->next)
			if (q->v.send_cq == &c->v || q->v.recv_cq == &c->v)
				to_error(q, UBV_EVENT_QP_FATAL);
		return;
	}
	if (e.wc.status) { // the other fields are not valid, and no user may read them
		if (!e.wc.vendor_err)
			e.wc.vendor_err = 0x80 | e.wc.status;
		e.wc.opcode = e.wc.byte_len = e.wc.imm_data = e.wc.wc_flags = 0x5a5a5a5a;
	}
	e.wc.qp_num = e.of->v.qp_num;
	e.wc.src_qp = e.of->attr.dest_qp_num;
	c->ring[(c->first + c->n++) % c->v.cqe] = e;
	if (c->armed == ARMED || (c->armed == ARMED_SOLICITED && (solicited || e.wc.status))) {
		c->armed = IDLE;
		push(&((channel *)c->v.channel)->events, c, 0, &c->reported);
	}
}

static void complete_send(qp *q, int status, int vendor) {
	static const int opcodes[] = {UBV_WC_WRITE, UBV_WC_WRITE, UBV_WC_SEND, UBV_WC_SEND, UBV_WC_READ, UBV_WC_CMP_SWAP,
		UBV_WC_FETCH_ADD};
	request *s = &q->ring[q->done++ % q->attr.cap.max_send_wr];
	if (!status && !(s->flags & UBV_SEND_SIGNALED) && !q->all_signaled)
		return;
	uint32_t n = 0;
	for (int i = 0; i < s->n; i++)
		n += s->sge[i].length;
	complete((cq *)q->v.send_cq, (entry){.wc = {.wr_id = s->id, .status = status, .opcode = opcodes[s->op],
		.vendor_err = vendor, .byte_len = s->op >= UBV_WR_READ ? n : 0}, .of = q, .upto = q->done}, 0);
}

static void complete_receive(qp *q, ubv_wc wc, int solicited) {
	complete((cq *)q->v.recv_cq, (entry){.wc = wc, .of = q, .queue = q->r}, solicited);
}

static struct receive *next_receive(qp *q) {
	receives *r = q->r;
	return r->taken == r->posted ? 0 : &r->ring[r->taken % r->max];
}

// to_error breaks a queue pair: all posted work is flushed, and so is later work. event < 0 raises no event.
void to_error(qp *q, int event) {
	if (q->state == UBV_QPS_ERR)
		return;
	q->state = UBV_QPS_ERR;
	dirty = 1;
	context *c = of(q->v.context);
	if (event >= 0)
		raise_event(c, event, q, &q->reported);
	while (q->done < q->posted)
		complete_send(q, UBV_WC_WR_FLUSH_ERR, 0);
	if (q->v.srq)
		raise_event(c, UBV_EVENT_QP_LAST_WQE_REACHED, q, &q->reported);
	else
		for (struct receive *r; (r = next_receive(q)); q->r->taken++)
			complete_receive(q, (ubv_wc){.wr_id = r->id, .status = UBV_WC_WR_FLUSH_ERR}, 0);
}

// purge takes the completions of q out of c.
void purge(cq *c, qp *q) {
	uint32_t kept = 0;
	for (uint32_t i = 0; i < c->n; i++) {
		entry e = c->ring[(c->first + i) % c->v.cqe];
		if (e.of != q)
			c->ring[(c->first + kept++) % c->v.cqe] = e;
		else if (e.queue)
			e.queue->freed++;
	}
	c->n = kept;
}

static int reachable(device *d, qp *q) {
	ubv_ah_attr *ah = &q->attr.ah;
	int found = !ah->is_global;
	for (int i = 0; i < GIDS; i++)
		found |= ah->is_global && d->gids[i].port && d->gids[i].type == q->dev->gids[ah->sgid_index].type &&
			memcmp(d->gids[i].gid, ah->dgid, 16) == 0;
	return found && (knob.ethernet || d->lid == ah->dlid) && !d->down && !q->dev->down;
}

// find returns the queue pair that q is connected to: it exists, q's address reaches its port, and it expects q.
static qp *find(qp *q) {
	for (qp *p = qps; p; p = p->next)
		if (p->v.qp_num == q->attr.dest_qp_num && reachable(p->dev, q)) {
			if (p->state == UBV_QPS_INIT)
				return p;
			if ((p->state == UBV_QPS_RTR || p->state == UBV_QPS_RTS) && p->attr.dest_qp_num == q->v.qp_num &&
				reachable(q->dev, p) && p->rq_psn == q->sq_psn)
				return p;
		}
	return 0;
}

// perform does a work request as far as the rules of both ends allow it. It returns the initiator's status, LATER or
// NEVER. If the peer must break, *broken is the peer and *event its event.
static int perform(qp *q, request *s, int *vendor, qp **broken, int *event) {
	place here[MAX_SGE], there[MAX_SGE];
	uint64_t n = 0;
	for (int i = 0; i < s->n; i++)
		n += s->sge[i].length;
	if (!s->tried++) {
		device *d = q->dev;
		d->work++;
		if (d->down_after && d->work > d->down_after)
			turn_port(d, 1);
		rule *r = told(s->op);
		if (r)
			return *vendor = r->vendor, r->result;
	}
	int atomic = s->op == UBV_WR_CMP_SWAP || s->op == UBV_WR_FETCH_ADD, reads = atomic || s->op == UBV_WR_READ;
	int sends = s->op == UBV_WR_SEND || s->op == UBV_WR_SEND_WITH_IMM, takes = sends || s->op == UBV_WR_WRITE_WITH_IMM;
	if (n > (uint64_t)knob.max_msg || (atomic && n != 8))
		return UBV_WC_LOC_LEN_ERR;
	if (reads && !q->attr.max_rd_atomic)
		return UBV_WC_LOC_QP_OP_ERR;
	if (s->flags & UBV_SEND_INLINE)
		here[0] = (place){s->data, n};
	else if (!places(q->v.pd, s->sge, s->n, reads ? UBV_ACCESS_LOCAL_WRITE : 0, here))
		return UBV_WC_LOC_PROT_ERR;

	qp *p = find(q);
	if (!p) {
		if (knob.silent || !q->attr.timeout) // timeout 0 waits forever
			return NEVER;
		bump(q->dev, TIMEOUT, 1);
		return UBV_WC_RETRY_EXC_ERR;
	}
	if (p->state == UBV_QPS_INIT)
		return LATER;

	static const unsigned needs[] = {UBV_ACCESS_REMOTE_WRITE, UBV_ACCESS_REMOTE_WRITE, 0, 0, UBV_ACCESS_REMOTE_READ,
		UBV_ACCESS_REMOTE_ATOMIC, UBV_ACCESS_REMOTE_ATOMIC};
	unsigned access = needs[s->op];
	// A responder fails only if more reads are under way together than it keeps track of. The initiator's limit says
	// that this can happen.
	if (access & ~p->attr.qp_access_flags || (reads && q->attr.max_rd_atomic > p->attr.max_dest_rd_atomic) ||
		(atomic && (s->remote % 8 || !knob.atomics)))
		return *broken = p, *event = UBV_EVENT_QP_REQ_ERR, UBV_WC_REM_INV_REQ_ERR;
	char *remote = 0;
	if (!sends && n && !(remote = reach(p->v.pd, s->rkey, 1, s->remote, n, access))) {
		bump(q->dev, ACCESS_REQ, 1);
		bump(p->dev, ACCESS_RESP, 1);
		return *broken = p, *event = UBV_EVENT_QP_ACCESS_ERR, UBV_WC_REM_ACCESS_ERR;
	}
	ubv_wc wc = {.opcode = UBV_WC_RECV, .byte_len = n};
	if (takes) {
		struct receive *r = next_receive(p);
		if (!r) {
			if (q->attr.rnr_retry == 7)
				return LATER;
			bump(q->dev, RNR, 1);
			return UBV_WC_RNR_RETRY_EXC_ERR;
		}
		wc.wr_id = r->id;
		p->r->taken++;
		srq *shared = (srq *)p->v.srq;
		if (shared && p->r->posted - p->r->taken < shared->limit) {
			shared->limit = 0; // until the user sets a limit again
			raise_event(of(p->v.context), UBV_EVENT_SRQ_LIMIT_REACHED, shared, &shared->reported);
		}
		int result = UBV_WC_REM_OP_ERR;
		rule *rule = told(OP_RECV);
		if (rule) {
			if (rule->result == NEVER)
				return NEVER;
			wc.status = rule->result;
			wc.vendor_err = rule->vendor;
		} else if (sends) {
			uint64_t room = 0;
			for (int i = 0; i < r->n; i++)
				room += r->sge[i].length;
			if (room < n)
				wc.status = UBV_WC_LOC_LEN_ERR, result = UBV_WC_REM_INV_REQ_ERR;
			else if (!places(p->v.pd, r->sge, r->n, UBV_ACCESS_LOCAL_WRITE, there))
				wc.status = UBV_WC_LOC_PROT_ERR;
		}
		if (wc.status) {
			complete_receive(p, wc, 0);
			return *broken = p, *event = -1, result;
		}
	}
	if (!sends)
		there[0] = (place){remote, n};
	if (atomic) {
		uint64_t old = update(remote, s);
		transfer(here, &(place){(char *)&old, 8}, 1);
	} else if (s->op == UBV_WR_READ) {
		transfer(here, there, 1);
	} else {
		transfer(there, here, s->flags & UBV_SEND_INLINE ? 1 : s->n);
	}
	q->sq_psn = (q->sq_psn + 1) & 0xffffff;
	p->rq_psn = (p->rq_psn + 1) & 0xffffff;
	device *from = s->op == UBV_WR_READ ? p->dev : q->dev, *to = s->op == UBV_WR_READ ? q->dev : p->dev;
	uint64_t packets = n ? (n + (128 << q->attr.path_mtu) - 1) / (128 << q->attr.path_mtu) : 1;
	bump(from, XMIT_DATA, (n + 3) / 4);
	bump(to, RCV_DATA, (n + 3) / 4);
	bump(from, XMIT_PACKETS, packets);
	bump(to, RCV_PACKETS, packets);
	if (takes) {
		if (s->op == UBV_WR_WRITE_WITH_IMM)
			wc.opcode = UBV_WC_RECV_WITH_IMM;
		if (s->op != UBV_WR_SEND) {
			wc.wc_flags = UBV_WC_WITH_IMM;
			wc.imm_data = s->imm;
		}
		complete_receive(p, wc, s->flags & UBV_SEND_SOLICITED);
	}
	return UBV_WC_SUCCESS;
}

// advance does posted work in order, until it has to wait.
static void advance(qp *q) {
	while (q->state == UBV_QPS_RTS && !q->stuck && q->done < q->posted) {
		uint64_t at = q->done;
		qp *broken = 0;
		int event = -1, vendor = 0;
		int status = perform(q, &q->ring[at % q->attr.cap.max_send_wr], &vendor, &broken, &event);
		if (status == LATER) {
			waiting = 1;
			return;
		}
		if (status == NEVER) {
			q->stuck = 1;
			return;
		}
		if (q->done == at) { // false if the peer's completion queue overran and that flushed this work: the queue may be q's own
			complete_send(q, status, vendor);
			if (status)
				to_error(q, -1);
		}
		if (broken)
			to_error(broken, event);
	}
}

// settle lets all queues proceed that may be able to.
void settle(void) {
	while (dirty) {
		dirty = waiting = 0;
		for (qp *q = qps; q; q = q->next)
			advance(q);
	}
}

int post_send(ubv_qp *v, ubv_send_wr *wr, ubv_send_wr **bad) {
	qp *q = (qp *)v;
	LOCKED(post_send);
	ALIVE(q, "queue pair");
	int result = refused;
	uint32_t max = q->attr.cap.max_send_wr;
	for (; wr && !result; wr = wr->next) {
		uint64_t n = 0;
		for (int i = 0; i < wr->num_sge; i++)
			n += wr->sg_list[i].length;
		int atomic = wr->opcode == UBV_WR_CMP_SWAP || wr->opcode == UBV_WR_FETCH_ADD;
		unsigned known = UBV_SEND_FENCE | UBV_SEND_SIGNALED | UBV_SEND_SOLICITED | UBV_SEND_INLINE;
		if (q->state != UBV_QPS_RTS && q->state != UBV_QPS_ERR)
			result = EINVAL;
		else if (wr->opcode < 0 || wr->opcode > UBV_WR_FETCH_ADD || wr->send_flags & ~known || wr->num_sge < 0 ||
			wr->num_sge > (int)q->attr.cap.max_send_sge)
			result = EINVAL;
		else if (wr->send_flags & UBV_SEND_INLINE && (wr->opcode >= UBV_WR_READ || n > q->attr.cap.max_inline_data))
			result = EINVAL;
		else if (q->posted - q->freed >= max)
			result = ENOMEM;
		if (result)
			break;
		request *s = &q->ring[q->posted % max];
		*s = (request){.id = wr->wr_id, .op = wr->opcode, .flags = wr->send_flags, .imm = wr->imm_data, .n = wr->num_sge,
			.sge = s->sge, .data = s->data, .remote = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey};
		if (atomic) {
			s->compare = wr->wr.atomic.compare_add;
			s->swap = wr->wr.atomic.swap;
			s->rkey = wr->wr.atomic.rkey;
		}
		memcpy(s->sge, wr->sg_list, s->n * sizeof *s->sge);
		if (s->flags & UBV_SEND_INLINE) {
			char *to = s->data;
			for (int i = 0; i < s->n; to += s->sge[i++].length)
				memcpy(to, (void *)(uintptr_t)s->sge[i].addr, s->sge[i].length);
			count.inlined++;
		}
		count.signaled += (s->flags & UBV_SEND_SIGNALED) != 0;
		count.work++;
		q->posted++;
		if (q->state == UBV_QPS_ERR)
			complete_send(q, UBV_WC_WR_FLUSH_ERR, 0);
	}
	if (result)
		*bad = wr;
	advance(q);
	settle();
	return result;
}

static int add_receives(receives *r, ubv_recv_wr *wr, ubv_recv_wr **bad, int result) {
	for (; wr && !result; wr = wr->next) {
		if (wr->num_sge < 0 || wr->num_sge > (int)r->max_sge)
			result = EINVAL;
		else if (r->posted - r->freed >= r->max)
			result = ENOMEM;
		if (result)
			break;
		struct receive *x = &r->ring[r->posted++ % r->max];
		x->id = wr->wr_id;
		x->n = wr->num_sge;
		memcpy(x->sge, wr->sg_list, x->n * sizeof *x->sge);
		count.receives++;
	}
	if (result)
		*bad = wr;
	return result;
}

int post_recv(ubv_qp *v, ubv_recv_wr *wr, ubv_recv_wr **bad) {
	qp *q = (qp *)v;
	LOCKED(post_recv);
	ALIVE(q, "queue pair");
	int result = refused ? refused : q->v.srq || q->state == UBV_QPS_RESET ? EINVAL : 0;
	result = add_receives(&q->own, wr, bad, result);
	for (struct receive *r; q->state == UBV_QPS_ERR && (r = next_receive(q)); q->r->taken++)
		complete_receive(q, (ubv_wc){.wr_id = r->id, .status = UBV_WC_WR_FLUSH_ERR}, 0);
	dirty |= waiting;
	settle();
	return result;
}

int post_srq_recv(ubv_srq *v, ubv_recv_wr *wr, ubv_recv_wr **bad) {
	LOCKED(post_srq_recv);
	ALIVE((srq *)v, "SRQ");
	int result = add_receives(&((srq *)v)->r, wr, bad, refused);
	dirty |= waiting;
	settle();
	return result;
}

int poll_cq(ubv_cq *v, int max, ubv_wc *wc) {
	cq *c = (cq *)v;
	LOCKED(poll_cq);
	ALIVE(c, "completion queue");
	if (refused)
		return -refused;
	int n = 0;
	for (; n < max && c->n; n++, c->n--) {
		entry *e = &c->ring[c->first];
		wc[n] = e->wc;
		if (e->queue)
			e->queue->freed++;
		else
			e->of->freed = e->upto;
		c->first = (c->first + 1) % c->v.cqe;
	}
	return n;
}

int req_notify_cq(ubv_cq *v, int solicited) {
	cq *c = (cq *)v;
	ENTER(req_notify_cq);
	ALIVE(c, "completion queue");
	if (!c->v.channel)
		return 0; // nobody would hear of it
	if (c->armed != ARMED) // a request for any completion is not narrowed by one for solicited ones
		c->armed = solicited ? ARMED_SOLICITED : ARMED;
	return 0;
}

