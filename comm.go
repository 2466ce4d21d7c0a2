package ubcoll

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// Comm is one rank's side of a communicator: a fixed set of ranks that call collectives together. It runs one
// collective at a time, in call order: a blocking call returns [ErrBusy] while one of another goroutine runs. Its
// methods may be called from any goroutine. A nil *Comm, which Split returns to ranks without a color, and the zero
// Comm have no ranks: Size is 0, Rank is -1, and every operation returns [ErrArgument].
type Comm comm

type comm = inside.Comm

// Open makes a communicator of all ranks of b. Collective and blocking, for at most [Options.Timeout]: [ErrTimeout]
// names the ranks that have not come, if b can tell. b stays the caller's: the caller closes it after the [Comm], and
// the Comm does not use it after Open.
//
// Ranks count as on one host if they can map each other's memory. If there are several hosts, their ranks listen on the
// network (UBCOLL_NET, UBCOLL_PORTS), and some of them connect. Each Open has memory and registrations of its own: a
// buffer of another Comm works, but is copied. Ranks with devices, unless [Options.Devices] is off, load all kernels
// here; the first time on a machine the driver assembles them, which takes some seconds of processor time, on all
// processors at once. Where ranks share a device, the communicator takes half of its rank's part of the multiprocessors,
// until it is closed.
//
// If one rank fails, all return an error: [ErrArgument] for bad [Options] or variables; [ErrMismatch] if they differ
// between ranks; [ErrNotSupported] if a rank lacks a required device or, on several hosts, has no address at all, not
// even a loopback address; [ErrTimeout] or [ErrPeerLost] if hosts do not reach each other; [ErrLimit]; or the error of
// b's exchange.
func Open(ctx context.Context, b bootstrap.Bootstrap, o Options) (*Comm, error) {
	if b == nil {
		return nil, engine.NilError("bootstrap", "bootstrap.MPI, Gompi, Env and Local make one")
	}
	// Faults go on into the collective Open, because peers wait for this rank there.
	o = o.fromEnvironment()
	bad := o.Validate()
	if ctx == nil {
		ctx, bad = context.Background(), errors.Join(bad, engine.ErrNilContext)
	}
	c, err := inside.Open(ctx, b, o.engine(), bad)
	if err != nil {
		return nil, err
	}
	return (*Comm)(c), nil
}

// Rank is this rank, from 0 to Size-1. Local.
func (c *Comm) Rank() int { return c.view().Rank() }

// Size is the number of ranks. Local.
func (c *Comm) Size() int { return c.view().Size() }

// LocalRank is this rank's place among the ranks of its host. Local.
func (c *Comm) LocalRank() int { return c.view().LocalRank() }

// LocalSize is the number of ranks on this rank's host. Local.
func (c *Comm) LocalSize() int { return c.view().LocalSize() }

// Hostname is the name of rank's host, or "" if there is no such rank. Each host of a job has a name of its own. Where
// several have the same name (localhost, or ranks of one machine that cannot map each other's memory), the first keeps
// it, and the others are name/2, name/3 and so on, alike on all ranks. Local.
func (c *Comm) Hostname(rank int) string { return c.view().Hostname(rank) }

// GPU is this rank's device: of the devices that its process sees, the one that belongs to its local rank. The ranks of
// a host use devices if each of them has a device of its own, up to 72 ranks, or may share one ([DevicesShare]). Otherwise
// the error wraps [ErrNotSupported] and names the obstacle, and the ranks use host memory only. It wraps [ErrLimit] where
// a device has no memory left, and on a communicator of Split or Dup for which ranks that share a device have no room left there.
// Local.
func (c *Comm) GPU() (Device, error) {
	d, err := c.view().GPU()
	if err != nil {
		return Host, c.view().LocalError("gpu", err)
	}
	return d, nil
}

// On is the same communicator with its operations queued on s (on no stream if s is nil) instead of waited for: a
// collective or a message returns once it is queued, and s.Sync returns its error. Operations of one communicator run
// in call order on whatever streams they are. On a device's stream the memory must be that device's, ranks queue at
// their own pace, and ctx counts during the call only. The memory may be freed as soon as the call has returned; Free
// then waits. A group or a capture records calls for the stream that it was itself called on: a call on another stream
// is [ErrArgument]. Local.
func (c *Comm) On(s *Stream) *Comm {
	var on *engine.Stream
	if s != nil {
		on = s.engine()
	}
	return (*Comm)(c.view().On(on))
}

// RegisterBuffer registers the memory that v views. Operations then use any part of it directly, unless the policy is
// off. Local and blocking; it needs no communication. The memory stays the caller's, who closes the registration before
// freeing it. The memory must come from [Alloc] or [Adopt] of this Comm, not from a Go slice. Errors: [ErrArgument] for
// other memory, and for an empty or misaligned v; [ErrStale] after Free; [ErrLimit]; [ErrClosed]; on a Comm that broke,
// the reason why.
//
// Adopted memory that no backend can use is registered but still staged, and LastOp says why. Host memory of Alloc is
// locked while it is registered, as far as RLIMIT_MEMLOCK (ulimit -l) allows: Stats counts it, and Explain says why
// memory is not locked. With [PinRequired] that is [ErrLimit], and the memory is not registered. In jobs of several
// hosts RDMA devices register the whole buffer as well (UBCOLL_IB); if they cannot, that is an error only if no other way
// to reach the memory is left.
//
// Registrations are counted: the same memory may be registered again. They end with Close, or with the Close or Abort
// of the communicator that made them. Buffers, and registrations that operations make by themselves, stay until the
// rank's last communicator closes. Source: NCCL's ncclCommRegister, nccl4py's register_buffer.
func (c *Comm) RegisterBuffer(v Vec) (*Registration, error) {
	r, err := c.view().RegisterBuffer(*v.team())
	if err != nil {
		return nil, err
	}
	return (*Registration)(inside.NewRegistration(r)), nil
}

// Abort ends the communicator on all ranks: their waits return [ErrAborted] with cause within milliseconds on this
// host. Other hosts take some tens of milliseconds at most, on machines that are not overloaded: a host whose first
// rank is not waiting looks every 20. Local, does not wait, any goroutine. Its registrations, windows and channels end.
// The job lives on: [Main], or the owner of the bootstrap, decides about that.
func (c *Comm) Abort(cause error) { c.view().Abort(cause) }

// Close ends this rank's side. Local: no other rank has to call anything for it. It waits for a peer that is in the
// middle of a put or get, as [Registration.Close] says. A rank's last communicator also waits until other hosts have
// taken what this rank sent them; their processes do that by themselves. What peers still read stays readable to them.
// Registrations, windows and channels of the communicator end. The rank's buffers end with its last communicator, which
// waits for copies and operations that use them: views of them fault from then on.
//
// Close waits for at most five seconds. After [ErrTimeout] the communicator is closed and its resources follow by
// themselves, but data that other hosts have not taken is dropped, and the error names their ranks in the job.
// [ErrBusy] while an operation runs or is queued, or a message is on its way; a broken communicator closes anyway, and
// its messages end. [ErrClosed] the second time, and from calls of other goroutines from then on. If operations on
// streams failed and no Sync has returned their errors, Close returns them, and has closed the communicator.
func (c *Comm) Close() error { return c.view().Close() }

// Err is nil while the communicator is usable; afterwards it is the reason why it is not. Local, does not wait.
func (c *Comm) Err() error { return c.view().Err() }

func (c *Comm) view() *inside.View { return (*inside.Comm)(c).View() }
