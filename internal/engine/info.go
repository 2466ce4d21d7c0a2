package engine

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// OpInfo says how the last operation went: which algorithm, and for each buffer whether peers reached it directly.
type OpInfo struct {
	Op        string
	kind      Kind
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
	Opened     uint64 // allocations on peers' devices that were mapped here, over and over ones included
	Cache      register.Stats
	Memory     mem.Stats
}

// note keeps what LastOp and Stats tell. Every call passes here, so it is brief: one lock, no conversion.
func (c *Comm) note(w *Work, algorithm string) { c.noteAs(w, algorithm, c.seq) }

func (c *Comm) noteAs(w *Work, algorithm string, seq uint64) {
	if w.Algorithm != "" {
		algorithm = w.Algorithm
	}
	n := max(w.Src.Bytes(), w.Dst.Bytes())
	c.infoM.Lock()
	c.ops++
	c.bytes += uint64(n)
	i := &c.last
	i.kind, i.Seq, i.Algorithm, i.Bytes = w.Kind, seq, algorithm, n
	i.Src = BufferInfo{Used: w.Src.Ptr != nil, Direct: w.SrcBuf.Claim != nil, Why: w.SrcBuf.Why}
	i.Dst = BufferInfo{Used: w.Dst.Ptr != nil, Direct: w.DstBuf.Claim != nil, Why: w.DstBuf.Why}
	if i.Src.Used && !i.Src.Direct {
		c.staged++
	}
	if i.Dst.Used && !i.Dst.Direct {
		c.staged++
	}
	c.infoM.Unlock()
	spin.Release(&c.lastSmall, 0)
	if c.debug {
		c.logOperation()
	}
}

// LastOp says how the last operation of this communicator went.
func (c *Comm) LastOp() OpInfo {
	if v := c.lastSmall.Load(); v != 0 {
		return smallInfo(v)
	}
	c.infoM.Lock()
	defer c.infoM.Unlock()
	o := c.last
	if o.Seq != 0 {
		o.Op = o.kind.String()
	}
	return o
}

// Stats counts.
func (c *Comm) Stats() Stats {
	if c.dom == nil {
		return Stats{}
	}
	c.infoM.Lock()
	defer c.infoM.Unlock()
	return Stats{Operations: c.ops, Bytes: c.bytes, Staged: c.staged,
		Opened: c.dom.IPC.Opened(), Cache: c.dom.Cache.Stats(), Memory: c.dom.Heap.Stats()}
}
