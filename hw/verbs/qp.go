//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// QP is a queue pair of the reliable connected kind: one end of a connection.
type QP struct {
	pd        *PD
	config    QPConfig
	qp        *C.ubv_qp
	inlineMax int
	number    uint32

	mu       sync.Mutex
	closed   bool
	path     Path
	port     Port
	gid      GIDEntry
	psn      uint32
	peer     string
	noReads  bool // once connected: the peer answers no reads, so one would wait forever
	counts   PostCounts
	last     []Work // the work posted last, a ring: all work that may still complete
	sequence uint64 // how many were posted
}

// CreateQP makes a queue pair in state RESET. Its completion queues must hold all completions that can be under way,
// else some may be lost. (ibv_create_qp)
func (p *PD) CreateQP(config QPConfig) (*QP, error) {
	d := p.device
	if err := config.check(p); err != nil {
		return nil, fmt.Errorf("a queue pair of %s: %w", d.name, err)
	}
	if err := p.make("queue pair"); err != nil {
		return nil, fmt.Errorf("protection domain of %s: %w", d.name, err)
	}
	if err := config.make(); err != nil {
		p.unmake("queue pair")
		return nil, fmt.Errorf("a queue pair of %s: %w", d.name, err)
	}
	caps := C.ubv_qp_cap{max_send_wr: C.uint32_t(config.Work), max_recv_wr: C.uint32_t(config.Receives), max_send_sge: 1,
		max_recv_sge: 1, max_inline_data: C.uint32_t(config.Inline)}
	var srq *C.ubv_srq
	if config.Shared != nil {
		srq, caps.max_recv_sge = config.Shared.srq, 0
	}
	var raw *C.ubv_qp
	if err := d.checkQueue("ibv_create_qp", fmt.Sprintf("%d work requests, %d receives, %d bytes inline", config.Work, config.Receives,
		config.Inline), C.ubv_create_qp(p.pd, config.Send.cq, config.Receive.cq, srq, &caps, &raw)); err != nil {
		config.unmake()
		p.unmake("queue pair")
		return nil, err
	}
	q := &QP{pd: p, config: config, qp: raw, number: uint32(raw.qp_num), last: make([]Work, max(int(caps.max_send_wr), config.Work))}
	if config.Inline > 0 { // some devices offer inline unasked, but then Post could not take memory that the processor cannot read
		q.inlineMax = int(caps.max_inline_data)
	}
	d.pairs.Store(q.number, q)
	return q, nil
}

func (c QPConfig) check(p *PD) error {
	l := p.device.limits
	switch {
	case c.Send == nil || c.Receive == nil:
		return fmt.Errorf("it needs a completion queue for work and one for receives: %w", fault.ErrArgument)
	case c.Send.device != p.device || c.Receive.device != p.device:
		return fmt.Errorf("its completion queues are of %s and %s: %w", c.Send.device.name, c.Receive.device.name, fault.ErrArgument)
	case c.Work < 1 || c.Work > l.Work:
		return fmt.Errorf("%d work requests: the device offers 1 to %d: %w", c.Work, l.Work, fault.ErrArgument)
	case c.Receives < 0 || c.Receives > l.Work:
		return fmt.Errorf("%d receives: the device offers up to %d: %w", c.Receives, l.Work, fault.ErrArgument)
	case c.Shared != nil && c.Receives != 0:
		return fmt.Errorf("%d receives of its own beside a shared queue: %w", c.Receives, fault.ErrArgument)
	case c.Shared != nil && c.Shared.pd != p:
		return fmt.Errorf("its shared receive queue is of another protection domain: %w", fault.ErrArgument)
	case c.Inline < 0:
		return fmt.Errorf("%d bytes inline: %w", c.Inline, fault.ErrArgument)
	}
	return nil
}

// make counts the queue pair as a user of its completion queues and shared receive queue.
func (c QPConfig) make() error {
	made := []*owner{}
	for _, o := range c.owners() {
		if err := o.make("queue pair"); err != nil {
			for _, o := range made {
				o.unmake("queue pair")
			}
			return fmt.Errorf("one of its queues: %w", err)
		}
		made = append(made, o)
	}
	return nil
}

func (c QPConfig) unmake() {
	for _, o := range c.owners() {
		o.unmake("queue pair")
	}
}

func (c QPConfig) owners() []*owner {
	o := []*owner{&c.Send.owner}
	if c.Receive != c.Send {
		o = append(o, &c.Receive.owner)
	}
	if c.Shared != nil {
		o = append(o, &c.Shared.owner)
	}
	return o
}

