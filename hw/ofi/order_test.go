//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestList asks for all providers, and for some by their names.
func TestList(t *testing.T) {
	all := list(t)
	require.NotEmpty(t, all)
	seen := map[string]bool{}
	for _, i := range all {
		require.NotEmpty(t, i.Provider)
		require.NotEmpty(t, i.Domain)
		require.True(t, i.Caps.Has(ofi.Messages))
		require.Positive(t, i.Work)
		require.Positive(t, i.MaxMessage)
		require.False(t, strings.HasPrefix(i.Provider, "shm"), "reaches this host only")
		what := i.String() + " " + i.Fabric
		require.False(t, seen[what], "%s twice", what)
		seen[what] = true
	}
	some, refused, err := ofi.List(t.Context(), "TCP", "")
	require.NoError(t, err)
	require.NotEmpty(t, some)
	for _, r := range refused { // newer libraries' tcp offers lo, too
		require.Equal(t, "tcp", r.Core())
		require.ErrorIs(t, r.Why, hw.ErrNotSupported)
	}
	for _, i := range some {
		require.Equal(t, "tcp", i.Core())
	}
	some, refused, err = ofi.List(t.Context(), "tcp", some[0].Domain+"nosuch")
	require.NoError(t, err)
	require.Empty(t, some)
	require.Empty(t, refused)
	some, refused, err = ofi.List(t.Context(), "shm", "")
	require.NoError(t, err)
	require.Empty(t, some)
	for _, r := range refused {
		require.ErrorIs(t, r.Why, hw.ErrNotSupported)
		require.ErrorContains(t, r.Why, "of this host only")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // it may have answered already
		if _, _, err = ofi.List(ctx, "", ""); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, context.Canceled)
}

