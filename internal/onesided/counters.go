package onesided

import (
	"sync/atomic"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

// counters count puts, gets and their bytes.
type counters struct{ puts, gets, bytes atomic.Uint64 }

// count counts a put or get. Any goroutine may call it.
func (c *counters) count(put bool, n int) {
	c.operations(put).Add(1)
	c.bytes.Add(uint64(n))
}

// countExclusive is count for callers that are never concurrent, so it needs no atomic addition.
func (c *counters) countExclusive(put bool, n int) {
	ops := c.operations(put)
	spin.Release(ops, ops.Load()+1)
	spin.Release(&c.bytes, c.bytes.Load()+uint64(n))
}

func (c *counters) operations(put bool) *atomic.Uint64 {
	if put {
		return &c.puts
	}
	return &c.gets
}

func (c *counters) stats() *counters { return c }

func (c *counters) add(o *counters) {
	c.puts.Add(o.puts.Load())
	c.gets.Add(o.gets.Load())
	c.bytes.Add(o.bytes.Load())
}
