package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Each round has two steps of progress.
const (
	stepShown = 1 + iota
	stepTaken
	stepsOfMove = stepTaken
)

// pull lets each rank fetch its parts of the others' sources. A direct source is read in place, once the ranks have
// agreed. A staged one comes in rounds through its rank's staging memory; the two halves of that memory alternate.
func (m *move) pull() error {
	if err := m.takeDirect(); err != nil {
		return err
	}
	for r := range m.rounds() {
		if err := m.round(r); err != nil {
			return err
		}
	}
	m.t.Progress(movesDone)
	if m.stage || m.carried(m.me) {
		return nil // peers do not read the caller's memory
	}
	for i := 1; i < m.n; i++ {
		p := m.next(i)
		if _, _, n := m.part(m.me, p); n > 0 {
			if err := m.t.WaitProgress(m.ctx, p, movesDone, "exit"); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeDirect fetches this rank's own part, and the parts from ranks whose source needs no rounds.
func (m *move) takeDirect() error {
	for i := range m.n {
		if err := m.take(m.next(i)); err != nil {
			return err
		}
	}
	return nil
}

// rounds is how many rounds this rank takes part in, as source or as reader.
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
		if !m.t.Direct(p) && !m.carried(p) {
			_, _, n := m.part(p, m.me)
			longest = max(longest, n)
		}
	}
	return (longest + m.window - 1) / m.window
}

// at is the address of a part of a rank's source in round r.
func (m *move) at(rank, r, part int) unsafe.Pointer {
	if m.parts == 1 {
		part = 0
	}
	return unsafe.Add(m.t.Staging(rank), r&1*stagingHalf+part*m.window)
}

func (m *move) round(r int) error {
	base := uint64(r * stepsOfMove)
	lo := r * m.window
	if m.stage {
		if err := m.show(r, lo, base); err != nil {
			return err
		}
		m.t.Progress(base + stepShown)
	}
	for i := 1; i < m.n; i++ {
		s := m.next(i)
		_, dst, n := m.part(s, m.me)
		if n <= lo || m.t.Direct(s) || m.carried(s) {
			continue
		}
		if err := m.t.WaitProgress(m.ctx, s, base+stepShown, "fetch"); err != nil {
			return err
		}
		cpu.Copy(unsafe.Add(m.w.Dst.Ptr, dst+lo), m.at(s, r, m.me), min(m.window, n-lo), false)
	}
	m.t.Progress(base + stepTaken)
	return nil
}

// show copies this round's part of the source into staging memory, once its readers have read what was there before.
func (m *move) show(r, lo int, base uint64) error {
	if r >= 2 {
		for i := 1; i < m.n; i++ {
			d := m.next(i)
			if _, _, n := m.part(m.me, d); n > lo-2*m.window {
				if err := m.t.WaitProgress(m.ctx, d, base-stepsOfMove, "staging"); err != nil {
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
				break // the same for all readers
			}
		}
	}
	return nil
}
