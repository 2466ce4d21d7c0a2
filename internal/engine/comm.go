// Package engine is what a communicator is inside: the control segment and the descriptors by which ranks agree, the
// waits, the streams, and Work, one planned operation that can be run, queued or recorded.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/tuning"
	"github.com/ubcoll/ubcoll/register"
)

// Options are what all ranks of a communicator must agree on.
type Options struct {
	Timeout   time.Duration
	Register  register.Policy
	Algorithm string
}

// Comm is one rank's side of a communicator.
type Comm struct {
	rank, size int
	opts       Options
	timeout    atomic.Int64 // opts.Timeout, or what SetTimeout says
	tuning     tuning.Table
	dom        *Domain
	area       *mem.Allocation   // control area and staging
	shared     []*mem.Allocation // what else goes with the communicator; under nouns.mu
	me         *area
	peers      []peer // by rank; peers[rank] is this rank itself
	inProcess  bool   // some peer is a goroutine of this process
	outside    bool   // some peer is not
	oneP       bool   // goroutines of this process have one processor
	crowded    bool   // more ranks than processors
	apart      bool   // yields do not give a processor to all other ranks: see shm.Nap
	localRank  int
	localSize  int
	groups     [][]int // see groups.go; nil: every rank looks at every other
	mine       int     // this rank's group
	near       []int   // see Near

	device          *device // nil without one
	gpuWhy          error   // why there is none
	multiprocessors int     // that each rank's device has at least

	turn      turn
	recording atomic.Pointer[Recording] // beside turn, which every call looks at too
	seq       uint64
	work      Work             // the running operation
	srcs      []unsafe.Pointer // for Buffers
	dsts      []unsafe.Pointer
	scratch   []unsafe.Pointer

	broken  atomic.Pointer[fault.Error]
	lift    atomic.Pointer[func()] // ends the quarantine that breaking began
	closing atomic.Bool
	ending  sync.Mutex // Abort writes the area that Close gives back
	polls   gate       // looks at what Close gives back, by calls that do not have the turn

	mails []Mail // by rank
	nouns nouns  // channels and windows
	regs  registrations

	debug bool // UBCOLL_LOG says so
	infos
	unsaid unsaid
}

type peer struct {
	area    *area
	eager   unsafe.Pointer
	staging unsafe.Pointer
	mem     Peer // nil for this rank itself
	proc    shm.Process
	host    string
	domain  uint64
	at      mem.Location // of area
	cache   int          // its last-level cache and its memory node; -1: not known
	node    int
	atomics error // why this rank's device cannot add to words of its device, or nil
}

// Rank is this rank.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// LocalRank is this rank's place among those of its host.
func (c *Comm) LocalRank() int { return c.localRank }

// LocalSize is the number of ranks on this rank's host.
func (c *Comm) LocalSize() int { return c.localSize }

// Hostname is the name of a rank's host, or "" if there is no such rank.
func (c *Comm) Hostname(rank int) string {
	if rank < 0 || rank >= c.size {
		return ""
	}
	return c.peers[rank].host
}

// Options are those of Open, with defaults filled in.
func (c *Comm) Options() Options { return c.opts }

// Tuning is the table by which plans choose.
func (c *Comm) Tuning() *tuning.Table { return &c.tuning }

// Tune replaces the table, on all ranks between the same two operations: for measuring.
func (c *Comm) Tune(t tuning.Table) { c.tuning = t }

// SetTimeout changes how long this rank waits, waits that are under way included, without the peers; for what runs on
// devices it counts from the next launch on, and none may be under way. For tests: Open takes the time that it needs, and
// waits in vain are short.
func (c *Comm) SetTimeout(t time.Duration) {
	c.timeout.Store(int64(t))
	d := c.device
	if d == nil {
		return
	}
	d.params.Timeout = uint64(t)
	for _, g := range d.allLinks() {
		g.params.Timeout = uint64(t)
	}
}

// Domain is the rank's domain.
func (c *Comm) Domain() *Domain { return c.dom }

// Each rank has staging memory in each communicator: eager slots, which may be written before the running operation is
// published, and bulk staging, which may be written once all ranks have agreed on it.
const (
	EagerBytes   = 16 << 10 // of one eager slot
	StagingBytes = 512 << 10

	sharedBytes = areaBytes + 2*EagerBytes + StagingBytes
)

