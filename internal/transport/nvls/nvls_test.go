//go:build nvls && linux && cgo && (amd64 || arm64)

package nvls

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

func TestMain(m *testing.M) {
	os.Setenv("UBCOLL_EMULATE_DEVICES", "2")
	emulated.Main(m.Run)
}

const unit = 2 << 20

// scene is a rank's heap on device 0, and its object for that device alone.
type scene struct {
	t    *testing.T
	ctx  *cuda.Context
	heap *mem.Heap
	b    *Backend
	o    *Object
}

func newScene(t *testing.T, size int) *scene {
	emulated.NVLS(t)
	s := &scene{t: t, ctx: emulated.Primary(t, 0)}
	var err error
	s.heap, err = mem.New(1, false)
	require.NoError(t, err)
	s.heap.UseDevice(s.ctx, emulated.Stream(t, s.ctx))
	s.b = New(s.heap)
	s.b.Use(s.ctx, unit)
	m, err := s.ctx.CreateMulticast(1, size)
	require.NoError(t, err)
	require.NoError(t, m.AddDevice())
	s.o = s.b.Adopt(m, size, "this test")
	t.Cleanup(func() {
		require.NoError(t, s.b.Close(0, nil))
		require.NoError(t, s.heap.Close())
	})
	return s
}

// register allocates n bytes and registers them.
func (s *scene) register(n int) (*Region, register.Memory, uintptr) {
	a, err := s.heap.AllocDevice(n)
	require.NoError(s.t, err)
	m := register.Memory{ID: uint64(a.At.Slot) + 1, Generation: a.At.Generation, Base: a.Base(), Bytes: n, Device: a.Dev}
	h, err := s.b.Register(m)
	require.NoError(s.t, err)
	return h.(*Region), m, a.Base()
}

func TestLead(t *testing.T) {
	s := newScene(t, 8*unit)
	require.NoError(t, s.o.Begin(cuda.Addr(s.staging()), 2*unit))
	require.NotZero(t, s.o.Address())
	a, am, at := s.register(3 * unit)
	_, ok := s.o.At(a, at, 1, false)
	require.False(t, ok)
	require.Equal(t, "not bound: no operation by multicast has used it", a.String())
	require.NoError(t, s.o.Lead(a))
	p, ok := s.o.At(a, at+5, 3*unit-5, false)
	require.True(t, ok)
	require.Equal(t, Place{2*unit + 5, 2 * unit, 3 * unit}, p)
	_, ok = s.o.At(a, at+5, 3*unit, false)
	require.False(t, ok, "more than is bound")
	require.Equal(t, "bound at 0x400000 of the multicast object of this test", a.String())
	b, bm, _ := s.register(3 * unit)
	require.NoError(t, s.o.Lead(b))
	c, _, _ := s.register(unit)
	require.ErrorIs(t, s.o.Lead(c), fault.ErrLimit)
	require.NoError(t, s.b.Deregister(am, a))
	require.NoError(t, s.o.Lead(c), "in the gap")
	require.NoError(t, s.b.Deregister(bm, b))
	require.NoError(t, s.o.Close(nil))
}

func (s *scene) staging() uintptr {
	a, err := s.heap.AllocDevice(2 * unit)
	require.NoError(s.t, err)
	return a.Base()
}

func TestFollow(t *testing.T) {
	s := newScene(t, 16*unit)
	idle, busy := func() bool { return true }, func() bool { return false }
	a, _, at := s.register(4 * unit)
	for name, bad := range map[string]Place{
		"nothing":         {},
		"no whole units":  {At: 5, Begin: 1, Bytes: unit},
		"not there":       {At: 0, Begin: unit, Bytes: unit},
		"behind it":       {At: 2 * unit, Begin: unit, Bytes: unit},
		"beyond the end":  {At: 15 * unit, Begin: 15 * unit, Bytes: 2 * unit},
		"around":          {At: math.MaxUint64 - unit + 1, Begin: math.MaxUint64 - unit + 1, Bytes: 2 * unit},
		"more than there": {At: 0, Begin: 0, Bytes: math.MaxUint64 - unit + 1},
	} {
		require.ErrorIs(t, s.o.Follow(a, at, bad, idle), fault.ErrMismatch, name)
	}
	lead := Place{At: 3*unit + 64, Begin: 2 * unit, Bytes: 3 * unit}
	require.ErrorIs(t, s.o.Follow(a, at, lead, idle), fault.ErrNotSupported, "another offset in the unit")
	require.NoError(t, s.o.Follow(a, at+unit+64, lead, idle))
	p, ok := s.o.At(a, at+unit+64, 1000, false)
	require.True(t, ok)
	require.Equal(t, Place{3*unit + 64, 2 * unit, 3 * unit}, p, "as much as faces the first rank's memory")
	require.ErrorIs(t, s.o.Follow(a, at, Place{8 * unit, 8 * unit, unit}, idle), fault.ErrNotSupported, "it is bound elsewhere")

	b, _, bt := s.register(unit)
	other := Place{4 * unit, 4 * unit, unit}
	require.ErrorIs(t, s.o.Follow(b, bt, other, busy), fault.ErrInUse)
	require.NoError(t, s.o.Follow(b, bt, other, idle))
	_, ok = s.o.At(a, at+unit+64, 1000, false)
	require.False(t, ok, "it had to go")
	_, ok = s.o.At(b, bt, unit, true)
	require.True(t, ok)
	c, _, ct := s.register(unit)
	require.ErrorIs(t, s.o.Follow(c, ct, other, idle), fault.ErrInUse, "a graph uses what is there")
}

