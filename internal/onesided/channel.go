package onesided

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Channel is one end of a channel: this rank's side of signals, and the other rank's memory.
type Channel struct {
	Side
	words  *channelEnd // with the count of copies and the grant: in the signals' slot, or in one of the channel's own
	remote *Remote     // the memory that the other end exports

	over   *Semaphore // whose signals the channel uses; nil if it has its own
	number uint64     // among the channels made over it, from 1; 0 without it
}

// Copy copies n bytes from local to offset off of the other end's memory, and then signals if that is set; or copies the
// other way. If the peer has taken the memory back, it returns an error, and the bytes read are undefined. Call it within
// a use.
func (ch *Channel) Copy(ctx context.Context, off int, local unsafe.Pointer, n int, put, signal bool) error {
	if ch.far != nil {
		return ch.copyFar(ctx, off, local, n, put, signal)
	}
	err := ch.remote.copy(&ch.words.copying, off, local, n, put)
	if err == nil {
		ch.countExclusive(put, n)
		if signal {
			ch.Signal()
		}
	}
	return err
}

// copyFar is Copy for a peer on another host.
func (ch *Channel) copyFar(ctx context.Context, off int, local unsafe.Pointer, n int, put, signal bool) (err error) {
	switch {
	case !put:
		err = ch.far.get(ctx, "get", ch, ch.remote, off, local, n)
	case signal:
		err = ch.far.put(ctx, "put_with_signal", ch, ch.remote, off, local, n, ch.Signal)
	default:
		err = ch.far.put(ctx, "put", ch, ch.remote, off, local, n, nil)
	}
	if err == nil {
		ch.countExclusive(put, n)
	}
	return err
}

// PutPackets writes n bytes as packets to offset off of the memory of a peer on another host. Call it within a use.
func (ch *Channel) PutPackets(ctx context.Context, off int, local unsafe.Pointer, n, width int, flag uint64) error {
	err := ch.far.packets(ctx, ch, ch.remote, off, local, n, width, flag)
	if err == nil {
		ch.countExclusive(true, n)
	}
	return err
}

// Far reports whether the peer is on another host: then Reach is not for ch.
func (ch *Channel) Far() bool { return ch.far != nil }

// Flush waits until what this rank has put is in the peer's memory. Call it within a use.
func (ch *Channel) Flush(ctx context.Context) error {
	if ch.far == nil {
		return nil
	}
	if err := ch.far.flush(ctx, ch); err != nil {
		return err
	}
	return ch.far.live(ch.remote.Grant)
}

// Count counts a put of n bytes that used Reach.
func (ch *Channel) Count(n int) { ch.countExclusive(true, n) }

// Reach returns the address of n bytes at offset off of the other end's memory, to write there; call Done after the
// copy. Call it within a use. A peer that takes the memory back waits for the copy, so a long copy checks Live after every piece.
func (ch *Channel) Reach(off, n int) (unsafe.Pointer, error) {
	return ch.remote.begin(&ch.words.copying, off, n, engine.RemoteWrite)
}

// Live returns why the other end's memory must not be used any more, or nil.
func (ch *Channel) Live() error { return ch.remote.Live() }

// Done ends a copy that began with Reach. It does not report whether the memory was taken back: the peer may have done
// so because the copy's last bytes told it that the copy was over.
func (ch *Channel) Done() { ch.words.copying.Add(^uint64(0)) }

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
	var b [40]byte
	*(*[5]uint64)(unsafe.Pointer(&b)) = [5]uint64{ch.c.Team().ID(), uint64(from), uint64(to), ch.key & (1<<32 - 1),
		ch.number}
	return roster.Hash("packets", b[:])
}

func (ch *Channel) name() string { return "the channel " + between(ch.c, ch.peer) }

// Err returns why this rank's waits on the channel must end, or nil.
func (ch *Channel) Err() error {
	if ch.over != nil && ch.over.Closed() {
		return closedDuringWait(ch.over)
	}
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
	if ch.over == nil {
		ch.mine.state.Store(team.StateClosed)
		ch.tell(callClosed)
		ch.sp.remove(ch)
		return err
	}
	ch.words.state.Store(team.StateClosed)
	ch.sp.remove(ch)
	ch.over.leave(ch)
	return err
}

// left implements occupant for the slot of a channel over a semaphore. Peers do not refer to such a slot.
func (ch *Channel) left() bool {
	if ch.words.state.Load() != team.StateClosed {
		return false
	}
	ch.words.key.Store(0)
	return true
}
