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
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

var background = context.Background()

func requireUsable(t *testing.T, comms []*engine.Comm) {
	t.Helper()
	require.NoError(t, errors.Join(testkit.Each(comms, enginetest.Barrier)...))
	for _, c := range comms {
		require.NoError(t, c.Err())
	}
}

// without runs f on every rank but one, which comes later or never, and returns each rank's error.
func without(comms []*engine.Comm, missing int, f func(c *engine.Comm) error) <-chan []error {
	result := make(chan []error, 1)
	go func() {
		result <- testkit.Each(comms, func(c *engine.Comm) error {
			if c.Rank() == missing {
				return nil
			}
			return f(c)
		})
	}()
	return result
}

func TestOpen(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		comms := enginetest.Open(t, n, engine.Options{})
		for r, c := range comms {
			require.Equal(t, []int{r, n, r, n}, []int{c.Rank(), c.Size(), c.LocalRank(), c.LocalSize()})
			require.Equal(t, 10*time.Minute, c.Options().Timeout)
			require.NotEmpty(t, c.Hostname(n-1))
			require.Empty(t, c.Hostname(n))
			require.Empty(t, c.Hostname(-1))
			require.Equal(t, "no operation yet", c.LastOp().Text(""))
		}
		requireUsable(t, comms)
	}
}

// tampered changes what its rank sends in one round of Open: hello, card, verdict.
type tampered struct {
	bootstrap.Bootstrap
	round  int
	change func([]byte) []byte
}

func (b *tampered) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if b.round == 0 {
		mine = b.change(mine)
	}
	b.round--
	return b.Bootstrap.AllGather(ctx, mine)
}

