package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

func value(i int) byte { return byte(i*7 + i>>8) }

// TestSizes sends back and forth, with registered and unregistered memory on either side.
func TestSizes(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, n := range testkit.Sample(2, []int{0, 1, 48, 112, 113, 2048, 2049, 16383, 16384, 20000, 262144, 262145, 300000, 8<<20 + 1,
			1 << 20}) {
			for kinds := range 4 {
				x := make([]byte, n)
				v := ubcoll.Of(x)
				if kinds>>c.Rank()&1 == 1 {
					b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
					if err != nil {
						return err
					}
					x, v = b.Slice(), b.Vec()
				}
				if c.Rank() == 0 {
					for i := range x {
						x[i] = value(i)
					}
				}
				if err := exchange(ctx, c, v, n); err != nil {
					return err
				}
				for i := range x {
					if x[i] != value(i) {
						return fmt.Errorf("size %d, kinds %d, element %d is %d", n, kinds, i, x[i])
					}
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
}

// exchange sends v from rank 0 to rank 1 and back.
func exchange(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec, n int) error {
	peer := 1 - c.Rank()
	for step := range 2 {
		if step == c.Rank() {
			if err := p2p.Send(ctx, c, peer, v); err != nil {
				return err
			}
			continue
		}
		if k, err := p2p.Recv(ctx, c, peer, v); err != nil || k != n {
			return fmt.Errorf("received %d of %d: %w", k, n, err)
		}
	}
	return nil
}

// TestAllocations: messages allocate nothing after the first ones.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, bytes := range []int{8, 1000, 8000, 100000} {
		err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, bytes)
			if err != nil {
				return err
			}
			const runs = 200
			once := func() {
				if err == nil {
					err = exchange(ctx, c, b.Vec(), bytes)
				}
			}
			if c.Rank() == 1 {
				for range 1 + runs { // AllocsPerRun warms up once
					once()
				}
				return err
			}
			if n := testing.AllocsPerRun(runs, once); n > 0 && err == nil {
				return fmt.Errorf("%d bytes: %v allocations", bytes, n)
			}
			return err
		})
		require.NoError(t, err)
	}
}

// TestTimeout has a receive without a message.
func TestTimeout(t *testing.T) {
	quit := make(chan struct{})
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 1 {
			<-quit
			return nil
		}
		defer close(quit)
		(*inside.Comm)(c).View().SetTimeout(200 * time.Millisecond)
		_, err := p2p.Recv(ctx, c, 1, ubcoll.Of(make([]byte, 1)))
		if again := p2p.Send(ctx, c, 1, ubcoll.Of(make([]byte, 1))); c.Err() == nil || again == nil {
			return fmt.Errorf("a broken communicator sends: %w", again)
		}
		return err
	})
	require.ErrorIs(t, err, ubcoll.ErrTimeout)
	var e *ubcoll.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Peer)
	require.Equal(t, "recv", e.Op)
}

// TestCancel ends the context of a large send, and checks its peer.
func TestCancel(t *testing.T) {
	errs := make([]error, 2)
	require.Error(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := ubcoll.Of(make([]byte, 1<<20))
		if c.Rank() == 0 {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			errs[0] = p2p.Send(ctx, c, 1, x)
			return errs[0]
		}
		for errs[1] == nil { // rank 0 sends nothing to this rank
			_, errs[1] = p2p.Recv(ctx, c, 1, x)
		}
		return errs[1]
	}))
	require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	require.ErrorIs(t, errs[1], ubcoll.ErrAborted)
}

// TestProgress: a request's message moves while its sender waits for something else.
func TestProgress(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]byte, 3<<20) // a Go slice: its sender must move it
		if c.Rank() == 0 {
			var g p2p.Exchange
			g.Send(1, ubcoll.Of(x))
			r, err := g.Start(ctx, c)
			if err != nil {
				return err
			}
			if _, err := p2p.Recv(ctx, c, 1, ubcoll.Of(make([]byte, 1))); err != nil {
				return err
			}
			return r.Wait(ctx)
		}
		if _, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x)); err != nil {
			return err
		}
		return p2p.Send(ctx, c, 0, ubcoll.Of(x[:1]))
	})
	require.NoError(t, err)
}

// TestSendRecvErrors: SendRecv returns what is wrong with either of its messages, or both, however they travel; the
// communicator stays usable.
func TestSendRecvErrors(t *testing.T) {
	const small, large = 8, 100000
	for _, k := range []struct {
		name  string
		n     int
		short [2]int // by rank: how much room is missing for what it receives
	}{
		{"small, both fit", small, [2]int{}},
		{"small, one does not", small, [2]int{1, 0}},
		{"small, neither does", small, [2]int{1, 1}},
		{"large, both fit", large, [2]int{}},
		{"large, one does not", large, [2]int{1, 0}},
		{"large, neither does", large, [2]int{1, 1}},
	} {
		t.Run(k.name, func(t *testing.T) {
			require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				me, peer := c.Rank(), 1-c.Rank()
				src, dst := make([]byte, k.n), make([]byte, k.n-k.short[me])
				n, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(dst), peer, ubcoll.Of(src))
				received := err != nil && strings.Contains(err.Error(), fmt.Sprintf("it sent %d elements, and there is room for %d", k.n, len(dst)))
				sent := err != nil && strings.Contains(err.Error(), fmt.Sprintf("it has no room for %d elements", k.n))
				knows := k.n == large && k.short[peer] > 0 // a small message is sent when SendRecv returns
				if received != (k.short[me] > 0) || sent != knows || (err != nil) != (received || sent) || err == nil && n != k.n {
					return fmt.Errorf("rank %d got %d elements: %w", me, n, err)
				}
				if err != nil && !errors.Is(err, ubcoll.ErrMismatch) {
					return fmt.Errorf("rank %d: not ErrMismatch: %w", me, err)
				}
				_, err = p2p.SendRecv(ctx, c, peer, ubcoll.Of(src), peer, ubcoll.Of(make([]byte, k.n)))
				return err
			}))
		})
	}
}

// TestDamage: values in shared memory that no rank can have written break the communicator, and nothing else.
func TestDamage(t *testing.T) {
	for _, k := range []struct {
		name string
		head uint64
	}{
		{"way", 9<<56 | 1},
		{"type", 1<<56 | 0xff<<48 | 1},
		{"too long for a slot", 1<<56 | 1<<48 | 1000},
		{"too long for an eager slot", 2<<56 | 1<<48 | 1<<20},
		{"too long", 3<<56 | 1<<48 | 1<<47},
	} {
		t.Run(k.name, func(t *testing.T) {
			errs := make([]error, 2)
			require.Error(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				if c.Rank() == 0 {
					s := &(*inside.Comm)(c).View().Mail.Box(1).Out.Slots[1%mail.SendSlots]
					s.Head = k.head
					s.Seq.Store(1)
					_, errs[0] = p2p.Recv(ctx, c, 1, ubcoll.Of(make([]byte, 1)))
				} else {
					_, errs[1] = p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 1<<21)))
				}
				return errs[c.Rank()]
			}))
			require.ErrorIs(t, errs[0], ubcoll.ErrPeerLost)
			require.ErrorIs(t, errs[1], ubcoll.ErrPeerLost)
			require.ErrorContains(t, errs[1], "damaged")
		})
	}
}
