// Package kernels is a stub until the real one is merged.
package kernels

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

const MaxRanks, MaxBlocks, MaxExtents, PacketData = 8, 256, 1024, 1 << 20
const OneShot, Packets, TwoShot, Move, MovePackets, Barrier = "oneshot", "packets", "twoshot", "move", "move_packets", "barrier"
const OK, Mismatch, Refused, Timeout, Aborted, NoExtent = 0, 1, 2, 3, 4, 5

type Params struct {
	Area, Table                                                   [MaxRanks]uint64
	Status, Src, Dst, SrcWord, DstWord, Signature, Count, Timeout uint64
	Factor                                                        float64
	Rank, Ranks, Op, Root, Size, Push                             uint32
}

func (p *Params) Bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

type Status struct {
	Abort, Error         atomic.Uint32
	Peer, Epoch          uint32
	Mine, Theirs, Detail uint64
}

func AreaBytes(ranks int) int               { return 1<<20 + 4*ranks*(2<<20) + 32<<20 }
func Word(extent uint32, offset int) uint64 { return 1<<63 | uint64(extent)<<48 | uint64(offset) }

type Set struct {
	ctx *cuda.Context
	mu  sync.Mutex
	m   *cuda.Module
	f   map[string]*cuda.Function
}

func New(ctx *cuda.Context) *Set { return &Set{ctx: ctx, f: map[string]*cuda.Function{}} }
func (s *Set) Kernel(name string, t dtype.Type) (*cuda.Function, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		text := ".version 8.1\n.target sm_80\n"
		for _, n := range []string{"move", "move_packets", "barrier"} {
			text += ".visible .entry ubc_" + n + "(\n)\n"
		}
		for x := dtype.Int8; x <= dtype.Float64; x++ {
			for _, n := range []string{"oneshot", "packets", "twoshot"} {
				text += ".visible .entry ubc_" + n + "_" + x.String() + "(\n)\n"
			}
		}
		m, err := s.ctx.LoadModule(text)
		if err != nil {
			return nil, err
		}
		s.m = m
	}
	full := "ubc_" + name
	if name == OneShot || name == Packets || name == TwoShot {
		full += "_" + t.String()
	}
	if f := s.f[full]; f != nil {
		return f, nil
	}
	f, err := s.m.Function(full)
	if err == nil {
		s.f[full] = f
	}
	return f, err
}
func (s *Set) Close() error {
	if s.m != nil {
		return s.m.Close()
	}
	return nil
}
