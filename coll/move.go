package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// move is an operation that only moves data, above eager size: each rank of the team gets its parts of the others'
// sources. In operations with vectors, a small source is in its rank's eager slot.
type move struct {
	call
	stage  bool // this rank's source goes through staging memory
	parts  int  // 1: all ranks read the same part of a source; n: each reads its own
	window int  // bytes of a part in one round
}

// movesDone is the last step of progress, larger than the step of any round.
const movesDone = 1 << 31

func runMove(ctx context.Context, t *team.Team, w *team.Work) error {
	m := move{call: newCall(ctx, t, w), parts: 1}
	m.stage = !w.SrcBuf.Direct() && !m.carried(m.me)
	switch w.Kind {
	case team.KindScatter, team.KindAllToAll, team.KindScatterV, team.KindAllToAllV:
		m.parts = m.n
	}
	m.window = stagingHalf / m.parts &^ 63
	switch m.algorithm() {
	case byPush:
		return m.push()
	case byShare:
		return m.share()
	}
	return m.pull()
}

// part is what rank d fetches from rank s: n bytes, from byte src of s's source, to byte dst of d's destination.
func (m *move) part(s, d int) (src, dst, n int) {
	w := m.w
	bytes := w.Count * m.size
	toRoot, fromRoot := d == w.Root, s == w.Root
	switch w.Kind {
	case team.KindAllGather:
		return 0, s * bytes, bytes
	case team.KindBroadcast:
		if fromRoot && !toRoot {
			return 0, 0, bytes
		}
	case team.KindGather:
		if toRoot {
			return 0, s * bytes, bytes
		}
	case team.KindScatter:
		if fromRoot {
			return d * bytes, 0, bytes
		}
	case team.KindAllToAll:
		return d * bytes, s * bytes, bytes
	default:
		return m.partOfRows(s, d)
	}
	return 0, 0, 0
}

func (m *move) partOfRows(s, d int) (src, dst, n int) {
	send, _ := rows(m.t, s)
	_, recv := rows(m.t, d)
	if m.parts > 1 {
		for _, k := range send[:d] {
			src += int(k)
		}
	}
	if m.w.Kind != team.KindScatterV {
		for _, k := range recv[:s] {
			dst += int(k)
		}
	}
	return src * m.size, dst * m.size, int(send[d]) * m.size
}

// carried reports whether a rank's source came with its descriptor.
func (m *move) carried(rank int) bool { return isVector(m.w.Kind) && *carried(m.t, rank) != 0 }

// take fetches this rank's part of rank s's source, unless it comes in rounds.
func (m *move) take(s int) error {
	src, dst, n := m.part(s, m.me)
	if n == 0 {
		return nil
	}
	from, err := m.source(s, src, n)
	if err != nil {
		return err
	}
	to := unsafe.Add(m.w.Dst.Ptr, dst)
	if from != nil && from != to {
		cpu.Copy(to, from, n, streams(m.t, m.w.Dst.Bytes()))
	}
	return nil
}

// source is the address of n bytes of a rank's source, from byte off on, or nil if they come in rounds.
func (m *move) source(rank, off, n int) (unsafe.Pointer, error) {
	if rank == m.me || !m.carried(rank) {
		return m.t.Source(rank, off, n)
	}
	at := carriedAt(m.t)
	if room := team.EagerBytes - at; off > room || n > room-off {
		return nil, fmt.Errorf("rank %d sends %d bytes beyond its eager slot: %w", rank, off+n-room, fault.ErrMismatch)
	}
	return unsafe.Add(m.t.Eager(rank), at+off), nil
}
