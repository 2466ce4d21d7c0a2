package register

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestPolicy(t *testing.T) {
	for p, text := range map[Policy]string{Auto: "auto", Explicit: "explicit", Off: "off"} {
		b, err := p.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		var q Policy = -1
		require.NoError(t, q.UnmarshalText(b))
		require.Equal(t, p, q)
	}
	var zero Policy
	require.Equal(t, Auto, zero)
	require.ErrorIs(t, zero.UnmarshalText([]byte("always")), fault.ErrArgument)
	_, err := Policy(7).MarshalText()
	require.ErrorIs(t, err, fault.ErrArgument)
	require.Equal(t, "Policy(7)", Policy(7).String())
}

func TestKind(t *testing.T) {
	require.Equal(t, "[NET NVLS COLLNET IPC]", fmt.Sprint([]BackendKind{NET, NVLS, COLLNET, IPC}))
	require.Equal(t, "Kind(-1)", BackendKind(-1).String())
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	require.NoError(t, Config{MaxRegions: 1, MaxBytes: 1, PageSize: 65536,
		Backends: []Backend{&fake{kind: IPC}, &fake{kind: NET}}}.Validate())
	err := Config{MaxRegions: -1, MaxBytes: -2, PageSize: 5000,
		Backends: []Backend{nil, &fake{kind: 9}, &fake{kind: NET}, &fake{kind: NET}}}.Validate()
	require.ErrorIs(t, err, fault.ErrArgument)
	for _, part := range []string{"MaxRegions is -1", "MaxBytes is -2", "PageSize is 5000", "backend 0 is nil",
		"backend 1 has the unknown kind 9", "backend 3 is a second one of kind NET"} {
		require.ErrorContains(t, err, part, "all faults are reported at once")
	}
	_, err = New(Config{PageSize: 3})
	require.ErrorIs(t, err, fault.ErrArgument)
}

func TestBadArguments(t *testing.T) {
	c := newCache(t, Config{})
	m := mem(1, 1, 0x10000, 4096)
	for _, tt := range []struct {
		name string
		m    Memory
		addr uintptr
		n    int
	}{
		{"before the memory", m, m.Base - 1, 10},
		{"over its end", m, m.Base + 4090, 7},
		{"at its end", m, m.Base + 4096, 1},
		{"no bytes", m, m.Base, 0},
		{"negative", m, m.Base, -5},
		{"wraps around", m, m.Base + 1, int(^uint(0) >> 1)},
		{"no memory", mem(1, 1, 0x10000, 0), 0x10000, 1},
		{"negative memory", mem(1, 1, 0x10000, -1), 0x10000, 1},
		{"memory beyond addresses", mem(1, 1, 1<<63, 4096), 1 << 63, 1},
		{"generation 0", mem(1, 0, 0x10000, 4096), 0x10000, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Register(tt.m, tt.addr, tt.n)
			require.ErrorIs(t, err, fault.ErrArgument)
			_, err = c.RetainGraph(tt.m, tt.addr, tt.n)
			require.ErrorIs(t, err, fault.ErrArgument)
			_, err = c.RegisterAuto(tt.m, tt.addr, tt.n)
			require.ErrorIs(t, err, fault.ErrArgument)
			require.Nil(t, c.FindLocal(tt.addr, tt.n, 0))
			require.NotEmpty(t, c.Explain(tt.addr, tt.n))
		})
	}
	mustRegister(t, c, m, m.Base, 16)
	other := m
	other.Bytes *= 2
	_, err := c.Register(other, m.Base, 16)
	require.ErrorIs(t, err, fault.ErrArgument, "one identity, two descriptions")
	requireMiss(t, c, ^uintptr(0)-10, 5)
	requireMiss(t, c, ^uintptr(0)-10, 50)
	require.Equal(t, 1, c.Stats().Regions)
}

func TestClaimAccessors(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: IPC}}})
	m := mem(3, 9, 0x10000, 8192)
	r := mustRegister(t, c, m, m.Base+100, 50)
	cl := r.Claim()
	require.Equal(t, m, cl.Memory())
	require.EqualValues(t, 9, cl.Generation())
	require.Equal(t, 120, cl.Offset(m.Base+120))
	require.Equal(t, m.Base+100, cl.Addr())
	require.Equal(t, 50, cl.Len())
	require.NoError(t, cl.Valid())
	_, err := cl.Handle(NVLS)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	_, err = cl.Handle(12)
	require.ErrorIs(t, err, fault.ErrArgument)
}

