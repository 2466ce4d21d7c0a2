package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Larger collectives between hosts whose data consist of blocks: see blocks.

var (
	blockPaths = [...]team.Path{schedule.ToTree: blockPath(schedule.ToTree), schedule.ToChain: blockPath(schedule.ToChain),
		schedule.Pairwise: blockPath(schedule.Pairwise), schedule.Linear: blockPath(schedule.Linear), schedule.GatherDoubling: blockPath(schedule.GatherDoubling),
		schedule.ScatterHalving: blockPath(schedule.ScatterHalving), schedule.GatherTree: blockPath(schedule.GatherTree),
		schedule.ScatterTree: blockPath(schedule.ScatterTree)}
	countedPath = team.Path{Name: schedule.Pairwise.String(), Acquire: acquireCounted, Stages: stagesBlocks, Lay: layCounts,
		Exchange: exchangeCounts, Run: runBlocks}
)

func blockPath(way schedule.Way) team.Path {
	return team.Path{Name: way.String(), Acquire: acquireAcross, Stages: stagesBlocks, Exchange: exchangeBlocks, Run: runBlocks}
}

// stagesBlocks reports whether some buffers of this team go through staging memory.
func stagesBlocks(t *team.Team, w *team.Work) bool {
	if t.Size() == 1 {
		return false
	}
	b := newBlocks(context.Background(), t, w)
	defer b.free()
	return !b.reached()
}

// early reports whether data move while the hosts agree: only then all hosts know whether some of them stages.
func early(t *team.Team) bool { return t.Hosts.Most() == 1 }

// exchangeBlocks is what this rank's lane does, if that begins while the hosts agree.
func exchangeBlocks(t *team.Team, w *team.Work) (team.Exchange, error) {
	if !early(t) {
		return team.Exchange{}, nil
	}
	b := newBlocks(context.Background(), t, w)
	if err := b.direct(); err != nil {
		return team.Exchange{}, err
	}
	x := b.exchange()
	x.Early, b.lent = true, true
	return x, nil
}

func runBlocks(ctx context.Context, t *team.Team, w *team.Work) error {
	b := newBlocks(ctx, t, w)
	run := b.unstaged
	if b.h.Staged() {
		run = b.staged
	}
	if err := run(); err != nil {
		return err // peers may still write to memory of b
	}
	b.free()
	return nil
}

// unstaged moves the blocks from the callers' memory to the callers' memory.
func (b *blocks) unstaged() error {
	if b.n == 1 {
		b.w.SrcBuf.WasDirect, b.w.DstBuf.WasDirect = true, true
	}
	if err := b.direct(); err != nil {
		return err
	}
	b.w.Inner[1] = "push"
	if b.lane >= 0 {
		var err error
		if early(b.t) && !isVector(b.w.Kind) {
			err = b.h.Move(b.ctx, nil)
		} else {
			err = b.h.Exchange(b.ctx, b.exchange())
		}
		if err != nil {
			return err
		}
	}
	b.local()
	b.t.Progress(movesDone)
	return b.waitTeam(movesDone, "exit")
}

// Each round of a staged collective has three steps of progress, after that of the counts.
const (
	blocksTaken = 1 + iota // of the round before
	blocksShown
	blocksMoved
	stepsOfBlocks = 3
)

// staged goes by rounds, of a piece of each block. Ranks show their pieces in staging memory, and owners of lanes exchange
// them; what comes they leave in the staging memory of the rank that gets it or, if all do, their own.
func (b *blocks) staged() error {
	most, window := b.pieceLength()
	whole := b.longest()
	b.windows, b.most = b.n > 1, most
	if !b.windows {
		if err := b.direct(); err != nil {
			return err
		}
		b.w.SrcBuf.WasDirect, b.w.DstBuf.WasDirect = true, true
	} else {
		for r := range b.n {
			b.srcs[r] = unsafe.Add(b.t.Staging(r), countBytes(b.t, b.w))
			b.dsts[r] = unsafe.Add(b.srcs[r], window)
		}
	}
	b.w.Inner[1] = "two-shot"
	for base := uint64(0); b.lo < whole; base += stepsOfBlocks {
		if b.windows {
			if base > 0 {
				if err := b.waitTeam(base+blocksTaken, "staging"); err != nil {
					return err
				}
			}
			b.show()
		}
		b.t.Progress(base + blocksShown)
		if b.lane >= 0 {
			if err := b.waitTeam(base+blocksShown, "staging"); err != nil {
				return err
			}
			if err := b.h.Exchange(b.ctx, b.exchange()); err != nil {
				return err
			}
		}
		b.t.Progress(base + blocksMoved)
		if err := b.waitTeam(base+blocksMoved, "fetch"); err != nil {
			return err
		}
		if b.windows {
			b.fetch()
		} else {
			b.local()
		}
		b.lo += most
		b.t.Progress(base + stepsOfBlocks + blocksTaken)
	}
	return nil
}

