package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// TestSemaphoreBadArguments makes channels over bad memory: all are refused, and the semaphore goes on.
func TestSemaphoreBadArguments(t *testing.T) {
	regs := make([]*ubcoll.Registration, 3)
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
		if err != nil {
			return err
		}
		if regs[c.Rank()], err = b.Register(c); err != nil {
			return err
		}
		mine, err := regs[c.Rank()].MarshalBinary()
		if err != nil {
			return err
		}
		all := make([]byte, 3*len(mine))
		if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(mine)); err != nil {
			return err
		}
		if err := errors.Join(testkit.Wants(testkit.ErrOf(p2p.NewSemaphore(ctx, c, c.Rank(), ubcoll.Host)), ubcoll.ErrArgument),
			testkit.Wants(testkit.ErrOf(p2p.NewSemaphore(ctx, c, 3, ubcoll.Host)), ubcoll.ErrArgument),
			testkit.Wants(testkit.ErrOf(p2p.NewSemaphore(ctx, c, -1, ubcoll.Host)), ubcoll.ErrArgument)); err != nil {
			return err
		}
		if c.Rank() == 2 {
			return coll.Barrier(ctx, c)
		}
		peer := 1 - c.Rank()
		remotes := make([]*ubcoll.Remote, 3)
		for r := range remotes {
			if r != c.Rank() {
				if remotes[r], err = c.Import(all[r*len(mine):][:len(mine)]); err != nil {
					return err
				}
			}
		}
		gone, err := c.Import(all[peer*len(mine):][:len(mine)])
		if err != nil {
			return err
		}
		other, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
		if err != nil {
			return err
		}
		closed, err := other.Register(c)
		if err != nil {
			return err
		}
		if err := errors.Join(gone.Close(), closed.Close()); err != nil {
			return err
		}
		s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		if err != nil {
			return err
		}
		for _, k := range []struct {
			name string
			r    *ubcoll.Registration
			m    *ubcoll.Remote
			want error
			text string
		}{
			{"nil registration", nil, remotes[peer], ubcoll.ErrArgument, "nil registration"},
			{"nil remote memory", regs[c.Rank()], nil, ubcoll.ErrArgument, "nil remote memory"},
			{"zero registration", &ubcoll.Registration{}, remotes[peer], ubcoll.ErrArgument, "nil registration"},
			{"zero remote memory", regs[c.Rank()], &ubcoll.Remote{}, ubcoll.ErrArgument, "nil remote memory"},
			{"another rank's registration", regs[peer], remotes[peer], ubcoll.ErrArgument, "the registration is another rank's"},
			{"memory of a rank that is not the peer", regs[c.Rank()], remotes[2], ubcoll.ErrArgument,
				fmt.Sprintf("the remote memory is not that of rank %d", peer)},
			{"closed registration", closed, remotes[peer], ubcoll.ErrStale, "registration has been closed"},
			{"closed remote memory", regs[c.Rank()], gone, ubcoll.ErrClosed, "the remote memory"},
		} {
			_, err := s.Channel(k.r, k.m)
			var e *ubcoll.Error
			if !errors.Is(err, k.want) || !contains(err, k.text) || !errors.As(err, &e) || e.Op != "channel" || e.Peer != peer {
				return fmt.Errorf("%s: %w, not %w", k.name, err, k.want)
			}
		}
		ch, err := s.Channel(regs[c.Rank()], remotes[peer])
		if err != nil {
			return err
		}
		err = testkit.InOrder(
			func() error { return testkit.Wants(ch.Put(ctx, 60, 0, 5), ubcoll.ErrArgument) },
			func() error { return testkit.Wants(ch.Get(ctx, -1, 0, 5), ubcoll.ErrArgument) },
			func() error { return ch.PutPackets(ctx, 16, 0, 8, p2p.Packet16) },
			func() error { return ch.GetPackets(ctx, 0, 16, 8, p2p.Packet16) },
			func() error { return meet(ctx, s) },
			s.Close)
		return errors.Join(err, coll.Barrier(ctx, c))
	}))
}

// TestSemaphoreOtherMemory makes channels over memory of another kind than the semaphore's.
func TestSemaphoreOtherMemory(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		var regions [2]*region
		for i, d := range []ubcoll.Device{ubcoll.Host, dev} {
			var err error
			if regions[i], err = openRegion(ctx, c, d, peer, 64); err != nil {
				return err
			}
		}
		for i, d := range []ubcoll.Device{ubcoll.Host, dev} {
			s, err := p2p.NewSemaphore(ctx, c, peer, d)
			if err != nil {
				return err
			}
			for local, mine := range regions {
				for remote, theirs := range regions {
					ch, err := s.Channel(mine.reg, theirs.remote)
					if local == i && remote == i {
						if err == nil {
							err = ch.Close()
						}
					} else {
						err = testkit.Wants(err, ubcoll.ErrArgument)
					}
					if err != nil {
						return fmt.Errorf("semaphore %d, memory %d and %d: %w", i, local, remote, err)
					}
				}
			}
			if err := testkit.InOrder(func() error { return meet(ctx, s) }, s.Close); err != nil {
				return err
			}
		}
		return errors.Join(regions[0].close(), regions[1].close())
	})
}
