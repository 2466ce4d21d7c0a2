package register

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestPinText(t *testing.T) {
	for _, p := range []Pin{PinAuto, PinRequired} {
		text, err := p.MarshalText()
		require.NoError(t, err)
		require.Equal(t, p.String(), string(text))
		got := Pin(-1)
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, p, got)
	}
	var p Pin
	require.EqualError(t, p.UnmarshalText([]byte("require")), `unknown pinning "require" (one of auto, required): `+
		`did you mean required?: invalid argument`)
	for _, p := range []Pin{-1, 2} {
		_, err := p.MarshalText()
		require.ErrorIs(t, err, fault.ErrArgument)
		require.Equal(t, fmt.Sprintf("Pin(%d)", int(p)), p.String())
		require.ErrorIs(t, Config{Pin: p, Locker: newVault(0)}.Validate(), fault.ErrArgument)
	}
	require.ErrorIs(t, Config{Pin: PinRequired}.Validate(), fault.ErrArgument, "nobody locks")
}

// requireNothing requires that a cache holds nothing, and that nothing is locked.
func requireNothing(t *testing.T, c *Cache, v *vault) {
	t.Helper()
	s := c.Stats()
	require.Empty(t, v.locked)
	require.Zero(t, s.PinnedBytes)
	require.Zero(t, s.RegisteredBytes)
	require.Zero(t, s.Regions)
	require.Zero(t, s.Extents)
}

// Where pinning is required, memory that cannot be locked is not registered; it is when there is room.
func TestPinRequired(t *testing.T) {
	m := mem(1, 1, 0x10000, 8192)
	again := map[string]func(c *Cache) (*Claim, error){
		"local": func(c *Cache) (*Claim, error) { return inUse(c.Register(m, m.Base, 100)) },
		"graph": func(c *Cache) (*Claim, error) { return inUse(c.RetainGraph(m, m.Base, 100)) },
		"auto":  func(c *Cache) (*Claim, error) { return c.RegisterAuto(m, m.Base, m.Bytes) },
	}
	for name, register := range again {
		t.Run(name, func(t *testing.T) {
			v, backend := newVault(4096), &fake{kind: IPC}
			c := newCache(t, Config{Locker: v, Pin: PinRequired, Backends: []Backend{backend}})
			for range 3 {
				_, err := register(c)
				require.ErrorIs(t, err, fault.ErrLimit)
				require.ErrorContains(t, err, "it cannot be locked in memory, and Options.Pin is required: no room for 8192 bytes")
				requireNothing(t, c, v)
				require.Contains(t, c.Explain(m.Base, 100), "miss: no claim contains it\n  memory 1 generation 1 (arena, host) at "+
					"[0x10000,+8192), 0 claims; not registered: it cannot be locked in memory")
				c.extents[m.ID].tried = time.Now().Add(time.Hour) // as if no time had passed
			}
			require.Equal(t, [2]int{}, backend.calls(), "a backend was asked in vain")
			if v.room = 8192; name == "auto" {
				require.Equal(t, 1, v.tries, "each operation tries in vain")
				c.extents[m.ID].tried = time.Now().Add(-relock)
			}
			cl, err := register(c)
			require.NoError(t, err)
			require.Equal(t, int64(8192), c.Stats().PinnedBytes)
			require.Equal(t, int64(8192), c.Stats().RegisteredBytes)
			require.Contains(t, c.Explain(m.Base, 100), "; locked in memory")
			cl.Release()
			require.NoError(t, c.End())
			require.Empty(t, v.locked)
			require.Zero(t, backend.count())
		})
	}
}

// inUse returns the claim of a new reference, with a use.
func inUse(r *Ref, err error) (*Claim, error) {
	if err != nil {
		return nil, err
	}
	return r.Acquire()
}

// What is not the Locker's to lock is registered all the same.
func TestPinRequiredOfOthers(t *testing.T) {
	gpu := mem(1, 1, 0x10000, 8192)
	gpu.Device = hw.CUDA(0)
	for name, k := range map[string]struct {
		m Memory
		l Locker
	}{
		"a device's":  {gpu, newVault(0)},
		"its owner's": {mem(1, 1, 0x10000, 8192), refuses{fault.ErrNotSupported}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(t, Config{Locker: k.l, Pin: PinRequired})
			r, err := c.Register(k.m, k.m.Base, 100)
			require.NoError(t, err)
			require.Zero(t, c.Stats().PinnedBytes)
			require.NoError(t, r.Close())
		})
	}
	t.Run("a failure", func(t *testing.T) {
		c := newCache(t, Config{Locker: refuses{errFake}, Pin: PinRequired})
		m := mem(1, 1, 0x10000, 8192)
		_, err := c.Register(m, m.Base, 100)
		require.ErrorIs(t, err, errFake)
	})
}

