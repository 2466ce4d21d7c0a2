// Package rdm carries frames over libfabric's reliable datagrams (FI_EP_RDM): one endpoint talks to all peers. What is short
// travels in messages. The bytes of a long put go straight from the sender's registered memory to the place that the
// receiver has granted, if that is registered, too, and the provider has remote memory access; otherwise they travel in
// messages.
//
// Providers promise little about order. So each message says its number, and the receiver handles it once it has handled all
// before it. A put's chunks complete once they are where they go (FI_DELIVERY_COMPLETE); then a message says so. Where it cannot
// pass them, it leaves right behind them. Writes do not bring data to the receiver's queue of completions: tcp;ofi_rxm
// crashes the receiver's process if the connection ends in the middle of one that does (libfabric 1.17:
// rxm_handle_comp_error takes the operation's context, of which it has none).
package rdm

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
)

const (
	prefixBytes = 24       // of a message, before the frames
	slotBytes   = 16 << 10 // what ofi_rxm sends at once; it cuts longer ones into several

	under    = 1 << 13 // operations that an endpoint may have under way, receives included
	receives = 512     // posted at most, as many for each connection as the peer has credits; further messages wait in the provider
)

// Rail is a domain as this process's connections share it: they are on its one endpoint. Its methods are safe for concurrent
// use.
type Rail struct {
	on    ofi.Rail
	index int // of this rail's keys in those of a region, also of the peer's: rail i talks to rail i
	watch Watch

	mu      sync.Mutex
	current *Endpoint // nil, or closed: the next connection makes one
	failed  []error   // of endpoints' ends
}

// Watch is told of an endpoint's queue of completions: ready handles what has come for connections and calls their ready, and may
// be called by anybody. may reports whether fd will become readable when something comes; without that, do not wait for
// it. fd is -1 if the provider has none. It returns what ends the watch, which is called before fd closes.
type Watch func(fd int, ready func() bool, may func() bool) (end func(), err error)

// Open makes what connections over a rail share; index is the rail's in its backend.
func Open(on ofi.Rail, index int, w Watch) *Rail { return &Rail{on: on, index: index, watch: w} }

// Index is the rail's in its backend.
func (r *Rail) Index() int { return r.index }

// Name is like "tcp;ofi_rxm eth0".
func (r *Rail) Name() string {
	d := r.on.Domain.Describe()
	return d.Provider + " " + d.Domain
}

// Provider is the provider's name.
func (r *Rail) Provider() string { return r.on.Domain.Describe().Provider }

// fail keeps an error of an endpoint's end, which nobody waits for, until Close.
func (r *Rail) fail(err error) {
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.failed = append(r.failed, err)
	}
}

// Close closes the endpoint. All connections must be closed. Errors are also those of earlier endpoints' ends.
func (r *Rail) Close() error {
	r.mu.Lock()
	e := r.current
	r.current = nil
	r.mu.Unlock()
	if e != nil {
		e.close(fault.ErrClosed)
	}
	return errors.Join(r.failed...)
}

// endpoint returns the rail's endpoint, which it makes if there is none.
func (r *Rail) endpoint() (*Endpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil && !r.current.over() {
		return r.current, nil
	}
	e, err := r.make()
	if err != nil {
		return nil, err
	}
	r.current = e
	return e, nil
}

func (r *Rail) make() (*Endpoint, error) {
	e := &Endpoint{rail: r, conns: map[uint32]*Conn{}}
	d := r.on.Domain.Describe()
	e.any = !d.MRMode.Has(fabric.MRLocal)
	e.rma = !r.on.Messages && d.Caps.Has(fabric.RMA) && d.MaxMessage >= frame.MaxPayload
	// ofi_rxm has a connection to each peer, which ends with the first operation that fails: no message passes by a write.
	e.ordered = d.SendsLast && strings.HasSuffix(d.Provider, ";ofi_rxm")
	if d.MaxMessage < slotBytes {
		return nil, fmt.Errorf("%v has messages of %d bytes, and %d are needed: %w", d, d.MaxMessage, slotBytes, fault.ErrNotSupported)
	}
	var err error
	if e.end, err = r.on.Domain.Endpoint(under); err != nil {
		return nil, err
	}
	e.most = min(receives, d.Receives)
	if e.slots, err = e.lay(e.most); err == nil {
		e.unwatch, err = r.watch(e.end.FD(), e.ready, e.may)
	}
	if err != nil {
		return nil, errors.Join(err, e.end.Close(), e.slots.close())
	}
	return e, nil
}

