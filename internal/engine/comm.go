// Package engine is the inside of a communicator, on host and devices: opening and families, the domain, registrations,
// the order of operations, streams, and what LastOp, Stats and logs tell of them.
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
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tracing"
	"github.com/ubcoll/ubcoll/internal/turn"
	"github.com/ubcoll/ubcoll/register"
)

// Options are what all ranks of a communicator must agree on.
type Options struct {
	Timeout    time.Duration
	NetTimeout time.Duration
	Register   register.Policy
	Pin        register.Pin
	Algorithm  string
	Net        string // "tcp", "verbs", "ofi", "ofi:PROVIDER", or ""
	Devices    team.DevicePolicy
	Logger     *slog.Logger `json:"-"` // ranks need not agree on it; nil: see logs.Or

	// CopyTimeout is how long a rank that takes memory back waits for a peer, which checks its grant after every piece
	// that it copies. 0: one second. Only tests set it.
	CopyTimeout time.Duration `json:"-"`
}

// Comm is one rank's side of a communicator.
type Comm struct {
	team  team.Team         // the ranks of this host
	stage *hosts.Stage      // the connection to the other hosts; nil if there are none
	far   *hosts.Membership // in which ranks of other hosts agree on who is left; nil before Shrink
	left  bool              // a Shrink gave up so late that the others may have gone on; for the turn
	world []int32           // each rank's number in the job; nil: the same as its rank

	rank, size int
	opts       Options
	dom        *Domain
	providers  Providers
	attached   []Attachment // made by Providers.Attachments
	advancers  []Advancer   // those of attached that are

	keeping sync.Mutex
	shared  []*mem.Allocation // memory freed with the communicator, besides the team's area

	device Accelerator // nil without one
	gpuWhy error       // why device is nil
	// carrier carries the data of the operation that runs, if that was queued on a stream; the turn guards it.
	carrier team.Carrier

	turn      turn.Turn
	placing   sync.Mutex                // see inOrder
	recording atomic.Pointer[Recording] // next to turn, because every call reads both

	broken  atomic.Pointer[fault.Error]
	telling sync.Mutex             // held while peers are told of broken: callers that may end the process next wait
	lift    atomic.Pointer[func()] // ends the quarantine that breaking began
	closing atomic.Bool
	ending  sync.Mutex // keeps Close from freeing the area while Abort writes it
	Polls   team.Gate  // counts calls without the turn that read what Close frees

	regs registrations

	debug  bool            // the logger takes messages of level Debug
	Tracer *tracing.Tracer // nil: operations are not marked
	infos
	unreported unreported
}

// Rank is this rank's number, across all hosts.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks on all hosts.
func (c *Comm) Size() int { return c.size }

// LocalRank is this rank's place among the ranks of its host.
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

// Hostname is the name of a rank's host, or "" if there is no such rank. Implements team.Comm.
func (c *Comm) Hostname(rank int) string {
	switch {
	case rank < 0 || rank >= c.size:
		return ""
	case c.dom != nil && c.dom.hosts != nil:
		return c.dom.hosts[c.InJob(rank)]
	}
	return c.team.Peers[c.team.Rank()].Host
}

// Options returns the options of Open, with defaults filled in.
func (c *Comm) Options() Options { return c.opts }

// SetTimeout changes how long this rank waits for peers, in waits under way too. On devices it counts from the next
// launch on, and no operation may be under way. It lets tests wait in vain for less time than Open needs.
func (c *Comm) SetTimeout(t time.Duration) {
	c.team.Timeout.Store(int64(t))
	if c.device != nil {
		c.device.SetTimeout(t)
	}
}

// Domain is the rank's domain.
func (c *Comm) Domain() *Domain { return c.dom }

// LocalError makes the error of a local call, which has no sequence number.
func (c *Comm) LocalError(op string, err error) error {
	about := -1
	if e, ok := errors.AsType[*fault.Error](err); ok {
		about = e.Peer
	}
	return &fault.Error{Op: op, Rank: c.rank, Peer: about, Host: c.Hostname(c.rank), Err: err}
}

// Err is nil while the communicator is usable; afterwards it is the reason why it is not. Does not wait.
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

// Broken returns why the communicator broke, or nil. Implements team.Comm.
func (c *Comm) Broken() *fault.Error { return c.broken.Load() }

// Advance moves on the work that only proceeds when called, while this rank waits. Implements team.Comm.
func (c *Comm) Advance() {
	c.dom.IPC.Progress()
	for _, a := range c.domainAdvancers() {
		a.Advance()
	}
}

// Log is the communicator's logger. Implements team.Comm.
func (c *Comm) Log() *slog.Logger { return c.dom.log }

