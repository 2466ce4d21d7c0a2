package ubcoll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Device is where memory lives.
type Device = hw.Device

// Host is host memory.
var Host = hw.Host

// CUDA is the i-th CUDA device of this process. A negative i is no device: using it is [ErrArgument].
func CUDA(i int) Device { return hw.CUDA(i) }

// Buffer is memory off the Go heap that peers can reach and that RegisterBuffer takes. Its maker owns it: nothing frees
// it except Free, or the close of the rank's last communicator. Its methods may be called from any goroutine. In a
// Buffer of bools, Go requires every byte to be 0 or 1. Reductions write only these, but messages and puts of peers
// arrive as sent, so the senders must keep to it.
type Buffer[T dtype.Elem] struct {
	c   *engine.Comm
	a   *mem.Allocation
	dev Device
	n   int
}

// Alloc makes a zeroed, page-aligned buffer of n elements on d, the host or this rank's device ([Comm.GPU]), with all
// its pages present. Local and blocking. On the host it costs system calls, and now and then the memory of a whole
// arena; on a device it costs driver calls, in units of 2 MiB. With UBCOLL_NVLS=on, in builds with tag nvls, sizes and
// addresses there are multiples of what multicast objects take, so that such an object can have all of the buffer. The
// host memory of freed buffers is reused. It returns to the system when much of it is free, at the latest when the rank's
// last communicator closes; device memory returns at once. [ErrLimit] says which limit was hit; [ErrArgument] for a
// negative n or another rank's device, [ErrClosed] for a closed [Comm], [ErrNotSupported] for a device if the rank has
// none.
func Alloc[T dtype.Elem](c *Comm, d Device, n int) (*Buffer[T], error) {
	size := dtype.Of[T]().Size()
	if n < 0 || n > (1<<62)/size {
		return nil, c.view().LocalError("alloc", fmt.Errorf("%d elements: %w", n, ErrArgument))
	}
	a, err := c.view().Alloc(d, max(n, 1)*size)
	if err != nil {
		return nil, err
	}
	return &Buffer[T]{c: c.view().Comm, a: a, dev: d, n: n}, nil
}

// Adopt makes a buffer of memory that belongs to C code, to mmap or to another library, on the host or on this rank's
// device. The caller vouches that the memory stays mapped, at the same place, until Free; Free leaves the memory itself
// alone. Adopted host memory is staged, because peers cannot reach it. Device memory may come from cuMemAlloc or
// cudaMalloc, or from a mapping (cuMemCreate) that can be exported as a POSIX file descriptor, but not from a
// stream-ordered pool. Peers reach it; if its owner frees it too early, registering it again is [ErrStale]. Go heap memory
// must not be adopted. Local. [ErrInUse] if the memory overlaps another buffer; [ErrNotSupported] for device memory that
// cannot be shared, with a list of what can; [ErrArgument] also for memory that is not on d; [ErrLimit], [ErrClosed] as in
// [Alloc].
func Adopt(c *Comm, d Device, p unsafe.Pointer, bytes int) (*Buffer[byte], error) {
	a, err := c.view().Adopt(d, p, bytes)
	if err != nil {
		return nil, err
	}
	return &Buffer[byte]{c: c.view().Comm, a: a, dev: d, n: bytes}, nil
}

// Len is the number of elements.
func (b *Buffer[T]) Len() int {
	if b == nil {
		return 0
	}
	return b.n
}

// Device is where the buffer lives.
func (b *Buffer[T]) Device() Device {
	if b == nil {
		return Host
	}
	return b.dev
}

// errNoBuffer is the error of a nil or zero Buffer.
var errNoBuffer = engine.NilError("buffer", "Alloc and Adopt make one")

func (b *Buffer[T]) nothing() bool { return b == nil || b.a == nil }

// Vec views the buffer. The Vec of a nil or zero Buffer is not valid.
func (b *Buffer[T]) Vec() (v Vec) {
	x := v.team() // writes into v, as Of does
	x.Type = dtype.Of[T]()
	if b.nothing() {
		x.Err = errNoBuffer
		return v
	}
	x.Ptr, x.Len, x.Dev, x.Alloc = b.a.Ptr, b.n, b.dev, b.a
	return v
}

// Register registers the buffer with c, a communicator of the same rank. It is short for c.RegisterBuffer(b.Vec()): see
// there. Local and blocking. [ErrArgument] if the buffer is nil, empty or another rank's; [ErrStale] after Free;
// [ErrLimit]; [ErrClosed]; or the reason why c broke.
func (b *Buffer[T]) Register(c *Comm) (*Registration, error) { return c.RegisterBuffer(b.Vec()) }

// Slice is the buffer's memory, or nil on a device and after Free. The slice belongs to the buffer: using it after Free
// faults, until other buffers of 32 GiB in all, or 65,536 of them, have been freed as well (fewer under `ulimit -v`).
// Free does not know who uses the slice, as it knows of CopyTo, CopyFrom and the operations on Vec.
func (b *Buffer[T]) Slice() []T {
	if b.nothing() || !b.dev.IsHost() || !b.a.Live() {
		return nil
	}
	return unsafe.Slice((*T)(b.a.Ptr), b.n)
}

// CopyFrom copies src, which may overlap the buffer, to the start of the buffer. Local and blocking; on a device it
// does not wait for operations queued on streams. A Free or Close that comes meanwhile leaves the memory to the copy.
// [ErrArgument] if src is longer than the buffer, [ErrStale] after Free, ctx's error if ctx had ended; after an error
// nothing was copied.
func (b *Buffer[T]) CopyFrom(ctx context.Context, src []T) error {
	return b.copy(ctx, "copy_from", src, true)
}

