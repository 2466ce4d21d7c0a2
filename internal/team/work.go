package team

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Work is one collective, with how it is to go: it is run, queued on a stream, or recorded and replayed. It is a plain
// value, so that a blocking call allocates nothing.
type Work struct {
	Kind  OpKind
	Type  dtype.Type
	Red   Reduction
	Root  int
	Count int
	Src   Vec
	Dst   Vec

	Factor float64 // what each source element is multiplied by first; 0 = 1
	// Other is what is done instead of a collective, for groups and graphs; or nil.
	Other Operation

	SendCounts []int // of the operations with vectors of counts, in elements; the caller's until they end
	RecvCounts []int

	// Err says that this rank's own arguments are bad. The rank publishes "refused", so that all ranks return it.
	Err error
	// Ends says that, refused, it is all of a group.
	Ends bool
	// Together says that the next work was called in the same group.
	Together bool
	// Graph says that the work is a graph's, whose buffers are found among those that graphs hold.
	Graph bool
	// Path is how the data travels on the host.
	Path *Path
	// Kernel is how it travels on a device.
	Kernel Kernel
	// Algorithm is what Path.Run chose to do, if that is more than Path.Name.
	Algorithm string

	// EagerBytes is how much Path.Offer will write to the eager slot.
	EagerBytes int

	SrcBuf, DstBuf Buf

	held [2]*mem.Allocation // what cannot be freed until the operation ends
}

// Changes reports whether the reduction changes what one rank alone has: it multiplies, or makes bools 0 or 1.
func (w *Work) Changes() bool { return w.Red == PreMulSum || w.Type == dtype.Bool && w.Red.Valid() }

// Operation is something of another room than the collectives', for who records: messages.
type Operation interface {
	// Len is the number of calls, and Vec the memory of one.
	Len() int
	Vec(i int) *Vec
	// Clone is a copy, with calls of its own.
	Clone() Operation
	// OnHost reports whether it is of memory of the host.
	OnHost() bool
	// Alone is why it would wait for ever if nothing goes on beside it, or nil.
	Alone() error
	// Place takes its place among others, on a stream of the host, before Run.
	Place() error
	// Run does it, or queues it on its stream of a device; it is the communicator's turn.
	Run(ctx context.Context) error
}

// Hold keeps the memory of the buffers, as far as it is known whose it is, from being freed while the operation runs.
func (w *Work) Hold() error {
	for i, v := range [2]*Vec{&w.Src, &w.Dst} {
		if v.Alloc == nil || i == 1 && v.Alloc == w.held[0] {
			continue
		}
		if !v.Alloc.Hold() {
			return fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
		}
		w.held[i] = v.Alloc
	}
	return nil
}

// Release undoes Hold, and gives back the registrations.
func (w *Work) Release() {
	if w.SrcBuf.Claim != nil {
		w.SrcBuf.Claim.Release()
	}
	if w.DstBuf.Claim != nil && !w.DstBuf.Shared {
		w.DstBuf.Claim.Release()
	}
	for _, a := range w.held {
		if a != nil {
			a.Release()
		}
	}
}

