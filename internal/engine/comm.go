// Package engine is what a communicator is inside, whatever it runs on: opening and families, the domain,
// registrations, the order of operations, streams, and what is told of them.
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tracing"
	"github.com/ubcoll/ubcoll/internal/turn"
	"github.com/ubcoll/ubcoll/register"
)

// Options are what all ranks of a communicator must agree on.
type Options struct {
	Timeout   time.Duration
	Register  register.Policy
	Algorithm string
	Devices   team.DevicePolicy
	Logger    *slog.Logger `json:"-"` // no matter of agreement; nil: see logs.Or
}

// Comm is one rank's side of a communicator.
type Comm struct {
	team  team.Team    // the ranks of this host
	stage *hosts.Stage // with the other hosts; nil if there are none
	outer team.Outer   // of the team's operations that are parts of one
	world []int        // each rank's number in the job; nil: its rank

	rank, size int
	hosts      []string // each rank's, by name; nil: this one
	opts       Options
	dom        *Domain
	rooms      Rooms
	attached   []Attachment // by rooms

	keeping sync.Mutex
	shared  []*mem.Allocation // what goes with the communicator beside the team's area

	device Accelerator // nil without one
	gpuWhy error       // why there is none

	turn      turn.Turn
	placing   sync.Mutex                // see inOrder
	recording atomic.Pointer[Recording] // beside turn, which every call looks at too

	broken  atomic.Pointer[fault.Error]
	telling sync.Mutex             // while broken is told: who returns it, and may end the process, waits for that
	lift    atomic.Pointer[func()] // ends the quarantine that breaking began
	closing atomic.Bool
	ending  sync.Mutex // Abort writes the area that Close gives back
	Polls   team.Gate  // looks at what Close gives back, by calls that do not have the turn

	regs registrations

	debug  bool            // the logger takes messages of that level
	Tracer *tracing.Tracer // nil: operations are not marked
	infos
	unsaid unsaid
}

// Rank is this rank, among those of all hosts.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks, on all hosts.
func (c *Comm) Size() int { return c.size }

// LocalRank is this rank's place among those of its host.
func (c *Comm) LocalRank() int {
	if c.size == 0 {
		return -1
	}
	return c.team.Rank()
}

// LocalSize is the number of ranks on this rank's host.
func (c *Comm) LocalSize() int { return c.team.Size() }

// SpansHosts reports whether the communicator has ranks on several hosts.
func (c *Comm) SpansHosts() bool { return c.size != c.team.Size() }

// BetweenHosts is why there is no what on this communicator: its ranks are on several hosts. Nil if they are on one.
func (c *Comm) BetweenHosts(what string) error {
	if !c.SpansHosts() {
		return nil
	}
	return fmt.Errorf("%s between hosts is not supported yet (ubcoll.Comm.Split by host makes communicators that have "+
		"it): %w", what, fault.ErrNotSupported)
}

// Hostname is the name of a rank's host, or "" if there is no such rank. Implements team.Comm.
func (c *Comm) Hostname(rank int) string {
	switch {
	case rank < 0 || rank >= c.size:
		return ""
	case c.hosts != nil:
		return c.hosts[rank]
	}
	return c.team.Peers[c.team.Rank()].Host
}

// Options are those of Open, with defaults filled in.
func (c *Comm) Options() Options { return c.opts }

// SetTimeout changes how long this rank waits, waits that are under way included, without the peers; for what runs on
// devices it counts from the next launch on, and none may be under way. For tests: Open takes the time that it needs,
// and waits in vain are short.
func (c *Comm) SetTimeout(t time.Duration) {
	c.team.Timeout.Store(int64(t))
	if c.device != nil {
		c.device.SetTimeout(t)
	}
}

// Domain is the rank's domain.
func (c *Comm) Domain() *Domain { return c.dom }

// LocalError is an error of a local call, which consumed no sequence number.
func (c *Comm) LocalError(op string, err error) error {
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
		return c.LocalError("communicator", ErrCommClosed)
	}
	return nil
}

// Closing reports whether Close has begun to end the communicator.
func (c *Comm) Closing() bool { return c.closing.Load() }

// Broken is why the communicator is of no more use since it broke, or nil. Implements team.Comm.
func (c *Comm) Broken() *fault.Error { return c.broken.Load() }

// Advance moves on what does not move by itself while this rank waits. Implements team.Comm.
func (c *Comm) Advance() {
	c.dom.IPC.Progress()
	for _, a := range c.beside() {
		a.Advance()
	}
}

// Log takes the communicator's messages. Implements team.Comm.
func (c *Comm) Log() *slog.Logger { return c.dom.log }

// Look looks at the peers' processes. Implements team.Comm.
func (c *Comm) Look() { c.dom.IPC.Look() }