// TestNoAllocation: the path of an operation allocates nothing.
func TestNoAllocation(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: IPC}}})
	m := mem(1, 1, 0x10000, 8192)
	r := mustRegister(t, c, m, m.Base, 8192)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		cl := c.FindLocal(m.Base+5000, 8, 1)
		if _, err := cl.Handle(IPC); err != nil {
			t.Error(err)
		}
		_ = cl.Memory()
		cl.Release()
		if cl, err := r.Acquire(); err == nil {
			cl.Release()
		}
		c.FindLocal(m.Base+5000, 8000, 0)
		c.FindGraph(m.Base, 8, 0)
	}))
}

// TestWhileRegistering blocks a backend's Register and checks what other calls may do meanwhile.
func TestWhileRegistering(t *testing.T) {
	type result struct {
		ref *Ref
		err error
	}
	start := func(t *testing.T, auto bool) (c *Cache, b *fake, m Memory, res chan result) {
		b = &fake{kind: IPC, hold: make(chan struct{}), entered: make(chan struct{}, 1)}
		c = newCache(t, Config{Backends: []Backend{b}})
		m = mem(1, 1, 0x10000, 4096)
		res = make(chan result, 2)
		go func() {
			if !auto {
				ref, err := c.Register(m, m.Base, 64)
				res <- result{ref, err}
				return
			}
			cl, err := c.RegisterAuto(m, m.Base, 64)
			if err == nil {
				cl.Release()
			}
			res <- result{nil, err}
		}()
		<-b.entered
		return c, b, m, res
	}
	t.Run("a second one waits for the first", func(t *testing.T) {
		c, b, m, res := start(t, false)
		go func() {
			ref, err := c.Register(m, m.Base, 64)
			res <- result{ref, err}
		}()
		requireMiss(t, c, m.Base, 64)
		require.Contains(t, c.Explain(m.Base, 64), "registering")
		close(b.hold)
		one, two := <-res, <-res
		require.NoError(t, one.err)
		require.NoError(t, two.err)
		require.Same(t, one.ref.Claim(), two.ref.Claim())
		require.Equal(t, [2]int{1, 0}, b.calls())
		require.Equal(t, 1, c.Stats().Regions)
	})
	t.Run("other memory does not wait", func(t *testing.T) {
		c, b, _, res := start(t, false)
		b.entered = nil
		hold := b.hold
		b.hold = nil // the first call has read it already
		mustRegister(t, c, mem(2, 1, 0x20000, 64), 0x20000, 64)
		requireHit(t, c, 0x20000, 64)
		close(hold)
		require.NoError(t, (<-res).err)
	})
	t.Run("free", func(t *testing.T) {
		c, b, m, res := start(t, false)
		require.ErrorIs(t, c.Forget(m, func(error) { t.Error("freed") }), fault.ErrInUse)
		close(b.hold)
		require.NoError(t, (<-res).err)
	})
	t.Run("free of an automatic one", func(t *testing.T) {
		c, b, m, res := start(t, true)
		freed := make(chan bool, 2)
		require.NoError(t, c.Forget(m, func(error) { freed <- true }))
		require.Empty(t, freed)
		close(b.hold)
		require.ErrorIs(t, (<-res).err, fault.ErrStale)
		require.Len(t, freed, 1)
		require.Equal(t, [2]int{1, 1}, b.calls())
	})
	t.Run("invalidate", func(t *testing.T) {
		c, b, m, res := start(t, false)
		require.NoError(t, c.Invalidate(m.Base, 1))
		close(b.hold)
		require.ErrorIs(t, (<-res).err, fault.ErrStale)
		require.Equal(t, [2]int{1, 1}, b.calls())
		require.Zero(t, c.Stats().Regions)
	})
	t.Run("close", func(t *testing.T) {
		c, b, _, res := start(t, false)
		require.NoError(t, c.Close())
		close(b.hold)
		require.ErrorIs(t, (<-res).err, fault.ErrClosed)
		require.Equal(t, [2]int{1, 1}, b.calls())
	})
}