// TestOrderOfClose closes in every wrong order, twice, and uses what is closed.
func TestOrderOfClose(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		d, err := ofi.Open(i)
		require.NoError(t, err)
		require.Equal(t, i.Provider, d.Describe().Provider)
		e, err := d.Endpoint(4)
		require.NoError(t, err)
		require.Same(t, d, e.Domain())
		m := memory(t, 4096)
		r, err := d.Register(address(m), len(m), ofi.Local, hw.Host, e)
		require.NoError(t, err)
		require.Equal(t, 4096, r.Bytes())
		require.Equal(t, ofi.Local, r.Access())
		require.ErrorIs(t, d.Close(), fault.ErrInUse)
		if i.MRMode.Has(ofi.MREndpoint) {
			require.ErrorIs(t, e.Close(), fault.ErrInUse)
		}
		key := r.Key()
		require.NoError(t, r.Close())
		require.ErrorIs(t, r.Close(), fault.ErrClosed)
		require.Equal(t, key, r.Key(), "what is closed still tells what it was")
		require.ErrorIs(t, d.Close(), fault.ErrInUse)
		require.NoError(t, e.Close())
		for what, err := range map[string]error{
			"close": e.Close(), "poll": second(e.Poll(make([]ofi.Completion, 1), 1)), "post": second(e.Post([]ofi.Work{{}})),
			"insert": second(e.Insert(e.Name())), "remove": e.Remove(0), "wait": second(e.MayWait()),
		} {
			require.ErrorIs(t, err, fault.ErrClosed, what)
		}
		require.NoError(t, d.Close())
		for what, err := range map[string]error{
			"close": d.Close(), "register": second(d.Register(address(m), len(m), ofi.Local, hw.Host, e)), "endpoint": second(d.Endpoint(4)),
		} {
			require.ErrorIs(t, err, fault.ErrClosed, what)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestCloseInUse closes an endpoint while other goroutines poll it, post and register, and while messages are under way.
func TestCloseInUse(t *testing.T) {
	each(t, func(t *testing.T, i *ofi.Info) {
		for k := range 6 {
			if k == 3 {
				i = i.Serialized()
			}
			a, b, toB, _ := pair(t, i)
			_, from := a.registered(t, 1<<20)
			_, to := b.registered(t, 1<<20)
			met := work(ofi.OpWrite, toB, from, 0, to, 0, 8)
			_, err := a.do(b, met)
			require.NoError(t, err)
			stop := make(chan struct{})
			var others sync.WaitGroup
			for g := range 3 {
				others.Go(func() {
					done := make([]ofi.Completion, 4)
					for {
						select {
						case <-stop:
							return
						default:
						}
						var err error
						switch g {
						case 0:
							_, err = a.Poll(done, 10)
						case 1:
							w := work(ofi.OpWrite, toB, from, 0, to, 0, 1<<20)
							if _, err = a.Post([]ofi.Work{w}); err == ofi.ErrAgain {
								err = nil
							}
						case 2:
							_, err = b.Poll(done, 10)
						}
						if err != nil && !strings.Contains(err.Error(), fault.ErrClosed.Error()) {
							t.Error(err)
						}
					}
				})
			}
			time.Sleep(2 * time.Millisecond)
			if a.domain.Describe().MRMode.Has(ofi.MREndpoint) {
				require.NoError(t, from.Close())
			}
			require.NoError(t, a.Close())
			close(stop)
			others.Wait()
		}
	})
}

// TestBadInput has what is refused before the provider sees it.
func TestBadInput(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		a, _, toB, _ := pair(t, i)
		m := memory(t, 4096)
		at := uint64(address(m))
		good := ofi.Work{Op: ofi.OpWrite, Peer: toB, Local: at, Length: 8}
		alter := func(f func(*ofi.Work)) ofi.Work {
			w := good
			f(&w)
			return w
		}
		for name, w := range map[string]ofi.Work{
			"no such operation":  alter(func(w *ofi.Work) { w.Op = 99 }),
			"no such flag":       alter(func(w *ofi.Work) { w.Flags = 128 }),
			"no memory":          alter(func(w *ofi.Work) { w.Local = 0 }),
			"to everybody":       alter(func(w *ofi.Work) { w.Peer = ofi.Any }),
			"long inline":        alter(func(w *ofi.Work) { w.Flags, w.Length = ofi.Inline, uint64(i.Inline)+1 }),
			"inline, delivered":  alter(func(w *ofi.Work) { w.Flags = ofi.Inline | ofi.Delivered }),
			"read with data":     alter(func(w *ofi.Work) { w.Op, w.Flags = ofi.OpRead, ofi.WithData }),
			"longer than all":    alter(func(w *ofi.Work) { w.Length = 1 << 63 }),
			"atomic of 4":        alter(func(w *ofi.Work) { w.Op, w.Length = ofi.OpFetchAdd, 4 }),
			"unaligned atomic":   alter(func(w *ofi.Work) { w.Op, w.Remote = ofi.OpFetchAdd, 4 }),
			"atomic delivered":   alter(func(w *ofi.Work) { w.Op, w.Flags = ofi.OpCompareSwap, ofi.Delivered }),
			"receive with data":  alter(func(w *ofi.Work) { w.Op, w.Flags = ofi.OpReceive, ofi.WithData }),
			"receive is no flag": alter(func(w *ofi.Work) { w.Op, w.Flags = ofi.OpReceive, ofi.Inline }),
		} {
			n, err := a.Post([]ofi.Work{w})
			require.ErrorIs(t, err, fault.ErrArgument, name)
			require.Zero(t, n)
		}
		register := func(at uintptr, n int, access ofi.Access, d hw.Device) error {
			_, err := a.domain.Register(at, n, access, d, a.Endpoint)
			return err
		}
		require.ErrorIs(t, register(uintptr(at), 0, ofi.Local, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(uintptr(at), -1, ofi.Local, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(0, 8, ofi.Local, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(^uintptr(0)-4, 8, ofi.Local, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(uintptr(at), 8, 0, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(uintptr(at), 8, 1, hw.Host), fault.ErrArgument)
		require.ErrorIs(t, register(uintptr(at), 8, ofi.Local, hw.CUDA(-1)), fault.ErrArgument)
		require.ErrorIs(t, register(uintptr(at), 8, ofi.Local, hw.CUDA(0)), hw.ErrNotSupported)
		for _, name := range [][]byte{nil, {1}, make([]byte, len(a.Name())+1)} {
			require.ErrorIs(t, second(a.Insert(name)), fault.ErrArgument)
		}
		require.ErrorIs(t, second(a.Poll(nil, 1)), fault.ErrArgument)
		for _, n := range []int{0, -1, 1<<20 + 1} {
			require.ErrorIs(t, second(a.domain.Endpoint(n)), fault.ErrArgument)
		}
	})
}

// TestFull posts receives until the endpoint has no room, and says so.
func TestFull(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		d, err := ofi.Open(i)
		require.NoError(t, err)
		e, err := d.Endpoint(4)
		require.NoError(t, err)
		m := memory(t, 4096)
		r, err := d.Register(address(m), len(m), ofi.Local, hw.Host, e)
		require.NoError(t, err)
		w := ofi.Work{Op: ofi.OpReceive, Peer: ofi.Any, Local: r.Address(), Length: 64, Desc: r.Desc()}
		n, err := e.Post([]ofi.Work{w, w, w, w, w, w})
		require.ErrorIs(t, err, ofi.ErrAgain)
		require.Equal(t, 4, n)
		require.NoError(t, e.Close(), "receives that are posted do not keep it open")
		require.NoError(t, r.Close())
		require.NoError(t, d.Close())
	})
}

// TestAllocations: posting and polling allocate nothing.
func TestAllocations(t *testing.T) {
	i := list(t)[0]
	a, b, toB, _ := pair(t, i)
	_, from := a.registered(t, 64)
	_, to := b.registered(t, 64)
	w := []ofi.Work{work(ofi.OpWrite, toB, from, 0, to, 0, 8)}
	_, err := a.do(b, w[0])
	require.NoError(t, err)
	done := make([]ofi.Completion, 8)
	n := testing.AllocsPerRun(100, func() {
		if _, err := a.Post(w); err != nil {
			t.Error(err)
		}
		for got := 0; got == 0; {
			var err error
			if got, err = a.Poll(done, 10); err != nil {
				t.Error(err)
			}
			if _, err := b.Poll(done[4:], 1); err != nil {
				t.Error(err)
			}
		}
	})
	require.Zero(t, n)
}
