package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenRude ends what puts, gets, atomics, waits and flushes go by between hosts while they are under way from other
// goroutines, on one rank or on both: a channel, a window, a registration, or their communicator, by Close or Abort. All
// calls return, with an error that says so, and nothing stays behind.
func TestBetweenRude(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		twoHosts(t, rude(seed, testkit.Often(400)))
	}
}

// TestBetweenRudeWires is TestBetweenRude over networks that do what TCP on this machine never does.
func TestBetweenRudeWires(t *testing.T) {
	testkit.LongOrRace(t)
	for _, w := range transporttest.Kinds {
		for _, seed := range testkit.Seeds(t) {
			t.Run(w.String(), func(t *testing.T) {
				require.NoError(t, conform.Block(1, 1).RunOver(t.Context(), transporttest.New(t, w).Node, rude(seed, testkit.Often(100))))
			})
		}
	}
}

func rude(seed uint64, rounds int) conform.Suite {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		all, mine := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1+uint64(c.Rank())))
		ends := 0
		for k := range rounds {
			how, who := all.IntN(len(rudeEnds)), 1+all.IntN(3)
			n, err := rudely(ctx, c, how, who&(1<<c.Rank()) != 0, mine)
			if err != nil {
				return conform.Fail(c, "round %d, %s by %b: %w", k, rudeEnds[how], who, err)
			}
			ends += n
		}
		if ends == 0 || rounds >= 40 && ends < rounds { // else the calls were not under way
			return conform.Fail(c, "only %d calls have ended of it in %d rounds", ends, rounds)
		}
		return nil
	}
}

var rudeEnds = []string{"close channel", "close window", "close registration", "close communicator", "abort"}

// rudely makes one round. It returns how many calls have ended with an error.
func rudely(ctx context.Context, c *ubcoll.Comm, how int, acts bool, pick *rand.Rand) (int, error) {
	const n = 1 << 20
	const most = 300 // calls: Close waits until all that was put has been taken
	peer := 1 - c.Rank()
	d, err := c.Dup(ctx)
	if err != nil {
		return 0, err
	}
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 2*n)
	if err != nil {
		return 0, err
	}
	r, err := d.RegisterWith(b.Vec(), ubcoll.RegisterOptions{
		Access: ubcoll.AccessLocalWrite | ubcoll.AccessRemoteWrite | ubcoll.AccessRemoteRead | ubcoll.AccessRemoteAtomic})
	if err != nil {
		return 0, err
	}
	w, err := d.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return 0, err
	}
	pause := func() { time.Sleep(time.Duration(pick.IntN(2000)) * time.Microsecond) }
	pause() // the peer may be the first, or both
	ch, err := p2p.Connect(ctx, d, peer, r)
	if err != nil {
		return 0, err
	}
	if err := coll.Barrier(ctx, c); err != nil { // the peer has its end, too
		return 0, err
	}
	var wg sync.WaitGroup
	var ended atomic.Int64
	var stop atomic.Bool
	var mu sync.Mutex
	var wrong error
	loop := func(what string, call func() error) {
		wg.Go(func() {
			for k := 0; k < most && !stop.Load(); k++ {
				err := call()
				if err == nil {
					continue
				}
				ended.Add(1)
				for _, is := range []error{ubcoll.ErrClosed, ubcoll.ErrStale, ubcoll.ErrPeerLost, ubcoll.ErrAborted} {
					if errors.Is(err, is) {
						return
					}
				}
				mu.Lock()
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", what, err))
				mu.Unlock()
				return
			}
		})
	}
	large, dst := ubcoll.Of(make([]byte, n)), ubcoll.Of(make([]byte, n))
	size := []int{1, 100, 10_000, n - 64}[pick.IntN(4)]
	loop("a channel's put", func() error { return ch.Put(ctx, n+64, 64, size) })
	loop("a channel's get", func() error { return ch.Get(ctx, n+64, 64, size) })
	loop("a channel's fetch_add", func() error { return testkit.ErrOf(ch.FetchAdd(ctx, 0, 1)) })
	loop("a channel's signal", func() error { return ch.Signal(ctx) })
	loop("a channel's wait", func() error { return ch.Wait(ctx) })
	loop("a channel's flush", func() error { return ch.Flush(ctx) })
	loop("a window's put", func() error { return w.Put(ctx, peer, n+64, large.Slice(0, size)) })
	loop("a window's get", func() error { return w.Get(ctx, peer, dst.Slice(0, size), 64) })
	loop("a window's fetch_add", func() error { return testkit.ErrOf(w.FetchAdd(ctx, peer, 8, 1)) })
	loop("a window's accumulate", func() error { return w.Accumulate(ctx, peer, n+64, large.Slice(0, size&^7), ubcoll.Max) })
	loop("a window's signal", func() error { return w.Signal(ctx, peer) })
	loop("a window's wait", func() error { return w.Wait(ctx, peer) })
	loop("a window's flush", func() error { return w.Flush(ctx) })
	closeComm := func() error { // this rank's own calls have to end before, the peer's not
		stop.Store(true)
		if err := errors.Join(ch.Close(), w.Close()); err != nil && !errors.Is(err, ubcoll.ErrClosed) {
			return err
		}
		for {
			if err := d.Close(); !errors.Is(err, ubcoll.ErrBusy) {
				return err
			}
			runtime.Gosched()
		}
	}
	pause()
	if acts {
		switch rudeEnds[how] {
		case "close channel":
			err = ch.Close()
		case "close window":
			err = w.Close()
		case "close registration":
			err = r.Close()
		case "close communicator":
			err = closeComm()
		default:
			d.Abort(errors.New("on purpose"))
		}
	}
	pause()
	stop.Store(true)
	// What is closed already, with the communicator perhaps, says so.
	for _, close := range []func() error{ch.Close, w.Close, r.Close, closeComm} {
		if e := close(); e != nil && !errors.Is(e, ubcoll.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	wg.Wait()
	if err := errors.Join(err, wrong); err != nil {
		return 0, err
	}
	return int(ended.Load()), errors.Join(b.Free(), coll.Barrier(ctx, c))
}
