package onesided

import (
	"sync/atomic"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

// moved counts puts, gets and their bytes.
type moved struct{ puts, gets, bytes atomic.Uint64 }

// count counts a put or get. Any goroutine may call it.
func (m *moved) count(put bool, n int) {
	m.which(put).Add(1)
	m.bytes.Add(uint64(n))
}

// countAlone is count for callers that are never concurrent.
func (m *moved) countAlone(put bool, n int) {
	w := m.which(put)
	spin.Release(w, w.Load()+1)
	spin.Release(&m.bytes, m.bytes.Load()+uint64(n))
}

func (m *moved) which(put bool) *atomic.Uint64 {
	if put {
		return &m.puts
	}
	return &m.gets
}

func (m *moved) counts() *moved { return m }

func (m *moved) add(o *moved) {
	m.puts.Add(o.puts.Load())
	m.gets.Add(o.gets.Load())
	m.bytes.Add(o.bytes.Load())
}
