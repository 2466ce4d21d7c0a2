package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// A link is one end of a channel: a semaphore each way, and memory that each end shows the other. The k-th link that a
// rank makes to a peer and the k-th that the peer makes to this rank are the two ends. Each rank has a table of its
// ends, made with the first one, which its peers map and it alone writes.
const (
	maxLinks   = 512
	linkSlots  = maxLinks + 32 // the rest is for telling peers of links that could not be made
	slotsBytes = 256 * linkSlots

	linkMet = 3 // a state: this end has found the other
)

// linkSlot is one end. What the other end polls is apart from what this end writes at every copy, on another pair of
// cache lines.
type linkSlot struct {
	// signals is what this end has sent: in the first word if it is the lower rank, else in the second. At one place in
	// their pages, the two ends' words would be taken for one another by the processor, which then waits with a load of
	// the one until a store to the other is done (measured: 310 ns a round trip, not 450).
	signals [2]struct {
		atomic.Uint64
		_ [56]byte
	}
	state atomic.Uint64 // stateOpen, linkMet or stateClosed
	met   atomic.Uint64 // 1 once this end has found the other, for good
	grant atomic.Uint64 // of copying
	_     [40]byte

	key     atomic.Uint64 // of the link; written last, 0 while the slot is free
	copying atomic.Uint64 // copies of this end, under way in memory of the other's rank
	shown   shown
}

func (s *linkSlot) word(higher bool) *atomic.Uint64 {
	if higher {
		return &s.signals[1].Uint64
	}
	return &s.signals[0].Uint64
}

// shown is an export as peers read it. Without bytes, its rank refused the link, and slot says why.
type shown struct {
	at         team.BufWord
	bytes      uint64
	slot       uint64
	generation uint64
}

func (s *shown) set(e export) {
	s.at = team.WordOf(e.at)
	s.bytes, s.slot, s.generation = uint64(e.bytes), uint64(e.grant.Slot), e.grant.Generation
	if e.gpu {
		s.slot |= shownOnGPU
	}
}

// shownOnGPU in shown.slot: the memory is on the rank's device.
const shownOnGPU = 1 << 63

func (s *shown) get() export {
	return export{at: s.at.Location(), bytes: int(s.bytes), gpu: s.slot&shownOnGPU != 0,
		grant: mem.Location{Slot: uint32(s.slot), Generation: s.generation}}
}

// They are followed by how many ends there have been, for each rank.
type linkTable [linkSlots]linkSlot // a rank's ends

func tableBytes(ranks int) int { return slotsBytes + 8*ranks }

// made is how many links to a rank there have been: those whose slots are gone too.
func (t *linkTable) made(to int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(t), slotsBytes+8*to))
}

func init() {
	if unsafe.Sizeof(linkSlot{}) != 256 || unsafe.Sizeof(linkTable{}) != slotsBytes || unsafe.Sizeof(team.Place{}) != 64 {
		panic("engine: link table layout")
	}
}

// links is what a communicator knows of links; under nouns.mu.
type links struct {
	table *linkTable
	used  [linkSlots]occupant // open, or closed here and not yet there
}

// Link is one end of a channel.
type Link struct {
	gate
	moved
	c      *Comm
	peer   int
	slot   int // of the table
	key    uint64
	mine   *linkSlot
	theirs *linkSlot // nil until the other end is there
	remote *Remote   // what the other end shows
	gpu    *gpuLink  // nil between memory of hosts

	out, in       *atomic.Uint64 // signals
	sent, awaited uint64
}

func linkKey(to int, n uint32) uint64 { return uint64(to+1)<<32 | uint64(n) + 1 }

// Connect makes a link to peer, which calls it too, and shows r there: the end of the wait for the other end is its
// only deadline. A nil remote means what the peer shows.
func (c *Comm) Connect(ctx context.Context, peer int, r *Registration, remote *Remote) (*Link, error) {
	const op = "connect"
	ctx = Context(ctx)
	switch {
	case c.Err() != nil:
		return nil, c.Err()
	case peer < 0 || peer >= c.size || peer == c.rank:
		return nil, c.local(op, fmt.Errorf("rank %d has no peer %d among %d ranks: %w", c.rank, peer, c.size,
			fault.ErrArgument))
	}
	e, err := c.shows(r, remote, peer)
	if err == nil && ctx.Err() != nil {
		err = fault.Ended(ctx)
	}
	l, err := c.newLink(peer, e, err)
	if err == nil {
		err = l.meet(ctx, op, r, remote)
	}
	if l != nil {
		if err != nil {
			shut(l, true)
		}
		end(l)
	}
	if err != nil {
		return nil, c.aside(op, peer, err)
	}
	return l, nil
}

