package engine

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Point-to-point messages go from an outbox, which one rank writes for one other, to that rank, which answers in its
// own outbox for the first. All outboxes of a rank follow its staging memory. Package p2p has the protocol; here is
// where things are, and what a rank must remember of each peer.

// The limits of a message's ways.
const (
	MailSlots   = 8 // messages to one peer that it has not taken yet
	MailAnswers = 2 * MailSlots
	InlineBytes = 112 // travel in a slot
)

// EagerLimit is the size of the largest message that a Send does not wait for its Recv with: it is copied to the
// sender's shared memory, of which there is the less for each peer the more ranks there are.
func (c *Comm) EagerLimit() int { return mailEager(c.size) }

func mailEager(ranks int) int {
	switch {
	case ranks <= 16:
		return 2 << 10
	case ranks <= 128:
		return 1 << 10
	}
	return 256
}

// Slot announces a message. What follows Head is the message itself, or where it is: a zero location is the sender's
// window.
type Slot struct {
	Seq  atomic.Uint64 // number of the message to this peer, from 1; written last
	Head uint64        // see p2p
	Data [InlineBytes]byte
}

// Place is where the message is, in the place of its data.
func (s *Slot) Place() *mem.Location { return (*mem.Location)(unsafe.Pointer(&s.Data)) }

// Outbox is what one rank writes for one other. Each group of words has a pair of cache lines to itself. Words that
// belong to one message hold the low bits of its number beside the count, see p2p.
type Outbox struct {
	Slots [MailSlots]Slot

	// Of the oldest message that the peer has not taken, if it is a large one: pieces that this rank, its sender,
	// begins with, is done with, and has really copied.
	Claimed, Done, Kept atomic.Uint64
	Window              mem.Location // memory that unregistered messages pass through
	_                   [80]byte

	// As the receiver of the peer's messages: how many it has taken, and a byte each for how the last ones went.
	Taken, Verdicts atomic.Uint64
	_               [112]byte

	// As the receiver of large messages, by number: a sender may still look at one when the receiver has taken all that
	// was sent and says where it wants what comes next.
	Answers [MailAnswers]Answer
}

// Answer says where the receiver wants message Seq, often before that is sent.
type Answer struct {
	Seq    atomic.Uint64 // written after what follows
	Into   mem.Location
	Type   uint64
	Bytes  uint64        // that there is room for
	Pulled atomic.Uint64 // pieces that the receiver begins with, or has taken out of the window
	_      uint64
}

func init() {
	if unsafe.Sizeof(Slot{}) != 128 || unsafe.Sizeof(Outbox{}) != MailSlots*128+MailAnswers*64+2*128 {
		panic("engine: outbox layout")
	}
}

// MailBytes is the size of a rank's outboxes.
func MailBytes(ranks int) int {
	return ranks * (int(unsafe.Sizeof(Outbox{})) + MailSlots*mailEager(ranks))
}

// Mail is this rank's side of its messages with one peer, which may be itself.
type Mail struct {
	Peer              int
	Out, In           *Outbox // for the peer, and the peer's for this rank
	OutEager, InEager unsafe.Pointer
	Send, Recv        Lane

	OutWindow unsafe.Pointer // this rank's window for the peer, or nil; under Send's lock
	InWindow  unsafe.Pointer // the peer's window for this rank, and where that is; under Recv's lock
	inWindow  mem.Location
}

// Lane is one direction. Whoever waits for any message of a lane moves the first one on, under the lane's lock.
type Lane struct {
	sync.Mutex
	Seq     uint64 // number of the last message that was posted, or taken
	Taken   uint64 // of those sent: the last one known to be taken
	Open    MessageList
	Waiting MessageList
	closed  bool
}

