package coll

import (
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// routes is small data between hosts of one rank each that hosts pass on to those who need it, in the messages by which
// the hosts agree. In round k of a number of hosts that is a power of two, hosts exchange whose numbers differ in bit k;
// otherwise each sends to the one 2^k before it (Bruck et al., "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997). So a block takes the rounds of the bits in which its destination differs
// from its source, or of those of their distance.
//
// It implements team.Router. Blocks are at the numbers of hosts between pairs, and otherwise at distances. In an all-to-all
// that is at first the destination's, and what a round changes in it makes it the source's.
type routes struct {
	t      *team.Team
	w      *team.Work
	h      team.Hosts
	pairs  bool
	hosts  int
	me     int // between pairs this host; otherwise, of a rooted operation, its distance from the root
	root   int // the same of the root
	base   int // otherwise: the host at distance 0
	sign   int // and in which direction distances count
	block  int // bytes
	blocks []byte
}

var spareRoutes = sync.Pool{New: func() any { return new(routes) }}

func newRoutes(t *team.Team, w *team.Work) team.Router {
	r := spareRoutes.Get().(*routes)
	h := t.Hosts
	*r = routes{t: t, w: w, h: h, hosts: h.Size(), pairs: h.Size()&(h.Size()-1) == 0, block: w.Count * w.Type.Size(), blocks: r.blocks}
	if cap(r.blocks) < r.hosts*r.block {
		r.blocks = make([]byte, r.hosts*r.block)
	}
	r.blocks = r.blocks[:r.hosts*r.block]
	r.me, r.root, r.sign = h.Host(), h.Of(w.Root), 1
	if !r.pairs {
		switch r.base = r.root; w.Kind {
		case team.KindAllToAll:
			r.base, r.sign = r.me, -1
		case team.KindScatter:
			r.sign = -1
		}
		r.me, r.root = r.at(r.me), 0
	}
	switch w.Kind {
	case team.KindGather:
		cpu.Copy(r.to(r.me), w.Src.Ptr, r.block, false)
	case team.KindScatter:
		if r.me != r.root {
			break
		}
		fallthrough
	default:
		for host := range r.hosts {
			load(w, r.to(r.at(host)), unsafe.Add(w.Src.Ptr, h.Members(host)[0]*r.block), w.Count)
		}
	}
	return r
}

// at is where a host's block is.
func (r *routes) at(host int) int {
	if r.pairs {
		return host
	}
	return ((host-r.base)*r.sign + r.hosts) % r.hosts
}

func (r *routes) to(at int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(r.blocks)), at*r.block)
}

// goes reports whether block x leaves this host in round k, and comes whether one comes to its place.
func (r *routes) goes(k, x int) bool {
	low, bit := 1<<k-1, 1<<k
	other, differs := x^r.me, r.me^r.root
	switch r.w.Kind {
	case team.KindAllToAll:
		if !r.pairs {
			return x&bit != 0
		}
		return other&bit != 0
	case team.KindReduceScatter:
		return other&low == 0 && other&bit != 0
	case team.KindScatter: // from the hosts that differ from the root in lower bits alone
		return differs&^low == 0 && other&low == 0 && other&bit != 0 && (r.pairs || x&bit != 0)
	}
	// A gather: from the hosts that differ in this bit, and not in lower ones, what they have.
	return differs&(low|bit) == bit && other&^low == 0
}

func (r *routes) comes(k, x int) bool {
	low, bit := 1<<k-1, 1<<k
	other, differs := x^r.me, r.me^r.root
	switch r.w.Kind {
	case team.KindAllToAll:
		return r.goes(k, x)
	case team.KindReduceScatter:
		return other&(low|bit) == 0
	case team.KindScatter:
		return differs&bit != 0 && differs&^(low|bit) == 0 && other&(low|bit) == 0
	}
	return differs&(low|bit) == 0 && other&^low == bit
}

// Pack implements team.Router.
func (r *routes) Pack(k int, to []byte) (n int) {
	for x := range r.hosts {
		if r.goes(k, x) {
			cpu.Copy(unsafe.Pointer(&to[n]), r.to(x), r.block, false)
			n += r.block
		}
	}
	return n
}

// Carries implements team.Router.
func (r *routes) Carries(k int) bool {
	for x := range r.hosts {
		if r.goes(k, x) {
			return true
		}
	}
	return false
}

// Unpack implements team.Router.
func (r *routes) Unpack(k int, from []byte) bool {
	for x := range r.hosts {
		if !r.comes(k, x) {
			continue
		}
		if len(from) < r.block {
			return false
		}
		in := unsafe.Pointer(&from[0])
		from = from[r.block:]
		if r.w.Kind != team.KindReduceScatter {
			cpu.Copy(r.to(x), in, r.block, false)
			continue
		}
		own := schedule.Span{First: r.me &^ (1<<k - 1), N: 1 << k}
		theirs := schedule.Span{First: own.First ^ 1<<k, N: own.N}
		r.h.Combine(r.w, r.to(x), r.to(x), in, own, theirs, r.w.Count, 2<<k == r.hosts)
	}
	return len(from) == 0
}

// Conclude implements team.Router.
func (r *routes) Conclude() {
	defer func() {
		r.t, r.w, r.h = nil, nil, nil
		spareRoutes.Put(r)
	}()
	to := r.w.Dst.Ptr
	switch r.w.Kind {
	case team.KindReduceScatter, team.KindScatter:
		cpu.Copy(to, r.to(r.me), r.block, false)
		return
	case team.KindGather:
		if r.me != r.root {
			return
		}
	}
	for host := range r.hosts {
		at := r.at(host)
		if !r.pairs && r.w.Kind == team.KindAllToAll {
			at = (host - r.base + r.hosts) % r.hosts // sources are behind this host
		}
		cpu.Copy(unsafe.Add(to, r.h.Members(host)[0]*r.block), r.to(at), r.block, false)
	}
}