// AcquireBuffers has find do that for the source and for the destination. In place, which is the same memory for both,
// it is one search, so that both are direct or neither: had a registration gone in between, the peers would take this
// rank to be out of place. A source that is multiplied first is nobody's to read, and so never in place.
func (w *Work) AcquireBuffers(find func(*Vec, *Buf) error) error {
	multiplied := w.Red == PreMulSum
	if multiplied && w.Src.Len > 0 {
		w.SrcBuf.Why = "it is multiplied first"
	} else if err := find(&w.Src, &w.SrcBuf); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if w.Dst.Ptr == w.Src.Ptr && w.Dst.Len == w.Src.Len && !multiplied {
		w.DstBuf = w.SrcBuf
		w.DstBuf.Shared = true
		return nil
	}
	if err := find(&w.Dst, &w.DstBuf); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

// Counts fills what this rank sends to each rank, and what it expects from each, in elements, of an operation with
// vectors of counts. All ranks compare all pairs. The vectors are the caller's, who may have changed them since the
// call if this is a graph's launch: what is filled is what was checked, and nothing else is looked at later. After an
// error all is 0.
func (w *Work) Counts(rank int, send, recv []uint64) (err error) {
	clear(send)
	clear(recv)
	switch w.Kind {
	case KindAllGatherV:
		for r := range send {
			send[r] = uint64(w.Src.Len)
		}
		err = fillCounts(recv, w.RecvCounts, "counts", &w.Dst)
	case KindGatherV:
		if rank == w.Root {
			err = fillCounts(recv, w.RecvCounts, "counts", &w.Dst)
		}
		send[w.Root] = uint64(w.Src.Len)
	case KindScatterV:
		if rank == w.Root {
			err = fillCounts(send, w.SendCounts, "counts", &w.Src)
		}
		recv[w.Root] = uint64(w.Dst.Len)
	case KindAllToAllV:
		if err = fillCounts(send, w.SendCounts, "sendCounts", &w.Src); err == nil {
			err = fillCounts(recv, w.RecvCounts, "recvCounts", &w.Dst)
		}
	}
	if err != nil {
		clear(send)
		clear(recv)
	}
	return err
}

// fillCounts copies counts, whose parts must all lie within v.
func fillCounts(to []uint64, counts []int, name string, v *Vec) error {
	total := 0
	for r := range to {
		n := counts[r]
		if n < 0 || n > MaxCount {
			return fmt.Errorf("%s[%d] is %d: %w", name, r, n, fault.ErrArgument)
		}
		to[r] = uint64(n)
		total += n
	}
	if total > v.Len {
		return fmt.Errorf("%s are %d elements in all, and the buffer has %d: %w", name, total, v.Len, fault.ErrArgument)
	}
	return nil
}

// Signature is what all ranks must agree on.
func (w *Work) Signature() uint64 { return Signature(w.Kind, w.Type, w.Red, w.Root, w.Count) }

// Path is one way of moving the data of operations. All ranks choose the same, before they have heard of each other.
type Path struct {
	Name string
	// Acquire finds or makes the registrations of the buffers. Its error refuses, as Work.Err does. Without it the
	// buffers are this rank's alone.
	Acquire func(*Team, *Work) error
	// Offer writes what travels with the descriptor: the payload, or the eager slot. It cannot fail.
	Offer func(*Team, *Work)
	// Combine works on what the ranks of a group have offered, on the group's leader and before the group is said to
	// agree: everybody sees what it left in Partial after agreement. Needs groups; it cannot fail.
	Combine func(*Team, *Work)
	// Contribute leaves in b what the other hosts need of a team that has agreed, on its first rank, and returns how many
	// bytes that is. It cannot fail.
	Contribute func(t *Team, w *Work, b []byte) int
	// Conclude makes of what all hosts have left, on the first rank of each, what Run takes. Its error, which no host has
	// that sends what it should, breaks the communicator.
	Conclude func(t *Team, w *Work, all func(host int) []byte) error
	// Check looks at what the ranks have offered, after their signatures agreed. Its verdict must be the same on all
	// ranks; an error, about one of the communicator's ranks or -1, leaves the communicator usable.
	Check func(*Team, *Work) (about int, err error)
	// Run moves the data, after all ranks have agreed. An error breaks the communicator.
	Run func(context.Context, *Team, *Work) error
	// Ended hears that the operation has failed.
	Ended func(error)
}

// Buf is how one buffer of a Work takes part in it.
type Buf struct {
	Claim *register.Claim // held until the operation ends, if direct
	At    mem.Location    // where peers find it, if direct
	Why   string          // why it is staged, if not direct

	Passed bool // it is direct, in a part of the operation that has ended
	Late   bool // it is staged because a peer has not imported it yet, or cannot
	Shared bool // Claim is the other buffer's
}

// Direct reports whether peers read and write the user's memory itself.
func (b *Buf) Direct() bool { return b.Claim != nil }

func (b *Buf) word() BufWord {
	if b.Claim == nil {
		return BufWord{}
	}
	return WordOf(b.At)
}

// Kernel is how an operation on a device goes; all ranks choose the same. The zero Kernel is none.
type Kernel struct {
	Name      string // of package kernels
	Algorithm string // for LastOp
	Blocks    int
	Lines     int  // of kernels that go by lines: how much a rank sends another in one step, at most; else 0
	Push      bool // reductions: always by way of the receivers' staging memory
	Words     bool // peers may reach the buffers themselves, if they are registered
	Counts    bool // it takes Work.Counts
}

// CountsBlocks is the Kernel.Blocks of an operation with counts of which no rank knows what they come to in all.
const CountsBlocks = 64
