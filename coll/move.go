package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// move is the operations that only move data: each rank fetches its parts of the others' sources. A direct source is
// read where it is, once the ranks have agreed; a staged one comes in rounds through its rank's staging memory, each
// half of which serves every other round. A small source of an operation with vectors is in its rank's eager slot.
type move struct {
	call
	stage  bool // this rank's source goes through staging memory
	parts  int  // 1: everybody reads the same of a source; n: each reader its own part
	window int  // bytes of a part in one round
}

// Each round is two steps of progress; movesDone is the last.
const (
	stepShown = 1 + iota
	stepTaken
	stepsOfMove = stepTaken

	movesDone = 1 << 31
)

func runMove(ctx context.Context, c *engine.Comm, w *engine.Work) error {
	m := move{call: newCall(ctx, c, w), parts: 1}
	m.stage = !w.SrcBuf.Direct() && !m.carried(m.me)
	switch w.Kind {
	case engine.KindScatter, engine.KindAllToAll, engine.KindScatterV, engine.KindAllToAllV:
		m.parts = m.n
	}
	m.window = stagingHalf / m.parts &^ 63
	switch m.direction() {
	case pushes:
		return m.push()
	case shares:
		return m.share()
	}
	if err := m.takeDirect(); err != nil {
		return err
	}
	for r := range m.rounds() {
		if err := m.round(r); err != nil {
			return err
		}
	}
	c.Progress(movesDone)
	if m.stage || m.carried(m.me) {
		return nil // peers read nothing of the caller's
	}
	for i := 1; i < m.n; i++ {
		p := m.next(i)
		if _, _, n := m.part(m.me, p); n > 0 {
			if err := c.WaitProgress(ctx, p, movesDone, "exit"); err != nil {
				return err
			}
		}
	}
	return nil
}

// How a move goes, which all ranks see from the descriptors.
const (
	pulls  = iota // each rank fetches its parts
	pushes        // a gather in which each rank delivers its part
	shares        // a broadcast in which the root delivers as much as each of the others fetches
)

func (m *move) direction() int {
	switch m.w.Kind {
	case engine.KindGather, engine.KindGatherV: // one rank would fetch, all the others wait
		if m.c.DirectDst(m.w.Root) {
			return pushes
		}
	case engine.KindBroadcast:
		for r := range m.n {
			if r == m.w.Root && !m.c.Direct(r) || r != m.w.Root && !m.c.DirectDst(r) {
				return pulls
			}
		}
		return shares
	}
	return pulls
}