// Eager is a rank's eager slot of the running operation. This rank writes its own before it publishes: its peers have
// done with the slot, which was that of the operation before the last. They read it after agreement.
func (c *Comm) Eager(rank int) unsafe.Pointer {
	return unsafe.Add(c.peers[rank].eager, int(c.seq&1)*EagerBytes)
}

// claimEager begins to fetch the cache lines of this rank's eager slot that n bytes will be written to.
func (c *Comm) claimEager(n int) {
	p := c.Eager(c.rank)
	for i := 0; i < min(n, claimBytes); i += 64 {
		spin.Claim(unsafe.Add(p, i))
	}
}

const claimBytes = 1 << 10 // about what a core can have under way

// Payload is the payload, PayloadSize bytes, of a rank's descriptor of the running operation. The rules are Eager's.
func (c *Comm) Payload(rank int) unsafe.Pointer {
	return unsafe.Pointer(&c.peers[rank].area.desc[c.seq&1].payload)
}

// Staging is a rank's staging memory, StagingBytes long.
func (c *Comm) Staging(rank int) unsafe.Pointer { return c.peers[rank].staging }

// errorf is an error of the running operation.
func (c *Comm) errorf(step string, about int, err error) *fault.Error {
	return &fault.Error{Op: c.work.Kind.String(), Seq: c.seq, Rank: c.rank, Peer: about, Host: c.peers[c.rank].host,
		Step: step, Device: hw.Host, Err: err}
}

// local is an error that consumed no sequence number.
func (c *Comm) local(op string, err error) error {
	about := -1
	if e, ok := errors.AsType[*fault.Error](err); ok {
		about = e.Peer
	}
	return &fault.Error{Op: op, Rank: c.rank, Peer: about, Host: c.Hostname(c.rank), Err: err}
}

// Err is nil while the communicator is usable, and else says why it is not. Waits for nothing.
func (c *Comm) Err() error {
	if e := c.broken.Load(); e != nil {
		return e
	}
	if c.closing.Load() {
		return c.local("communicator", errCommClosed)
	}
	return nil
}

// Codes of area.lost.
const (
	lostPeer = iota + 1
	lostTimeout
	lostCancelled
	lostAborted
	lostInternal
	lostMismatch
)

// fail breaks the communicator: this rank's later calls return e, and its peers' waits end.
func (c *Comm) fail(e *fault.Error) error {
	// A peer that lags may still read or write what its descriptors name, until it has closed its side. So the quarantine
	// comes first: who finds the communicator broken may free what its operation has used.
	lift := c.dom.Heap.Quarantine()
	if !c.broken.CompareAndSwap(nil, e) {
		lift()
		return e
	}
	c.lift.Store(&lift)
	c.tell(e)
	c.device.abort()
	c.logBroken(e)
	return e
}

// tell publishes in this rank's area that the communicator broke, and why.
func (c *Comm) tell(e *fault.Error) {
	code := uint64(lostInternal)
	switch {
	case errors.Is(e, fault.ErrPeerLost):
		code = lostPeer
	case errors.Is(e, fault.ErrTimeout):
		code = lostTimeout
	case errors.Is(e, context.Canceled), errors.Is(e, context.DeadlineExceeded):
		code = lostCancelled
	case errors.Is(e, fault.ErrAborted):
		code = lostAborted
	case errors.Is(e, fault.ErrMismatch):
		code = lostMismatch
	}
	about := e.Peer
	if about < 0 {
		about = c.rank
		if code == lostPeer || code == lostTimeout { // of no rank that this one could name, least of all itself
			code = lostInternal
		}
	}
	c.me.lostText.set(e.Err.Error())
	c.me.lost.CompareAndSwap(0, code<<32|uint64(about+1))
}

