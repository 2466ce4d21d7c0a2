package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestCircle makes ranks wait for each other in a circle: each rank's error names the calls of all, and says what
// helps.
func TestCircle(t *testing.T) {
	x, y := ubcoll.Of(make([]byte, 16<<10)), ubcoll.Of(make([]byte, 16<<10))
	send := func(ctx context.Context, c *ubcoll.Comm) error {
		return p2p.Send(ctx, c, (c.Rank()+1)%c.Size(), x)
	}
	recv := func(ctx context.Context, c *ubcoll.Comm) error {
		_, err := p2p.Recv(ctx, c, (c.Rank()+1)%c.Size(), ubcoll.Of(make([]byte, 16<<10)))
		return err
	}
	group := func(ctx context.Context, c *ubcoll.Comm) error {
		var g p2p.Exchange
		g.Send((c.Rank()+1)%c.Size(), x)
		r, err := g.Start(ctx, c)
		if err != nil {
			return err
		}
		return r.Wait(ctx)
	}
	for _, k := range []struct {
		name  string
		ranks int
		do    func(context.Context, *ubcoll.Comm) error
		text  []string
	}{
		{"two send", 2, send, []string{"a circle of sends (0 -> 1 -> 0)", "SendRecv or a Group", "UBCOLL_TIMEOUT",
			"rank 0 in send #1 to rank 1, rank 1 in send #1 to rank 0"}},
		{"four send", 4, send, []string{"a circle of sends (0 -> 1 -> 2 -> 3 -> 0)", "SendRecv or a Group",
			"rank 0 in send #1 to rank 1, rank 1 in send #1 to rank 2, rank 2 in send #1 to rank 3, rank 3 in send #1 to rank 0"}},
		{"groups send", 2, group, []string{"a circle of sends (0 -> 1 -> 0)"}},
		{"three receive", 3, recv, []string{"a circle of receives (0 -> 1 -> 2 -> 0)", "SendRecv or a Group"}},
		{"different orders", 2, func(ctx context.Context, c *ubcoll.Comm) error {
			if c.Rank() == 0 {
				return coll.Barrier(ctx, c)
			}
			_, err := p2p.Recv(ctx, c, 0, y)
			return err
		}, []string{"these ranks wait for each other (0 -> 1 -> 0)", "rank 0 in barrier #1 for rank 1, rank 1 in recv #1 from rank 0"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var mu sync.Mutex
			var comms []*ubcoll.Comm
			require.NoError(t, ubcoll.Local(t.Context(), k.ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				mu.Lock()
				comms = append(comms, c)
				mu.Unlock()
				if c.Rank() == 0 {
					go giveUp(&mu, &comms, c)
				}
				err := k.do(ctx, c)
				var e *ubcoll.Error
				if !errors.Is(err, ubcoll.ErrTimeout) || !errors.As(err, &e) || e.Peer == c.Rank() || e.Peer < 0 {
					return fmt.Errorf("rank %d: %v", c.Rank(), err)
				}
				for _, text := range k.text {
					if !strings.Contains(err.Error(), text) {
						return fmt.Errorf("rank %d: no %q in: %v", c.Rank(), text, err)
					}
				}
				return nil
			}))
		})
	}
}

// giveUp makes all ranks time out once they have published what they wait for.
func giveUp(mu *sync.Mutex, comms *[]*ubcoll.Comm, c *ubcoll.Comm) {
	testkit.Until(func() bool {
		waits := 0
		for r := range c.Size() {
			if (*inside.Comm)(c).View().WaitsIn(r) != "no wait" {
				waits++
			}
		}
		mu.Lock()
		all := slices.Clone(*comms)
		mu.Unlock()
		there := waits == c.Size() && len(all) == waits
		if there {
			for _, d := range all {
				(*inside.Comm)(d).View().SetTimeout(time.Millisecond)
			}
		}
		return there || c.Err() != nil
	})
}

// TestBlame: when ranks wait for one another in a chain, all name the one that waits for nobody.
func TestBlame(t *testing.T) {
	var mu sync.Mutex
	var comms []*ubcoll.Comm
	told := make(chan bool, 2)
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		mu.Lock()
		comms = append(comms, c)
		mu.Unlock()
		if c.Rank() == 2 {
			testkit.Until(func() bool {
				return (*inside.Comm)(c).View().WaitsIn(0) != "no wait" && (*inside.Comm)(c).View().WaitsIn(1) != "no wait"
			})
			mu.Lock()
			for _, d := range comms {
				(*inside.Comm)(d).View().SetTimeout(time.Millisecond)
			}
			mu.Unlock()
			<-told
			<-told
			return nil
		}
		err := p2p.Send(ctx, c, c.Rank()+1, ubcoll.Of(make([]byte, 16<<10)))
		told <- true
		var e *ubcoll.Error
		if !errors.Is(err, ubcoll.ErrTimeout) || !errors.As(err, &e) || e.Peer != 2 ||
			!strings.Contains(err.Error(), "rank 0 in send #1 to rank 1, rank 1 in send #1 to rank 2, rank 2 in no wait") {
			return fmt.Errorf("rank %d: %v", c.Rank(), err)
		}
		return nil
	}))
}

// TestWaitIsOver: a rank whose wait is over no longer publishes it.
func TestWaitIsOver(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer, x, y := 1-c.Rank(), ubcoll.Of(make([]byte, 16<<10)), ubcoll.Of(make([]byte, 16<<10))
		send := func() error { return p2p.Send(ctx, c, peer, x) }
		recv := func() error { _, err := p2p.Recv(ctx, c, peer, x); return err }
		both := func() error { _, err := p2p.SendRecv(ctx, c, peer, y, peer, x); return err }
		barrier := func() error { return coll.Barrier(ctx, c) }
		for i, k := range []struct {
			waits, comes func() error
			in           string
		}{
			{recv, send, "recv #1 from rank 1"},
			{send, recv, "send #1 to rank 1"},
			{both, both, "of several"},
			{barrier, barrier, "barrier #1 for rank 1"},
		} {
			if c.Rank() == 1 {
				if !testkit.Until(func() bool { return strings.Contains((*inside.Comm)(c).View().WaitsIn(0), k.in) }) {
					return fmt.Errorf("%d: rank 0 is in %s, not %s", i, (*inside.Comm)(c).View().WaitsIn(0), k.in)
				}
				if err := k.comes(); err != nil {
					return err
				}
				continue
			}
			if err := k.waits(); err != nil || (*inside.Comm)(c).View().WaitsIn(0) != "no wait" {
				return fmt.Errorf("%d: after it rank 0 is in %s: %w", i, (*inside.Comm)(c).View().WaitsIn(0), err)
			}
		}
		return nil
	}))
}
