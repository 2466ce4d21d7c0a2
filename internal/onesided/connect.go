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
	ctx = engine.Context(ctx)
	if err := sp.checkPeer(op, peer); err != nil {
		return nil, err
	}
	ch := &Channel{}
	ch.Side = newSide(sp, peer, ch)
	watch(ch, sp.c)
	e, err := sp.exportFor(r, remote, peer)
	err = ch.match(ctx, op, wordsOf(e), err, func(theirs *channelEnd, slot int) error {
		peers := theirs.export.get()
		ch.words, ch.remote = ch.mine, remote
		var err error
		if remote == nil {
			if ch.remote, err = sp.reach(peer, peers); err != nil {
				return err
			}
		}
		if err := ch.openDevice(ctx, r, peers.GPU, slot); err != nil {
			return err
		}
		ch.words.grant.Store(ch.remote.Grant.Generation)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ch, nil
}

// checkPeer returns why this rank can make nothing with a peer, or nil.
func (sp *Space) checkPeer(op string, peer int) error {
	c := sp.c
	switch {
	case c.Err() != nil:
		return c.Err()
	case peer < 0 || peer >= c.Size() || peer == c.Rank():
		return c.LocalError(op, fmt.Errorf("rank %d of %d ranks is no peer: %w", peer, c.Size(), fault.ErrArgument))
	}
	return nil
}

// exportFor checks the arguments of Connect, and returns the export of r.
func (sp *Space) exportFor(r *engine.Registration, remote *Remote, peer int) (engine.Export, error) {
	if err := sp.checkMemory(r, remote, peer); err != nil {
		return engine.Export{}, err
	}
	defer sp.c.Polls.Leave()
	if !sp.c.Polls.Enter() {
		return engine.Export{}, engine.ErrCommClosed
	}
	if remote != nil {
		if err := remote.Live(); err != nil {
			return engine.Export{}, err
		}
	}
	e, err := r.Export()
	switch {
	case err != nil:
	case sp.local(peer) < 0:
		err = e.ReachableFar()
	default:
		err = e.Reachable()
	}
	if err == nil && e.GPU {
		err = sp.noDevice()
	}
	return e, err
}

// checkMemory checks that r is this rank's and that remote, unless it is nil, is the peer's.
func (sp *Space) checkMemory(r *engine.Registration, remote *Remote, peer int) error {
	c := sp.c
	switch {
	case r == nil:
		return fmt.Errorf("nil registration: %w", fault.ErrArgument)
	case r.Comm().Domain() != c.Domain():
		return fmt.Errorf("the registration is another rank's: %w", fault.ErrArgument)
	case remote != nil && (remote.c.Domain() != c.Domain() || remote.c.InJob(remote.Rank) != c.InJob(peer)):
		return fmt.Errorf("the remote memory is not that of rank %d: %w", peer, fault.ErrArgument)
	}
	return nil
}

// match opens e's signals, finds the peer's end, and completes e by a call of complete. what says what e is; refused is
// why it cannot be made, which the peer is told. e is in no use when match returns, and closed after an error.
func (e *Side) match(ctx context.Context, op string, what exportWords, refused error,
	complete func(theirs *channelEnd, slot int) error) error {
	if refused == nil && ctx.Err() != nil {
		refused = reason.Ended(ctx)
	}
	e.sp.makeRoom(ctx)
	opened, err := e.open(e.self, what, refused)
	if err == nil {
		err = e.meet(ctx, op, complete)
	}
	if opened {
		if err != nil {
			shut(e.self, true)
		}
		end(e.self)
	}
	if err != nil {
		return e.Error(op, err)
	}
	return nil
}

// meet waits for the other end, completes this one, and waits until the other one is complete.
func (e *Side) meet(ctx context.Context, op string, complete func(theirs *channelEnd, slot int) error) error {
	theirs, slot, err := e.find(ctx, op)
	if err != nil {
		return err
	}
	if err := theirs.export.fits(&e.mine.export, e.peer); err != nil {
		return err
	}
	e.found(theirs)
	if err := complete(theirs, slot); err != nil {
		return err
	}
	if e.far == nil {
		if err := e.sp.watchCopies(e.peer); err != nil {
			return err
		}
	}
	e.mine.met.Store(1)
	e.mine.state.Store(endMet)
	e.tell(callMet)
	// This rank may copy only after the other end has done the same, because until then the peer does not wait for
	// copies.
	if err := e.wait(ctx, op, "the other end is complete", func() bool {
		return theirs.state.Load() != team.StateOpen
	}); err != nil {
		return err
	}
	if theirs.met.Load() == 0 || e.far == nil && theirs.key.Load() != e.otherKey() {
		return e.givenUp()
	}
	return nil
}

// find waits for the other end, and returns its words and its slot.
func (e *Side) find(ctx context.Context, op string) (theirs *channelEnd, slot int, err error) {
	var failed error
	gone := false
	if err := e.wait(ctx, op, "the other end", func() bool {
		theirs, slot, gone, failed = e.otherEnd()
		return theirs != nil || gone || failed != nil
	}); err != nil {
		return nil, 0, err
	}
	if gone {
		failed = e.givenUp()
	}
	if failed != nil {
		return nil, 0, failed
	}
	if why := theirs.export.refusal(); why != nil {
		return nil, 0, fmt.Errorf("rank %d could not make its end: %w", e.peer, why)
	}
	return theirs, slot, nil
}