// push delivers this rank's part to the root of a gather, which waits for all.
func (m *move) push() error {
	m.w.Algorithm = "push"
	if m.me != m.w.Root && m.carried(m.me) {
		return nil // the root takes it
	}
	src, dst, n := m.part(m.me, m.w.Root)
	to, err := m.c.Destination(m.w.Root, dst, n)
	if err != nil {
		return err
	}
	if from := unsafe.Add(m.w.Src.Ptr, src); from != to && n > 0 {
		cpu.Copy(to, from, n, streams(m.c, n*m.n))
	}
	m.c.Progress(movesDone)
	if m.me != m.w.Root {
		return nil
	}
	for i := 1; i < m.n; i++ {
		p := m.next(i)
		if !m.carried(p) {
			err = m.c.WaitProgress(m.ctx, p, movesDone, "delivery")
		} else {
			err = m.take(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sharePiece is how much of the source the root writes to all the others while it is in its cache.
const sharePiece = 32 << 10

// share is a broadcast: the root, which would only wait, writes the last share of the data to all others.
func (m *move) share() error {
	m.w.Algorithm = "share"
	bytes := m.w.Count * m.size
	lo := (bytes - bytes/m.n) &^ 63
	stream := streams(m.c, bytes)
	if m.me == m.w.Root {
		for at := lo; at < bytes; at += sharePiece {
			n := min(sharePiece, bytes-at)
			for i := 1; i < m.n; i++ {
				to, err := m.c.Destination(m.next(i), at, n)
				if err != nil {
					return err
				}
				cpu.Copy(to, unsafe.Add(m.w.Src.Ptr, at), n, stream)
			}
		}
	} else {
		from, err := m.c.Source(m.w.Root, 0, lo)
		if err != nil {
			return err
		}
		cpu.Copy(m.w.Dst.Ptr, from, lo, stream)
	}
	m.c.Progress(movesDone)
	if m.me == m.w.Root {
		return m.waitAll(movesDone, "exit")
	}
	return m.c.WaitProgress(m.ctx, m.w.Root, movesDone, "delivery")
}

// part is what rank d fetches from rank s: n bytes from byte src of s's source on, to byte dst of d's destination on.
func (m *move) part(s, d int) (src, dst, n int) {
	w := m.w
	bytes := w.Count * m.size
	toRoot, fromRoot := d == w.Root, s == w.Root
	switch w.Kind {
	case engine.KindAllGather:
		return 0, s * bytes, bytes
	case engine.KindBroadcast:
		if fromRoot && !toRoot {
			return 0, 0, bytes
		}
	case engine.KindGather:
		if toRoot {
			return 0, s * bytes, bytes
		}
	case engine.KindScatter:
		if fromRoot {
			return d * bytes, 0, bytes
		}
	case engine.KindAllToAll:
		return d * bytes, s * bytes, bytes
	default:
		return m.partOfRows(s, d)
	}
	return 0, 0, 0
}

func (m *move) partOfRows(s, d int) (src, dst, n int) {
	send, _ := rows(m.c, s)
	_, recv := rows(m.c, d)
	if m.parts > 1 {
		for _, k := range send[:d] {
			src += int(k)
		}
	}
	if m.w.Kind != engine.KindScatterV {
		for _, k := range recv[:s] {
			dst += int(k)
		}
	}
	return src * m.size, dst * m.size, int(send[d]) * m.size
}

// carried reports whether a rank's source came with its descriptor.
func (m *move) carried(rank int) bool { return isVector(m.w.Kind) && *carried(m.c, rank) != 0 }

// takeDirect fetches from this rank itself, and from all whose source needs no rounds.
func (m *move) takeDirect() error {
	for i := range m.n {
		if err := m.take(m.next(i)); err != nil {
			return err
		}
	}
	return nil
}

// take fetches this rank's part of rank s's source, if it needs no rounds.
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
		cpu.Copy(to, from, n, streams(m.c, m.w.Dst.Bytes()))
	}
	return nil
}

// source is where n bytes of a rank's source are, from byte off on; nil if they come in rounds.
func (m *move) source(rank, off, n int) (unsafe.Pointer, error) {
	if rank == m.me || !m.carried(rank) {
		return m.c.Source(rank, off, n)
	}
	at := carriedAt(m.c)
	if room := engine.EagerBytes - at; off > room || n > room-off {
		return nil, fmt.Errorf("rank %d sends %d bytes beyond its eager slot: %w", rank, off+n-room, fault.ErrMismatch)
	}
	return unsafe.Add(m.c.Eager(rank), at+off), nil
}

// rounds is how many rounds this rank takes part in, showing or taking.
func (m *move) rounds() int {
	longest := 0
	for p := range m.n {
		if p == m.me {
			continue
		}
		if m.stage {
			_, _, n := m.part(m.me, p)
			longest = max(longest, n)
		}
		if !m.c.Direct(p) && !m.carried(p) {
			_, _, n := m.part(p, m.me)
			longest = max(longest, n)
		}
	}
	return (longest + m.window - 1) / m.window
}

// at is where part of a rank's source is in round r.
func (m *move) at(rank, r, part int) unsafe.Pointer {
	if m.parts == 1 {
		part = 0
	}
	return unsafe.Add(m.c.Staging(rank), r&1*stagingHalf+part*m.window)
}

func (m *move) round(r int) error {
	base := uint64(r * stepsOfMove)
	lo := r * m.window
	if m.stage {
		if err := m.show(r, lo, base); err != nil {
			return err
		}
		m.c.Progress(base + stepShown)
	}
	for i := 1; i < m.n; i++ {
		s := m.next(i)
		_, dst, n := m.part(s, m.me)
		if n <= lo || m.c.Direct(s) || m.carried(s) {
			continue
		}
		if err := m.c.WaitProgress(m.ctx, s, base+stepShown, "fetch"); err != nil {
			return err
		}
		cpu.Copy(unsafe.Add(m.w.Dst.Ptr, dst+lo), m.at(s, r, m.me), min(m.window, n-lo), false)
	}
	m.c.Progress(base + stepTaken)
	return nil
}

// show copies this round's part of the source into staging memory, after its readers have done with what was there.
func (m *move) show(r, lo int, base uint64) error {
	if r >= 2 {
		for i := 1; i < m.n; i++ {
			d := m.next(i)
			if _, _, n := m.part(m.me, d); n > lo-2*m.window {
				if err := m.c.WaitProgress(m.ctx, d, base-stepsOfMove, "staging"); err != nil {
					return err
				}
			}
		}
	}
	for i := 1; i < m.n; i++ {
		d := m.next(i)
		src, _, n := m.part(m.me, d)
		if n > lo {
			cpu.Copy(m.at(m.me, r, d), unsafe.Add(m.w.Src.Ptr, src+lo), min(m.window, n-lo), false)
			if m.parts == 1 {
				break // the same for everybody
			}
		}
	}
	return nil
}
