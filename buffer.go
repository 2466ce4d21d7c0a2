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

// Buffer is memory off the Go heap that peers can reach: what RegisterBuffer wants. It is owned by whoever made it;
// nothing frees it but Free, or the close of the rank's last communicator. Its methods may be called from any
// goroutine. In a Buffer of bools, as Go reads them, every byte must be 0 or 1: reductions leave no others, but what
// peers send or put arrives as it is, and is for them to keep so.
type Buffer[T dtype.Elem] struct {
	c   *engine.Comm
	a   *mem.Allocation
	dev Device
	n   int
}

// Alloc makes a buffer of n elements on d, the host or this rank's device ([Comm.GPU]), zeroed and page-aligned, with
// all its pages present. Local and blocking: it costs system calls, and the memory of a whole arena now and then; on a
// device calls of the driver, and whole 2 MiB. Host memory of freed buffers is used again, and returned to the system
// when much of it is free, at the latest when the rank's last communicator closes; device memory is returned at once.
// [ErrLimit] says which limit was hit; [ErrArgument] is a negative n or another rank's device, [ErrClosed] a closed
// [Comm], [ErrNotSupported] a device where the rank has none.
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
// device. The caller vouches that it stays mapped and stays the same until Free, which leaves the memory itself alone.
// Host memory of others is staged: peers cannot reach it. Device memory can be that of cuMemAlloc or cudaMalloc, or of
// a pool or mapping that can be exported as POSIX file descriptor; peers reach it, and if its owner frees it all the
// same, registering it anew is [ErrStale]. The Go heap must not be adopted. Local. [ErrInUse] if the memory overlaps
// another buffer; [ErrNotSupported] for device memory that cannot be shared, which says what can; [ErrArgument] also
// for memory that is not d's; [ErrLimit], [ErrClosed] as in [Alloc].
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

// errNoBuffer is what is wrong with a nil or zero Buffer.
var errNoBuffer = engine.NilError("buffer", "Alloc and Adopt make one")

func (b *Buffer[T]) nothing() bool { return b == nil || b.a == nil }

// Vec views the buffer. That of a nil or zero Buffer is not valid.
func (b *Buffer[T]) Vec() (v Vec) {
	x := v.team() // as in Of
	x.Type = dtype.Of[T]()
	if b.nothing() {
		x.Err = errNoBuffer
		return v
	}
	x.Ptr, x.Len, x.Dev, x.Alloc = b.a.Ptr, b.n, b.dev, b.a
	return v
}

// Register registers the buffer with c, a communicator of the rank that it was made by: short for
// c.RegisterBuffer(b.Vec()), which says the rest. Local and blocking. [ErrArgument] if the buffer is nil, empty or
// another rank's, [ErrStale] after Free, [ErrLimit], [ErrClosed], or why c broke.
func (b *Buffer[T]) Register(c *Comm) (*Registration, error) { return c.RegisterBuffer(b.Vec()) }

// Slice is the buffer's memory; nil on a device, and after Free. The slice belongs to the buffer: using it after Free
// faults, until other buffers of 32 GiB, or 65,536 of them, have been freed as well (fewer under `ulimit -v`).
func (b *Buffer[T]) Slice() []T {
	if b.nothing() || !b.dev.IsHost() || !b.a.Live() {
		return nil
	}
	return unsafe.Slice((*T)(b.a.Ptr), b.n)
}

// CopyFrom copies src, which may overlap the buffer, to the buffer's start. Local and blocking; on a device it does not
// wait for what is queued on streams. [ErrArgument] if src is longer than the buffer, [ErrStale] after Free, ctx's
// error if it had ended; an error copies nothing.
func (b *Buffer[T]) CopyFrom(ctx context.Context, src []T) error {
	return b.copy(ctx, "copy_from", src, true)
}

// CopyTo fills dst, which may overlap the buffer, from the buffer's start. Local and blocking; on a device it does not
// wait for what is queued on streams. [ErrArgument] if dst is longer than the buffer, [ErrStale] after Free, ctx's
// error if it had ended; an error copies nothing.
func (b *Buffer[T]) CopyTo(ctx context.Context, dst []T) error {
	return b.copy(ctx, "copy_to", dst, false)
}