// Number is the queue pair's number, which its completions carry.
func (q *QP) Number() uint32 { return q.number }

// Inline is the longest message, in bytes, that travels inside its work request: 0 if [QPConfig] asked for none, else
// at least what it asked for.
func (q *QP) Inline() int { return q.inlineMax }

// Posted counts what has been posted so far.
func (q *QP) Posted() PostCounts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts
}

// String is like "queue pair 17 of rxe0".
func (q *QP) String() string { return fmt.Sprintf("queue pair %d of %s", q.number, q.pd.device.name) }

// modify is ibv_modify_qp. The caller holds q.mu.
func (q *QP) modify(what string, attr *C.ubv_qp_attr, mask C.int) error {
	if q.closed {
		return fmt.Errorf("%v: %w", q, fault.ErrClosed)
	}
	code := C.ubv_modify_qp(q.qp, attr, mask)
	switch syscall.Errno(code) {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		what += ": the network has no way to the peer's address, or nobody there answers"
	}
	return q.pd.device.check("ibv_modify_qp", fmt.Sprintf("%v: %s", q, what), code)
}

// Init binds the queue pair to a port. access bounds what peers may do with the regions of its domain; each region
// bounds it further. Receives may be posted from then on. Give the result to the peer's Connect. (ibv_modify_qp, INIT)
func (q *QP) Init(path Path, access Access) (Address, error) {
	d := q.pd.device
	if err := path.check(d.limits.Ports); err != nil {
		return Address{}, fmt.Errorf("%v: %w", q, err)
	}
	if access&^(Remote|LocalWrite) != 0 {
		return Address{}, fmt.Errorf("%v: access %v: a queue pair knows LOCAL_WRITE and REMOTE_* only: %w", q, access, fault.ErrArgument)
	}
	port, err := d.Port(path.Port)
	if err != nil {
		return Address{}, err
	}
	if port.State != PortActive {
		return Address{}, fmt.Errorf("%v: port %d of %s is %v, not active: %w", q, path.Port, d.name, port.State,
			fault.ErrNotSupported)
	}
	table, err := d.GIDs(path.Port)
	if err != nil {
		return Address{}, err
	}
	gid, err := ChooseGID(port.Link, table, path.GIDIndex)
	if err != nil {
		return Address{}, fmt.Errorf("%v: port %d of %s: %w", q, path.Port, d.name, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	attr := C.ubv_qp_attr{qp_state: C.UBV_QPS_INIT, pkey_index: C.uint16_t(path.PKeyIndex), port_num: C.uint8_t(path.Port),
		qp_access_flags: C.unsigned(access)}
	if err := q.modify(fmt.Sprintf("to INIT at port %d, P_Key index %d", path.Port, path.PKeyIndex), &attr,
		C.UBV_QP_STATE|C.UBV_QP_PKEY_INDEX|C.UBV_QP_PORT|C.UBV_QP_ACCESS_FLAGS); err != nil {
		return Address{}, err
	}
	q.path, q.port, q.gid, q.psn = path, port, gid, rand.Uint32()&0xffffff
	return Address{QP: q.number, PSN: q.psn, MTU: uint16(port.MTU), LID: port.LID, Link: port.Link,
		ReadsOut: uint8(min(d.limits.ReadsOut, 255)), ReadsIn: uint8(min(d.limits.ReadsIn, 255)), GID: gid.GID}, nil
}

// Connect connects the queue pair with its peer; name is the peer's name in errors. Connect must have returned at both
// ends before either uses the connection: a message that comes sooner is dropped, and tried again after the sender's
// timeout. On RoCE it may block for some seconds while the kernel asks the network for the peer's address; no answer is
// ErrPeerLost. The MTU, and the number of reads under way, is the lesser of what both ends can do. After an error the
// queue pair needs Reset. (ibv_modify_qp, RTR and RTS)
func (q *QP) Connect(peer Address, name string) error {
	if err := peer.check(); err != nil {
		return fmt.Errorf("%v: its peer's address: %w", q, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return fmt.Errorf("%v: %w", q, fault.ErrClosed)
	case q.path.Port == 0:
		return fmt.Errorf("%v: Connect before Init: %w", q, fault.ErrArgument)
	case peer.Link != q.port.Link:
		return fmt.Errorf("%v is on %v, its peer on %v: %w", q, q.port.Link, peer.Link, fault.ErrArgument)
	}
	l := q.pd.device.limits
	mtu := min(q.port.MTU, int(peer.MTU))
	attr := C.ubv_qp_attr{qp_state: C.UBV_QPS_RTR, path_mtu: C.int(mtuCode(mtu)), dest_qp_num: C.uint32_t(peer.QP),
		rq_psn: C.uint32_t(peer.PSN), max_dest_rd_atomic: C.uint8_t(min(l.ReadsIn, int(peer.ReadsOut), 255)),
		min_rnr_timer: minNotReady}
	attr.ah.port_num, attr.ah.sl, attr.ah.dlid = C.uint8_t(q.path.Port), C.uint8_t(q.path.ServiceLevel), C.uint16_t(peer.LID)
	// On InfiniBand, a packet needs a global header if it leaves the subnet, or if the port demands one.
	if q.port.Link == LinkEthernet || q.port.grh || q.gid.GID != (GID{}) && !peer.GID.Zero() && [8]byte(q.gid.GID[:8]) != [8]byte(peer.GID[:8]) {
		attr.ah.is_global, attr.ah.sgid_index, attr.ah.hop_limit = 1, C.uint8_t(q.gid.Index), 255
		attr.ah.traffic_class = C.uint8_t(q.path.TrafficClass)
		for i, b := range peer.GID {
			attr.ah.dgid[i] = C.uint8_t(b)
		}
	}
	to := fmt.Sprintf("to %s, queue pair %d at %v (LID %d)", name, peer.QP, peer.GID, peer.LID)
	if err := q.modify("to RTR "+to, &attr, C.UBV_QP_STATE|C.UBV_QP_AV|C.UBV_QP_PATH_MTU|C.UBV_QP_DEST_QPN|C.UBV_QP_RQ_PSN|
		C.UBV_QP_MAX_DEST_RD_ATOMIC|C.UBV_QP_MIN_RNR_TIMER); err != nil {
		return err
	}
	attr = C.ubv_qp_attr{qp_state: C.UBV_QPS_RTS, timeout: C.uint8_t(q.path.Timeout), retry_cnt: C.uint8_t(q.path.Retries),
		rnr_retry: C.uint8_t(q.path.NotReady), sq_psn: C.uint32_t(q.psn),
		max_rd_atomic: C.uint8_t(min(l.ReadsOut, int(peer.ReadsIn), 255))}
	if err := q.modify("to RTS "+to, &attr, C.UBV_QP_STATE|C.UBV_QP_TIMEOUT|C.UBV_QP_RETRY_CNT|C.UBV_QP_RNR_RETRY|
		C.UBV_QP_SQ_PSN|C.UBV_QP_MAX_QP_RD_ATOMIC); err != nil {
		return err
	}
	q.peer, q.noReads = name, attr.max_rd_atomic == 0
	return nil
}

// minNotReady is the code for 0.64 ms, NCCL's value: a peer that finds no receive here tries again after this time.
const minNotReady = 12

// Post hands over work requests in order, and returns how many were taken: all, unless there is an error. Each is one
// message. Up to 32 work requests are one call of libibverbs.
//
// Writes and sends of up to Inline bytes travel inside their work requests: their memory is free when Post returns. All
// other memory is in use until its work completes; for work that is not Signaled, until later work on this queue pair
// completes.
//
// Post fails with ErrLimit if the queue is full because completions have not been polled. It posts nothing if one of
// the requests is one that no device takes (ErrArgument), or a read or atomic where the peer answers none
// (ErrNotSupported). It allocates nothing. (ibv_post_send)
func (q *QP) Post(work ...Work) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	var n, inlined C.int
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, fmt.Errorf("%v: %w", q, fault.ErrClosed)
	}
	for i := range work {
		if w := &work[i]; w.wrong() || w.Op.reads() && q.noReads {
			return 0, q.refuse(i, w)
		}
	}
	code := C.ubv_post(q.qp, (*C.ubv_work)(unsafe.Pointer(&work[0])), C.int(len(work)), C.uint32_t(q.inlineMax), &n, &inlined)
	for _, w := range work[:n] {
		q.last[q.sequence%uint64(len(q.last))] = w
		q.sequence++
	}
	q.counts.Calls++
	q.counts.Work += int64(n)
	q.counts.Inline += int64(inlined)
	if code != 0 {
		return int(n), q.postFailed(&work[n], int(n), syscall.Errno(code))
	}
	return int(n), nil
}

//go:noinline
func (q *QP) refuse(i int, w *Work) error {
	why, is := "it has no memory here: Local is 0", fault.ErrArgument
	switch {
	case w.Op >= ops:
		why = "there is no such operation"
	case w.Flags&^flags != 0:
		why = fmt.Sprintf("flags %#x are not those of this package", uint8(w.Flags&^flags))
	case w.Op > Read && w.Length != 8:
		why = "atomics have 8 bytes"
	case w.Op.reads() && q.noReads:
		why, is = "one of the two devices does no reads and atomics: see ReadsOut and ReadsIn of the addresses", fault.ErrNotSupported
	}
	return fmt.Errorf("%v: work request %d, %v: %s: %w", q, i, *w, why, is)
}

//go:noinline
func (q *QP) postFailed(w *Work, i int, errno syscall.Errno) error {
	e := &Error{Call: "ibv_post_send", Device: q.pd.device.name, What: fmt.Sprintf("work request %d, %v, on %v", i, *w, q), Errno: errno}
	switch errno {
	case syscall.ENOMEM:
		e.What += fmt.Sprintf(": its queue of %d is full: poll for completions", q.config.Work)
	case syscall.EINVAL:
		e.What += ": is it connected, and the work as the device wants it?"
	}
	return e
}

// posted returns the peer's name, and the work that was last posted with this ID; nil if that was too long ago.
func (q *QP) posted(id uint64) (peer string, w *Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := uint64(len(q.last))
	for i := q.sequence; i > 0 && i+n > q.sequence; i-- {
		if found := q.last[(i-1)%n]; found.ID == id {
			return q.peer, &found
		}
	}
	return q.peer, nil
}

// PostReceive adds receives, and returns how many were taken: all, unless there is an error. Their memory is in use
// until they complete. (ibv_post_recv)
func (q *QP) PostReceive(work ...Receive) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	if q.config.Shared != nil {
		return 0, fmt.Errorf("%v takes receives from its shared queue: %w", q, fault.ErrArgument)
	}
	var n C.int
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, fmt.Errorf("%v: %w", q, fault.ErrClosed)
	}
	code := C.ubv_post_receive(q.qp, nil, (*C.ubv_receive)(unsafe.Pointer(&work[0])), C.int(len(work)), &n)
	if code != 0 {
		return int(n), q.pd.device.check("ibv_post_recv", fmt.Sprintf("receive %d of %d on %v", n+1, len(work), q), code)
	}
	return int(n), nil
}

