package bench

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// multiPair is the name of the operation that measures bandwidth and message rate of several pairs at once, as OSU's
// osu_mbw_mr does.
const multiPair = "mbw_mr"

const (
	defaultWindow = 64      // osu_mbw_mr's
	maxWindow     = 1 << 16 // limits the memory that messages in flight take
)

// messages returns how many messages, or puts, a pair makes in one operation. The reported time is one message's.
func (c *Config) messages() int {
	if o := operationOf(c.Op); o != nil && o.window {
		return c.Window
	}
	return 1
}

// halves returns the shape of messages from rank i of the first half to rank i+n/2.
func halves(p place, count int) shape {
	s := shape{size: count, param: count}
	switch half := p.ranks / 2; {
	case p.rank < half:
		s.src.n = count
	case p.rank < 2*half:
		s.dst.n, s.want = count, []piece{{0, count, p.rank - half, 0}}
	}
	return s
}

func opposite(p place) []int {
	half := p.ranks / 2
	return []int{(p.rank + half) % p.ranks}
}

// sendWindow sends a window of messages in each pair, all in flight at once. Then an empty message goes back, so the
// sender's time ends when all messages have arrived. All messages of a rank use the same buffer, as in osu_mbw_mr.
func sendWindow(ctx context.Context, c *ubcoll.Comm, a *args) error {
	half := c.Size() / 2
	sends, peer := c.Rank() < half, (c.Rank()+half)%c.Size()
	if a.flight == nil {
		a.flight = new(p2p.Exchange)
		for range a.window {
			if sends {
				a.flight.Send(peer, a.src)
			} else {
				a.flight.Recv(peer, a.dst)
			}
		}
	}
	if err := a.flight.Do(ctx, c); err != nil {
		return err
	}
	if sends {
		_, err := p2p.Recv(ctx, c, peer, a.dst)
		return err
	}
	return p2p.Send(ctx, c, peer, a.src)
}

// messageRate returns how many messages all pairs together send in a second. us is the time of one message of a pair,
// in microseconds.
func messageRate(pairs int, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return float64(pairs) * 1e6 / us
}

// rates prints the columns of osu_mbw_mr, for all pairs together, if calls are windows.
func (t *text) rates(r *Report) {
	if !operationOf(t.cfg.Op).window {
		return
	}
	t.printf("#\n# [ pairs: %d ] [ window size: %d ]\n# %10s  %8s  %10s  %14s\n", r.Config.Ranks/2, t.cfg.Window, "size", "type",
		"GB/s", "messages/s")
	for _, row := range r.Results {
		t.printf("# %10d  %8s  %10.2f  %14.2f\n", row.Size, row.Type, row.Out.BusBW, row.Out.Rate)
	}
	t.printf("#\n")
}