// Message is one send or receive on its way. It is the caller's until it is put into a lane, and again once it is Done.
type Message struct {
	Vec  team.Vec
	Buf  team.Buf
	Peer int
	Recv bool
	Done atomic.Bool
	Err  error
	Got  int // elements received

	// The transfer, under the lane's lock.
	Seq      uint64
	Bytes    int
	Piece    int // bytes
	Pieces   int
	Next     int            // pieces done
	Src, Dst unsafe.Pointer // of the transfer, as far as it is known
	Offered  bool
	Started  bool
	Answered bool
	Ending   bool

	Lane *Lane           // that it is in
	held *mem.Allocation // the memory, which is not freed before the message is done or abandoned
	next *Message
}

func (m *Message) kind() team.Kind {
	if m.Recv {
		return team.KindRecv
	}
	return team.KindSend
}

// Number is that of m among the messages to or from its peer, or 0 if somebody is at the lane.
func (m *Message) Number() uint64 {
	l := m.Lane
	if !l.TryLock() {
		return 0
	}
	defer l.Unlock()
	if m.Seq != 0 {
		return m.Seq
	}
	n := l.Seq
	for w := l.Waiting.Head; w != nil; w = w.next {
		if n++; w == m {
			return n
		}
	}
	return 0
}

// Hold keeps the memory of m, as far as it is known whose it is, until LetGo.
func (c *Comm) Hold(m *Message) error {
	a := m.Vec.Alloc
	if a == nil {
		a = c.dom.Heap.Lookup(uintptr(m.Vec.Ptr), m.Vec.Bytes())
	}
	if a == nil {
		return nil
	}
	if !a.Hold() {
		return fmt.Errorf("the buffer at %p has been freed: %w", m.Vec.Ptr, fault.ErrStale)
	}
	m.held = a
	return nil
}

// Freed reports whether the memory of m has been freed since it was held: it is there, and not registered any more.
func (m *Message) Freed() bool { return m.held != nil && !m.held.Live() }

// Quick reports whether a message of v may come and go under the lock of its lane without being held: who frees v waits
// for that lock. The caller has the lane.
func (c *Comm) Quick(v *team.Vec) bool {
	return v.Alloc == nil || v.Alloc.Heap() == c.dom.Heap && v.Alloc.Live()
}

// LetGo gives back what m holds. The caller has the lane, if m is in one.
func (m *Message) LetGo() {
	if m.Buf.Claim != nil {
		m.Buf.Claim.Release()
		m.Buf.Claim = nil
	}
	if m.held != nil {
		m.held.Release()
		m.held = nil
	}
}

// MessageList is a queue of messages.
type MessageList struct{ Head, tail *Message }

// Push appends m.
func (l *MessageList) Push(m *Message) {
	if m.next = nil; l.Head == nil {
		l.Head, l.tail = m, m
		return
	}
	l.tail.next, l.tail = m, m
}

// Pop takes the first message off.
func (l *MessageList) Pop() *Message {
	m := l.Head
	l.Head, m.next = m.next, nil
	return m
}

// Idle reports whether nothing is on its way.
func (l *Lane) Idle() bool { return l.Open.Head == nil && l.Waiting.Head == nil }

// TryEnter locks the lane if that can be had at once, and the communicator has not been closed.
func (l *Lane) TryEnter() bool {
	if !l.TryLock() {
		return false
	}
	if l.closed {
		l.Unlock()
		return false
	}
	return true
}

// Enter locks the lane for a new message; it fails when the communicator has been closed.
func (l *Lane) Enter() error {
	l.Lock()
	if l.closed {
		l.Unlock()
		return errCommClosed
	}
	return nil
}

// Mail is the mail with a peer.
func (c *Comm) Mail(peer int) *Mail { return &c.mails[peer] }

// outbox is what rank of has for rank to, and its eager slots. The area of rank of must be mapped.
func (c *Comm) outbox(of, to int) (*Outbox, unsafe.Pointer) {
	const size = int(unsafe.Sizeof(Outbox{}))
	base := c.team.Attached(of)
	return (*Outbox)(unsafe.Add(base, to*size)), unsafe.Add(base, c.size*size+to*MailSlots*mailEager(c.size))
}

