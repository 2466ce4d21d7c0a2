package team

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Work describes one collective and how it runs: at once, queued on a stream, or recorded and replayed. It is a plain
// value, so that a blocking call allocates nothing.
type Work struct {
	Kind  OpKind
	Type  dtype.Type
	Red   Reduction
	Root  int
	Count int
	Src   Vec
	Dst   Vec

	Factor  float64 // multiplies each source element first; 0 = 1
	Divisor int     // divides the sum of an average; 0: the number of ranks
	// Other is the operation of a group or graph that runs instead of a collective, or nil.
	Other Operation

	SendCounts []int // for operations with vectors of counts, in elements; the caller's until they end
	RecvCounts []int

	// Err says that this rank's own arguments are bad. The rank then publishes a refusal, so that all ranks return an
	// error.
	Err error
	// Ends says that this refused Work stands for a whole group.
	Ends bool
	// Grouped says that the next work was called in the same group.
	Grouped bool
	// Graph says that the work belongs to a graph, whose buffers are found among those that graphs hold.
	Graph bool
	// Of is the operation on device memory that the work is a part of; nil: it is none.
	Of *Work
	// Path is how the data travels on the host.
	Path *Path
	// Kernel is how the data travels on a device.
	Kernel Kernel
	// Algorithm is what Path.Run chose, if it is more specific than Path.Name.
	Algorithm string
	// Inner has the algorithms of the parts that ran within the team: before the exchange with other hosts, and after.
	Inner [2]string
	// Phased is how many parts the operation has if these run on devices.
	Phased int
	// Lanes is how many ranks of each host exchange data with other hosts.
	Lanes int
	// NotCollNet says that the CollNet plugin does not do this operation on this type.
	NotCollNet bool

	// Eager is what travels in this rank's eager slot.
	Eager EagerPart

	SrcBuf, DstBuf Buf

	held [2]*mem.Allocation // memory that cannot be freed until the operation ends
}

// HalfAverage reports whether w is an average of a half type, whose partial sums are carried as fractions: see
// cpu.Fraction.
func (w *Work) HalfAverage() bool {
	return w.Red == Avg && (w.Type == dtype.Float16 || w.Type == dtype.BFloat16)
}

// EagerPart is what of a call travels in its rank's eager slot.
type EagerPart struct {
	// Bytes is how many bytes Path.Offer will write to the slot.
	Bytes int
	// At is where in the slot the source lies if Fused is set: if the call travels with others.
	At    int
	Fused bool
}

// Carriers is how many kernels carry the data of an operation between hosts on a device, at most.
func (w *Work) Carriers() int {
	if w.Phased == 0 {
		return 1
	}
	return 3*w.Phased + 3 // and of what no slice has
}

// Changes reports whether the reduction changes the data of a single rank: it multiplies, or turns bools into 0 or 1.
func (w *Work) Changes() bool { return w.Red == PreMulSum || w.Type == dtype.Bool && w.Red.Valid() }

// Operation is an operation of another package, messages, for recorders.
type Operation interface {
	// Len is the number of calls, and Vec is the memory of call i.
	Len() int
	Vec(i int) *Vec
	// Clone is a copy, with calls of its own.
	Clone() Operation
	// OnHost reports whether it uses host memory.
	OnHost() bool
	// SelfBlocked returns why the operation, if it ran alone, would wait for this rank itself and so forever: a large send
	// to oneself, whose receive is in no group with it. Otherwise it returns nil.
	SelfBlocked() error
	// Place takes the operation's place among others, on a host stream, before Run.
	Place() error
	// Run runs it, or queues it on its device stream. turn: the caller has the communicator's turn.
	Run(ctx context.Context, turn bool) error
}

// Hold keeps the memory of the buffers, as far as its allocation is known, from being freed while the operation runs.
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

// Release undoes Hold, and releases the registrations.
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

// Drop is Release before the work runs.
func (w *Work) Drop() {
	w.Release()
	w.held = [2]*mem.Allocation{}
}

// Unfuse makes w as it was before it ran together with other calls of its group.
func (w *Work) Unfuse() { w.held, w.Eager.Fused = [2]*mem.Allocation{}, false }

// AcquireBuffers calls find for the source and the destination. In place, where both are the same memory, it calls find
// only once, so that both are direct or neither is: if a registration ended between two calls, the peers would think
// that this rank is not in place. Peers never read a source that is multiplied first, so that is never in place.
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

// Counts fills in how many elements this rank sends to each rank and expects from each, for an operation with vectors
// of counts. All ranks compare all pairs. The vectors are the caller's, who may have changed them since the call if
// this is a graph's launch. So only the values filled in, which were checked, are used later. After an error all are 0.
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

// fillCounts copies counts; the parts that they describe must lie within v.
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

// Signature is the word that all ranks must agree on.
func (w *Work) Signature() uint64 {
	if w.Of != nil {
		return Signature(w.Kind, w.Type, w.Red, w.Root, w.Of.Count) | OnDevice
	}
	return Signature(w.Kind, w.Type, w.Red, w.Root, w.Count)
}

