package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
)

// push writes this rank's part to the root of a gather. The root waits for the whole team.
func (m *move) push() error {
	m.w.Algorithm = "push"
	if m.me != m.w.Root && m.carried(m.me) {
		return nil // the root fetches it
	}
	src, dst, n := m.part(m.me, m.w.Root)
	to, err := m.t.Destination(m.w.Root, dst, n)
	if err != nil {
		return err
	}
	if from := unsafe.Add(m.w.Src.Ptr, src); from != to && n > 0 {
		cpu.Copy(to, from, n, streams(m.t, n*m.n))
	}
	m.t.Progress(movesDone)
	if m.me != m.w.Root {
		return nil
	}
	for i := 1; i < m.n; i++ {
		p := m.next(i)
		if !m.carried(p) {
			err = m.t.WaitProgress(m.ctx, p, movesDone, "delivery")
		} else {
			err = m.take(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