// lanes are all lanes, with the peers' ranks.
func (c *Comm) lanes() iter.Seq2[*Lane, int] {
	return func(yield func(*Lane, int) bool) {
		for r := range c.mails {
			if m := &c.mails[r]; !yield(&m.Send, r) || !yield(&m.Recv, r) {
				return
			}
		}
	}
}

// GrowWindow makes m's window of n bytes. The caller holds m.Send.
func (c *Comm) GrowWindow(m *Mail, n int) error {
	if m.OutWindow != nil {
		return nil
	}
	a, err := c.dom.Heap.Alloc(n)
	if err != nil {
		return fmt.Errorf("staging memory for messages to rank %d: %w", m.Peer, err)
	}
	c.Keep(a)
	m.OutWindow, m.Out.Window = a.Ptr, a.At
	return nil
}

// Window is the peer's window of n bytes for this rank. The caller holds m.Recv, and has seen a message that is there.
func (c *Comm) Window(m *Mail, n int) (unsafe.Pointer, error) {
	l := m.In.Window
	if m.InWindow != nil && m.inWindow == l {
		return m.InWindow, nil
	}
	p, err := c.ResolveAt(m.Peer, l, n)
	if err == nil {
		m.InWindow, m.inWindow = p, l
	}
	return p, err
}

// ResolveAt is where n bytes of a rank's memory are in this process. The location is checked.
func (c *Comm) ResolveAt(rank int, l mem.Location, n int) (unsafe.Pointer, error) {
	if rank == c.rank {
		return c.mails[rank].OutWindow, nil // the one memory that a rank shows to itself
	}
	return c.team.Peers[rank].Mem.Resolve(l, n)
}

// MessageError is an error about a message.
func (c *Comm) MessageError(op string, peer int, step string, err error) *fault.Error {
	return &fault.Error{Op: op, Rank: c.rank, Peer: peer, Host: c.Hostname(c.rank), Step: step, Err: err}
}

// Damaged is the error for what a peer cannot have written.
func (c *Comm) Damaged(peer int, what string, v uint64) error {
	return c.MessageError("mail", peer, "", fmt.Errorf("its mailbox is damaged (%s %#x): %w", what, v, fault.ErrPeerLost))
}

// NoteSmall keeps for LastOp that a message of n bytes was sent with its announcement: one store, which waits for
// nothing.
func (c *Comm) NoteSmall(seq uint64, n int) { spin.Release(&c.lastSmall, seq<<16|uint64(n)) }

func smallInfo(v uint64) OpInfo {
	return OpInfo{Op: team.KindSend.String(), kind: team.KindSend, Seq: v >> 16, Algorithm: "eager", Bytes: int(v & 0xffff),
		Src: BufferInfo{Used: true, Why: "small enough to travel with the announcement"}}
}

func messageInfo(k team.Kind, seq uint64, n int, algorithm string, b BufferInfo) OpInfo {
	o := OpInfo{kind: k, Seq: seq, Algorithm: algorithm, Bytes: n}
	if k == team.KindRecv {
		o.Dst = b
	} else {
		o.Src = b
	}
	return o
}

// NoteMessage keeps for LastOp and Stats how a message went.
func (c *Comm) NoteMessage(k team.Kind, seq uint64, n int, algorithm string, b BufferInfo) {
	o := messageInfo(k, seq, n, algorithm, b)
	c.infoM.Lock()
	c.last, c.grouped = o, false
	c.staged += o.staged()
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
}

// FailMessage breaks the communicator with what ended a message, and returns what broke it.
func (c *Comm) FailMessage(op string, peer int, err error) error {
	e, ok := err.(*fault.Error)
	if !ok {
		e = c.MessageError(op, peer, "", err)
	}
	return c.failOpen(e)
}

// Patience is the housekeeping of a wait for messages. The zero value begins one.
type Patience struct{ w team.Waiting }

