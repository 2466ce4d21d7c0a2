package mr_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

const all = verbs.LocalWrite | verbs.Remote

// TestWhole: an allocation is registered whole on every NIC, at its own addresses.
func TestWhole(t *testing.T) {
	for name, c := range map[string]mr.Config{"strict": {}, "relaxed": {Relaxed: true}} {
		t.Run(name, func(t *testing.T) {
			b := open(t, c)
			require.Equal(t, register.NET, b.Kind())
			m, mem := memory(t, 3*4096+100)
			r := registered(t, b, m)
			require.Equal(t, []any{uint64(m.Base), m.Bytes, m}, []any{r.Address(), r.Bytes(), r.Memory()})
			_, err := r.For(verbs.RemoteRead)
			require.ErrorIs(t, err, mr.ErrAccess, "no operation reads")
			keys, err := r.For(verbs.LocalWrite | verbs.RemoteWrite)
			require.NoError(t, err)
			require.Len(t, keys, len(b.NICs()))
			token := r.Token()
			require.NoError(t, b.Valid(token))
			for i, n := range b.NICs() {
				require.Equal(t, keys[i].Remote, token.Keys[i])
				require.Contains(t, r.String(), n.Device.Name())
				p := newPeer(t, b, i)
				p.local[0], p.local[1] = 'x', byte(i)
				require.NoError(t, p.do(t, verbs.Write, token, m.Bytes-2, 2))
				require.Equal(t, []byte{'x', byte(i)}, mem[m.Bytes-2:])
			}
			require.NoError(t, b.Deregister(m, r))
			require.ErrorIs(t, b.Valid(token), fault.ErrStale)
		})
	}
}

// TestAccess: asking for access that a region does not have is a miss, which says what is missing.
func TestAccess(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 8192)
	for _, c := range []struct {
		have, want, missing verbs.Access
	}{
		{all, 0, 0},
		{all, all, 0},
		{0, 0, 0},
		{0, verbs.LocalWrite, verbs.LocalWrite},
		{verbs.LocalWrite, verbs.LocalWrite | verbs.RemoteWrite, verbs.RemoteWrite},
		{verbs.RemoteRead, verbs.RemoteRead, 0},
		{verbs.RemoteRead, all, all &^ verbs.RemoteRead},
		{verbs.LocalWrite | verbs.RemoteWrite, verbs.RemoteRead, verbs.RemoteRead},
		{verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead, verbs.RemoteAtomic, verbs.RemoteAtomic},
	} {
		t.Run(fmt.Sprintf("%v of %v", c.want, c.have), func(t *testing.T) {
			e := export(t, b, m, 100, 200, c.have)
			defer func() { require.NoError(t, e.Close()) }()
			keys, err := e.For(c.want)
			if c.missing == 0 {
				require.NoError(t, err)
				require.Len(t, keys, len(b.NICs()))
				return
			}
			require.Nil(t, keys)
			require.ErrorIs(t, err, mr.ErrAccess)
			require.ErrorIs(t, err, fault.ErrNotSupported)
			for _, says := range []string{"registered for " + c.have.String(), "not for " + c.missing.String(), m.String(),
				b.NICs()[0].Device.Name() + " lacks"} {
				require.ErrorContains(t, err, says)
			}
		})
	}
	t.Run("memory to be read", func(t *testing.T) {
		m, _ := mapped(t, 4096, unix.PROT_READ)
		r := registered(t, b, m)
		defer func() { require.NoError(t, b.Deregister(m, r)) }()
		_, err := r.For(0)
		require.NoError(t, err)
		_, err = r.For(verbs.LocalWrite)
		require.ErrorIs(t, err, mr.ErrAccess)
		require.ErrorContains(t, err, "this process may only read it")
		p := newPeer(t, b, 0)
		require.ErrorIs(t, p.do(t, verbs.Write, r.Token(), 0, 8), fault.ErrStale)
	})
}

