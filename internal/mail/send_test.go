package mail_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestVerdictBeforeRoom: there is room for a message only after the verdict that its own will overwrite has been read.
func TestVerdictBeforeRoom(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := ubcoll.Of(make([]byte, 4000))
		if c.Rank() == 1 {
			_, err := p2p.Recv(ctx, c, 0, x.Slice(0, 8))
			if !errors.Is(err, ubcoll.ErrMismatch) {
				return fmt.Errorf("a message that does not fit: %v", err)
			}
			for range mail.SendSlots - 1 {
				if _, err := p2p.Recv(ctx, c, 0, x); err != nil {
					return err
				}
			}
			return coll.Barrier(ctx, c)
		}
		var g p2p.Exchange
		g.Send(1, x)
		for range mail.SendSlots - 1 {
			g.Send(1, x.Slice(0, 8))
		}
		r, err := g.Start(ctx, c)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil { // a barrier may move them
			return err
		}
		m := (*inside.Comm)(c).View().Mail
		b := m.Box(1)
		b.Send.Lock()
		free, err := m.Room(b)
		open := b.Send.Open.Head
		b.Send.Unlock()
		if err != nil || !free || open != nil {
			return fmt.Errorf("room %v, open %v, %w", free, open, err)
		}
		if err := r.Wait(ctx); !errors.Is(err, ubcoll.ErrMismatch) {
			return fmt.Errorf("the sender gets %v", err)
		}
		return nil
	}))
}

// TestTakenIsDone: large messages are done as soon as their receiver has taken them, the last one too.
func TestTakenIsDone(t *testing.T) {
	for _, n := range []int{1, 2, mail.SendSlots, mail.SendSlots + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 10000) // long, and short enough for the receiver to take without help
				if err != nil {
					return err
				}
				var g p2p.Exchange
				for range n {
					g.Send(1, b.Vec())
				}
				if c.Rank() == 1 {
					for range n {
						if _, err := p2p.Recv(ctx, c, 0, b.Vec()); err != nil {
							return err
						}
					}
					return coll.Barrier(ctx, c)
				}
				r, err := g.Start(ctx, c)
				if err != nil {
					return err
				}
				if err := coll.Barrier(ctx, c); err != nil { // which moves messages
					return err
				}
				done, err := r.Test()
				if err == nil && !done {
					err = errors.New("a message that was taken is not done")
				}
				return err
			}))
		})
	}
}

// TestTakenDamage: a peer cannot have taken messages that were not sent, nor take back that it has taken some. What it says
// breaks the communicator; the sender does not count on it.
func TestTakenDamage(t *testing.T) {
	for name, said := range map[string]uint64{"more than were sent": mail.SendSlots + 2, "far more": 1 << 63, "fewer than before": 0} {
		t.Run(name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			m, theirs := mail.Of(comms[0]), mail.Of(comms[1]).Box(0)
			send := func() (free bool, err error) {
				x := byte(1)
				_, free, err = m.SendNow("send", m.Box(1), &team.Vec{Ptr: unsafe.Pointer(&x), Len: 1, Type: dtype.Uint8}, 1)
				return free, err
			}
			for range mail.SendSlots {
				free, err := send()
				require.NoError(t, err)
				require.True(t, free)
			}
			theirs.SayTaken(1)
			free, err := send()
			require.NoError(t, err)
			require.True(t, free, "the peer has taken one")
			theirs.SayTaken(said)
			_, err = send()
			require.ErrorIs(t, err, fault.ErrPeerLost)
			require.ErrorContains(t, err, "damaged (count of messages taken")
			require.ErrorIs(t, comms[0].Err(), fault.ErrPeerLost)
		})
	}
}