// Fail breaks the communicator: this rank's later calls return e, and its peers' waits end. Implements team.Comm.
func (c *Comm) Fail(e *fault.Error) error {
	// A peer that lags may still read or write what its descriptors name, until it has closed its side. So the quarantine
	// comes first: who finds the communicator broken may free what its operation has used.
	lift := c.dom.Heap.Quarantine()
	c.telling.Lock()
	defer c.telling.Unlock()
	if !c.broken.CompareAndSwap(nil, e) {
		lift()
		return e
	}
	c.lift.Store(&lift)
	c.team.PublishLost(e)
	if c.stage != nil {
		c.stage.Flood(e)
	}
	if c.device != nil {
		c.device.Abort()
	}
	c.logBroken(e)
	return e
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
	e := &fault.Error{Op: "abort", Rank: c.rank, Peer: c.rank, Host: c.Hostname(c.rank),
		Err: fmt.Errorf("rank %d: %w: %w", c.rank, cause, fault.ErrAborted)}
	c.Fail(e)
	for _, a := range c.attached {
		a.Abort()
	}
	c.dom.Failed(c.regs.end(true))
}

// Close ends this rank's side. Local: what peers still read stays readable; a rank's last communicator waits, as
// hosts.Network.Close says. fault.ErrBusy while an operation runs; a second Close is fault.ErrClosed, and so is an
// operation that Close has come before. It reports what the cleanup reported.
func (c *Comm) Close() error {
	if c.size == 0 {
		return c.Err()
	}
	k, ok := c.turn.Close()
	if !ok {
		return c.LocalError("close", fmt.Errorf("a call of another goroutine runs, or some are queued on a stream "+
			"(Stream.Sync waits for those): %w", fault.ErrBusy))
	}
	if k != nil {
		<-k.Ready
	}
	err := c.tryClose()
	c.turn.Leave() // what has come meanwhile runs, or finds it closed
	if err != nil {
		return c.LocalError("close", err)
	}
	err = c.within("close", c.end)
	if _, ok := errors.AsType[*fault.Error](err); err != nil && !ok {
		err = c.LocalError("close", err)
	}
	if unsaid := c.unsaid.left(); unsaid != nil && c.broken.Load() == nil { // else Err says it
		err = errors.Join(err, c.LocalError("close", unsaid))
	}
	return err
}

// end gives up what the communicator has.
func (c *Comm) end() error {
	// First the attachments: what Shut has locked holds up others until then.
	var errs []error
	for _, a := range c.attached {
		errs = append(errs, a.Close())
	}
	c.stage.Close()
	c.Polls.Drain()
	c.logClose()
	return errors.Join(append(errs, c.release())...)
}

// CloseTimeout is how long Close and Free wait at most. A variable for tests.
var CloseTimeout = 5 * time.Second

// Within does what a Close or Free, op, has to do, but for a communicator's: end, which may wait for what is queued on a
// device and for peers, but not the caller for longer than CloseTimeout.
func (c *Comm) Within(op string, end func() error) error {
	if !c.dom.ends.Enter() {
		defer c.dom.ends.Leave()
		return end() // it finds that all has ended
	}
	return c.within(op, func() error {
		defer c.dom.ends.Leave()
		return end()
	})
}

func (c *Comm) within(op string, end func() error) error {
	inTime, err := team.Within(CloseTimeout, end, func(err error) { c.dom.failedTo(op, err) })
	if inTime {
		return err
	}
	return c.LocalError(op, fmt.Errorf("what is queued on this rank's device, or a peer that uses the memory, has not come "+
		"to an end in %v, and is waited for without this call: %w", CloseTimeout, fault.ErrTimeout))
}

// tryClose lets no operation begin any more, unless one is under way.
func (c *Comm) tryClose() error {
	if c.closing.Load() {
		return ErrCommClosed
	}
	if c.device != nil && c.broken.Load() == nil && c.device.Busy() {
		return fmt.Errorf("operations are queued on a device (Stream.Sync waits for them): %w", fault.ErrBusy)
	}
	if err := c.shut(c.broken.Load() != nil); err != nil {
		return err
	}
	c.ending.Lock()
	c.closing.Store(true)
	c.ending.Unlock()
	c.team.Leave()
	return nil
}

func (c *Comm) release() error {
	var errs []error
	gone := append(c.shared, c.team.Area)
	if c.device != nil {
		errs = append(errs, c.device.Close())
		gone = append(gone, c.device.Allocations()...)
	}
	errs = append(errs, c.regs.end(false))
	c.regs.release()
	var lift func()
	if l := c.lift.Load(); l != nil {
		lift = *l
	}
	errs = append(errs, c.dom.drop(gone, c.team.Readers(), lift))
	return errors.Join(errs...)
}

// WaitsIn is what a rank says that it is in, until this one closes. For tests.
func (c *Comm) WaitsIn(rank int) string {
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return "closed"
	}
	return c.team.WaitsIn(c.team.Index(rank))
}

// Team is the ranks of this rank's host.
func (c *Comm) Team() *team.Team { return &c.team }

// FailOpen is Fail for who does not have the turn: a communicator that has closed meanwhile is left alone, and its
// area.
func (c *Comm) FailOpen(e *fault.Error) error {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.closing.Load() {
		return e
	}
	return c.Fail(e)
}

// Attachments are what the communicator has beside its collectives, in the order of Rooms.
func (c *Comm) Attachments() []Attachment { return c.attached }

// Accelerator is the communicator's device side, nil without one.
func (c *Comm) Accelerator() Accelerator { return c.device }