// Endpoint is an endpoint with the receives that its connections share.
type Endpoint struct {
	rail     *Rail
	end      *fabric.Endpoint
	rma      bool         // puts may be written straight to where they go
	any      bool         // from any memory
	ordered  bool         // a message arrives behind what was written before it
	slots    slots        // of receives
	most     int          // receives
	together atomic.Int32 // a connection posts so many at once
	unwatch  func()

	polling sync.Mutex // held by the goroutine that takes completions
	done    [32]fabric.Completion

	mu     sync.Mutex // guards the rest
	conns  map[uint32]*Conn
	news   []*Conn  // for which something has come since ready looked
	made   int      // receives
	idle   []uint32 // of these, that could not be posted yet
	closed error
	unused bool // closed, and slots are still there
}

// slots is memory of some messages, side by side.
type slots struct {
	memory []byte
	region *fabric.MR // nil: the provider needs none
}

// lay makes room for count messages, which the provider may write and read.
func (e *Endpoint) lay(count int) (slots, error) {
	b, err := unix.Mmap(-1, 0, count*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return slots{}, fmt.Errorf("memory of %d messages: %w", count, err)
	}
	s := slots{memory: b}
	if d := e.rail.on.Domain; d.Describe().MRMode.Has(fabric.MRLocal) {
		s.region, err = d.Register(uintptr(unsafe.Pointer(unsafe.SliceData(b))), len(b), fabric.Send|fabric.Receive, hw.Host, nil)
		if err != nil {
			return slots{}, errors.Join(err, unix.Munmap(b))
		}
	}
	return s, nil
}

// close frees the memory. If the provider does not let go of it, it stays mapped.
func (s slots) close() error {
	if s.memory == nil {
		return nil
	}
	if s.region != nil {
		if err := s.region.Close(); err != nil {
			return err
		}
	}
	return unix.Munmap(s.memory)
}

// at is a message's memory.
func (s slots) at(i int) []byte { return s.memory[i*slotBytes:][:slotBytes:slotBytes] }

func (s slots) desc() fabric.Desc {
	if s.region == nil {
		return 0
	}
	return s.region.Desc()
}

// over reports whether the endpoint is closed.
func (e *Endpoint) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed != nil
}

// more posts receives for one more connection.
func (e *Endpoint) more() error {
	e.mu.Lock()
	from := e.made
	e.made = min(e.most, from+credits)
	e.together.Store(int32(max(1, min(credits/4, e.made/(4*max(1, len(e.conns))))))) // all connections together never hold all
	ids := make([]uint32, e.made-from)
	e.mu.Unlock()
	for i := range ids {
		ids[i] = uint32(from + i)
	}
	return e.again(ids)
}

// received marks the IDs of receives; the upper half of others is the connection's, which lacks it.
const received = 1 << 63