// lostError turns what a peer published into this rank's error.
func (c *Comm) lostError(s *waiting, from int, v uint64) *fault.Error {
	s.lost = true
	about := int(uint32(v)) - 1
	text := c.peers[from].area.lostText.get()
	if about < 0 || about >= c.size {
		return c.errorAt(s, from, fmt.Errorf("control area is damaged (%#x): %w", v, fault.ErrPeerLost))
	}
	switch v >> 32 {
	case lostPeer:
		return c.errorAt(s, about, fmt.Errorf("rank %d saw it: %w", from, fault.ErrPeerLost))
	case lostTimeout:
		whom := "it"
		if about == c.rank {
			whom, about = "this rank", from
		}
		return c.errorAt(s, about, &toldError{fmt.Sprintf("rank %d waited for %s: %s", from, whom, text), fault.ErrTimeout})
	case lostCancelled:
		return c.errorAt(s, from, fmt.Errorf("rank %d gave up: %s: %w", from, text, fault.ErrAborted))
	case lostMismatch:
		if about == c.rank {
			about = from
		}
		return c.errorAt(s, about, &toldError{text, fault.ErrMismatch})
	case lostAborted:
		return c.errorAt(s, about, &toldError{text, fault.ErrAborted})
	}
	return c.errorAt(s, from, fmt.Errorf("rank %d failed: %s: %w", from, text, fault.ErrAborted))
}

// Abort breaks the communicator on all ranks: their waits end within milliseconds with fault.ErrAborted and cause.
// Local; does not wait; any goroutine.
func (c *Comm) Abort(cause error) {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.closing.Load() || c.size == 0 {
		return
	}
	if cause == nil {
		cause = errors.New("no reason given")
	}
	e := &fault.Error{Op: "abort", Rank: c.rank, Peer: c.rank, Host: c.peers[c.rank].host,
		Err: fmt.Errorf("rank %d: %w: %w", c.rank, cause, fault.ErrAborted)}
	c.fail(e)
	c.nouns.close(true)
	c.dom.failed(c.regs.end(true))
}

// Close ends this rank's side. Local: it waits for no other rank, and what peers still read stays readable.
// fault.ErrBusy while an operation runs; a second Close is fault.ErrClosed, and so is an operation that Close has come
// before. It reports what the cleanup reported.
func (c *Comm) Close() error {
	if c.size == 0 {
		return c.Err()
	}
	k, ok := c.turn.close()
	if !ok {
		return c.local("close", fmt.Errorf("a call of another goroutine runs, or some are queued on a stream (Stream.Sync "+
			"waits for those): %w", fault.ErrBusy))
	}
	if k != nil {
		<-k.ready
	}
	err := c.tryClose()
	c.turn.leave() // what has come meanwhile runs, or finds it closed
	if err != nil {
		return c.local("close", err)
	}
	c.polls.drain()
	c.logClose()
	errs := []error{c.nouns.close(false), c.release()}
	if err := c.unsaid.left(); err != nil && c.broken.Load() == nil { // else Err says it
		errs = append(errs, c.local("close", err))
	}
	return errors.Join(errs...)
}

// tryClose lets no operation begin any more, unless one is under way.
func (c *Comm) tryClose() error {
	if c.closing.Load() {
		return errCommClosed
	}
	if c.device != nil && c.broken.Load() == nil && c.device.busy() {
		return fmt.Errorf("operations are queued on a device (Stream.Sync waits for them): %w", fault.ErrBusy)
	}
	err := c.closeMail(func() error {
		if busy := c.nouns.busy(); busy != "" {
			return fmt.Errorf("%s is in use: %w", busy, fault.ErrBusy)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.ending.Lock()
	c.closing.Store(true)
	c.ending.Unlock()
	c.me.state.Store(stateClosed)
	return nil
}

func (c *Comm) release() error {
	errs := []error{c.device.close(), c.regs.end(false)}
	c.regs.release()
	var lift func()
	if l := c.lift.Load(); l != nil {
		lift = *l
	}
	errs = append(errs, c.dom.drop(append(append(c.shared, c.device.allocations()...), c.area), c.readers(), lift))
	return errors.Join(errs...)
}

// readers are the other ranks, as far as they are known.
func (c *Comm) readers() (all []reader) {
	for i := range c.peers {
		if p := &c.peers[i]; i != c.rank && p.area != nil {
			all = append(all, reader{state: &p.area.state, mem: p.mem, at: p.at})
		}
	}
	return all
}
