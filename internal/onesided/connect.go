package onesided

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Connect makes a channel to peer, which must call it, too, and exports r there. The timeout for the other end is its
// only deadline. A nil remote means the memory that the peer's end exports. The caller closes the channel.
func (sp *Space) Connect(ctx context.Context, peer int, r *engine.Registration, remote *Remote) (*Channel, error) {
	const op = "connect"
	c := sp.c
	ctx = engine.Context(ctx)
	switch {
	case c.Err() != nil:
		return nil, c.Err()
	case c.SpansHosts():
		return nil, c.LocalError(op, c.BetweenHosts("a channel"))
	case peer < 0 || peer >= c.Size() || peer == c.Rank():
		return nil, c.LocalError(op, fmt.Errorf("rank %d of %d ranks is no peer: %w", peer, c.Size(),
			fault.ErrArgument))
	}
	e, err := sp.exportFor(r, remote, peer)
	if err == nil && ctx.Err() != nil {
		err = reason.Ended(ctx)
	}
	ch, err := sp.newChannel(peer, e, err)
	if err == nil {
		err = ch.meet(ctx, op, r, remote)
	}
	if ch != nil {
		if err != nil {
			shut(ch, true)
		}
		end(ch)
	}
	if err != nil {
		return nil, peerError(c, op, peer, err)
	}
	return ch, nil
}

// exportFor checks the arguments of Connect, and returns the export of r.
func (sp *Space) exportFor(r *engine.Registration, remote *Remote, peer int) (engine.Export, error) {
	c := sp.c
	switch {
	case r == nil:
		return engine.Export{}, fmt.Errorf("nil registration: %w", fault.ErrArgument)
	case r.Comm().Domain() != c.Domain():
		return engine.Export{}, fmt.Errorf("the registration is another rank's: %w", fault.ErrArgument)
	case remote != nil && (remote.c.Domain() != c.Domain() || remote.Memory != c.Team().Peers[peer].Mem):
		return engine.Export{}, fmt.Errorf("the remote memory is not that of rank %d: %w", peer, fault.ErrArgument)
	}
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return engine.Export{}, engine.ErrCommClosed
	}
	if remote != nil {
		if err := remote.Live(); err != nil {
			return engine.Export{}, err
		}
	}
	e, err := r.Export()
	if err == nil {
		err = e.Reachable()
	}
	if err == nil && e.GPU {
		err = sp.noDevice()
	}
	return e, err
}

// newChannel takes a slot, publishes it, and begins a use. If there is an error, refused or a new one, it still returns
// a channel if it could take a slot, which tells the peer the error.
func (sp *Space) newChannel(peer int, e engine.Export, refused error) (*Channel, error) {
	c := sp.c
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if c.Closing() {
		return nil, engine.ErrCommClosed
	}
	if err := sp.makeTable(); err != nil {
		return nil, err
	}
	ch := &Channel{sp: sp, c: c, peer: peer, slot: -1, local: e.Access}
	ch.slot = sp.freeSlot(e.GPU)
	if (ch.slot < 0 || ch.slot >= maxEnds) && refused == nil {
		refused = errNoEnd
	}
	if most := sp.deviceSlots(); refused == nil && e.GPU && ch.slot >= most {
		refused = noDeviceEnd(most)
	}
	if ch.slot < 0 {
		return nil, refused
	}
	if refused == nil && e.GPU {
		refused = sp.device.Clear(ch.slot)
	}
	made := sp.table.made(peer)
	n := made.Load()
	ch.key = channelKey(peer, uint32(n))
	ch.mine = &sp.table[ch.slot]
	sp.used[ch.slot] = ch
	ch.out = ch.mine.word(c.Rank() > peer)
	ch.out.Store(0)
	ch.mine.copying.Store(0)
	ch.mine.grant.Store(0)
	ch.mine.met.Store(0)
	ch.mine.state.Store(team.StateOpen)
	ch.mine.export.set(e)
	if refused != nil {
		ch.mine.export = exportWords{}
		ch.mine.export.slot = uint64(reason.Code(refused))
	}
	ch.mine.key.Store(ch.key)
	made.Store(n + 1)
	sp.put(ch)
	ch.Enter()
	return ch, refused
}

