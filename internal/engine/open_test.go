package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
)

// deaf takes part in every exchange, but fails in one of Open's: hello, card, verdict.
type deaf struct {
	bootstrap.Bootstrap
	round int
	err   error
}

func (b *deaf) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := b.Bootstrap.AllGather(ctx, mine)
	if b.round--; b.round < 0 {
		return nil, errors.Join(b.err, err)
	}
	return all, err
}

// A rank that does not get the verdict has no communicator. The others have one, and learn of it in their first call.
func TestOpenFailsOnOneRank(t *testing.T) {
	lost := &fault.Error{Op: "bootstrap", Rank: 1, Peer: 2, Err: fault.ErrPeerLost}
	for _, k := range []struct {
		name string
		err  error
		want error
		peer int
	}{
		{"for a reason of its own", errors.New("no more of this"), fault.ErrAborted, 1},
		{"because another one is lost", lost, fault.ErrPeerLost, 2},
		{"too late", fault.ErrTimeout, fault.ErrAborted, 1},
		{"by its context", context.Canceled, fault.ErrAborted, 1},
	} {
		t.Run(k.name, func(t *testing.T) {
			bs := bootstrap.Local(3)
			bs[1] = &deaf{bs[1], 2, k.err}
			comms, errs := enginetest.OpenOver(bs, engine.Options{})
			require.Error(t, errs[1])
			require.NoError(t, errors.Join(errs[0], errs[2]))
			rest := []*engine.Comm{comms[0], comms[2]}
			done := make(chan []error, 1)
			go func() { done <- testkit.Each(rest, enginetest.Barrier) }()
			select {
			case errs := <-done:
				for _, err := range errs {
					require.ErrorIs(t, err, k.want)
					var e *fault.Error
					require.ErrorAs(t, err, &e)
					if e.Rank != k.peer {
						require.Equal(t, k.peer, e.Peer, "%v", err)
					}
				}
			case <-time.After(testkit.Limit / 2):
				for _, c := range rest {
					c.Abort(nil)
				}
				t.Error("they wait for it")
				<-done
			}
			for _, c := range rest {
				require.NoError(t, c.Close())
			}
		})
	}
}

// unreachable cannot reach one peer.
type unreachable struct {
	engine.IPC
	domain func() uint64
	err    error
}

func (u *unreachable) Attach(ctx context.Context, card json.RawMessage) (team.PeerMemory, error) {
	var k struct {
		Domain uint64 `json:"domain"`
	}
	if err := json.Unmarshal(card, &k); err != nil {
		return nil, err
	}
	if k.Domain == u.domain() {
		return nil, fmt.Errorf("it is not there: %w", u.err)
	}
	return u.IPC.Attach(ctx, card)
}

// An error that one rank passes on about a third keeps its class, and names the third.
func TestOpenRelays(t *testing.T) {
	for _, class := range []error{fault.ErrPeerLost, fault.ErrStale, fault.ErrLimit, fault.ErrTimeout,
		fault.ErrArgument, fault.ErrMismatch, fault.ErrAborted} {
		t.Run(class.Error(), func(t *testing.T) {
			const n, teller, missing = 4, 0, 2
			var mu sync.Mutex
			var domain uint64
			made, once := make(chan struct{}), sync.Once{}
			bs, errs := bootstrap.Local(n), make([]error, n)
			var wg sync.WaitGroup
			for r, b := range bs {
				newIPC := func(h *mem.Heap, secret []byte) (engine.IPC, error) {
					tr, err := ipc.New(h, secret)
					switch r {
					case missing:
						mu.Lock()
						domain = h.Domain
						mu.Unlock()
						once.Do(func() { close(made) })
					case teller:
						<-made
						tr = &unreachable{tr, func() uint64 { mu.Lock(); defer mu.Unlock(); return domain }, class}
					}
					return tr, err
				}
				wg.Go(func() {
					_, errs[r] = engine.Open(background, b, engine.Options{}, nil, enginetest.ProvidersWith(newIPC))
				})
			}
			wg.Wait()
			for r, err := range errs {
				require.ErrorIs(t, err, class, "rank %d", r)
				var e *fault.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, missing, e.Peer, "rank %d: %v", r, err)
			}
		})
	}
}

// All ranks that came name the missing rank, and the reason is the library's own limit, not a context.
func TestOpenTimeout(t *testing.T) {
	for timeout := 200 * time.Millisecond; ; timeout *= 2 {
		const n, missing = 3, 1
		bs, errs := bootstrap.Local(n), make([]error, n)
		var wg sync.WaitGroup
		for _, r := range []int{0, 2} {
			wg.Go(func() {
				_, errs[r] = engine.Open(background, bs[r], engine.Options{Timeout: timeout}, nil, inside.Providers)
			})
		}
		wg.Wait()
		var e *fault.Error
		require.ErrorAs(t, errs[0], &e)
		require.ErrorIs(t, errs[0], fault.ErrTimeout)
		if e.Peer == 2 && timeout < testkit.Limit {
			t.Logf("rank 2 was not there within %v", timeout)
			continue
		}
		for _, r := range []int{0, 2} {
			require.ErrorIs(t, errs[r], fault.ErrTimeout)
			require.NotErrorIs(t, errs[r], context.DeadlineExceeded)
			require.ErrorAs(t, errs[r], &e)
			require.Equal(t, missing, e.Peer, "%v", errs[r])
			require.Contains(t, errs[r].Error(), "rank 1")
			t.Log(errs[r])
		}
		_, err := engine.Open(background, bs[missing], engine.Options{Timeout: timeout}, nil, inside.Providers)
		require.ErrorIs(t, err, fault.ErrTimeout)
		t.Log(err)
		return
	}
}

// A rank that could not finish a Split publishes that to those that could, as long as they may read it.
func TestSplitFailsOnOneRank(t *testing.T) {
	comms, subs := enginetest.Open(t, 3, engine.Options{}), make([]*engine.Comm, 3)
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		subs[c.Rank()], err = c.Split(background, 0, 0, c.Options())
		return err
	})...))
	before := comms[1].Stats().Memory.Allocations
	require.NoError(t, subs[1].Abandon(errors.New("no more of this")))
	for range 4 { // the next allocations reuse freed memory
		a, err := comms[1].Alloc(hw.Host, 1<<20)
		require.NoError(t, err)
		defer comms[1].Free(a)
		for i := range unsafe.Slice((*byte)(a.Ptr), a.Bytes) {
			*(*byte)(unsafe.Add(a.Ptr, i)) = 0xff
		}
	}
	subs[0].SetTimeout(testkit.Limit / 2)
	subs[2].SetTimeout(testkit.Limit / 2)
	for _, err := range testkit.Each([]*engine.Comm{subs[0], subs[2]}, enginetest.Barrier) {
		require.ErrorIs(t, err, fault.ErrAborted)
		require.ErrorContains(t, err, "no more of this")
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 1, e.Peer)
	}
	require.NoError(t, subs[0].Close())
	require.NoError(t, subs[2].Close())
	a, err := comms[1].Alloc(hw.Host, 1)
	require.NoError(t, err)
	require.NoError(t, comms[1].Free(a))
	require.Equal(t, before-1+4, comms[1].Stats().Memory.Allocations, "the area goes when the others have closed theirs")
}