// shows checks what a link is to be made of.
func (c *Comm) shows(r *Registration, remote *Remote, peer int) (export, error) {
	switch {
	case r == nil:
		return export{}, fmt.Errorf("nil registration: %w", fault.ErrArgument)
	case r.c.dom != c.dom:
		return export{}, fmt.Errorf("the registration is another rank's: %w", fault.ErrArgument)
	case remote != nil && (remote.c.dom != c.dom || remote.mem != c.team.Peers[peer].Mem):
		return export{}, fmt.Errorf("the remote memory is not that of rank %d: %w", peer, fault.ErrArgument)
	}
	defer c.polls.leave()
	if !c.polls.enter() {
		return export{}, errCommClosed
	}
	if remote != nil {
		if err := remote.live(); err != nil {
			return export{}, err
		}
	}
	e, err := r.export()
	if err == nil && e.gpu && c.device == nil {
		err = c.gpuWhyNot()
	}
	return e, err
}

// newLink takes a slot, publishes it, and begins a use. With an error, the one that it is given or one of its own, the
// link is there to tell the peer, if there is one.
func (c *Comm) newLink(peer int, e export, refused error) (*Link, error) {
	ns := &c.nouns
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if c.closing.Load() {
		return nil, errCommClosed
	}
	if err := c.linkTable(); err != nil {
		return nil, err
	}
	l := &Link{c: c, peer: peer, slot: -1}
	l.slot = ns.freeSlot()
	if (l.slot < 0 || l.slot >= maxLinks) && refused == nil {
		refused = errSlots
	}
	if l.slot < 0 {
		return nil, refused
	}
	if refused == nil && e.gpu {
		refused = c.device.clearEnd(l.slot)
	}
	made := ns.table.made(peer)
	n := made.Load()
	l.key = linkKey(peer, uint32(n))
	l.mine = &ns.table[l.slot]
	ns.used[l.slot] = l
	l.out = l.mine.word(c.rank > peer)
	l.out.Store(0)
	l.mine.copying.Store(0)
	l.mine.grant.Store(0)
	l.mine.met.Store(0)
	l.mine.state.Store(team.StateOpen)
	l.mine.shown.set(e)
	if refused != nil {
		l.mine.shown = shown{}
		l.mine.shown.slot = uint64(fault.Code(refused))
	}
	l.mine.key.Store(l.key)
	made.Store(n + 1)
	if ns.open == nil {
		ns.open = map[noun]bool{}
	}
	ns.open[l] = true
	l.enter()
	return l, refused
}

// linkTable makes this rank's table if there is none.
func (c *Comm) linkTable() error {
	if c.nouns.table != nil {
		return nil
	}
	a, err := c.dom.Heap.Alloc(tableBytes(c.size))
	if err != nil {
		return fmt.Errorf("channel table: %w", err)
	}
	c.Keep(a)
	c.nouns.table = (*linkTable)(a.Ptr)
	c.nouns.places[c.rank].At = team.WordOf(a.At)
	c.nouns.places[c.rank].Ready.Store(1)
	return nil
}

func (l *Link) otherKey() uint64 { return linkKey(l.c.rank, uint32(l.key)-1) }

// otherEnd is the other end's slot, or nil if it is not there: not yet, or not any more.
func (c *Comm) otherEnd(l *Link) (s *linkSlot, gone bool, err error) {
	p := &c.team.Peers[l.peer]
	if c.nouns.places[l.peer].Ready.Load() == 0 {
		return nil, false, nil
	}
	ptr, err := p.Mem.Resolve(c.nouns.places[l.peer].At.Location(), tableBytes(c.size))
	if err != nil {
		return nil, false, fmt.Errorf("channel table of rank %d: %w", l.peer, err)
	}
	t, key := (*linkTable)(ptr), l.otherKey()
	gone = t.made(c.rank).Load() > uint64(uint32(key)-1) // looked at before the slots
	for i := range t {
		if t[i].key.Load() == key {
			return &t[i], false, nil
		}
	}
	return nil, gone, nil
}