// CopyTo fills dst, which may overlap the buffer, from the start of the buffer. Local and blocking; on a device it does
// not wait for operations queued on streams. A Free or Close that comes meanwhile leaves the memory to the copy.
// [ErrArgument] if dst is longer than the buffer, [ErrStale] after Free, ctx's error if ctx had ended; after an error
// nothing was copied.
func (b *Buffer[T]) CopyTo(ctx context.Context, dst []T) error {
	return b.copy(ctx, "copy_to", dst, false)
}

func (b *Buffer[T]) copy(ctx context.Context, op string, s []T, in bool) error {
	if b.nothing() {
		return errNoBuffer
	}
	ctx = engine.Context(ctx)
	switch {
	case ctx.Err() != nil:
		return b.c.LocalError(op, reason.Ended(ctx))
	case !b.a.Live():
		return b.c.LocalError(op, errFreed)
	case len(s) > b.n:
		return b.c.LocalError(op, fmt.Errorf("%d elements, and the buffer has %d: %w", len(s), b.n, ErrArgument))
	case !b.a.Hold(): // freed since
		return b.c.LocalError(op, errFreed)
	}
	defer b.a.Release()
	p, n := unsafe.Pointer(unsafe.SliceData(s)), len(s)*int(unsafe.Sizeof(*new(T)))
	// cpu.Move is a copy that the runtime can interrupt: one uninterruptible copy of gigabytes would hold up the garbage
	// collector.
	switch {
	case !b.dev.IsHost():
		return b.c.Copy(op, b.a, unsafe.Slice((*byte)(p), n), in)
	case in:
		cpu.Move(b.a.Ptr, p, n)
	default:
		cpu.Move(p, b.a.Ptr, n)
	}
	return nil
}

var errFreed = fmt.Errorf("freed buffer: %w", ErrStale)

// Free ends the buffer. Local. On the host it returns at once, and completes when operations in flight have ended. On a
// device it waits, for at most five seconds, for the operations queued on this rank's streams and for peers to unmap
// the memory. [ErrInUse] while a registration of it is open or a graph holds it; for adopted host memory also while a
// copy or an operation uses it, posted messages included. [ErrClosed] the second time.
//
// After any other error the buffer has been freed all the same. [ErrTimeout] means that a peer still has the device
// memory mapped, or that a queued operation has not ended. The library goes on waiting for it: leave adopted memory to
// its owner, but do not give it back to the driver. Failures after Free has returned are logged, and counted in
// [Stats.Failures].
func (b *Buffer[T]) Free() error {
	if b.nothing() {
		return errNoBuffer
	}
	return b.c.Free(b.a)
}

// Registration is a claim on memory, made by [Comm.RegisterBuffer].
type Registration registration

type registration = inside.Registration

// errNoRegistration is the error of a nil or zero Registration.
var errNoRegistration = engine.NilError("registration", "Comm.RegisterBuffer makes one")

// Close ends the registration. Local. It waits for a peer that is in the middle of a put or get, which stops within a
// MiB; deregistration completes when operations in flight have ended. [ErrTimeout] names a peer that has not stopped
// within a second and may still write to the memory: the registration is closed, and once the memory is freed nothing
// else will use it. On a device it waits as [Buffer.Free] does, for at most five seconds (ErrTimeout). [ErrClosed] the
// second time, and after the Close or Abort of the communicator.
func (r *Registration) Close() error {
	if r.engine() == nil {
		return errNoRegistration
	}
	return r.engine().Close()
}

func (r *Registration) engine() *engine.Registration { return (*inside.Registration)(r).Engine() }

// Stream is an in-order queue of operations; see [Comm.On]. Its methods may be called from any goroutine.
type Stream stream

type stream = inside.Stream

// NewStream makes a stream on d, the host or a device of this process. Local. [ErrArgument] if d is no such device,
// [ErrNotSupported] without CUDA. Where ranks share d, a call on one more stream is [ErrLimit] while 30 streams of this
// process have work there, or as many as CUDA_DEVICE_MAX_CONNECTIONS says less two: what waits on one would keep back
// others.
func NewStream(d Device) (*Stream, error) {
	if d.IsHost() {
		return newStream(engine.NewStream()), nil
	}
	s, err := gpu.OpenStream(d)
	if err != nil {
		return nil, err
	}
	return newStream(s), nil
}

// StreamFrom makes a [Stream] from the CUstream (cudaStream_t; 0 is the default stream) of a CUDA stream of d's primary
// context that other code has made. Operations queue after that code's own work. That code may capture the stream; the
// memory that a capture uses stays registered until the communicator closes. The CUDA stream stays its owner's and must
// live until Close. Local. [ErrArgument] for the host, or a stream of another device; [ErrNotSupported] without CUDA.
func StreamFrom(d Device, cuStream uintptr) (*Stream, error) {
	s, err := gpu.StreamFrom(d, cuStream)
	if err != nil {
		return nil, err
	}
	return newStream(s), nil
}

// Sync waits until everything that was queued has run, and returns the errors since the last Sync, joined. Local and
// blocking: each queued operation has its own deadline. If ctx ends first, the operations go on.
func (s *Stream) Sync(ctx context.Context) error { return s.engine().Sync(ctx) }

// Close ends the stream and returns the errors that no Sync has returned. Local, does not wait: [ErrBusy] while
// operations are queued, [ErrClosed] the second time.
func (s *Stream) Close() error { return s.engine().Close() }

func (s *Stream) engine() *engine.Stream { return (*inside.Stream)(s).Engine() }

func newStream(s *engine.Stream) *Stream { return (*Stream)(inside.NewStream(s)) }
