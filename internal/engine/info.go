package engine

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// OpInfo says how the last operation went: which algorithm, and for each buffer whether peers reached it directly.
type OpInfo struct {
	Op        string
	Seq       uint64
	Algorithm string
	Bytes     int // of the larger buffer
	Src, Dst  BufferInfo
}

// BufferInfo says whether peers read and wrote a buffer itself, and why not.
type BufferInfo struct {
	Used   bool
	Direct bool
	Why    string // why it was staged
}

func (b BufferInfo) explain(name string) string {
	switch {
	case !b.Used:
		return ""
	case b.Direct:
		return "; " + name + ": direct"
	}
	return "; " + name + ": staged: " + b.Why
}

// Explain is one line: algorithm, and per buffer direct or staged and why.
func (o OpInfo) Explain() string {
	if o.Seq == 0 {
		return "no operation yet"
	}
	return fmt.Sprintf("%s #%d: %s, %d bytes%s%s", o.Op, o.Seq, strings.TrimSpace(o.Algorithm), o.Bytes,
		o.Src.explain("source"), o.Dst.explain("destination"))
}

// Stats counts what a communicator and its rank's domain have done.
type Stats struct {
	Operations uint64 // collectives, failed ones included
	Bytes      uint64 // sum over the operations of the larger buffer
	Staged     uint64 // buffers that were copied through staging memory
	Cache      register.Stats
	Memory     mem.Stats
}

// note keeps what LastOp and Stats tell.
func (c *Comm) note(w *Work) {
	n := max(w.Src.Bytes(), w.Dst.Bytes())
	c.ops.Add(1)
	c.bytes.Add(uint64(n))
	info := OpInfo{Op: w.Kind.String(), Seq: c.seq, Algorithm: w.Algorithm, Bytes: n}
	if w.Src.Ptr != nil {
		info.Src = BufferInfo{Used: true, Direct: w.SrcBuf.Direct(), Why: w.SrcBuf.Why}
	}
	if w.Dst.Ptr != nil {
		info.Dst = BufferInfo{Used: true, Direct: w.DstBuf.Direct(), Why: w.DstBuf.Why}
	}
	for _, b := range [2]BufferInfo{info.Src, info.Dst} {
		if b.Used && !b.Direct {
			c.staged.Add(1)
		}
	}
	c.infoM.Lock()
	c.last = info
	c.infoM.Unlock()
}

// LastOp says how the last operation of this communicator went.
func (c *Comm) LastOp() OpInfo {
	c.infoM.Lock()
	defer c.infoM.Unlock()
	return c.last
}

// Stats counts.
func (c *Comm) Stats() Stats {
	return Stats{Operations: c.ops.Load(), Bytes: c.bytes.Load(), Staged: c.staged.Load(),
		Cache: c.dom.Cache.Stats(), Memory: c.dom.Heap.Stats()}
}
