package bench

import (
	"context"
	"math"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/p2p"
)

// operation describes one operation that can be measured.
type operation struct {
	name       string
	reduces    bool // combines elements
	rooted     bool
	single     bool // has one buffer: input on one rank, output on the others
	outOfPlace bool // cannot run in place
	device     bool // runs on device memory
	trips      int  // messages that follow each other in a call; the time of one is reported; 0 = not point-to-point
	window     bool // a call of a pair is Config.Window of them, which are under way at once
	// bus returns how many times a result's bytes cross the busiest link. With this factor, bandwidths of different
	// operations can be compared. nccl-tests has the same factors.
	bus  func(ranks float64) float64
	kind team.OpKind // of those whose time between hosts has a model
	// shape returns what a rank's buffers hold. The largest buffer of any rank has up to count elements.
	shape func(who place, count int) shape
	run   func(ctx context.Context, c *ubcoll.Comm, a *args) error

	// peers returns the ranks that a rank exchanges messages with, or whose memory it uses; nil if there are none.
	peers func(who place) []int

	open     func(ctx context.Context, c *ubcoll.Comm, e *ends) error // one-sided operations have it instead of run
	variants []string
	parts    int        // how many parts the region has, each as large as the largest size
	elements dtype.Type // of one-sided operations
	bytes    int        // the only size; 0 = any
	passive  bool       // the peer takes no part in a call, so ranks meet before they use their memory
	combines bool       // what is in the destination counts: it begins as the rank's own input
}

// takes reports whether o works on elements of type t with red: bools have only max and min.
func (o *operation) takes(t dtype.Type, red ubcoll.Op) bool {
	return !o.reduces || t != dtype.Bool || red == ubcoll.Max || red == ubcoll.Min
}

// place is a rank in a job, and the root if there is one.
type place struct {
	ranks, rank, root int
	apart             bool // pairs are i and i+n/2, see placeOf
}

// placeOf returns this rank's place. Pairs are 0 and 1, 2 and 3, and so on. On several hosts they are i and i+n/2 if otherwise
// none had ranks of two hosts: what moves within a host can be measured on one.
func placeOf(c *ubcoll.Comm, root int) place {
	p := place{ranks: c.Size(), rank: c.Rank(), root: root}
	if h := (*inside.Comm)(c).View().Team().Hosts; h != nil {
		p.apart = true
		for r := 0; r+1 < p.ranks; r += 2 {
			p.apart = p.apart && h.Of(r) == h.Of(r+1)
		}
	}
	return p
}

// pair returns the other rank of this rank's pair, or -1: with an odd number of ranks, the last one is alone.
func (p place) pair() int {
	switch half := p.ranks / 2; {
	case p.rank >= 2*half:
		return -1
	case p.apart:
		return (p.rank + half) % (2 * half)
	}
	return p.rank ^ 1
}

// shape is one rank's part of an operation. Lengths and offsets are in elements.
type shape struct {
	size  int     // of the larger buffer of any rank: what the size column counts
	param int     // what the count column shows
	src   span    // begins at 0; in place, at its offset
	dst   span    // likewise
	want  []piece // what the destination holds afterwards
	sends []int   // for the v variants
	recvs []int
}

type span struct{ at, n int }

// piece says what n elements of the destination hold, from element at on: rank's input from element first on, or if
// rank is reduced, the reduction of all ranks' inputs.
type piece struct{ at, n, rank, first int }

// reduced is the rank of a piece that holds the reduction of all ranks' inputs.
const reduced = -1

// args are the arguments of one call.
type args struct {
	dst, src     ubcoll.Vec
	op           ubcoll.Op
	root         int
	peer         int // the other rank of the pair, or -1
	sends, recvs []int

	window int           // number of messages in flight
	flight *p2p.Exchange // these messages; the first call makes them
}

func twice(n float64) float64 { return 2 * (n - 1) / n }
func most(n float64) float64  { return (n - 1) / n }
func once(float64) float64    { return 1 }
func none(float64) float64    { return 0 }

func ofHalves(n float64) float64 { return math.Floor(n / 2) }