// Path is one way of moving the data of operations. All ranks choose the same path, before they have heard of each
// other.
type Path struct {
	Name string
	// Acquire finds or makes the registrations of the buffers. An error refuses the operation, as Work.Err does.
	// Without Acquire, no peer accesses the buffers.
	Acquire func(*Team, *Work) error
	// Offer writes the data that travels with the descriptor, to the payload or the eager slot. It cannot fail.
	Offer func(*Team, *Work)
	// Quick says that operations are so quick that the flight recorder must cost them next to nothing. They are of communicators
	// of one host, no parts of others, and wait for nobody once all agree.
	Quick bool
	// Carries returns how many bytes Offer writes. Operations with it can travel together.
	Carries func(*Team, *Work) int
	// Combine combines what the ranks of a group have offered. It runs on the group's leader before the leader
	// publishes that the group agrees; after agreement all ranks see its result in Partial. Needs groups; it cannot
	// fail.
	Combine func(*Team, *Work)
	// Contribute runs on the first rank of a team that has agreed. It writes to b what the other hosts need from the
	// team, up to Hosts.Contribution bytes, and returns how many. It cannot fail.
	Contribute func(t *Team, w *Work, b []byte) int
	// Folds says that contributions are to be combined by the work's reduction, element by element. Where hosts agree in
	// pairs, that is done as they come; the result is then where Conclude would put it, at Outcome, or in the destination
	// of a team of one rank, and Conclude is not called.
	Folds bool
	// Folded, if it is not nil, is called with what has come of folding instead, on the first rank of each host.
	Folded func(t *Team, w *Work, data []byte)
	// Route is for data that are routed instead of contributed, on the first rank of each host. Conclude is not called then.
	Route func(t *Team, w *Work) Router
	// Stages reports, on the first rank of a team that has agreed, whether some of its buffers go through staging memory.
	Stages func(t *Team, w *Work) bool
	// Lay is for operations with vectors of counts between hosts: each rank of a team that has agreed leaves its own for the
	// team. Exchange then moves counts, on the first rank of each host, and its Blocks are Counting. Once the hosts have agreed on the
	// operation they agree again, on what has come of that: see Hosts.Compare.
	Lay func(t *Team, w *Work)
	// Exchange is what this rank exchanges with the owners of its lane on other hosts. Its team has agreed. Other hosts
	// may send from then on, while the hosts agree. If they do not, no rank's call returns before all ranks of its team
	// are done with the exchange's memory. An error breaks the communicator. With the zero Exchange, Run exchanges.
	Exchange func(t *Team, w *Work) (Exchange, error)
	// Conclude runs on the first rank of each host. It turns the contributions of all hosts into what Run uses. An
	// error means that some host has sent something wrong, and breaks the communicator.
	Conclude func(t *Team, w *Work, all func(host int) []byte) error
	// Check checks what the ranks have offered, after their signatures agreed. Its result must be the same on all
	// ranks; an error, about a rank of the communicator or -1, leaves the communicator usable.
	Check func(*Team, *Work) (about int, err error)
	// Run moves the data, after all ranks have agreed. An error breaks the communicator.
	Run func(context.Context, *Team, *Work) error
	// Drive runs the operation as others, its parts, by Team.RunPart, and Divide divides it. The path has nothing else but a
	// name.
	Drive  func(context.Context, *Team, *Work) error
	Divide func(*Team, *Work) Division
	// Ended is called when the operation has failed.
	Ended func(error)
}

// Buf says how one buffer of a Work takes part in it.
type Buf struct {
	Claim *register.Claim // held until the operation ends, if direct
	At    mem.Location    // where peers find it, if direct
	Why   string          // why it is staged, if not direct

	// WasDirect says that the buffer was used in place, by its own rank alone: between hosts that have one rank each.
	WasDirect bool
	// NotImported says that the buffer is staged only because a peer has not imported its memory yet, or cannot.
	NotImported bool
	// Shared says that Claim is also the other buffer's, which releases it: both are the same memory.
	Shared bool
}

// Direct reports whether peers read and write the user's memory in place.
func (b *Buf) Direct() bool { return b.Claim != nil }

func (b *Buf) word() BufWord {
	if b.Claim == nil {
		return BufWord{}
	}
	return WordOf(b.At)
}

// Kernel says how an operation runs on a device; all ranks choose the same. The zero Kernel means none.
type Kernel struct {
	Name         string // of package kernels
	Algorithm    string // for LastOp
	Blocks       int
	Lines        int  // for kernels that go by lines: the most bytes that a rank sends another in one step; else 0
	Push         bool // reductions: always through the receivers' staging memory
	DirectAccess bool // peers may access the buffers in place, if they are registered
	Counts       bool // it takes Work.Counts
	Multicast    bool // it uses the communicator's multicast object
}

// CountsBlocks is Kernel.Blocks of an operation with counts where no rank knows the total.
const CountsBlocks = 64