func (b *Buffer[T]) copy(ctx context.Context, op string, s []T, in bool) error {
	if b.nothing() {
		return errNoBuffer
	}
	ctx = engine.Context(ctx)
	mine := b.Slice()
	switch {
	case ctx.Err() != nil:
		return b.c.LocalError(op, reason.Ended(ctx))
	case !b.a.Live():
		return b.c.LocalError(op, fmt.Errorf("freed buffer: %w", ErrStale))
	case len(s) > b.n:
		return b.c.LocalError(op, fmt.Errorf("%d elements, and the buffer has %d: %w", len(s), b.n, ErrArgument))
	case !b.dev.IsHost():
		return b.c.Copy(op, b.a, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T)))),
			in)
	case in:
		move(mine, s)
	default:
		move(s, mine)
	}
	return nil
}

// move is copy, at which the runtime can stop: one of gigabytes would hold up the garbage collector.
func move[T dtype.Elem](dst, src []T) {
	cpu.Move(unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)),
		min(len(dst), len(src))*int(unsafe.Sizeof(*new(T))))
}

// Free ends the buffer. Local: it returns at once, and completes when operations in flight leave; on a device it waits
// for what is queued on this rank's streams, and for peers to give it up, for five seconds at most. [ErrInUse] while a
// registration of it is open, or a graph holds it, or, of adopted memory of the host, while an operation uses it,
// messages that are posted included; [ErrClosed] the second time. Any other error says what failed in the meantime: the
// buffer has been freed all the same. [ErrTimeout] is a peer that still has device memory mapped, or what is queued and
// has not ended, which is waited for without this call: leave what was adopted to its owner, but do not give it back to
// the driver. What fails after Free has returned is logged, and counted in [Stats.Failures].
func (b *Buffer[T]) Free() error {
	if b.nothing() {
		return errNoBuffer
	}
	return b.c.Free(b.a)
}

// Registration is a claim on memory, made by [Comm.RegisterBuffer].
type Registration registration

type registration = inside.Registration

// errNoRegistration is what is wrong with a nil or zero Registration.
var errNoRegistration = engine.NilError("registration", "Comm.RegisterBuffer makes one")

// Close ends the registration. Local: it waits for a peer that is in the middle of a put or get, which ends within a
// MiB of it; deregistration completes when operations in flight leave. [ErrTimeout] names a peer that has not come to
// the end of that in a second, which may still write to the memory: the registration is closed, and once the memory is
// freed nothing else will use it. On a device it waits as [Buffer.Free] does, for five seconds at most (ErrTimeout).
// [ErrClosed] the second time, and after the Close or Abort of the communicator.
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

// NewStream makes a stream on d, the host or a device of this process. Local. [ErrArgument] for what is no device,
// [ErrNotSupported] without CUDA.
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

// StreamFrom makes a [Stream] of a CUDA stream of d's primary context that somebody else has made, by its CUstream
// (cudaStream_t; 0 is the default stream): what is queued comes after what they have queued, and they may capture it,
// with what it uses registered until the communicator closes. The stream stays theirs, and lives until Close. Local.
// [ErrArgument] for the host, or a stream of another device; [ErrNotSupported] without CUDA.
func StreamFrom(d Device, cuStream uintptr) (*Stream, error) {
	s, err := gpu.StreamFrom(d, cuStream)
	if err != nil {
		return nil, err
	}
	return newStream(s), nil
}

// Sync waits until everything that was queued has run, and returns the errors since the last Sync, joined. Local and
// blocking: each operation that is waited for has its own deadline. If ctx ends first, the operations go on.
func (s *Stream) Sync(ctx context.Context) error { return s.engine().Sync(ctx) }

// Close ends the stream and returns the errors that no Sync has returned. Local, waits for nothing: [ErrBusy] while
// operations are queued, [ErrClosed] the second time.
func (s *Stream) Close() error { return s.engine().Close() }

func (s *Stream) engine() *engine.Stream { return (*inside.Stream)(s).Engine() }

func newStream(s *engine.Stream) *Stream { return (*Stream)(inside.NewStream(s)) }