// TestExact: an export covers exactly its bytes, and closing it ends only its own access.
func TestExact(t *testing.T) {
	b := open(t, mr.Config{})
	m, mem := memory(t, 3*4096)
	p := newPeer(t, b, 0)
	whole := registered(t, b, m)
	one, two := export(t, b, m, 4000, 300, all), export(t, b, m, 4100, 300, verbs.RemoteRead)
	require.Equal(t, []any{uint64(m.Base) + 4000, 300}, []any{one.Address(), one.Bytes()})

	copy(p.local, bytes.Repeat([]byte{7}, 300))
	require.NoError(t, p.do(t, verbs.Write, one.Token(), 0, 300))
	require.Equal(t, bytes.Repeat([]byte{7}, 300), mem[4000:4300])
	require.EqualValues(t, []byte{0, 0}, []byte{mem[3999], mem[4300]})
	for name, off := range map[string]int{"before": -1, "behind": 299} {
		require.ErrorIs(t, p.do(t, verbs.Write, one.Token(), off, 2), fault.ErrStale, name)
	}
	require.ErrorIs(t, p.do(t, verbs.Write, two.Token(), 0, 8), fault.ErrStale, "it may be read only")

	old := one.Token()
	require.NoError(t, one.Close())
	require.ErrorIs(t, one.Close(), fault.ErrClosed)
	require.ErrorIs(t, b.Valid(old), fault.ErrStale)
	require.ErrorIs(t, p.do(t, verbs.Read, old, 0, 8), fault.ErrStale)
	require.NoError(t, b.Valid(two.Token()))
	require.NoError(t, p.do(t, verbs.Read, two.Token(), 0, 8))
	require.NoError(t, p.do(t, verbs.Write, whole.Token(), 4000, 8))
	require.NoError(t, b.Deregister(m, whole))
	require.NoError(t, p.do(t, verbs.Read, two.Token(), 0, 8))
	require.NoError(t, two.Close())

	for name, c := range map[string]struct {
		off, n int
		access verbs.Access
	}{
		"nothing": {0, 0, 0}, "less": {0, -1, 0}, "before": {-1, 10, 0}, "behind": {m.Bytes - 9, 10, 0}, "far": {1 << 40, 1, 0},
		"longer": {0, m.Bytes + 1, 0}, "remote write alone": {0, 1, verbs.RemoteWrite},
	} {
		_, err := b.Exact(m, m.Base+uintptr(c.off), c.n, c.access)
		require.ErrorIs(t, err, fault.ErrArgument, name)
	}
	e := export(t, b, m, 0, m.Bytes, 0)
	require.NoError(t, e.Close())
}

// TestValid: a token is valid only as long as its own registration.
func TestValid(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 4096)
	e := export(t, b, m, 0, 4096, all)
	defer e.Close()
	good := e.Token()
	require.NoError(t, b.Valid(good))
	for name, change := range map[string]func(t *mr.Token){
		"generation": func(t *mr.Token) { t.Generation++ }, "no generation": func(t *mr.Token) { t.Generation = 0 },
		"address": func(t *mr.Token) { t.Address++ }, "length": func(t *mr.Token) { t.Bytes++ },
		"key": func(t *mr.Token) { t.Keys[0]++ }, "fewer keys": func(t *mr.Token) { t.Keys = nil },
		"more keys": func(t *mr.Token) { t.Keys = append(t.Keys, 1) },
	} {
		bad := e.Token()
		change(&bad)
		require.ErrorIs(t, b.Valid(bad), fault.ErrStale, name)
	}
	require.ErrorIs(t, b.Valid(mr.Token{}), fault.ErrStale)
}

// TestKeyRecurs registers and deregisters adopted memory at one address until the NIC reuses a key, and then puts by
// the old token: the NIC sees no error, but the generation shows it.
func TestKeyRecurs(t *testing.T) {
	tries := 2000 // soft-RoCE gives half a million other keys first
	if *long {
		tries = 2 << 20
	}
	b := open(t, mr.Config{Select: first(t)})
	m, mem := memory(t, 4096)
	p := newPeer(t, b, 0)
	seen := map[verbs.RKey]mr.Token{}
	for i := range tries {
		now := m
		now.ID, now.Generation = 7, uint64(i)+1 // adopted anew each time
		r := registered(t, b, now)
		token := r.Token()
		old, again := seen[token.Keys[0]]
		if !again {
			require.NoError(t, b.Deregister(now, r))
			seen[token.Keys[0]] = token
			continue
		}
		t.Logf("%v is of registrations %d and %d", token.Keys[0], old.Generation, token.Generation)
		require.Equal(t, []any{token.Address, token.Keys}, []any{old.Address, old.Keys})
		require.ErrorIs(t, b.Valid(old), fault.ErrStale, "before the put")
		p.local[0] = 0x5a
		require.NoError(t, p.do(t, verbs.Write, old, 0, 1), "the NIC has no way to know")
		require.EqualValues(t, 0x5a, mem[0], "and it landed in other memory")
		err := b.Valid(old)
		require.ErrorIs(t, err, fault.ErrStale, "after the put")
		require.ErrorContains(t, err, fmt.Sprintf("is that of generation %d by now, %v", token.Generation, now))
		require.NoError(t, b.Valid(token))
		require.NoError(t, b.Deregister(now, r))
		return
	}
	t.Logf("no key came again in %d registrations", tries)
	mustRecur(t)
}

