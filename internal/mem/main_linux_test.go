package mem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(children)
	checks := "60"
	if race.Enabled {
		checks = "15"
	}
	testkit.Rapid("checks="+checks, "steps=60")
	emulated.Main(func() int {
		return testkit.Main(m)
	})
}

var children = map[string]func() error{
	"space":    childSpace,
	"spare":    childSpare,
	"cycles":   childCycles,
	"nofile":   childNoFile,
	"nomemory": childNoMemory,
}

func limited(t *testing.T, name string, args ...string) {
	t.Helper()
	// C's allocator reserves 64 MiB of addresses for each thread that uses it, which would be most of the limit.
	testkit.RunChild(t, name, append(args, "MALLOC_ARENA_MAX=1")...)
}

// childSpace allocates under a limit on address space that leaves HEADROOM MiB.
func childSpace() error {
	room, err := strconv.Atoi(os.Getenv("HEADROOM"))
	if err != nil {
		return err
	}
	size := uint64(testkit.Status("VmSize") + room<<20)
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: size, Max: size}); err != nil {
		return err
	}
	h, err := New(1, false)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		a, err := h.Alloc(1 << 20)
		if errors.Is(err, fault.ErrLimit) && strings.Contains(err.Error(), "ulimit -v") && n >= room/16 {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d MiB of %d: %w", n, room, err)
		}
		*(*byte)(a.Ptr) = 1
	}
	// The program itself must have some left.
	var keep [4][]byte
	for i := range keep {
		keep[i] = make([]byte, 8<<20)
	}
	runtime.KeepAlive(&keep)
	return h.Close()
}

func check(ok bool, what string) error {
	if ok {
		return nil
	}
	return errors.New(what)
}

func childNoFile() error {
	h, err := New(1, false)
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: 32}); err != nil {
		return err
	}
	first, err := h.Alloc(firstArena / 2)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = unix.Dup(0)
	}
	_, err = h.Alloc(firstArena) // needs a second arena
	if !errors.Is(err, fault.ErrLimit) || !strings.Contains(err.Error(), "ulimit -n") {
		return fmt.Errorf("without descriptors: %w", err)
	}
	live := h.Stats().Allocations
	a, err := h.Alloc(1) // fits into the arenas
	if err != nil {
		return err
	}
	return errors.Join(check(live == 1, "what failed is counted"), h.Retire(first), h.Retire(a), h.Close())
}

// childNoMemory requests more memory than there is. If memory runs out, this process is the one to kill.
func childNoMemory() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	h, err := New(1, false)
	if err != nil {
		return err
	}
	for _, n := range []int{1 << 44, 1 << 46, 1<<46 + 1, 1<<63 - 1} {
		if _, err := h.Alloc(n); !errors.Is(err, fault.ErrLimit) {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
	}
	a, err := h.Alloc(1)
	if err != nil {
		return err
	}
	return errors.Join(check(a.At.Slot == 0, "failures must not use up slots"), h.Close())
}

// footprint is what a heap could leave behind.
type footprint struct{ descriptors, mappings, shared int }

func measure(t *testing.T) (f footprint) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	left, err := filepath.Glob("/dev/shm/ubcoll*")
	require.NoError(t, err)
	require.Empty(t, left)
	return footprint{len(fds), strings.Count(string(maps), "\n"), strings.Count(string(maps), "memfd:ubcoll")}
}

func newHeap(t *testing.T, goHeap bool) *Heap {
	t.Helper()
	domains++
	h, err := New(domains, goHeap)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !h.closed {
			require.NoError(t, h.Close())
		}
	})
	return h
}

var domains = uint64(1 << 20)

func alloc(t require.TestingT, h *Heap, n int) *Allocation {
	a, err := h.Alloc(n)
	require.NoError(t, err)
	return a
}

// fill sets b, which is not empty, by copies: the race detector checks each of them once.
func fill(b []byte, with byte) {
	b[0] = with
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func bytesOf(a *Allocation) []byte { return unsafe.Slice((*byte)(a.Ptr), a.Bytes) }

// modes runs a test on both kinds of heap.
func modes(t *testing.T, f func(t *testing.T, goHeap bool)) {
	for _, goHeap := range []bool{false, true} {
		t.Run(map[bool]string{false: "files", true: "go heap"}[goHeap], func(t *testing.T) { f(t, goHeap) })
	}
}
