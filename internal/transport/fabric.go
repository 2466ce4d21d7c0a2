package transport

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Fabric is a host's member of a group of all hosts of a communicator whose network does collectives by itself. It does one at a
// time, in the same order on all hosts. Only its communicator's turn uses it.
type Fabric interface {
	// Name is what does it, for people.
	Name() string
	// Begin begins a collective. It does not block. The memory belongs to the fabric until Over reports true.
	Begin(ctx context.Context, c Offload)
	// Over reports whether it has ended, and its error. After an error the group can do nothing but Close, and until that has
	// returned the fabric may use the memory.
	Over() (bool, error)
	// Usable reports whether the fabric has registered this memory, of the registration cache's handle, or why not. It may block.
	Usable(handle any) error
	// Close ends the group. It blocks for some seconds at most; memory that a fabric may use longer is never used again.
	Close() error
}

// Offload is a collective that a fabric does. Data of several hosts are blocks, one of each host, in their order.
type Offload struct {
	Kind     OffloadKind
	Type     dtype.Type
	Op       cpu.Op
	Src, Dst OffloadMemory
	// Block is how many bytes a block has, and From and To the part of all blocks that this is about: of an all-reduce, in which
	// all have the same elements, 0 and Block. Memory for all blocks begins with From, and that for this host's own with the first
	// byte of it that counts. Step is how many bytes a call has.
	Block, From, To, Step int
}

// OffloadKind is what a fabric can do.
type OffloadKind int

// The kinds.
const (
	OffloadAllReduce OffloadKind = iota
	OffloadAllGather
	OffloadReduceScatter
)

// OffloadMemory is memory that the fabric has registered: of a registration cache's handle, or, if that is nil, of the group's
// own.
type OffloadMemory struct {
	At     unsafe.Pointer
	Handle any
}
