package gpuend

import (
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// StepKind is the kind of a step.
type StepKind uint8

// The kinds of steps.
const (
	StepPut StepKind = 1 + iota
	StepGet
	StepSignal
	StepRelaxedSignal
	StepWait
	StepPutPackets
	StepGetPackets
	StepFlush
)

var stepNames = [...]string{StepPut: "put", StepGet: "get", StepSignal: "signal", StepRelaxedSignal: "signal",
	StepWait: "wait", StepPutPackets: "put_packets", StepGetPackets: "get_packets", StepFlush: "flush"}

// String returns the operation's name in errors.
func (k StepKind) String() string { return stepNames[k] }

// Step is one operation of an end. Dst and Src are offsets in the memory of the rank that has them.
type Step struct {
	Kind     StepKind
	Dst, Src int
	N        int // bytes of data
	Width    int // bytes of a packet
}

// packed returns how many bytes the packets take.
func (s *Step) packed() int {
	half := s.Width / 2
	return (s.N + half - 1) / half * s.Width
}

// channelBlocks is the number of blocks that move 1 MiB. It is also the limit for packets, and for a kernel that is
// launched early: two of these fit on a device together, beside the kernels of the other side.
const channelBlocks = 64

// Bytes that one block moves at a time.
const (
	copyBlock   = 1 << 20 / channelBlocks // by copies
	packetBlock = 4 << 10                 // into packets
)

// span is a range of bytes in one of the two memories.
type span struct{ at, n int }

func (a span) meets(b span) bool { return a.at < b.at+b.n && b.at < a.at+a.n }

// touch is the memory that a step reads and writes: this rank's (0) and the peer's (1).
type touch struct{ reads, writes [2]span }

func (t *touch) meets(u *touch) bool {
	for i := range t.reads {
		if t.writes[i].meets(u.reads[i]) || t.writes[i].meets(u.writes[i]) || t.reads[i].meets(u.writes[i]) {
			return true
		}
	}
	return false
}

func sideOf(steps []Step) int {
	side := -1
	for i := range steps {
		mine := kernels.SideOut
		if k := steps[i].Kind; k == StepWait || k == StepGetPackets {
			mine = kernels.SideIn
		}
		if side >= 0 && side != mine {
			mine = kernels.SideBoth
		}
		side = mine
	}
	return side
}

var stepCodes = [...]uint64{StepPut: kernels.StepCopy, StepGet: kernels.StepCopy, StepSignal: kernels.StepSignal,
	StepRelaxedSignal: kernels.StepRelaxedSignal, StepWait: kernels.StepWait, StepPutPackets: kernels.StepPutPackets,
	StepGetPackets: kernels.StepGetPackets}

// blocks returns how many blocks, of at most that many, do s best.
func (s *Step) blocks(most int) int {
	block := copyBlock
	if s.Width > 0 {
		block, most = packetBlock, min(most, channelBlocks)
	}
	return max(1, min((s.N+block-1)/block, most))
}

// kernel queues one kernel, of at most `most` blocks.
func (e *End) kernel(on *gpu.Stream, cu *cuda.Stream, steps []Step, side uint32, most int, early bool) error {
	p := &e.params
	p.Timeout, p.Side, p.Steps, p.Spread = e.d.Params.Timeout, side, 0, 0
	blocks, threads := 1, warp
	for i := range steps {
		s := &steps[i]
		if s.Kind == StepFlush {
			continue // the next kernel begins only when this one is done
		}
		x := kernels.Step{What: stepCodes[s.Kind]}
		if s.Kind != StepWait && s.Kind != StepSignal && s.Kind != StepRelaxedSignal {
			dst, src := e.addresses(s)
			x = kernels.Step{What: x.What | uint64(s.Width)<<32, Dst: uint64(dst), Src: uint64(src), Bytes: uint64(s.N)}
			each := 16
			if s.Width > 0 {
				each = s.Width / 2
			}
			blocks = max(blocks, s.blocks(most))
			threads = max(threads, min((s.N+each-1)/each, kernels.MaxThreads))
			p.Spread = p.Steps + 1
		}
		p.Step[p.Steps] = x
		p.Steps++
	}
	if p.Steps == 0 {
		return nil
	}
	// Use few threads for few bytes, because all threads do all steps.
	l := cuda.Launch{Grid: min(blocks, e.d.Multiprocessors),
		Block: min((threads+warp-1)/warp*warp, e.d.Threads, e.f.MaxThreads)}
	l.Early = on.Follows(int32(l.Grid), e.d.Blocks) && early && l.Grid <= channelBlocks
	return e.f.Launch(cu, l, kernels.Bytes(p))
}

// warp is the number of threads that a device runs together.
const warp = 32