// Poll looks after abort, deadline, dead peers and other goroutines, as Wait does. Its error says why the wait for m,
// and perhaps several others, is over; it has not broken the communicator yet.
func (p *Patience) Poll(ctx context.Context, c *Comm, op string, m *Message, several bool) error {
	peer := m.Peer
	p.w.Ctx, p.w.Op, p.w.Peer, p.w.Kind, p.w.Of, p.w.Several = ctx, op, peer, m.kind(), m, several
	return c.gated(op, peer, func() *fault.Error { return c.team.Poll(&p.w) })
}

// gated is the error of look, which looks at what Close gives back, or, after that, why the communicator has ended.
func (c *Comm) gated(op string, peer int, look func() *fault.Error) error {
	defer c.polls.leave()
	if !c.polls.enter() {
		if e := c.broken.Load(); e != nil {
			return e
		}
		return c.MessageError(op, peer, "", errCommClosed)
	}
	if err := look(); err != nil {
		return err
	}
	return nil
}

// Look is Poll for those who do not wait: it does not give the processor away.
func (p *Patience) Look(c *Comm, op string, m *Message, several bool) error {
	peer := m.Peer
	p.w.Ctx, p.w.Op, p.w.Peer, p.w.Kind, p.w.Of, p.w.Several = context.Background(), op, peer, m.kind(), m, several
	if e := c.broken.Load(); e != nil {
		return e
	}
	return c.gated(op, peer, func() *fault.Error { return c.team.PollClock(&p.w) })
}

// mailroom knows the communicators of a domain, and which of them have open requests: whatever this rank waits for
// meanwhile, its peers may wait for those.
type mailroom struct {
	all   sync.Map // *Comm
	open  atomic.Int32
	mu    sync.Mutex
	comms map[*Comm]int // with open requests
}

// pass waits for whoever has a lane now.
func (r *mailroom) pass() {
	for c := range r.all.Range {
		for l := range c.(*Comm).lanes() {
			l.Lock()
			//lint:ignore SA2001 the wait for the lock is all that is wanted: what its holder does is over then
			l.Unlock()
		}
	}
}

// MoveMail moves all messages of a communicator on as far as they go at once. Package p2p sets it.
var MoveMail func(*Comm)

// OpenRequest has the waits of this rank move the messages of c, until as many calls of CloseRequest.
func (c *Comm) OpenRequest() {
	r := c.mail.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.comms == nil {
		r.comms = map[*Comm]int{}
	}
	r.comms[c]++
	r.open.Add(1)
}

// CloseRequest ends what OpenRequest began, unless the communicator has been closed meanwhile.
func (c *Comm) CloseRequest() {
	r := c.mail.room
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := r.comms[c]; n {
	case 0:
		return
	case 1:
		delete(r.comms, c)
	default:
		r.comms[c] = n - 1
	}
	r.open.Add(-1)
}

// leave ends all requests of c, which has been closed.
func (r *mailroom) leave(c *Comm) {
	r.all.Delete(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open.Add(-int32(r.comms[c]))
	delete(r.comms, c)
}

// move is a load when no request is open.
func (r *mailroom) move() {
	if r.open.Load() == 0 {
		return
	}
	if !r.mu.TryLock() {
		return // another goroutine is at it
	}
	defer r.mu.Unlock()
	for c := range r.comms {
		MoveMail(c)
	}
}

// Restart says that something has come: the deadline begins anew.
func (p *Patience) Restart(c *Comm) {
	p.Over(c)
	p.w = team.Waiting{}
}

// Over says that the wait is over.
func (p *Patience) Over(c *Comm) {
	if p.w.Said == 0 {
		return
	}
	if c.polls.enter() {
		c.team.Waited(&p.w)
	}
	c.polls.leave()
}

// Usable is why no message moves any more, since the communicator broke, or nil.
func (c *Comm) Usable() error {
	if e := c.broken.Load(); e != nil {
		return e
	}
	return nil
}
