package team

import (
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
)

// OpKind is a collective operation.
type OpKind uint8

// The collective operations. A rank whose own arguments are bad publishes KindRefused.
const (
	KindRefused OpKind = iota
	KindAllReduce
	KindBarrier
	KindReduceScatter
	KindReduce
	KindAllGather
	KindBroadcast
	KindGather
	KindScatter
	KindAllToAll
	KindAllGatherV
	KindGatherV
	KindScatterV
	KindAllToAllV
	KindSplit
	KindDup
	KindWindow
	KindCapture
	KindSend // messages have no signature: for OpInfo
	KindRecv
	KindMessages // several messages, of a group or a graph
	KindOpen     // a part of Open that is an operation of the new communicator
	numKinds

	// KindGroup is several all-reduces of a group that one kernel of a device runs; its signature is GroupSignature's.
	KindGroup OpKind = 31
)

var kindNames = [numKinds]string{"refused", "all_reduce", "barrier", "reduce_scatter", "reduce", "all_gather",
	"broadcast", "gather", "scatter", "all_to_all", "all_gather_v", "gather_v", "scatter_v", "all_to_all_v", "split", "dup",
	"register_window", "capture", "send", "recv", "messages", "open"}

// String is the operation's name: "all_reduce".
func (o OpKind) String() string {
	if o == KindGroup {
		return "group"
	}
	if o >= numKinds {
		return fmt.Sprintf("operation(%d)", uint8(o))
	}
	return kindNames[o]
}

// Reduction is how elements are combined.
type Reduction uint8

// The reductions; noReduction is for operations that only move data.
const (
	noReduction Reduction = iota
	Sum
	Prod
	Min
	Max
	Avg
	PreMulSum
	numReductions

	// Replace is an accumulate's only: the new value is the source. Collectives take it for no valid reduction.
	Replace = numReductions
)

var reductionNames = [...]string{"none", "sum", "prod", "min", "max", "avg", "premulsum", "replace"}

var cpuOps = [numReductions]cpu.Op{Sum: cpu.Sum, Prod: cpu.Prod, Min: cpu.Min, Max: cpu.Max, Avg: cpu.Sum, PreMulSum: cpu.Sum}

// Op is the CPU's operation, without the scaling before and after it.
func (r Reduction) Op() cpu.Op { return cpuOps[r] }

// String is the reduction's name: "sum".
func (r Reduction) String() string {
	if int(r) >= len(reductionNames) {
		return fmt.Sprintf("reduction(%d)", uint8(r))
	}
	return reductionNames[r]
}

// Valid reports whether r is a reduction.
func (r Reduction) Valid() bool { return r > noReduction && r < numReductions }

// Op is a reduction with its factor.
type Op struct {
	Red    Reduction
	Factor float64 // PreMulSum only
}

// MaxCount is the largest number of elements of one call.
const MaxCount = 1<<39 - 1

// OnDevice in a signature says that the memory is on a device, of a call whose data go between hosts through the host.
const (
	OnDevice      = 1 << onDeviceShift
	onDeviceShift = 39
)

// Signature packs what all ranks must agree on into one word, so that agreement is one comparison:
// kind 5 bits, type 4, reduction 3, root 12, OnDevice 1, count 39.
func Signature(k OpKind, t dtype.Type, r Reduction, root, count int) uint64 {
	return uint64(k)<<59 | uint64(t)<<55 | uint64(r)<<52 | uint64(root&maxRoot)<<rootShift | uint64(count)
}

const (
	rootShift = 40
	maxRoot   = 1<<12 - 1
)

// GroupSignature packs what all ranks must agree on for works, up to 16 all-reduces of one type that one kernel runs:
// kind 5 bits, type 4, their number less one 4, a hash of the signatures 27, the sum of their counts 24.
func GroupSignature(works []Work) uint64 {
	hash, count := uint64(0), 0
	for i := range works {
		hash = (hash ^ works[i].Signature()) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
		count += works[i].Count
	}
	return uint64(KindGroup)<<59 | uint64(works[0].Type)<<55 | uint64(len(works)-1)<<beyondShift |
		hash>>37<<24 | uint64(count)&(1<<24-1)
}

const beyondShift = 51

// RefusalSignature is what a rank publishes in place of that many operations, or of AllGrouped, with a code of
// reason.Code.
func RefusalSignature(operations, code int) uint64 {
	return Signature(KindRefused, 0, 0, operations-1, code)
}

// AllGrouped stands for as many operations as the peers have put into their kernel.
const AllGrouped = maxRoot + 1

// Operations is how many operations a signature stands for.
func Operations(sig uint64) int {
	switch OpKind(sig >> 59) {
	case KindGroup:
		return int(sig>>beyondShift&15) + 1
	case KindRefused:
		return rootOf(sig) + 1
	}
	return 1
}

// Meet reports whether kernels of these signatures have the same number of operations. If not, the kernels behind them
// would not meet.
func Meet(mine, theirs uint64) bool {
	m, t := Operations(mine), Operations(theirs)
	return m == t || m == AllGrouped || t == AllGrouped
}

func rootOf(sig uint64) int { return int(sig >> rootShift & maxRoot) }

// hasData reports whether users call the operation with data.
func (o OpKind) hasData() bool { return o >= KindAllReduce && o <= KindAllToAllV && o != KindBarrier }

// rooted reports whether users call the operation with a root.
func (o OpKind) rooted() bool {
	switch o {
	case KindReduce, KindBroadcast, KindGather, KindScatter, KindGatherV, KindScatterV:
		return true
	}
	return false
}

// Describe describes a signature for people.
func Describe(sig uint64) string { return CallOf(sig).String() }
