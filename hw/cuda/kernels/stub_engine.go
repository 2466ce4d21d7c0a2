// Package kernels is a stub until the real one is merged.
package kernels

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

const MaxRanks, MaxBlocks, MaxExtents, PacketData = 8, 256, 1024, 1 << 20
const OneShot, Packets, TwoShot, Move, MovePackets, Barrier = "oneshot", "packets", "twoshot", "move", "move_packets", "barrier"
const OK, Mismatch, Refused, Timeout, Aborted, NoExtent = 0, 1, 2, 3, 4, 5

type Params struct {
	Area, Table                                                                            [MaxRanks]uint64
	Status, Src, Dst, SrcWord, DstWord, Signature, Count, Timeout                          uint64
	Factor                                                                                 float64
	Rank, Ranks, Op, Root, Size, Push                                                      uint32
}

func (p *Params) Bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

type Status struct {
	Abort, Error         atomic.Uint32
	Peer, Epoch          uint32
	Mine, Theirs, Detail uint64
}

func AreaBytes(ranks int) int { return 1 << 20 }
func Word(extent uint32, offset int) uint64 { return 1<<63 | uint64(extent)<<48 | uint64(offset) }

type Set struct{}

func New(ctx *cuda.Context) *Set { return &Set{} }
func (s *Set) Kernel(name string, t dtype.Type) (*cuda.Function, error) { return nil, errors.New("stub") }
func (s *Set) Close() error { return nil }
