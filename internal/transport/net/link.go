package net

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
)

// Link is one communicator's use of a wire. A place is memory reserved for what the peer puts there, and a word. Puts of a
// link are by one goroutine at a time; so are grants of one place. All else is safe for concurrent use.
type Link struct {
	wire   *Wire
	comm   uint64
	places []place
	over   atomic.Uint32 // bit i: nothing more of it comes on data connection i
	ending sync.Mutex    // of who puts or closes
	closed atomic.Bool
	queued atomic.Uint64
	sent   atomic.Uint64
}

// place is a line: the peer's puts change it.
type place struct {
	word    atomic.Uint64
	landed  atomic.Int64
	granted atomic.Uint64
	p       unsafe.Pointer // of the grant: whoever receives reads it after granted
	n       int
	done    uint64 // what is not newer has landed or was taken back; of who receives
	_       [16]byte
}

// Grant says that the peer may put up to n bytes of sequence seq (over 0, and over those before) to place: at p, which stays
// valid until the word is seq, Err is not nil, or the grant is taken back. One grant at a time: what was granted before has
// landed or was taken back. How the peer knows of it is the caller's. With p nil Grant takes back what was granted up to
// seq: once it returns, nothing is being written there, nor will be; bytes that come for it are dropped.
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

func (l *Link) conn(place int) *tcp.Conn { return l.wire.data[place%dataConnections].Conn }

// Word is seq once all bytes of a put of seq have landed. It starts at 0.
func (l *Link) Word(place int) *atomic.Uint64 { return &l.places[place].word }

// Landed is the length of the put that the word tells of.
func (l *Link) Landed(place int) int { return int(l.places[place].landed.Load()) }

// Put sends n bytes at p to the peer's place, as sequence seq. It does not block: it sends at once what the kernel takes, and
// queues the rest for whoever makes progress. The memory is in use until Sent has counted this put, or Err is not nil.
// n = 0 needs no grant: it raises the word. After Close it does nothing.
func (l *Link) Put(place int, seq uint64, p unsafe.Pointer, n int) {
	l.ending.Lock()
	defer l.ending.Unlock()
	if l.closed.Load() {
		return
	}
	l.queued.Add(1)
	l.conn(place).Put(tcp.Header{Place: uint32(place), Comm: l.comm, Seq: seq, Length: uint64(n)}, p, &l.sent)
}

// Queued is how many puts there were.
func (l *Link) Queued() uint64 { return l.queued.Load() }

// Sent is how many of the puts the kernel has taken all of, in order.
func (l *Link) Sent() uint64 { return l.sent.Load() }

// Err is why the wire is of no more use, or nil: one load. From then on nothing is written to places, nor read of puts.
func (l *Link) Err() *Down { return l.wire.down.Load() }

// looked is how many polls that find nothing come between looks at everything else that the node has.
const looked = 128

// Poll receives from this wire and sends what is queued, without waiting: what a wait for this peer calls in its loop, with
// one system call if there is nothing. Now and then it looks at all of the node, as Progress does.
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

// Close takes all grants back: once it returns, nothing is being written to its places, nor read of its puts. Puts that
// have not begun are dropped; the one that has comes whole, from memory of the wire's own. What comes later for the
// communicator is read and dropped, until the peer says that it has closed its side, as this one is told now.
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
		c.Put(tcp.Header{Comm: l.comm, Over: true}, nil, new(atomic.Uint64)) // behind all puts
	}
}

// rest is what the wire keeps of a closed link, without the caller's memory: nil once nothing more of it comes.
func (l *Link) rest() *Link {
	over := l.over.Load()
	if over == 1<<dataConnections-1 {
		return nil
	}
	r := &Link{comm: l.comm}
	r.over.Store(over)
	r.closed.Store(true)
	return r
}