// again posts receives. What the provider does not take now, a later call posts.
func (e *Endpoint) again(ids []uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = append(e.idle, ids...)
	var work [16]fabric.Work
	for len(e.idle) > 0 && e.closed == nil {
		n := min(len(work), len(e.idle))
		for i, id := range e.idle[len(e.idle)-n:] {
			b := e.slots.at(int(id))
			work[i] = fabric.Work{Op: fabric.OpReceive, ID: received | uint64(id), Local: addressOf(b), Length: slotBytes, Desc: e.slots.desc(), Peer: fabric.Any}
		}
		k, err := e.end.Post(work[:n])
		e.idle = append(e.idle[:len(e.idle)-n], e.idle[len(e.idle)-n+k:]...)
		if errors.Is(err, fabric.ErrAgain) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// poll takes completions, and gives each to its connection, which handles it when it receives. It does nothing while another
// goroutine does, unless it must.
func (e *Endpoint) poll(must bool) {
	if must {
		e.polling.Lock()
	} else if !e.polling.TryLock() {
		return
	}
	defer e.polling.Unlock()
	for n := len(e.done); n == len(e.done); {
		var err error
		if n, err = e.end.Poll(e.done[:], 1); err != nil {
			e.broke(err)
			return
		}
		for i := range e.done[:n] {
			e.dispatch(&e.done[i])
		}
	}
}

// broke ends all connections: the endpoint is of no use.
func (e *Endpoint) broke(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		c.fail(err, false)
		e.news = append(e.news, c)
	}
}

// dispatch gives a completion to its connection. The caller holds polling.
func (e *Endpoint) dispatch(x *fabric.Completion) {
	var c *Conn
	switch {
	case !x.Mine():
	case x.ID&received == 0:
		if c = e.conn(uint32(x.ID >> 32)); c != nil {
			if x.Failed() {
				c.failed(uint32(x.ID), e.end.Failure(x))
			} else {
				c.completed(uint32(x.ID))
			}
		}
	default:
		id := uint32(x.ID)
		if !x.Failed() && x.Bytes >= prefixBytes {
			if c = e.conn(uint32(decodePrefix(e.slots.at(int(id))).id)); c != nil && c.came(id, int(x.Bytes)) {
				break
			}
		}
		if err := e.again([]uint32{id}); err != nil { // a stranger's, or of a connection that has ended
			e.broke(err)
		}
	}
	if c != nil {
		c.news.Store(true)
		if !c.waiting.Swap(true) {
			e.mu.Lock()
			e.news = append(e.news, c)
			e.mu.Unlock()
		}
	}
}

func (e *Endpoint) conn(id uint32) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conns[id]
}

// ready takes completions and lets connections handle what has come for them. It reports whether anything had.
func (e *Endpoint) ready() (moved bool) {
	e.poll(false)
	for {
		e.mu.Lock()
		n := len(e.news)
		if n == 0 {
			e.mu.Unlock()
			return moved
		}
		c := e.news[n-1]
		e.news = e.news[:n-1]
		begun := c.move
		e.mu.Unlock()
		c.waiting.Store(false)
		if begun != nil && c.news.Load() {
			moved = begun() || moved
		}
	}
}

// may reports whether nothing has come, so that the descriptor tells of what does.
func (e *Endpoint) may() bool {
	for range 64 {
		ok, err := e.end.MayWait()
		if ok || err != nil {
			return ok
		}
		e.poll(false)
	}
	return false
}

// close closes the endpoint: nothing that is under way over it touches memory any more, neither here nor of peers. Its
// connections end, with why.
func (e *Endpoint) close(why error) {
	e.mu.Lock()
	if e.closed != nil {
		e.mu.Unlock()
		return
	}
	e.closed = why
	e.mu.Unlock()
	e.unwatch()
	e.polling.Lock()
	defer e.polling.Unlock()
	err := e.end.Close()
	e.rail.fail(err)
	e.mu.Lock()
	e.unused = err == nil
	for _, c := range e.conns {
		c.fail(why, true)
	}
	e.mu.Unlock()
	e.free()
}

// free frees the receives' memory once the endpoint is closed and no connection is left that may be reading a message there.
func (e *Endpoint) free() {
	e.mu.Lock()
	now := e.unused && len(e.conns) == 0
	if now {
		e.unused = false
	}
	e.mu.Unlock()
	if now {
		e.rail.fail(e.slots.close())
	}
}