// State asks the device for the queue pair's state; it is StateError once any of its work has failed. (ibv_query_qp)
func (q *QP) State() (QPState, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, fmt.Errorf("%v: %w", q, fault.ErrClosed)
	}
	var state C.int
	code := C.ubv_query_qp(q.qp, &state)
	return QPState(state), q.pd.device.check("ibv_query_qp", q.String(), code)
}

// Fail ends the connection: all posted work and receives complete, with the status that they had reached or else as
// Flushed. Receives of a shared queue stay there. The peer is not told. (ibv_modify_qp, ERR)
func (q *QP) Fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.modify("to ERR", &C.ubv_qp_attr{qp_state: C.UBV_QPS_ERR}, C.UBV_QP_STATE)
}

// Reset forgets the connection and everything posted, without completions. The queue pair then starts again with Init.
// Earlier completions may still be in the queues. (ibv_modify_qp, RESET)
func (q *QP) Reset() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.modify("to RESET", &C.ubv_qp_attr{qp_state: C.UBV_QPS_RESET}, C.UBV_QP_STATE); err != nil {
		return err
	}
	q.path, q.peer, q.noReads = Path{}, "", false
	return nil
}

// InOrder reports whether the device writes the bytes of this operation in order for sure, so that the last byte may be
// polled. It is false if libibverbs or the device does not say. (ibv_query_qp_data_in_order)
func (q *QP) InOrder(op Op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.closed && C.ubv_in_order(q.qp, C.int(op)) != 0
}

// Close destroys the queue pair with all work under way. Its completions may still be in the queues. (ibv_destroy_qp)
func (q *QP) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("%v: %w", q, fault.ErrClosed)
	}
	// Delete first: another queue pair may get the number as soon as it is free.
	q.pd.device.pairs.Delete(q.number)
	if err := q.pd.device.check("ibv_destroy_qp", q.String(), C.ubv_destroy_qp(q.qp)); err != nil {
		q.pd.device.pairs.Store(q.number, q)
		return err
	}
	q.closed = true
	q.config.unmake()
	q.pd.unmake("queue pair")
	return nil
}
