package ipc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var secret = []byte("the job's secret")

func TestMain(m *testing.M) {
	withdrawTimeout = 2 * testkit.Limit
	testkit.Children(map[string]func() error{"peer": childPeer, "stranger": childStranger})
	emulated.Main(func() int { return testMain(m) })
}

func testMain(m *testing.M) int {
	// A separate folder, so that leftovers of other tests do not count.
	dir, err := os.MkdirTemp("", "ipc-test-")
	if err != nil {
		panic(err)
	}
	os.Setenv("TMPDIR", dir)
	defer os.RemoveAll(dir)
	return testkit.Main(m)
}

// rank is one rank's side, in this process.
type rank struct {
	heap *mem.Heap
	*Transport
}

var domains = uint64(1 << 20)

func newRank(t testing.TB, goHeap bool, secret []byte) *rank {
	t.Helper()
	domains++
	h, err := mem.New(domains, goHeap)
	require.NoError(t, err)
	tr, err := New(h, secret)
	require.NoError(t, err)
	r := &rank{h, tr.(*Transport)}
	t.Cleanup(r.close)
	return r
}

func (r *rank) close() {
	if r.closed.Load() {
		return
	}
	if err := errors.Join(r.Transport.Close(), r.heap.Close()); err != nil {
		panic(err)
	}
}

func (r *rank) card(t testing.TB) json.RawMessage {
	t.Helper()
	raw, err := r.Card()
	require.NoError(t, err)
	return raw
}

func (r *rank) attach(t testing.TB, card json.RawMessage) *peer {
	t.Helper()
	p, err := r.Attach(context.Background(), card)
	require.NoError(t, err)
	return p.(*peer)
}

// importAll waits until the importer has seen everything that peers have published. It imports nothing more until a
// doorbell rings.
// rings.
func (r *rank) importAll() {
	for bell := &r.heap.Directory().Doorbell; r.seen.Load() != bell.Load(); runtime.Gosched() {
	}
	r.mu.Lock()
	defer r.mu.Unlock()
}

func (r *rank) alloc(t testing.TB, n int, text string) *mem.Allocation {
	t.Helper()
	a, err := r.heap.Alloc(n)
	require.NoError(t, err)
	copy(unsafe.Slice((*byte)(a.Ptr), n), text)
	return a
}

// read returns what p has at l.
func read(t testing.TB, p team.PeerMemory, l mem.Location, n int) string {
	t.Helper()
	ptr, err := p.Resolve(l, n)
	require.NoError(t, err)
	return string(unsafe.Slice((*byte)(ptr), n))
}

// viaSocket makes this process use the socket for the rest of the test.
func viaSocket(t testing.TB) {
	avoidProc.Store(true)
	t.Cleanup(func() { avoidProc.Store(false) })
}

// imported returns how many of the peer's arenas are mapped.
func (p *peer) imported() int { return len(*p.arenas.Load()) }

// left is what a rank could leave behind.
type left struct{ descriptors, mappings int }

func measure(t testing.TB) left {
	t.Helper()
	r, w, err := os.Pipe() // the first makes the runtime open what it waits with, which it keeps
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Close(), w.Close()))
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for _, where := range []string{"/dev/shm/*ubcoll*", filepath.Join(os.TempDir(), "*ubcoll*")} {
		files, err := filepath.Glob(where)
		require.NoError(t, err)
		require.Empty(t, files, "nothing has a name in a file system")
	}
	return left{len(fds), strings.Count(string(maps), "memfd:ubcoll")}
}

// requireFoot waits until this process has left behind no more than allowed.
func requireFoot(t testing.TB, want left) {
	t.Helper()
	var got left
	testkit.Eventually(t, func() bool { got = measure(t); return got == want },
		"%v, not %v", &got, want)
}

// unhurried makes the service and its clients wait for each other for longer than a test lasts.
func unhurried(t testing.TB) {
	old := requestTimeout
	requestTimeout = 2 * testkit.Limit
	t.Cleanup(func() { requestTimeout = old })
}

// process is another process that runs this program.
type process struct{ *testkit.Process }

// report is a peer process's answer to a command.
type report struct {
	Card   json.RawMessage
	At     mem.Location
	Opened int // open descriptors
	Extent uint32
	Text   string // in device memory, or of an error
}

func startPeer(t *testing.T, attr *syscall.SysProcAttr) (*process, report) {
	t.Helper()
	cmd := testkit.Child("peer")
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	p := &process{testkit.Start(t, cmd)}
	return p, p.read(t)
}

func (p *process) read(t *testing.T) (r report) {
	t.Helper()
	p.Read(t, &r)
	return r
}

// tell makes the process run a command of childPeer.
func (p *process) tell(t *testing.T, what string) report {
	t.Helper()
	_, err := fmt.Fprintln(p.In, what)
	require.NoError(t, err)
	return p.read(t)
}

// childPeer is a rank that runs commands.
func childPeer() error {
	h, err := mem.New(1, false)
	if err != nil {
		return err
	}
	tr, err := New(h, secret)
	if err != nil {
		return err
	}
	var last *mem.Allocation
	var gpu childDevice
	in := bufio.NewScanner(os.Stdin)
	for what := "alloc 4096 first"; ; {
		var n int
		var text string
		r := report{}
		switch {
		case strings.HasPrefix(what, "device "):
			r, err = gpu.do(h, tr, strings.Fields(what)[1:])
		case what == "free":
			err = h.Retire(last)
		case strings.HasPrefix(what, "attach "):
			gpu.peer, err = tr.Attach(context.Background(), json.RawMessage(what[7:]))
		default:
			if _, err = fmt.Sscanf(what, "alloc %d %s", &n, &text); err == nil {
				last, err = h.Alloc(n)
			}
			if err == nil {
				copy(unsafe.Slice((*byte)(last.Ptr), n), text)
			}
		}
		if err != nil {
			return err
		}
		card, err := tr.Card()
		if err != nil {
			return err
		}
		r.Card, r.At = card, last.At
		json.NewEncoder(os.Stdout).Encode(r)
		if !in.Scan() {
			return errors.Join(tr.Close(), h.Close(), gpu.close())
		}
		what = in.Text()
	}
}

// childStranger runs as another user: nothing that it tries may succeed.
func childStranger() error {
	var raw json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&raw); err != nil {
		return err
	}
	var k card
	if err := json.Unmarshal(raw, &k); err != nil {
		return err
	}
	if _, err := shm.Open(k.Directory); !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("through /proc: %w", err)
	}
	conn, err := net.Dial("unix", k.Socket)
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Now().Add(testkit.Limit))
	if n, err := conn.Read(make([]byte, 100)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service sent %d bytes: %w", n, err)
	}
	conn.Close()
	h, err := mem.New(2, false)
	if err != nil {
		return err
	}
	tr, err := New(h, secret) // the right secret: only the user is wrong
	if err != nil {
		return err
	}
	_, err = tr.Attach(context.Background(), raw)
	if err == nil {
		return errors.New("attached")
	}
	fmt.Println(err)
	return errors.Join(tr.Close(), h.Close())
}
