package net

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
)

// Link is one communicator's use of a wire. A place is memory reserved for what the peer puts there, and a word. Only
// one goroutine at a time may put on a link, or grant one of its places. All else is safe for concurrent use.
type Link struct {
	wire   *Wire
	comm   uint64
	places []place
	over   atomic.Uint32 // bit i: no more of it will come on data connection i
	ending sync.Mutex    // held by the goroutine that puts or closes
	closed atomic.Bool
	queued atomic.Uint64
	sent   atomic.Uint64
}

// place fills one cache line. The peer's puts change it.
type place struct {
	word    atomic.Uint64
	landed  atomic.Int64
	granted atomic.Uint64
	p       unsafe.Pointer // set by the grant; the receiving goroutine reads it after granted
	n       int
	done    uint64 // sequences up to this have landed or were taken back; for the receiving goroutine
	_       [16]byte
}

// Grant allows the peer to put up to n bytes of sequence seq, which must be larger than 0 and all earlier ones, to
// place. The bytes go to p, which must stay valid until the word is seq, Err is not nil, or the grant is taken back. A
// place has one grant at a time: grant again only after the last one has landed or was taken back. The caller must tell
// the peer about the grant. With p nil Grant takes back all grants up to seq: once it returns, nothing writes there any
// more, and bytes that come for them are dropped.
func (l *Link) Grant(place int, seq uint64, p unsafe.Pointer, n int) {
	x := &l.places[place]
	if p != nil {
		x.p, x.n = p, n
		x.granted.Store(seq)
		return
	}
	l.conn(place).Stop(func(h tcp.Header) bool {
		x.done = max(x.done, seq)
		return h.Comm == l.comm && int(h.Place) == place && h.Seq <= seq
	})
}

func (l *Link) conn(place int) *tcp.Conn { return l.wire.data[place%Lanes].Conn }

// Word becomes seq once all bytes of a put of seq have landed. It starts at 0.
func (l *Link) Word(place int) *atomic.Uint64 { return &l.places[place].word }

// Landed is the length of the put that Word last announced.
func (l *Link) Landed(place int) int { return int(l.places[place].landed.Load()) }

// Put sends n bytes at p to the peer's place, as sequence seq. It does not block: it sends what the kernel takes at
// once, and queues the rest, which any progress call sends. The memory is in use until Sent has counted this put or Err
// is not nil. With n = 0 it needs no grant and only raises the word. After Close it does nothing.
func (l *Link) Put(place int, seq uint64, p unsafe.Pointer, n int) {
	l.ending.Lock()
	defer l.ending.Unlock()
	if l.closed.Load() {
		return
	}
	l.queued.Add(1)
	l.conn(place).Put(tcp.Header{Place: uint32(place), Comm: l.comm, Seq: seq, Length: uint64(n)}, p, &l.sent)
}

// Queued counts the puts so far.
func (l *Link) Queued() uint64 { return l.queued.Load() }

// Sent counts the puts that the kernel has taken completely, in order.
func (l *Link) Sent() uint64 { return l.sent.Load() }

// Err says why the wire is no longer of use, or is nil. It costs one load. Once it is set, nothing writes to places or
// reads puts any more.
func (l *Link) Err() *Down { return l.wire.down.Load() }

// looked is how many empty polls pass between looks at everything else that the node has.
const looked = 128

// Poll receives from this wire and sends what is queued, without waiting. A wait for this peer calls it in a loop. If
// there is nothing to do it costs one system call. Now and then it also does what Progress does.
func (l *Link) Poll() {
	w := l.wire
	w.node.moves()
	moved := false
	for i := range w.data {
		moved = w.move(i) || moved
	}
	if !moved && w.idle.Add(1)%looked == 0 {
		w.node.progress()
	}
}

// Close takes all grants back. Once it returns, nothing writes to the link's places or reads its puts. Puts that have
// not begun are dropped; a put that has begun is completed from a copy. What comes for the communicator later is read
// and dropped, until the peer says that it has closed its side, as Close tells the peer now.
func (l *Link) Close() {
	l.ending.Lock()
	defer l.ending.Unlock()
	w := l.wire
	w.mu.Lock()
	if l.closed.Swap(true) {
		w.mu.Unlock()
		return
	}
	rest := l.rest()
	w.put(l.comm, rest)
	w.mu.Unlock()
	for i := range w.data {
		c := w.data[i].Conn
		c.Stop(func(h tcp.Header) bool { return h.Comm == l.comm })
		c.Drop(l.comm)
		c.Put(tcp.Header{Comm: l.comm, Over: true}, nil, new(atomic.Uint64)) // after all puts
	}
}

// rest is what the wire keeps of a closed link, without the caller's memory; nil once no more can come for it.
func (l *Link) rest() *Link {
	over := l.over.Load()
	if over == 1<<Lanes-1 {
		return nil
	}
	r := &Link{comm: l.comm}
	r.over.Store(over)
	r.closed.Store(true)
	return r
}