func TestTries(t *testing.T) {
	s := newScene(t, 4*unit)
	a, _, _ := s.register(unit)
	var tried []uint64
	for now := range uint64(100) {
		if a.Due(now) {
			tried = append(tried, now)
			a.Missed(now, "of something")
		}
	}
	require.Equal(t, []uint64{0, 1, 3, 7, 15, 31, 63}, tried)
	require.Equal(t, "not bound: of something", a.Why())
	require.NoError(t, s.o.Lead(a))
	require.Empty(t, a.Why())
	require.True(t, a.Due(0))
}

func TestRegister(t *testing.T) {
	s := newScene(t, 4*unit)
	_, err := s.b.Register(register.Memory{ID: 1, Generation: 1, Base: 4096, Bytes: 4096})
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "memory of the host")
	plain, err := s.ctx.Alloc(4 * unit)
	require.NoError(t, err)
	x, err := s.heap.AdoptDevice(plain, 4*unit, nil)
	require.NoError(t, err)
	of := func(a *mem.Allocation) register.Memory {
		return register.Memory{ID: uint64(a.At.Slot) + 1, Generation: a.At.Generation, Base: a.Base(), Bytes: a.Bytes, Device: a.Dev}
	}
	_, err = s.b.Register(of(x))
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "only memory of Alloc")
	require.NoError(t, s.heap.Retire(x))
	require.NoError(t, s.ctx.Free(plain))
	stale := of(x)
	_, err = s.b.Register(stale)
	require.ErrorIs(t, err, fault.ErrStale)

	a, m, at := s.register(unit)
	again, err := s.b.Register(m)
	require.NoError(t, err)
	require.NoError(t, s.o.Lead(a))
	require.NoError(t, s.b.Deregister(m, a))
	_, ok := s.o.At(again.(*Region), at, unit, false)
	require.True(t, ok, "it is registered once more")
	require.NoError(t, s.b.Deregister(m, again))
	require.Empty(t, s.o.places)

	s.b.Refuse(fault.ErrNotSupported)
	_, err = s.b.Register(m)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.NoError(t, (*Backend)(nil).Close(0, nil))
}

// An object that peers' kernels use stays, and so does what is bound to it.
func TestLagging(t *testing.T) {
	s := newScene(t, 4*unit)
	a, m, _ := s.register(unit)
	require.NoError(t, s.o.Lead(a))
	lags := true
	require.NoError(t, s.o.Close(func() bool { return lags }))
	require.NoError(t, s.b.Deregister(m, a))
	require.Len(t, s.o.places, 1)
	looks := 0
	require.ErrorIs(t, s.b.Close(0, func() { looks++ }), fault.ErrTimeout)
	require.Positive(t, looks)
	require.Len(t, s.b.objects, 1)
	require.NoError(t, s.b.Close(time.Minute, func() { lags = false }))
	require.Empty(t, s.b.objects)
}

// After a failure memory stays bound, and so alive, until the object ends, whatever its owner does.
func TestQuarantine(t *testing.T) {
	before := map[string]int{}
	t.Run("in it", func(t *testing.T) {
		before = emulated.CountOf(t)
		s := newScene(t, 4*unit)
		a, m, _ := s.register(unit)
		require.NoError(t, s.o.Lead(a))
		lift := s.heap.Quarantine()
		require.NoError(t, s.b.Deregister(m, a))
		require.NoError(t, s.heap.Retire(s.heap.Lookup(m.Base, m.Bytes)))
		require.Len(t, s.o.places, 1)
		lift()
	})
	require.Equal(t, before, emulated.CountOf(t))
}