// pieceLength is how many elements of each block take part in a round, and how many bytes of staging memory are for what
// a rank shows: the same on all ranks of all hosts.
func (b *blocks) pieceLength() (most, window int) {
	window = (team.StagingBytes - countBytes(b.t, b.w)) / 2 &^ 63
	n := 1
	if b.perSource || b.perDestination {
		n = b.t.Whole()
	}
	most = window / n / b.size
	if line := 64 / b.size; most > line {
		most -= most % line
	}
	return most, window
}

// longest is the length of the longest block that this team's ranks send or receive.
func (b *blocks) longest() (n int) {
	if !isVector(b.w.Kind) {
		return b.w.Count
	}
	for r := range b.n {
		n = max(n, countsOf(b.t, r).longest())
	}
	return n
}

// show copies this rank's pieces of a round to its staging memory.
func (b *blocks) show() {
	if !b.sendsData(b.me) {
		return
	}
	last := b.w.Root
	if b.perDestination {
		last = b.t.Whole() - 1
	}
	for d := range last + 1 {
		to := b.srcs[b.me]
		if b.perDestination {
			to = unsafe.Add(to, d*b.most*b.size)
		} else if d < last {
			continue
		}
		at, n := b.outgoing(d)
		if n = b.clamp(n); n > 0 {
			load(b.w, to, unsafe.Add(b.w.Src.Ptr, (at+b.lo)*b.size), n)
		}
	}
}

// fetch copies what has come for this rank in a round from staging memory.
func (b *blocks) fetch() {
	if !b.getsData(b.me) {
		return
	}
	mine := 0 // of the blocks in a source's staging memory
	if b.perDestination {
		mine = b.t.Name(b.me) * b.most * b.size
	}
	if !b.perSource {
		from := b.dsts[b.me]
		if b.fromRoot && b.root >= 0 {
			from = unsafe.Add(b.srcs[b.root], mine)
		}
		b.fetchBlock(from, b.w.Root)
		return
	}
	all := b.dsts[b.me]
	if !b.perDestination && !b.toRoot {
		all = b.dsts[0]
	}
	for h := range b.h.Size() {
		for i, s := range b.h.Members(h) {
			from := unsafe.Add(all, s*b.most*b.size)
			if h == b.h.Host() {
				from = unsafe.Add(b.srcs[i], mine)
			}
			b.fetchBlock(from, s)
		}
	}
}

// fetchBlock copies what has come from a rank.
func (b *blocks) fetchBlock(from unsafe.Pointer, rank int) {
	at, n := b.incoming(rank)
	if n = b.clamp(n); n > 0 {
		cpu.Copy(unsafe.Add(b.w.Dst.Ptr, (at+b.lo)*b.size), from, n*b.size, false)
	}
}

// outgoing and incoming are the block for a rank in this rank's source, and the one from a rank in its destination.
func (b *blocks) outgoing(rank int) (at, n int) {
	switch {
	case isVector(b.w.Kind):
		c := countsOf(b.t, b.me)
		return int(c.sendAt[rank]), int(c.send[rank])
	case b.perDestination:
		return rank * b.w.Count, b.w.Count
	}
	return 0, b.w.Count
}

func (b *blocks) incoming(rank int) (at, n int) {
	switch {
	case isVector(b.w.Kind):
		c := countsOf(b.t, b.me)
		return int(c.receiveAt[rank]), int(c.receive[rank])
	case b.perSource:
		return rank * b.w.Count, b.w.Count
	}
	return 0, b.w.Count
}