// Look checks which of the peers' processes have ended. Implements team.Comm.
func (c *Comm) Look() { c.dom.IPC.Look() }

// Fail breaks the communicator: this rank's later calls return e, and its peers' waits end. Implements team.Comm.
func (c *Comm) Fail(e *fault.Error) error {
	// A lagging peer may still read or write the memory that its descriptors name, until it has closed its side. So the
	// quarantine comes first: a caller that finds the communicator broken may free the memory of its operation.
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
	c.dom.dumpBroken(e)
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
	err := fmt.Errorf("rank %d: %w", c.rank, reason.Remote(reason.Text(cause, c.rank), cause))
	if !errors.Is(cause, fault.ErrAborted) {
		err = fmt.Errorf("%w: %w", err, fault.ErrAborted)
	}
	c.Fail(&fault.Error{Op: "abort", Rank: c.rank, Peer: c.rank, Host: c.Hostname(c.rank), Err: err})
	for _, a := range c.attached {
		a.Abort()
	}
	c.dom.Failed(c.regs.end(true))
}

// Close ends this rank's side. Local: what peers still read stays readable. A rank's last communicator waits, as
// described at hosts.Network.Close. fault.ErrBusy while an operation runs; fault.ErrClosed for a second Close, and for
// an operation that comes after Close. It returns the errors of the cleanup.
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
	c.turn.Leave() // calls that have come meanwhile run, or find the communicator closed
	if err != nil {
		return c.LocalError("close", err)
	}
	err = c.within("close", c.end)
	if _, ok := errors.AsType[*fault.Error](err); err != nil && !ok {
		err = &fault.Error{Op: "close", Rank: c.rank, Peer: c.OfJob(reason.Blamed(err, -1)), Host: c.Hostname(c.rank), Err: err}
	}
	if left := c.unreported.left(); left != nil && c.broken.Load() == nil { // if it is broken, Err says why
		err = errors.Join(err, c.LocalError("close", left))
	}
	return err
}

// end releases what the communicator has.
func (c *Comm) end() error {
	// The attachments come first: what Shut has locked delays others until then.
	var errs []error
	for _, a := range c.attached {
		errs = append(errs, a.Close())
	}
	c.Polls.Drain()
	c.logClose()
	return errors.Join(append(errs, c.release())...)
}

// CloseTimeout is how long Close and Free wait at most, unless SetCloseTimeout says otherwise.
const CloseTimeout = 5 * time.Second

// SetCloseTimeout changes how long Close and Free of this rank wait at most, on all its communicators. It lets tests wait in
// vain for less time.
func (c *Comm) SetCloseTimeout(t time.Duration) { c.dom.closeTimeout.Store(int64(t)) }

// Within runs end, the rest of a Close or Free named op (not of a communicator). end may wait for device operations and
// for peers, but the caller waits for at most the domain's closeTimeout.
func (c *Comm) Within(op string, end func() error) error {
	if !c.dom.ends.Enter() {
		defer c.dom.ends.Leave()
		return end() // the domain has ended, and end finds nothing to wait for
	}
	return c.within(op, func() error {
		defer c.dom.ends.Leave()
		return end()
	})
}

func (c *Comm) within(op string, end func() error) error {
	limit := time.Duration(c.dom.closeTimeout.Load())
	inTime, err := team.Within(limit, end, func(err error) { c.dom.failedTo(op, err) })
	if inTime {
		return err
	}
	return c.LocalError(op, team.Unended(limit, c.device != nil))
}

// tryClose refuses new operations, unless one is under way.
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
	c.stage.Close() // looks at peers' areas, which they may free when they see that this rank has left
	c.leaveMembership()
	c.team.Leave()
	return nil
}

func (c *Comm) release() error {
	var errs []error
	c.dom.noDumps(c)
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

// WaitsIn describes what a rank has published that it waits for, until this rank closes. For tests.
func (c *Comm) WaitsIn(rank int) string {
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return "closed"
	}
	return c.team.WaitsIn(c.team.Index(rank))
}

// Team is the ranks of this rank's host.
func (c *Comm) Team() *team.Team { return &c.team }

// FailOpen is Fail for callers without the turn: it does nothing to a communicator that has closed meanwhile.
func (c *Comm) FailOpen(e *fault.Error) error {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.closing.Load() {
		return e
	}
	return c.Fail(e)
}

// Attachments returns the communicator's attachments, in the order of Rooms.
func (c *Comm) Attachments() []Attachment { return c.attached }

// Accelerator is the communicator's device side, or nil.
func (c *Comm) Accelerator() Accelerator { return c.device }
