package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
)

// sharePiece is how much of the source the root writes to all others while it is in the root's cache.
const sharePiece = 32 << 10

// share is a broadcast. The root, which would otherwise only wait, writes the last part of the data to the other ranks,
// and they fetch the rest.
func (m *move) share() error {
	m.w.Algorithm = "share"
	bytes := m.w.Count * m.size
	lo := (bytes - bytes/m.n) &^ 63
	stream := streams(m.t, bytes)
	if m.me == m.w.Root {
		for at := lo; at < bytes; at += sharePiece {
			n := min(sharePiece, bytes-at)
			for i := 1; i < m.n; i++ {
				to, err := m.t.Destination(m.next(i), at, n)
				if err != nil {
					return err
				}
				cpu.Copy(to, unsafe.Add(m.w.Src.Ptr, at), n, stream)
			}
		}
	} else {
		from, err := m.t.Source(m.w.Root, 0, lo)
		if err != nil {
			return err
		}
		cpu.Copy(m.w.Dst.Ptr, from, lo, stream)
	}
	m.t.Progress(movesDone)
	if m.me == m.w.Root {
		return m.waitTeam(movesDone, "exit")
	}
	return m.t.WaitProgress(m.ctx, m.w.Root, movesDone, "delivery")
}