var operations = []operation{
	{name: "all_reduce", kind: team.KindAllReduce, device: true, reduces: true, bus: twice, shape: allReduce,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.AllReduce(ctx, c, a.dst, a.src, a.op)
		}},
	{name: "all_gather", kind: team.KindAllGather, device: true, bus: most, shape: allGather,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error { return coll.AllGather(ctx, c, a.dst, a.src) }},
	{name: "reduce_scatter", kind: team.KindReduceScatter, device: true, reduces: true, bus: most, shape: reduceScatter,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.ReduceScatter(ctx, c, a.dst, a.src, a.op)
		}},
	{name: "broadcast", kind: team.KindBroadcast, device: true, rooted: true, single: true, bus: once, shape: broadcast,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.Broadcast(ctx, c, a.dst, a.root)
		}},
	{name: "reduce", kind: team.KindReduce, device: true, reduces: true, rooted: true, bus: once, shape: reduce,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.Reduce(ctx, c, a.dst, a.src, a.op, a.root)
		}},
	{name: "gather", kind: team.KindGather, device: true, rooted: true, bus: most, shape: gather,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.Gather(ctx, c, a.dst, a.src, a.root)
		}},
	{name: "scatter", kind: team.KindScatter, device: true, rooted: true, bus: most, shape: scatter,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.Scatter(ctx, c, a.dst, a.src, a.root)
		}},
	{name: "alltoall", kind: team.KindAllToAll, device: true, outOfPlace: true, bus: most, shape: allToAll,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error { return coll.AllToAll(ctx, c, a.dst, a.src) }},
	{name: "all_gatherv", device: true, bus: most, shape: allGatherV,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.AllGatherV(ctx, c, a.dst, a.recvs, a.src)
		}},
	{name: "gatherv", device: true, rooted: true, bus: most, shape: gatherV,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.GatherV(ctx, c, a.dst, a.recvs, a.src, a.root)
		}},
	{name: "scatterv", device: true, rooted: true, bus: most, shape: scatterV,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.ScatterV(ctx, c, a.dst, a.src, a.sends, a.root)
		}},
	{name: "alltoallv", device: true, outOfPlace: true, bus: most, shape: allToAllV,
		run: func(ctx context.Context, c *ubcoll.Comm, a *args) error {
			return coll.AllToAllV(ctx, c, a.dst, a.recvs, a.src, a.sends)
		}},
	{name: "pingpong", device: true, outOfPlace: true, trips: 2, bus: once, shape: pairs, peers: paired, run: pingPong},
	{name: "sendrecv", device: true, outOfPlace: true, trips: 1, bus: once, shape: chain, peers: neighbours, run: sendRecv},
	{name: multiPair, device: true, outOfPlace: true, trips: 1, window: true, bus: ofHalves, shape: halves, peers: opposite,
		run: sendWindow},
	{name: barrier, kind: team.KindBarrier, device: true, outOfPlace: true, bus: none, shape: func(place, int) shape { return shape{} },
		run: func(ctx context.Context, c *ubcoll.Comm, _ *args) error { return coll.Barrier(ctx, c) }},
}

// pingPong sends a message to the other rank of a pair and back.
func pingPong(ctx context.Context, c *ubcoll.Comm, a *args) error {
	peer := a.peer
	switch {
	case peer < 0:
		return nil
	case peer < c.Rank():
		if _, err := p2p.Recv(ctx, c, peer, a.dst); err != nil {
			return err
		}
		return p2p.Send(ctx, c, peer, a.src)
	}
	if err := p2p.Send(ctx, c, peer, a.src); err != nil {
		return err
	}
	_, err := p2p.Recv(ctx, c, peer, a.dst)
	return err
}

func pairs(p place, count int) shape {
	s := shape{size: count, param: count}
	if peer := p.pair(); peer >= 0 {
		s.src, s.dst, s.want = span{0, count}, span{0, count}, []piece{{0, count, peer, 0}}
	}
	return s
}

func paired(p place) []int {
	if peer := p.pair(); peer >= 0 {
		return []int{peer}
	}
	return nil
}

// sendRecv sends to the next rank and receives from the previous one, as nccl-tests' sendrecv does.
func sendRecv(ctx context.Context, c *ubcoll.Comm, a *args) error {
	n := c.Size()
	_, err := p2p.SendRecv(ctx, c, (c.Rank()+n-1)%n, a.dst, (c.Rank()+1)%n, a.src)
	return err
}

func chain(p place, count int) shape {
	return shape{size: count, param: count, src: span{0, count}, dst: span{0, count},
		want: []piece{{0, count, (p.rank + p.ranks - 1) % p.ranks, 0}}}
}

func neighbours(p place) []int {
	return []int{(p.rank + 1) % p.ranks, (p.rank + p.ranks - 1) % p.ranks}
}

