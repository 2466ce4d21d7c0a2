package team

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/register"
)

// CollNet is what all ranks of a communicator know of the plugin that does collectives for its hosts. The zero CollNet does nothing.
type CollNet struct {
	Step    int       // bytes of a call, at most; 0: it does nothing
	Speed   int       // Mbit/s
	Reduces [16]uint8 // by element type, a bit of 1 << cpu.Op for each
}

// Does reports whether the plugin can do an operation.
func (c *CollNet) Does(w *Work) bool {
	switch w.Kind {
	case KindAllGather:
		return c.Step > 0
	case KindAllReduce, KindReduceScatter:
		return c.Step > 0 && c.Reduces[w.Type]>>w.Red.Op()&1 != 0
	}
	return false
}

// Offload is a collective that the plugin does, on the leaders. Data of several hosts are blocks, one of each host, in their order.
type Offload struct {
	Kind OpKind
	Type dtype.Type
	Red  Reduction
	// Src and Dst are in the group's window, unless they have claims. Those for all blocks begin with byte From, those for this
	// host's own with the first byte of it that counts.
	Src, Dst           unsafe.Pointer
	SrcClaim, DstClaim *register.Claim
	// Block is how many bytes a block has, and From and To the part of all blocks that this is about: of an all-reduce 0 and Block.
	Block, From, To int
}

// WindowBytes is the length of a group's window, memory of the leader.
const WindowBytes = 4 * WindowPart

// WindowPart is how much of it a call sends, or receives, at most.
const WindowPart = StagingBytes / 2

// Fabric is how paths use a CollNet plugin.
type Fabric interface {
	// Window is where this rank finds the window.
	Window() unsafe.Pointer
	// Has reports whether the plugin has registered the memory of a claim, or why not. Leaders only.
	Has(c *register.Claim) error
	// Begin begins a collective, and Finish waits for it. Leaders only; an error of Finish breaks the communicator.
	Begin(ctx context.Context, o *Offload)
	Finish(ctx context.Context) error
}
