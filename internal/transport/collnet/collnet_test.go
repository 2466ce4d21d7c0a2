//go:build linux && cgo && (amd64 || arm64)

package collnet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	hwcollnet "github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/register"
)

// other is a backend of another kind, which notes what it does, and fails if it is told to. What these bind needs other hardware.
type other struct {
	kind  register.BackendKind
	fails bool
	order *[]string
}

func (o *other) Kind() register.BackendKind { return o.kind }

func (o *other) Register(register.Memory) (any, error) {
	*o.order = append(*o.order, o.kind.String())
	return o, nil
}

func (o *other) Deregister(register.Memory, any) error {
	*o.order = append(*o.order, o.kind.String())
	if o.fails {
		return errors.New("it does not")
	}
	return nil
}

// noting notes when the backend is asked to deregister.
type noting struct {
	*Backend
	order *[]string
}

func (n noting) Deregister(m register.Memory, h any) error {
	*n.order = append(*n.order, "COLLNET")
	return n.Backend.Deregister(m, h)
}

func backend(t *testing.T, kept *[]register.Memory) *Backend {
	t.Helper()
	switchtest.Use(t)
	b, err := FromEnv(slog.New(slog.DiscardHandler), 7, func(m register.Memory) { *kept = append(*kept, m) })
	require.NoError(t, err)
	return b
}

func memory(t *testing.T, id uint64, n int) register.Memory {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	return register.Memory{ID: id, Generation: 1, Base: uintptr(unsafe.Pointer(unsafe.SliceData(b))), Bytes: n}
}

// group makes a group of this rank alone.
func group(t *testing.T, b *Backend) *Group {
	t.Helper()
	o, err := b.Offer(t.Context())
	require.NoError(t, err)
	g, err := o.Join(t.Context(), [][hwcollnet.HandleBytes]byte{o.Handle}, 0, memory(t, 100, 4096))
	require.NoError(t, err)
	return g
}

// at is where a group's own memory is.
func (g *Group) at() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&g.own.Base)) }

// TestStates: one region has all four states, and gives them up in their order, whichever of them fails.
func TestStates(t *testing.T) {
	for k := -1; k < 4; k++ {
		failing := register.BackendKind(k)
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			var kept []register.Memory
			var order []string
			b := backend(t, &kept)
			g := group(t, b)
			backends := []register.Backend{noting{b, &order}}
			for _, kind := range []register.BackendKind{register.IPC, register.NET, register.NVLS} {
				backends = append(backends, &other{kind, kind == failing, &order})
			}
			c, err := register.New(register.Config{Backends: backends})
			require.NoError(t, err)
			m := memory(t, 1, 1<<16)
			r, err := c.Register(m, m.Base, m.Bytes)
			require.NoError(t, err)
			text := c.Explain(m.Base, m.Bytes)
			for _, want := range []string{"NET complete", "NVLS complete", "COLLNET complete: in 1 group", "IPC complete"} {
				require.Contains(t, text, want)
			}
			s := c.Stats()
			require.Equal(t, []int{1, 1, 1, 1}, []int{s.NET.Complete, s.NVLS.Complete, s.COLLNET.Complete, s.IPC.Complete})
			order = nil
			if failing == register.COLLNET {
				t.Setenv("COLLNET_SWITCH_FAULT", "deregMr=fail")
			}
			err = r.Close()
			require.Equal(t, []string{"NET", "NVLS", "COLLNET", "IPC"}, order)
			if failing < 0 {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, failing.String()+" could not deregister")
			}
			require.Equal(t, failing == register.COLLNET, len(kept) == 1, "what the plugin may still use is kept")
			s = c.Stats()
			require.Equal(t, []int{0, 0, 0, 0}, []int{s.NET.Complete, s.NVLS.Complete, s.COLLNET.Complete, s.IPC.Complete})
			t.Setenv("COLLNET_SWITCH_FAULT", "")
			require.NoError(t, errors.Join(c.Close(), g.Close()))
		})
	}
}

// TestRegions: memory is registered with the groups that there are, and with others when they use it; what closes first gives it
// back.
func TestRegions(t *testing.T) {
	var kept []register.Memory
	b := backend(t, &kept)
	m := memory(t, 1, 4096)
	early, err := b.Register(m)
	require.NoError(t, err)
	require.Equal(t, "no group of this rank's has used it", fmt.Sprint(early))
	g, h := group(t, b), group(t, b)
	late, err := b.Register(memory(t, 2, 4096))
	require.NoError(t, err)
	require.Equal(t, "in 2 groups", fmt.Sprint(late))
	require.NoError(t, g.Usable(early))
	require.Equal(t, "in 1 group", fmt.Sprint(early))
	require.NoError(t, g.Close())
	require.Equal(t, "no group of this rank's has used it", fmt.Sprint(early))
	require.Equal(t, "in 1 group", fmt.Sprint(late))
	require.Error(t, g.Usable(early))
	require.NoError(t, errors.Join(b.Deregister(m, early), b.Deregister(m, late), h.Close()))
	require.Empty(t, kept)

	// What is registered or given back while a collective is under way waits for its end.
	k := group(t, b)
	n := memory(t, 4, 4096)
	mine, err := b.Register(n)
	require.NoError(t, err)
	t.Setenv("COLLNET_SWITCH_FAULT", "test=never")
	sum := transport.Offload{Type: dtype.Uint8, Src: transport.OffloadMemory{At: k.at()}, Dst: transport.OffloadMemory{At: k.at()}, Block: 64, To: 64, Step: 64}
	k.Begin(t.Context(), sum)
	begun := time.Now()
	other, err := b.Register(memory(t, 5, 4096))
	require.NoError(t, err)
	require.Equal(t, "no group of this rank's has used it", fmt.Sprint(other))
	require.NoError(t, b.Deregister(n, mine))
	require.Less(t, time.Since(begun), limit)
	require.Len(t, k.later, 1)
	t.Setenv("COLLNET_SWITCH_FAULT", "")
	testkit.Eventually(t, func() bool { over, err := k.Over(); require.NoError(t, err); return over })
	require.NoError(t, k.Usable(other))
	k.Begin(t.Context(), sum)
	require.Empty(t, k.later)
	testkit.Eventually(t, func() bool { over, err := k.Over(); require.NoError(t, err); return over })
	require.NoError(t, errors.Join(b.Deregister(m, other), k.Close()))
	require.Empty(t, kept)

	t.Setenv("COLLNET_SWITCH_FAULT", "regMr=fail@1")
	g2, err := b.Offer(t.Context())
	require.NoError(t, err)
	_, err = g2.Join(t.Context(), [][hwcollnet.HandleBytes]byte{g2.Handle}, 0, m)
	require.ErrorContains(t, err, "regMr of the CollNet plugin")
	_, err = b.Register(register.Memory{ID: 3, Generation: 1, Base: m.Base, Bytes: 4096, Device: hw.CUDA(0)})
	require.ErrorContains(t, err, "memory of a device")
	require.Empty(t, b.groups)
}

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