// makeTable makes this rank's table, unless it exists.
func (sp *Space) makeTable() error {
	c := sp.c
	if sp.table != nil {
		return nil
	}
	a, err := c.Domain().Heap.Alloc(tableBytes(c.Size()))
	if err != nil {
		return fmt.Errorf("channel table: %w", err)
	}
	c.RetireAtClose(a)
	sp.table = (*endTable)(a.Ptr)
	sp.places[c.Rank()].At = team.WordOf(a.At)
	sp.places[c.Rank()].Ready.Store(1)
	return nil
}

func (ch *Channel) otherKey() uint64 { return channelKey(ch.c.Rank(), uint32(ch.key)-1) }

// otherEnd finds the other end's words and its slot. They are nil if the end does not exist yet, or, with gone, any
// more.
func (ch *Channel) otherEnd() (s *channelEnd, slot int, gone bool, err error) {
	c, sp := ch.c, ch.sp
	p := &c.Team().Peers[ch.peer]
	if sp.places[ch.peer].Ready.Load() == 0 {
		return nil, 0, false, nil
	}
	ptr, err := p.Mem.Resolve(sp.places[ch.peer].At.Location(), tableBytes(c.Size()))
	if err != nil {
		return nil, 0, false, fmt.Errorf("channel table of rank %d: %w", ch.peer, err)
	}
	t, key := (*endTable)(ptr), ch.otherKey()
	gone = t.made(c.Rank()).Load() > uint64(uint32(key)-1) // loaded before the slots are searched
	for i := range t {
		if t[i].key.Load() == key {
			return &t[i], i, false, nil
		}
	}
	return nil, 0, gone, nil
}

// meet waits for the other end, and completes this one.
func (ch *Channel) meet(ctx context.Context, op string, r *engine.Registration, remote *Remote) error {
	var theirs *channelEnd
	var failed, err error
	slot, gone := 0, false
	if err := ch.wait(ctx, op, "the other end", func() bool {
		theirs, slot, gone, failed = ch.otherEnd()
		return theirs != nil || gone || failed != nil
	}); err != nil {
		return err
	}
	if gone {
		failed = ch.givenUp()
	}
	if failed != nil {
		return failed
	}
	e := theirs.export.get()
	if e.Bytes == 0 {
		why := reason.OfCode(int(min(theirs.export.slot, 1<<16))) // no code is that large
		if why == nil {
			why = fault.ErrArgument
		}
		return fmt.Errorf("rank %d could not make its end: %w", ch.peer, why)
	}
	if remote == nil {
		if remote, err = ch.sp.reach(ch.peer, e); err != nil {
			return err
		}
	}
	device, err := ch.openDevice(ctx, r, remote, e.GPU, theirs, slot)
	if err != nil {
		return err
	}
	ch.sp.mu.Lock()
	ch.theirs, ch.remote, ch.device = theirs, remote, device
	ch.in = theirs.word(ch.peer > ch.c.Rank())
	ch.sp.mu.Unlock()
	ch.mine.grant.Store(remote.Grant.Generation)
	ch.c.Domain().WatchCopies(ch.reader(), ch.peer, &theirs.copying, &theirs.grant)
	ch.mine.met.Store(1)
	ch.mine.state.Store(endMet)
	// This rank may copy only after the other end has done the same, because until then the peer does not wait for
	// copies.
	if err := ch.wait(ctx, op, "the other end is complete", func() bool {
		return theirs.state.Load() != team.StateOpen
	}); err != nil {
		return err
	}
	if theirs.met.Load() == 0 || theirs.key.Load() != ch.otherKey() {
		return ch.givenUp()
	}
	return nil
}

func (ch *Channel) givenUp() error {
	return fmt.Errorf("rank %d has given its end up: %w", ch.peer, fault.ErrClosed)
}

// reader returns the other end as a reader of this rank's memory.
func (ch *Channel) reader() team.Reader {
	p := &ch.c.Team().Peers[ch.peer]
	return team.Reader{State: &ch.theirs.state, Mem: p.Mem, At: ch.sp.places[ch.peer].At.Location(), Key: &ch.theirs.key,
		Was: ch.otherKey()}
}