// meet waits for the other end.
func (l *Link) meet(ctx context.Context, op string, r *Registration, remote *Remote) error {
	var theirs *linkSlot
	var failed, err error
	s := team.Waiting{Op: op, Ctx: ctx, Peer: l.peer, Step: "the other end"}
	gone := false
	if err := l.wait(&s, func() bool {
		theirs, gone, failed = l.c.otherEnd(l)
		return theirs != nil || gone || failed != nil
	}); err != nil {
		return err
	}
	if gone {
		failed = l.givenUp()
	}
	if failed != nil {
		return failed
	}
	e := theirs.shown.get()
	if e.bytes == 0 {
		why := fault.OfCode(int(min(theirs.shown.slot, 1<<16))) // which no code is
		if why == nil {
			why = fault.ErrArgument
		}
		return fmt.Errorf("rank %d could not make its end: %w", l.peer, why)
	}
	if remote == nil {
		if remote, err = l.c.reach(l.peer, e); err != nil {
			return err
		}
	}
	gpu, err := l.openGPU(ctx, r, remote, e.gpu, theirs)
	if err != nil {
		return err
	}
	l.c.nouns.mu.Lock()
	l.theirs, l.remote, l.gpu = theirs, remote, gpu
	l.in = theirs.word(l.peer > l.c.rank)
	l.c.nouns.mu.Unlock()
	l.mine.grant.Store(remote.grant.Generation)
	l.c.dom.copiers.watch(copier{l.reader(), l.peer, &theirs.copying, &theirs.grant})
	l.mine.met.Store(1)
	l.mine.state.Store(linkMet)
	// Not before the other end has done the same may this rank copy: the peer would not wait for it.
	s = team.Waiting{Op: op, Ctx: ctx, Peer: l.peer, Step: "the other end is complete"}
	if err := l.wait(&s, func() bool { return theirs.state.Load() != team.StateOpen }); err != nil {
		return err
	}
	if theirs.met.Load() == 0 || theirs.key.Load() != l.otherKey() {
		return l.givenUp()
	}
	return nil
}

func (l *Link) givenUp() error {
	return fmt.Errorf("rank %d has given its end up: %w", l.peer, fault.ErrClosed)
}

// reader is the other end.
func (l *Link) reader() team.Reader {
	p := &l.c.team.Peers[l.peer]
	return team.Reader{State: &l.theirs.state, Mem: p.Mem, At: l.c.nouns.places[l.peer].At.Location(), Key: &l.theirs.key,
		Was: l.otherKey()}
}

// wait waits until ready, which is called often, says so.
func (l *Link) wait(s *team.Waiting, ready func() bool) error {
	defer l.c.team.Waited(s)
	looks := team.LooksPerPoll / 8
	for {
		for i := 0; i < looks; i++ {
			if ready() {
				return nil
			}
		}
		if err := l.poll(s); err != nil {
			if ready() {
				return nil
			}
			return l.c.lostIn(s, err)
		}
	}
}

// poll is a wait's housekeeping.
func (l *Link) poll(s *team.Waiting) error {
	var theirs *atomic.Uint64
	if l.theirs != nil {
		theirs = &l.theirs.state
	}
	return l.c.pollNoun(s, l, theirs)
}

// pollNoun is the housekeeping of a wait on n, of which the peer may have closed its part. Its error has not broken the
// communicator yet: see lostIn. What broke a peer's communicator comes before what that has closed.
func (c *Comm) pollNoun(s *team.Waiting, n noun, theirs *atomic.Uint64) error {
	if err := c.team.Poll(s); err != nil {
		return err
	}
	switch {
	case n.use().isClosed() || c.closing.Load():
		return fmt.Errorf("%s was closed during the wait: %w", n.name(), fault.ErrClosed)
	case theirs != nil && theirs.Load() == team.StateClosed && c.team.Peers[s.Peer].Lost() == 0:
		return fmt.Errorf("rank %d has closed its side of %s: %w", s.Peer, n.name(), fault.ErrClosed)
	}
	return nil
}

// lostIn is err, of pollNoun, when what was waited for has not come after all: only the loss of a peer, and what broke
// the communicator on one, is its end here.
func (c *Comm) lostIn(s *team.Waiting, err error) error {
	var e *fault.Error
	if errors.As(err, &e) && (s.Lost || errors.Is(err, fault.ErrPeerLost) || errors.Is(err, fault.ErrMismatch)) {
		return c.fail(e)
	}
	return err
}

// Begin begins a use of the link; End ends it.
func (l *Link) Begin(ctx context.Context) error {
	ctx = Context(ctx)
	if err := begin(l); err != nil {
		return err
	}
	if e := l.c.broken.Load(); e != nil {
		end(l)
		return e
	}
	if ctx.Err() != nil {
		end(l)
		return fault.Ended(ctx)
	}
	return nil
}

