package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
)

// push delivers this rank's part to the root of a gather, which waits for the whole team.
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
