package ubcoll

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// Comm is one rank's side of a communicator: a fixed set of ranks that call collectives together. It runs one
// collective at a time, in call order: a blocking call while another goroutine's runs is [ErrBusy]. Its methods may be
// called from any goroutine. A nil *Comm, as Split has for ranks without a color, and the zero Comm have no ranks:
// their Size is 0, their Rank -1, and every operation is [ErrArgument].
type Comm comm

type comm = inside.Comm

// Open makes a communicator of all ranks of b. Collective and blocking, for [Options.Timeout] at most ([ErrTimeout],
// which names who has not come if b can tell). b stays the caller's, who closes it after the [Comm]; the Comm does not
// use it again. Ranks are on one host if they can map each other's memory; where there are several hosts, their ranks
// listen on the network (UBCOLL_NET, UBCOLL_PORTS), and some connect. If one rank fails, all return an error:
// [ErrArgument] for bad [Options] or variables, [ErrMismatch] where they differ between ranks, [ErrNotSupported] for
// ranks without devices that are required, or, of several hosts, one without any address, not even loopback's,
// [ErrTimeout] or [ErrPeerLost] where hosts do not reach each other, [ErrLimit], or what b's exchange returned. Each
// Open has memory and registrations of its own: a buffer made with another Comm works, by way of a copy. Ranks with
// devices, unless [Options.Devices] is off, load all kernels here: the first time on a machine the driver assembles
// them, which takes some seconds.
func Open(ctx context.Context, b bootstrap.Bootstrap, o Options) (*Comm, error) {
	if b == nil {
		return nil, engine.NilError("bootstrap", "bootstrap.MPI, Gompi, Env and Local make one")
	}
	// Faults go to Open too: it is collective, and peers wait for this rank.
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

// Hostname is the name of rank's host, "" if there is no such rank. No two hosts of a job have the same one: where several
// are called alike (localhost, or ranks of one machine that cannot map each other's memory), the first of them keeps the
// name, and the others are name/2, name/3 and so on, on all ranks alike. Local.
func (c *Comm) Hostname(rank int) string { return c.view().Hostname(rank) }

// GPU is this rank's device: that of its local rank among those that its process sees. The ranks of a host use devices
// where each of them has one of its own, up to 72 ranks; else the error, which wraps [ErrNotSupported], says what is in
// the way, and host memory is what there is. On a communicator with ranks on several hosts devices have memory and
// streams, and operations only on communicators of a host's ranks. Local.
func (c *Comm) GPU() (Device, error) {
	d, err := c.view().GPU()
	if err != nil {
		return Host, c.view().LocalError("gpu", err)
	}
	return d, nil
}

// On is the same communicator, whose operations queue on s instead of being waited for (for a nil s, on none): a
// collective or a message returns once it is queued, and its error comes from s.Sync. Operations of one communicator
// run in call order whatever their streams. On a stream of a device the memory is that device's, ranks queue at their
// own pace, and ctx counts at the call only; the memory may be freed as soon as the call has returned, which then
// waits. What a group or a capture records runs on the stream that it was called on: on another one it is
// [ErrArgument]. Local.
func (c *Comm) On(s *Stream) *Comm {
	var on *engine.Stream
	if s != nil {
		on = s.engine()
	}
	return (*Comm)(c.view().On(on))
}

// RegisterBuffer registers the memory that v views, so that operations on any part of it use it directly, unless the
// policy is off. Local and blocking; it costs no communication. The memory stays the caller's, who closes the
// registration before freeing it. It must come from [Alloc] or [Adopt] of this Comm, not from a Go slice:
// [ErrArgument], as for an empty or misaligned v; [ErrStale] after Free, [ErrLimit], [ErrClosed]. Adopted memory that
// no backend can use is registered and staged all the same, and LastOp says why. Memory of Alloc on the host is locked
// in memory meanwhile, as far as RLIMIT_MEMLOCK (ulimit -l) goes: Stats counts it, and Explain says why it is not.
// Where UBCOLL_IB asks for it, RDMA devices register all of the buffer as well; that they cannot is an error only if
// nobody else can.
// Registrations are counted: the same memory may be registered again. They end with Close, or with the Close or Abort
// of the communicator that they were made with; buffers, and what operations register by themselves, stay until the
// rank's last communicator closes. On a Comm that was closed or broke it is that error. Source: NCCL's
// ncclCommRegister, nccl4py's register_buffer.
func (c *Comm) RegisterBuffer(v Vec) (*Registration, error) {
	r, err := c.view().RegisterBuffer(*v.team())
	if err != nil {
		return nil, err
	}
	return (*Registration)(inside.NewRegistration(r)), nil
}

// Abort ends the communicator on all ranks: their waits return [ErrAborted] with cause within milliseconds, between
// hosts within some tens of them at most, on machines that are not overloaded: a host whose first rank does not wait
// looks every 20. Local, does not wait, any goroutine. What was registered with it, its windows and its channels end.
// The job lives on: [Main], or whoever owns the bootstrap, decides about that.
func (c *Comm) Abort(cause error) { c.view().Abort(cause) }

// Close ends this rank's side. Local: no other rank has to call anything for it. It waits for one that is in the middle
// of a put or get, as [Registration.Close] says, and a rank's last communicator also until other hosts have taken what
// this rank sent them, which their processes do by themselves. What peers still read of this rank stays readable to
// them. What was registered with it, its windows and its channels end; with the rank's last communicator its buffers,
// too: views of them fault from then on. It waits for five seconds at most ([ErrTimeout]: it is closed, and what it has
// follows by itself, but what other hosts have not taken is dropped, and the error names their ranks in the job).
// [ErrBusy] while an operation runs or is queued, or a message is on its way, unless the communicator is broken, whose
// messages end with it; [ErrClosed] the second time, and for what other goroutines call from then on. If operations on
// streams have failed and no Sync has returned that, Close returns it, and has closed the communicator.
func (c *Comm) Close() error { return c.view().Close() }

// Err is nil while the communicator is usable, and else says why it is not. Local, waits for nothing.
func (c *Comm) Err() error { return c.view().Err() }

func (c *Comm) view() *inside.View { return (*inside.Comm)(c).View() }