// TestClose: a backend does not close while it has registrations.
func TestClose(t *testing.T) {
	b := open(t, mr.Config{})
	other, err := mr.Open(mr.Config{})
	require.NoError(t, err)
	m, _ := memory(t, 4096)
	r := registered(t, other, m)
	e := export(t, other, m, 0, 8, 0)
	err = other.Close()
	require.ErrorIs(t, err, fault.ErrInUse)
	require.ErrorContains(t, err, "2 are open; "+m.String())
	require.NoError(t, other.Valid(r.Token()))
	require.NoError(t, other.Deregister(m, r))
	require.ErrorIs(t, other.Close(), fault.ErrInUse)
	require.NoError(t, e.Close())
	require.NoError(t, other.Close())
	require.ErrorIs(t, other.Close(), fault.ErrClosed)
	_, err = other.Register(m)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = other.Exact(m, m.Base, 1, 0)
	require.ErrorIs(t, err, fault.ErrClosed)
	r = registered(t, b, m) // closing one backend does not close another
	require.NoError(t, b.Deregister(m, r))
	require.NoError(t, (*mr.Backend)(nil).Close())
}

// TestRefused: memory that no NIC can register.
func TestRefused(t *testing.T) {
	b := open(t, mr.Config{})
	gone, _ := memory(t, 4096)
	gone.Base = 4096
	_, err := b.Register(gone)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "RDMA device "+b.NICs()[0].Device.Name())
	device, _ := memory(t, 4096)
	device.Device = hw.CUDA(0)
	_, err = b.Register(device)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "no GPU")
	peerModule(t, false)
	b.UseGPU(&gpu{export: func(register.Memory) (int, uint64, error) { return -1, 0, hw.ErrNotSupported }})
	_, err = b.Register(device)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "dma-buf")
	b.UseGPU(nil)
	_, err = b.Exact(device, device.Base, 10, 0)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "no GPU")
	_, err = mr.Open(mr.Config{Select: selection(t, "=nothing0")})
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, b.NICs()[0].Device.Name()+" is not selected")
}

// TestNoLock: while one registration takes long, nothing else waits for it, except Close.
func TestNoLock(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	b := open(t, mr.Config{})
	peerModule(t, false)
	b.UseGPU(&gpu{export: func(register.Memory) (int, uint64, error) {
		close(entered)
		<-hold
		return 0, 0, errors.New("no such thing")
	}})
	device, _ := memory(t, 4096)
	device.Device = hw.CUDA(0)
	slow := make(chan error)
	go func() { slow <- testkit.ErrOf(b.Register(device)) }()
	<-entered
	m, _ := memory(t, 4096)
	r := registered(t, b, m)
	e := export(t, b, m, 0, 8, 0)
	require.NoError(t, b.Valid(e.Token()))
	require.NoError(t, e.Close())
	require.NoError(t, b.Deregister(m, r))
	require.ErrorIs(t, b.Close(), fault.ErrInUse)
	close(hold)
	require.ErrorContains(t, <-slow, "no such thing")
}

// TestChurn registers, exports, asks and closes from many goroutines.
func TestChurn(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 16*4096)
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				mine := m
				mine.ID = uint64(100 + g)
				h, err := b.Register(mine)
				if !check(t, err) {
					return
				}
				e, err := b.Exact(mine, mine.Base+uintptr(g*4096+i), 100+i, verbs.RemoteRead)
				if !check(t, err) {
					return
				}
				token := e.Token()
				check(t, b.Valid(token))
				if i%2 == 0 {
					check(t, b.Deregister(mine, h))
					check(t, b.Valid(token))
				}
				check(t, e.Close())
				if err := b.Valid(token); !errors.Is(err, fault.ErrStale) {
					t.Errorf("a closed export's token: %v", err)
				}
				if i%2 != 0 {
					check(t, b.Deregister(mine, h))
				}
				mu.Lock()
				if seen[token.Generation] {
					t.Errorf("generation %d came again", token.Generation)
				}
				seen[token.Generation] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 8*50)
}

func check(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}