// barrier has neither sizes nor data.
const barrier = "barrier"

func allReduce(_ place, count int) shape {
	return shape{size: count, param: count, src: span{0, count}, dst: span{0, count},
		want: []piece{{0, count, reduced, 0}}}
}

func reduce(p place, count int) shape {
	s := allReduce(p, count)
	if p.rank != p.root {
		s.dst.n, s.want = 0, nil
	}
	return s
}

// broadcast has one buffer: the root's is the input, the others' are outputs.
func broadcast(p place, count int) shape {
	s := shape{size: count, param: count, want: []piece{{0, count, p.root, 0}}}
	if p.rank == p.root {
		s.src.n = count
	} else {
		s.dst.n = count
	}
	return s
}

func reduceScatter(p place, count int) shape {
	n := count / p.ranks
	return shape{size: n * p.ranks, param: n, src: span{0, n * p.ranks}, dst: span{p.rank * n, n},
		want: []piece{{0, n, reduced, p.rank * n}}}
}

func allGather(p place, count int) shape {
	n := count / p.ranks
	s := shape{size: n * p.ranks, param: n, src: span{p.rank * n, n}, dst: span{0, n * p.ranks}}
	for r := range p.ranks {
		s.want = append(s.want, piece{r * n, n, r, 0})
	}
	return s
}

func gather(p place, count int) shape {
	s := allGather(p, count)
	if p.rank != p.root {
		s.src.at, s.dst.n, s.want = 0, 0, nil
	}
	return s
}

func scatter(p place, count int) shape {
	n := count / p.ranks
	s := shape{size: n * p.ranks, param: n, dst: span{0, n}, want: []piece{{0, n, p.root, p.rank * n}}}
	if p.rank == p.root {
		s.src.n, s.dst.at = n*p.ranks, p.rank*n
	}
	return s
}

func allToAll(p place, count int) shape {
	n := count / p.ranks
	s := shape{size: n * p.ranks, param: n, src: span{0, n * p.ranks}, dst: span{0, n * p.ranks}}
	for r := range p.ranks {
		s.want = append(s.want, piece{r * n, n, r, p.rank * n})
	}
	return s
}

// uneven returns the length of part k, of as many parts as there are ranks. The parts have n elements on average: n/2
// more and n/2 fewer in turn.
func uneven(ranks, k, n int) int {
	switch {
	case ranks%2 == 1 && k == ranks-1:
		return n
	case k%2 == 0:
		return n + n/2
	}
	return n - n/2
}

func allGatherV(p place, count int) shape {
	n := count / p.ranks
	s := shape{size: n * p.ranks, param: n, dst: span{0, n * p.ranks}}
	at := 0
	for r := range p.ranks {
		part := uneven(p.ranks, r, n)
		if r == p.rank {
			s.src = span{at, part}
		}
		s.recvs = append(s.recvs, part)
		s.want = append(s.want, piece{at, part, r, 0})
		at += part
	}
	return s
}

func gatherV(p place, count int) shape {
	s := allGatherV(p, count)
	if p.rank != p.root {
		s.src.at, s.dst.n, s.want = 0, 0, nil
	}
	return s
}

func scatterV(p place, count int) shape {
	s := allGatherV(p, count)
	own := s.src
	s.sends, s.recvs, s.src, s.dst = s.recvs, nil, span{}, span{0, own.n}
	s.want = []piece{{0, own.n, p.root, own.at}}
	if p.rank == p.root {
		s.src.n, s.dst.at = s.size, own.at
	}
	return s
}

// allToAllV returns the shape of an exchange of uneven parts. Each rank counts the parts from its own place on, so that
// all ranks send and receive the same total.
func allToAllV(p place, count int) shape {
	n := count / p.ranks
	s := shape{size: n * p.ranks, param: n, src: span{0, n * p.ranks}, dst: span{0, n * p.ranks}}
	sent := func(from, to int) int { return uneven(p.ranks, (to-from+p.ranks)%p.ranks, n) }
	at := 0
	for r := range p.ranks {
		s.sends = append(s.sends, sent(p.rank, r))
		s.recvs = append(s.recvs, sent(r, p.rank))
		first := 0 // where in r's source the part for this rank begins
		for to := range p.rank {
			first += sent(r, to)
		}
		s.want = append(s.want, piece{at, s.recvs[r], r, first})
		at += s.recvs[r]
	}
	return s
}