// refuses is a Locker that locks nothing, and says why.
type refuses struct{ why error }

func (r refuses) Lock(Memory) error { return r.why }
func (refuses) Unlock(Memory) error { panic("unlocked what is not locked") }

// Memory that no backend can register does not stay locked.
func TestPinRequiredWithoutBackend(t *testing.T) {
	for _, pin := range []Pin{PinAuto, PinRequired} {
		v, backend := newVault(1<<20), &fake{kind: IPC, regErr: errFake}
		c := newCache(t, Config{Locker: v, Pin: pin, Backends: []Backend{backend}})
		m := mem(1, 1, 0x10000, 8192)
		_, err := c.Register(m, m.Base, 100)
		require.ErrorIs(t, err, errFake)
		requireNothing(t, c, v)
		v.unlock = fault.ErrStale
		_, err = c.Register(m, m.Base, 100)
		require.ErrorIs(t, err, errFake)
		require.ErrorIs(t, err, fault.ErrStale)
		requireNothing(t, c, v)
		require.NoError(t, c.Invalidate(m.Base, m.Bytes))
	}
}

// What the program registers takes the room of idle automatic claims; automatic ones do not take each other's.
func TestPinRequiredMakesRoom(t *testing.T) {
	v := newVault(3 * 4096)
	c := newCache(t, Config{Locker: v, Pin: PinRequired})
	page := func(i int) Memory { return mem(uint64(i), 1, uintptr(0x10000*i), 4096) }
	auto := func(m Memory) *Claim {
		cl, err := c.RegisterAuto(m, m.Base, m.Bytes)
		require.NoError(t, err)
		return cl
	}
	busy := auto(page(1))
	auto(page(2)).Release()
	auto(page(3)).Release()
	_, err := c.RegisterAuto(page(4), page(4).Base, 4096)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.Zero(t, c.Stats().Evictions)

	two := mem(5, 1, 0x50000, 8192)
	r := mustRegister(t, c, two, two.Base, 1)
	require.Equal(t, int64(2), c.Stats().Evictions)
	require.Equal(t, map[Memory]int{page(1): 1, two: 1}, v.locked)
	_, err = c.Register(page(2), page(2).Base, 1)
	require.ErrorIs(t, err, fault.ErrLimit, "nothing is idle and automatic")
	require.Equal(t, int64(3*4096), c.Stats().PinnedBytes)
	require.Equal(t, int64(3*4096), c.Stats().RegisteredBytes)

	busy.Release()
	require.NoError(t, r.Close())
	requireHit(t, c, page(1).Base, 4096)
	g, err := c.RetainGraph(page(2), page(2).Base, 1)
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// TestPinRequiredStress registers from several goroutines more than can be locked. At the end nothing is.
func TestPinRequiredStress(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		v, backend := newVault(5*4096), &fake{kind: IPC}
		var errs errList
		c := newCache(t, Config{Locker: v, Pin: PinRequired, Backends: []Backend{backend}, OnError: errs.add})
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, g))
				for range testkit.Often(20_000) {
					id := uint64(1 + r.IntN(6))
					m := mem(id, 1, uintptr(0x10000*id), 4096*int(1+id%2))
					var cl *Claim
					var ref *Ref
					var err error
					switch r.IntN(3) {
					case 0:
						cl, err = c.RegisterAuto(m, m.Base, m.Bytes)
					case 1:
						ref, err = c.Register(m, m.Base+uintptr(r.IntN(2)), 100)
					default:
						ref, err = c.RetainGraph(m, m.Base, 100)
					}
					switch {
					case err != nil:
						requireOneOf(t, err, fault.ErrLimit)
					case cl != nil:
						cl.Release()
					default:
						if err := ref.Close(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		s := c.Stats()
		require.Equal(t, s.RegisteredBytes, s.PinnedBytes)
		require.Equal(t, 5*4096-v.room, int(s.PinnedBytes))
		require.NoError(t, c.Close())
		requireNothing(t, c, v)
		require.Zero(t, backend.count())
		require.Empty(t, errs.String())
	}
}
