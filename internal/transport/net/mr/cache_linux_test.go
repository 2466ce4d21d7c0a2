package mr_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// other is a backend of another kind.
type other struct {
	kind      register.BackendKind
	err, late error
	ended     func()
}

func (o *other) Kind() register.BackendKind { return o.kind }

func (o *other) Register(register.Memory) (any, error) { return "somewhere", o.err }

func (o *other) Deregister(register.Memory, any) error {
	if o.ended != nil {
		o.ended()
	}
	return o.late
}

func cache(t testing.TB, backends ...register.Backend) *register.Cache {
	t.Helper()
	c, err := register.New(register.Config{Backends: backends})
	require.NoError(t, err)
	return c
}

// TestCache: in the cache, adopted host memory is complete with NET, whatever IPC says, and each backend keeps its own
// handle.
func TestCache(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 8192)
	c := cache(t, &other{kind: register.IPC, err: fmt.Errorf("no file: %w", fault.ErrNotSupported)}, b)
	ref, err := c.Register(m, m.Base+100, 1000)
	require.NoError(t, err)
	second, err := c.Register(m, m.Base, 50)
	require.NoError(t, err)
	text := c.Explain(m.Base+100, 1000)
	for _, says := range []string{"\n    NET complete: " + b.NICs()[0].Device.Name(), "\n    NVLS absent: there is no",
		"\n    COLLNET absent: there is no", "\n    IPC cannot use it: no file"} {
		require.Contains(t, text, says)
	}
	s := c.Stats()
	require.Equal(t, []any{register.BackendStats{Complete: 1, Registered: 1}, register.BackendStats{}, register.BackendStats{},
		register.BackendStats{Unsupported: 1}}, []any{s.NET, s.NVLS, s.COLLNET, s.IPC})

	claim := c.FindLocal(m.Base+200, 10, 1)
	require.NotNil(t, claim)
	h, err := claim.Handle(register.NET)
	require.NoError(t, err)
	token := h.(*mr.Region).Token()
	require.Equal(t, []any{uint64(m.Base), m.Bytes}, []any{token.Address, token.Bytes})
	require.NoError(t, ref.Close())
	require.NoError(t, second.Close())
	require.NoError(t, b.Valid(token), "an operation uses it")
	claim.Release()
	require.ErrorIs(t, b.Valid(token), fault.ErrStale)
	require.Equal(t, register.BackendStats{Registered: 1}, c.Stats().NET)
	require.NoError(t, c.Close())
}

// TestOrder: NET is deregistered before IPC; by the time IPC is, the token is stale.
func TestOrder(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 4096)
	var token mr.Token
	var seen error
	c := cache(t, b, &other{kind: register.IPC, late: errors.New("not unmapped"), ended: func() { seen = b.Valid(token) }})
	ref, err := c.Register(m, m.Base, 4096)
	require.NoError(t, err)
	claim, err := ref.Acquire()
	require.NoError(t, err)
	h, err := claim.Handle(register.NET)
	require.NoError(t, err)
	token = h.(*mr.Region).Token()
	claim.Release()
	require.NoError(t, b.Valid(token))
	require.ErrorContains(t, ref.Close(), "IPC could not deregister "+m.String()+": not unmapped")
	require.ErrorIs(t, seen, fault.ErrStale)
	require.NoError(t, c.Close())
}

// lookup does what an operation does with a registered buffer.
func lookup(c *register.Cache, m register.Memory) error {
	claim := c.FindLocal(m.Base+8, 64, m.Generation)
	if claim == nil {
		return errors.New("a miss")
	}
	defer claim.Release()
	h, err := claim.Handle(register.NET)
	if err == nil {
		_, err = h.(*mr.Region).For(verbs.LocalWrite | verbs.RemoteWrite)
	}
	return err
}

// TestHit: a hit allocates nothing.
func TestHit(t *testing.T) {
	b := open(t, mr.Config{})
	m, _ := memory(t, 8192)
	c := cache(t, b)
	ref, err := c.Register(m, m.Base, 8192)
	require.NoError(t, err)
	if !race.Enabled {
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			if err := lookup(c, m); err != nil {
				t.Fatal(err)
			}
		}))
	}
	require.NoError(t, ref.Close())
	require.NoError(t, c.Close())
}

// TestHitCalls: a hit makes no system call.
func TestHitCalls(t *testing.T) {
	open(t, mr.Config{}) // skips without a device
	if race.Enabled {
		return // the detector makes system calls of its own
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		testkit.Missing(t, "verbs", err)
	}
	program, err := os.Executable()
	require.NoError(t, err)
	child := testkit.Child("hits")
	child.Path, child.Args = strace, []string{"strace", "-f", "-o", t.TempDir() + "/trace", program}
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	trace, err := os.ReadFile(child.Args[3])
	require.NoError(t, err)
	begin := regexp.MustCompile(`(?m)^(\d+) +write\(2, "begin"`).FindSubmatchIndex(trace)
	require.NotNil(t, begin)
	thread, after := string(trace[begin[2]:begin[3]]), string(trace[begin[1]:])
	ended, parked := false, 0
	for _, line := range strings.Split(after, "\n")[1:] {
		of, call, _ := strings.Cut(line, " ")
		if ended = of == thread && strings.Contains(call, `write(2, "end"`); ended {
			break
		}
		switch {
		case of != thread, strings.Contains(call, " resumed>"): // calls of other threads, and ends of earlier calls
		case ofRuntime.MatchString(call):
			parked++
		default:
			t.Errorf("a hit makes a system call: %s", line)
		}
	}
	require.True(t, ended)
	require.Less(t, parked, lookups/100)
}

// ofRuntime matches system calls that the Go runtime makes now and then: it stops goroutines, and has threads wait.
var ofRuntime = regexp.MustCompile(`SIGURG|rt_sigreturn|futex|nanosleep|sched_yield|getpid|tgkill`)

const lookups = 10000

// hits looks a buffer up between two marker calls.
func hits() error {
	runtime.LockOSThread()
	b, err := mr.Open(mr.Config{})
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	m := register.Memory{ID: 1, Generation: 1, Base: uintptr(unsafe.Pointer(unsafe.SliceData(mem))), Bytes: 8192,
		Device: hw.Host, Kind: "adopted"}
	c, err := register.New(register.Config{Backends: []register.Backend{b}})
	if err != nil {
		return err
	}
	ref, err := c.Register(m, m.Base, m.Bytes)
	if err != nil {
		return err
	}
	unix.Write(2, []byte("begin"))
	for range lookups {
		if err := lookup(c, m); err != nil {
			return err
		}
	}
	unix.Write(2, []byte("end"))
	return errors.Join(ref.Close(), c.Close(), b.Close())
}

// first selects only the first device.
func first(t testing.TB) verbs.Selection {
	names, err := verbs.Devices()
	if err != nil || len(names) == 0 {
		return verbs.Selection{} // open says why
	}
	return selection(t, "="+names[0])
}

func selection(t testing.TB, s string) verbs.Selection {
	t.Helper()
	sel, err := verbs.ParseSelection(s)
	require.NoError(t, err)
	return sel
}