// TestRounds: repeated registering and closing leaves nothing behind.
func TestRounds(t *testing.T) {
	testkit.Long(t) // by one goroutine
	b := &fake{kind: IPC}
	c := newCache(t, Config{Backends: []Backend{b}})
	round := func(i int) {
		m := mem(uint64(i%100+1), uint64(i+1), uintptr(0x10000+i%1000*8192), 4096)
		r := mustRegister(t, c, m, m.Base, 4096)
		cl, err := c.RegisterAuto(m, m.Base+1, 10)
		require.NoError(t, err)
		cl.Release()
		require.NoError(t, r.Close())
		require.NoError(t, c.Forget(m, func(error) {}))
	}
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	for i := range 1000 {
		round(i)
	}
	before := heap()
	for i := range 100000 {
		round(i)
	}
	require.Less(t, heap()-before, int64(256<<10), "bytes of garbage that stay")
	require.Zero(t, b.count()+c.local.n+c.graph.n+c.places.n+len(c.queue)+len(c.extents)+len(c.leaving))
}

func ExampleCache() {
	c, err := New(Config{MaxRegions: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The allocator describes its memory; the program registers a part of it.
	m := Memory{ID: 1, Generation: 1, Base: 0x100000, Bytes: 1 << 16, Kind: "arena"}
	r, err := c.Register(m, m.Base+4096, 8192)
	if err != nil {
		fmt.Println(err)
		return
	}
	// An operation looks its buffer up, and holds it while it runs.
	if claim := c.FindLocal(m.Base+5000, 1000, 0); claim != nil {
		fmt.Println("direct, at offset", claim.Offset(m.Base+5000))
		claim.Release()
	}
	if c.FindLocal(m.Base, 1000, 0) == nil {
		fmt.Print("staged: ", c.Explain(m.Base, 1000))
	}
	fmt.Println(c.Forget(m, func(error) {}))
	fmt.Println(r.Close(), c.Forget(m, func(error) { fmt.Println("free") }))
	// Output:
	// direct, at offset 5000
	// staged: [0x100000,+1000): miss: no claim contains it
	//   nearest claim [0x101000,+8192) of memory 1 generation 1 (arena, host) begins 3096 bytes after it
	//   memory 1 generation 1 (arena, host) at [0x100000,+65536), 1 claims, no backends
	// memory at 0x100000: 1 registrations and windows, and 0 graphs are open, close them first: in use
	// free
	// <nil> <nil>
}

// TestForgetDuringDeregister frees memory while another goroutine's Close still deregisters it: done is called
// afterwards.
func TestForgetDuringDeregister(t *testing.T) {
	b := &fake{kind: NET, enteredOut: make(chan struct{}), holdOut: make(chan struct{})}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	r := mustRegister(t, c, m, m.Base, 4096)
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	<-b.enteredOut
	free := make(chan struct{}, 1)
	require.NoError(t, c.Forget(m, func(error) { free <- struct{}{} }))
	require.Empty(t, free, "the backend still has it")
	require.Contains(t, c.Explain(m.Base, 1), "deregisters")
	_, err := c.Register(m, m.Base, 64)
	require.ErrorIs(t, err, fault.ErrStale)
	close(b.holdOut)
	require.NoError(t, <-closed)
	<-free
	require.Zero(t, b.count()+len(c.leaving))
}

// TestPeek: Peek finds what the program or a graph has registered, keeps it as other lookups do, and counts nowhere.
func TestPeek(t *testing.T) {
	c := newCache(t, Config{})
	m := mem(1, 1, 0x10000, 3*4096)
	local, err := c.Register(m, m.Base, 4096)
	require.NoError(t, err)
	graph, err := c.RetainGraph(m, m.Base+4096, 4096)
	require.NoError(t, err)
	before := c.Stats()
	for at, ref := range map[uintptr]*Ref{m.Base + 8: local, m.Base + 4096: graph} {
		cl := c.Peek(at, 100)
		require.Same(t, ref.Claim(), cl)
		require.Equal(t, 1, cl.inFlight())
		cl.Release()
		require.Zero(t, cl.inFlight())
	}
	for _, none := range [][2]uintptr{{m.Base + 4000, 200}, {m.Base + 2*4096, 1}, {m.Base, 0}, {1 << 63, 8}} {
		require.Nil(t, c.Peek(none[0], int(none[1])))
	}
	require.Equal(t, before, c.Stats())
	require.NoError(t, local.Close())
	require.NoError(t, graph.Close())
}