// End ends a use.
func (l *Link) End() { end(l) }

// Copy copies n bytes from here to off of what the other end shows, or the other way. An error says that the peer has
// taken the memory back, so that what was read may be anything. Within a use.
func (l *Link) Copy(off int, here unsafe.Pointer, n int, put bool) error {
	err := l.remote.copy(&l.mine.copying, off, here, n, put)
	if err == nil {
		l.countAlone(put, n)
	}
	return err
}

// Count counts a put of n bytes that came by way of Reach.
func (l *Link) Count(n int) { l.countAlone(true, n) }

// Reach is n bytes at off of what the other end shows; Done after the copy. Within a use.
func (l *Link) Reach(off, n int) (unsafe.Pointer, error) {
	return l.remote.begin(&l.mine.copying, off, n)
}

// Live is why what the other end shows must not be used any more, or nil.
func (l *Link) Live() error { return l.remote.live() }

// Done ends a copy that began with Reach.
func (l *Link) Done() error {
	l.mine.copying.Add(^uint64(0))
	return l.remote.live()
}

// Signal lets one Wait of the other end go on; it sees all that this rank wrote before. Within a use.
func (l *Link) Signal() {
	l.sent++
	spin.Release(l.out, l.sent)
}

// Poll takes a signal if there is one. Within a use.
func (l *Link) Poll() bool {
	next := l.awaited + 1
	if !team.Reached(l.in.Load(), next) {
		return false
	}
	l.awaited = next
	return true
}

// Wait waits for a signal. Within a use.
func (l *Link) Wait(ctx context.Context) error {
	next := l.awaited + 1
	w := l.in
	looks := l.c.team.Looks()
	var s team.Waiting
	for {
		for i := 0; i < looks; i++ {
			if team.Reached(w.Load(), next) {
				l.c.team.Waited(&s)
				l.awaited = next
				return nil
			}
		}
		if s.Op == "" {
			s = team.Waiting{Op: "wait", Ctx: ctx, Peer: l.peer, Step: "signal"}
		}
		if err := l.poll(&s); err != nil && !team.Reached(w.Load(), next) {
			l.c.team.Waited(&s)
			return l.c.lostIn(&s, err)
		}
	}
}

// WaitWord waits until *w is v. Within a use.
func (l *Link) WaitWord(ctx context.Context, w *uint64, mask, v uint64, step string) error {
	s := team.Waiting{Op: "get_packets", Ctx: ctx, Peer: l.peer, Step: step}
	return l.wait(&s, func() bool { return atomic.LoadUint64(w)&mask == v })
}

// Salt is a number that both ends know and other links hardly have: the from end's of its own direction.
func (l *Link) Salt(mine bool) uint64 {
	from, to := l.c.rank, l.peer
	if !mine {
		from, to = to, from
	}
	var b [32]byte
	*(*[4]uint64)(unsafe.Pointer(&b)) = [4]uint64{l.c.team.ID(), uint64(from), uint64(to), l.key & (1<<32 - 1)}
	return hash("packets", b[:])
}

// Comm is the link's communicator.
func (l *Link) Comm() *Comm { return l.c }

// Peer is the other end's rank.
func (l *Link) Peer() int { return l.peer }

// Error is an error of a call on the link.
func (l *Link) Error(op string, err error) error { return l.c.aside(op, l.peer, err) }

// Close ends the link.
func (l *Link) Close() error {
	if err := shut(l, false); err != nil {
		return l.c.aside("close", l.peer, err)
	}
	return nil
}

func (l *Link) use() *gate       { return &l.gate }
func (l *Link) failed(err error) { l.c.dom.failed(err) }
func (l *Link) name() string     { return "the channel " + l.c.between(l.peer) }

// between names this rank and a peer, the same on both.
func (c *Comm) between(peer int) string {
	return fmt.Sprintf("between ranks %d and %d", min(c.rank, peer), max(c.rank, peer))
}

func (l *Link) giveUp(quick bool) error {
	var err error
	if l.gpu != nil {
		l.gpu.fail(fmt.Errorf("%s: %w", l.name(), fault.ErrClosed))
		if !quick || l.c.broken.Load() == nil { // else with the communicator
			err = l.gpu.release()
		}
	}
	l.mine.state.Store(team.StateClosed)
	l.c.nouns.remove(l)
	return err
}
