package onesided

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Channel is one end of a channel.
type Channel struct {
	uses
	counters
	sp     *Space
	c      *engine.Comm
	peer   int
	slot   int // in the table of ends
	key    uint64
	mine   *channelEnd
	theirs *channelEnd   // nil until the other end has been found
	local  engine.Access // what the registration of this rank's memory allows
	remote *Remote       // the memory that the other end exports
	device *gpuend.End   // nil for host memory

	out, in       *atomic.Uint64 // counters of signals
	sent, awaited uint64
}

// Begin begins a use of the channel; End ends it.
func (ch *Channel) Begin(ctx context.Context) error {
	ctx = engine.Context(ctx)
	if err := begin(ch); err != nil {
		return err
	}
	if e := ch.c.Broken(); e != nil {
		end(ch)
		return e
	}
	if ctx.Err() != nil {
		end(ch)
		return reason.Ended(ctx)
	}
	return nil
}

// End ends a use.
func (ch *Channel) End() { end(ch) }

// Copy copies n bytes from local to offset off of the other end's memory, or the other way. If the peer has taken the
// memory back, it returns an error, and the bytes read are undefined. Call it within a use.
func (ch *Channel) Copy(off int, local unsafe.Pointer, n int, put bool) error {
	if !put {
		if err := ch.Writable(); err != nil {
			return err
		}
	}
	err := ch.remote.copy(&ch.mine.copying, off, local, n, put)
	if err == nil {
		ch.countExclusive(put, n)
	}
	return err
}

// Writable returns why this rank's calls must not write to its own memory, or nil.
func (ch *Channel) Writable() error {
	if ch.local&engine.LocalWrite != 0 {
		return nil
	}
	return fmt.Errorf("this rank's memory is registered with %v, without %v: %w", ch.local, engine.LocalWrite,
		fault.ErrArgument)
}

// Count counts a put of n bytes that used Reach.
func (ch *Channel) Count(n int) { ch.countExclusive(true, n) }

// Reach returns the address of n bytes at offset off of the other end's memory, to write there; call Done after the
// copy. Call it within a use. A peer that takes the memory back waits for the copy, so a long copy checks Live after every piece.
func (ch *Channel) Reach(off, n int) (unsafe.Pointer, error) {
	return ch.remote.begin(&ch.mine.copying, off, n, engine.RemoteWrite)
}

// Live returns why the other end's memory must not be used any more, or nil.
func (ch *Channel) Live() error { return ch.remote.Live() }

// Done ends a copy that began with Reach. It does not report whether the memory was taken back: the peer may have done
// so because the copy's last bytes told it that the copy was over.
func (ch *Channel) Done() { ch.mine.copying.Add(^uint64(0)) }

// Signal lets one Wait of the other end go on. That end then sees all that this rank wrote before. Call it within a
// use.
func (ch *Channel) Signal() {
	ch.sent++
	spin.Release(ch.out, ch.sent)
}

// Poll takes a signal if there is one. Call it within a use.
func (ch *Channel) Poll() bool {
	next := ch.awaited + 1
	if !team.Reached(ch.in.Load(), next) {
		return false
	}
	ch.awaited = next
	return true
}

// Wait waits for a signal. Call it within a use.
func (ch *Channel) Wait(ctx context.Context) error {
	next := ch.awaited + 1
	if err := waitSignal(ctx, ch.c, ch, &ch.theirs.state, ch.peer, ch.in, next); err != nil {
		return err
	}
	ch.awaited = next
	return nil
}

// wait waits until ready, which it calls often, returns true.
func (ch *Channel) wait(ctx context.Context, op, step string, ready func() bool) error {
	const looks = team.LooksPerPoll / 8
	if within(looks, ready) {
		return nil
	}
	w := waiting{team.WaitState{Op: op, Ctx: ctx, Peer: ch.peer, Step: step}, ch.c, ch, nil}
	if ch.theirs != nil {
		w.theirs = &ch.theirs.state
	}
	return w.until(looks, ready)
}

// WaitWord waits until *w, masked, is v. Call it within a use.
func (ch *Channel) WaitWord(ctx context.Context, w *uint64, mask, v uint64, step string) error {
	return ch.wait(ctx, "get_packets", step, func() bool { return atomic.LoadUint64(w)&mask == v })
}

// Salt returns a number that both ends know, and that other channels are unlikely to have: mine, the one of this end's
// direction, or else the other direction's.
func (ch *Channel) Salt(mine bool) uint64 {
	from, to := ch.c.Rank(), ch.peer
	if !mine {
		from, to = to, from
	}
	var b [32]byte
	*(*[4]uint64)(unsafe.Pointer(&b)) = [4]uint64{ch.c.Team().ID(), uint64(from), uint64(to), ch.key & (1<<32 - 1)}
	return roster.Hash("packets", b[:])
}

// Comm returns the channel's communicator.
func (ch *Channel) Comm() *engine.Comm { return ch.c }

// Peer returns the other end's rank.
func (ch *Channel) Peer() int { return ch.peer }

// Error returns err as an error of a call on the channel.
func (ch *Channel) Error(op string, err error) error { return peerError(ch.c, op, ch.peer, err) }

// Close closes this end.
func (ch *Channel) Close() error {
	if err := shutFor(ch, ch.c, ch.device != nil); err != nil {
		return peerError(ch.c, "close", ch.peer, err)
	}
	return nil
}

func (ch *Channel) failed(err error) { ch.c.Domain().Failed(err) }
func (ch *Channel) name() string     { return "the channel " + between(ch.c, ch.peer) }

// Err returns why this rank's waits on the channel must end, or nil.
func (ch *Channel) Err() error {
	if ch.Closed() || ch.c.Closing() {
		return closedDuringWait(ch)
	}
	return nil
}

func (ch *Channel) giveUp(quick bool) error {
	var err error
	if ch.device != nil {
		err = ch.device.Close(quick)
	}
	ch.mine.state.Store(team.StateClosed)
	ch.sp.remove(ch)
	return err
}