func TestOpenRefused(t *testing.T) {
	requireUsable(t, enginetest.Open(t, 2, engine.Options{})) // the first one allocates what stays
	field := func(name string, v any) func([]byte) []byte {
		return func(b []byte) []byte {
			var m map[string]any
			if err := json.Unmarshal(b, &m); err != nil {
				return nil
			}
			if body, ok := m["body"].(map[string]any); ok && name != "err" {
				body[name] = v
			} else {
				m[name] = v
			}
			b, _ = json.Marshal(m)
			return b
		}
	}
	garbage := func([]byte) []byte { return []byte("}") }
	// The layout of a hello, before its details: see roster's head.
	hello := func(at int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte {
			for i := range v {
				b[at+i] ^= v[i]
			}
			return b
		}
	}
	details := func(change func([]byte) []byte) func([]byte) []byte {
		return func(b []byte) []byte { return append(hello(6, 2)(b[:128:128]), change(b[128:])...) }
	}
	area := func(change func(*mem.Location)) func([]byte) []byte {
		return func(b []byte) []byte {
			var k struct {
				Body struct {
					IPC    json.RawMessage `json:"ipc"`
					Domain uint64          `json:"domain"`
					Area   mem.Location    `json:"area"`
				} `json:"body"`
			}
			if err := json.Unmarshal(b, &k); err != nil {
				return nil
			}
			change(&k.Body.Area)
			b, _ = json.Marshal(k)
			return b
		}
	}
	for _, c := range []struct {
		name   string
		round  int
		change func([]byte) []byte
		want   error // on rank 0; nil: any
		text   string
	}{
		{"another version", 0, hello(4, 1), fault.ErrMismatch, fmt.Sprintf("wire version is %d on rank 0 and %d on rank 1", roster.Version, roster.Version^1)},
		{"a race build", 0, hello(6, 1), fault.ErrMismatch, "race detector"},
		{"a rank that cannot", 0, details(field("err", "no can do")), nil, "rank 1: no can do"},
		{"half a hello", 0, func(b []byte) []byte { return b[:100] }, fault.ErrMismatch, "what rank 1 sent"},
		{"no details", 0, func(b []byte) []byte { return b[:128] }, nil, "what rank 1 sent"},
		{"no hello", 0, garbage, nil, "what rank 1 sent"},
		{"no card", 1, garbage, nil, "what rank 1 sent"},
		{"no memory", 1, field("err", "out of memory"), nil, "rank 1: out of memory"},
		{"a card of nobody", 1, field("ipc", map[string]any{"domain": 1}), fault.ErrStale, "reach rank 1"},
		{"an area that is none", 1, area(func(l *mem.Location) { l.Offset += 4096 }), fault.ErrStale, "control area of rank 1"},
		{"an area outside", 1, area(func(l *mem.Location) { l.Offset = 1 << 40 }), fault.ErrStale, "map the control area of rank 1"},
		{"an area nowhere", 1, area(func(l *mem.Location) { l.Arena, l.Slot = 7, 7 }), fault.ErrStale, "map the control area of rank 1"},
		{"a late no", 2, func([]byte) []byte { return []byte(`{"err":"not me"}`) }, nil, "rank 1: not me"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := testkit.Descriptors(t)
			bs := bootstrap.Local(2)
			bs[1] = &tampered{bs[1], c.round, c.change}
			_, errs := enginetest.OpenOver(bs, engine.Options{})
			require.Error(t, errs[0])
			require.Error(t, errs[1], "no rank is left behind with a communicator")
			if c.want != nil {
				require.ErrorIs(t, errs[0], c.want)
			}
			require.ErrorContains(t, errs[0], c.text)
			var e *fault.Error
			require.ErrorAs(t, errs[0], &e)
			require.Equal(t, "open", e.Op)
			testkit.Eventually(t, func() bool { return before == testkit.Descriptors(t) })
		})
	}
	t.Run("other settings", func(t *testing.T) {
		for _, c := range []struct {
			o    engine.Options
			text string
		}{
			{engine.Options{Timeout: time.Hour}, "Options.Timeout is 10m0s on rank 0 and 1h0m0s on rank 1"},
			{engine.Options{Register: register.Explicit}, "Options.Register is auto on rank 0 and explicit on rank 1"},
			{engine.Options{Pin: register.PinRequired}, "Options.Pin is auto on rank 0 and required on rank 1"},
			{engine.Options{Algorithm: "ring"}, "Options.Algorithm is  on rank 0 and ring on rank 1"},
			{engine.Options{Devices: team.DevicesOff}, "Options.Devices is auto on rank 0 and off on rank 1"},
		} {
			bs := bootstrap.Local(3)
			errs := testkit.Each(bs, func(b bootstrap.Bootstrap) error {
				var o engine.Options
				if b.Rank() == 1 {
					o = c.o
				}
				_, err := engine.Open(background, b, o, nil, inside.Providers)
				return err
			})
			for _, err := range errs {
				require.ErrorIs(t, err, fault.ErrMismatch)
				require.ErrorContains(t, err, c.text)
			}
		}
	})
	t.Run("bad options", func(t *testing.T) {
		bs, errs := bootstrap.Local(2), make([]error, 2)
		var wg sync.WaitGroup
		for r, b := range bs {
			var bad error
			if r == 1 {
				bad = fault.ErrArgument
			}
			wg.Go(func() { _, errs[r] = engine.Open(background, b, engine.Options{}, bad, inside.Providers) })
		}
		wg.Wait()
		require.ErrorIs(t, errs[1], fault.ErrArgument)
		require.ErrorContains(t, errs[0], "rank 1: invalid argument")
	})
}

func TestClose(t *testing.T) {
	before := testkit.Descriptors(t)
	comms := enginetest.Open(t, 3, engine.Options{})
	requireUsable(t, comms)
	a, err := comms[0].Alloc(hw.Host, 100)
	require.NoError(t, err)
	for _, c := range comms {
		require.NoError(t, c.Close())
		require.True(t, c.Domain().Closed())
	}
	for _, c := range comms {
		require.ErrorIs(t, c.Close(), fault.ErrClosed)
		require.ErrorIs(t, c.Err(), fault.ErrClosed)
		require.ErrorIs(t, enginetest.Barrier(c), fault.ErrClosed)
		_, err := c.Alloc(hw.Host, 1)
		require.ErrorIs(t, err, fault.ErrClosed)
		_, err = c.Adopt(hw.Host, unsafe.Pointer(&before), 8)
		require.ErrorIs(t, err, fault.ErrClosed)
		_, err = c.RegisterBuffer(team.Vec{Ptr: a.Ptr, Len: 1, Type: dtype.Int8, Alloc: a})
		require.ErrorIs(t, err, fault.ErrClosed)
		c.Abort(nil) // too late, and harmless
	}
	testkit.Eventually(t, func() bool { return testkit.Descriptors(t) <= before+2 }, "the Go runtime's poller may stay")
}

// Abort may come at any time, from any goroutine, even while Close frees the memory that it writes.
func TestAbortDuringClose(t *testing.T) {
	for range 30 {
		c := enginetest.Open(t, 1, engine.Options{})[0]
		var wg sync.WaitGroup
		start := make(chan struct{})
		wg.Go(func() {
			<-start
			for c.Err() == nil {
				c.Abort(errors.New("now"))
			}
			c.Abort(errors.New("again"))
		})
		close(start)
		require.NoError(t, c.Close())
		wg.Wait()
		require.Error(t, c.Err())
	}
}

// Memory that an operation uses lives until the operation ends, whatever its owner does meanwhile.
func TestFreeDuringOperation(t *testing.T) {
	comms := enginetest.Open(t, 1, engine.Options{})
	c := comms[0]
	for range 20 {
		a, err := c.Alloc(hw.Host, 4096)
		require.NoError(t, err)
		v := team.Vec{Ptr: a.Ptr, Len: 4096, Type: dtype.Uint8, Alloc: a}
		reg, err := c.RegisterBuffer(v)
		require.NoError(t, err)
		running, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- enginetest.Run(background, c, team.Work{Kind: team.KindBarrier, Src: v, Path: &team.Path{
				Acquire: func(_ *team.Team, w *team.Work) error {
					w.SrcBuf.Claim = c.Domain().Cache.FindLocal(uintptr(v.Ptr), 4096, 0)
					w.SrcBuf.At = a.At
					return nil
				},
				Run: func(context.Context, *team.Team, *team.Work) error {
					close(running)
					<-end
					*(*byte)(a.Ptr) = 1 // faults if it is gone
					return nil
				}}})
		}()
		<-running
		require.ErrorIs(t, c.Free(a), fault.ErrInUse)
		require.NoError(t, reg.Close())
		require.ErrorIs(t, reg.Close(), fault.ErrClosed)
		go func() { close(end) }() // at the same time as Free
		require.NoError(t, c.Free(a))
		require.NoError(t, <-done)
		require.False(t, a.Live())
		require.Error(t, c.Free(a))
	}
	require.Equal(t, 1, c.Stats().Memory.Allocations, "the control segment's")
}

func TestRegisterRefused(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	a, err := c.Alloc(hw.Host, 4096)
	require.NoError(t, err)
	freed, err := c.Alloc(hw.Host, 4096)
	require.NoError(t, err)
	require.NoError(t, c.Free(freed))
	require.ErrorIs(t, c.Free(freed), fault.ErrClosed)
	foreign := make([]byte, 64)
	for _, k := range []struct {
		name string
		v    team.Vec
		want error
	}{
		{"Go memory", team.Vec{Ptr: unsafe.Pointer(&foreign[0]), Len: 64, Type: dtype.Uint8}, fault.ErrArgument},
		{"nil", team.Vec{Len: 1, Type: dtype.Uint8}, fault.ErrArgument},
		{"nothing", team.Vec{Ptr: a.Ptr, Type: dtype.Uint8}, fault.ErrArgument},
		{"no type", team.Vec{Ptr: a.Ptr, Len: 1, Type: 15}, fault.ErrArgument},
		{"misaligned", team.Vec{Ptr: unsafe.Add(a.Ptr, 1), Len: 1, Type: dtype.Float32, Alloc: a}, fault.ErrArgument},
		{"freed", team.Vec{Ptr: freed.Ptr, Len: 1, Type: dtype.Uint8, Alloc: freed}, fault.ErrStale},
		{"beyond its allocation", team.Vec{Ptr: a.Ptr, Len: 4097, Type: dtype.Uint8}, fault.ErrArgument},
		{"an invalid view", team.Vec{Err: fault.ErrLimit}, fault.ErrLimit},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := c.RegisterBuffer(k.v)
			require.ErrorIs(t, err, k.want)
		})
	}
}
