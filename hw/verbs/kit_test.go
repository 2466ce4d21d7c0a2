//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// device opens the first RDMA device.
func device(t testing.TB) *verbs.Device {
	t.Helper()
	if p := verbs.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	names, err := verbs.Devices()
	require.NoError(t, err)
	d, err := verbs.Open(names[0])
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// oneOfEach opens a device and makes one object of each kind. The caller closes them.
func oneOfEach(t *testing.T) (*verbs.Device, *verbs.PD, *verbs.Channel, *verbs.CQ, *verbs.SRQ, *verbs.QP, *verbs.MR) {
	t.Helper()
	d, err := verbs.Open(device(t).Name())
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	channel, err := d.CreateChannel()
	require.NoError(t, err)
	cq, err := d.CreateCQ(8, channel)
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(8, 0)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{Send: cq, Receive: cq, Shared: srq, Work: 4})
	require.NoError(t, err)
	mr, err := pd.Register(address(memory(t, 4096)), 4096, 0)
	require.NoError(t, err)
	return d, pd, channel, cq, srq, qp, mr
}

// end is one side of a connection. It shares nothing but the device.
type end struct {
	device  *verbs.Device
	pd      *verbs.PD
	channel *verbs.Channel
	cq      *verbs.CQ
	qp      *verbs.QP
	address verbs.Address
}

type config struct {
	work, receives, inline int
	shared                 int               // receives of a shared queue
	path                   func(*verbs.Path) // or nil
	access                 verbs.Access      // of the queue pair; 0: all
	queue                  int               // entries; 0: enough
}

func newEnd(t testing.TB, d *verbs.Device, c config) *end {
	t.Helper()
	e := &end{device: d}
	var err error
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.pd.Close()) })
	e.channel, err = d.CreateChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.channel.Close()) })
	if c.work == 0 {
		c.work = 16
	}
	if c.receives == 0 && c.shared == 0 {
		c.receives = 16
	}
	if c.queue == 0 {
		c.queue = c.work + c.receives + c.shared
	}
	e.cq, err = d.CreateCQ(c.queue, e.channel)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.cq.Close()) })
	qc := verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: c.work, Receives: c.receives, Inline: c.inline}
	if c.shared > 0 {
		qc.Shared, err = e.pd.CreateSRQ(c.shared, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, qc.Shared.Close()) })
	}
	e.qp, err = e.pd.CreateQP(qc)
	require.NoError(t, err)
	t.Cleanup(func() {
		if e.qp != nil {
			require.NoError(t, e.qp.Close())
		}
	})
	e.init(t, c)
	return e
}

func (e *end) init(t testing.TB, c config) {
	t.Helper()
	path := verbs.DefaultPath()
	path.Timeout = 14 // 67 ms: soft-RoCE loses packets on a busy machine
	if c.path != nil {
		c.path(&path)
	}
	access := c.access
	if access == 0 {
		access = verbs.LocalWrite | verbs.Remote
	}
	var err error
	e.address, err = e.qp.Init(path, access)
	require.NoError(t, err)
}

func connect(t testing.TB, a, b *end) {
	t.Helper()
	require.NoError(t, a.qp.Connect(b.address, "b"))
	require.NoError(t, b.qp.Connect(a.address, "a"))
}

// pair makes two connected ends.
func pair(t testing.TB, c config) (a, b *end) {
	t.Helper()
	d := device(t)
	a, b = newEnd(t, d, c), newEnd(t, d, c)
	connect(t, a, b)
	return a, b
}

// memory returns n bytes outside the Go heap, mapped until the test ends.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	return m
}

func address(m []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }

func (e *end) register(t testing.TB, m []byte, access verbs.Access) *verbs.MR {
	t.Helper()
	mr, err := e.pd.Register(address(m), len(m), access)
	require.NoError(t, err)
	t.Cleanup(func() { mr.Close() })
	return mr
}

// work makes a work request between the beginnings of two regions.
func work(op verbs.Op, from, to *verbs.MR, n int) verbs.Work {
	w := verbs.Work{ID: nextID.Add(1), Op: op, Flags: verbs.Signaled, Length: uint32(n)}
	if from != nil {
		w.Local, w.Key = from.Address(), from.LKey()
	}
	if to != nil {
		w.Remote, w.Peer = to.Address(), to.RKey()
	}
	return w
}

var nextID atomic.Uint64

// do posts one work request and waits for its completion.
func (e *end) do(t testing.TB, w verbs.Work) error {
	t.Helper()
	n, err := e.qp.Post(w)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	c := e.next(t)
	require.Equal(t, w.ID, c.ID)
	return e.cq.Failure(&c)
}

// next waits for a completion.
func (e *end) next(t testing.TB) verbs.Completion {
	t.Helper()
	c, ok := e.poll(t, testkit.Limit)
	require.True(t, ok, "no completion")
	return c
}

func (e *end) poll(t testing.TB, limit time.Duration) (verbs.Completion, bool) {
	t.Helper()
	var c [1]verbs.Completion
	for start := time.Now(); time.Since(start) < limit; {
		n, err := e.cq.Poll(c[:], 100)
		require.NoError(t, err)
		if n == 1 {
			return c[0], true
		}
	}
	return verbs.Completion{}, false
}

// again restores a connection that has failed.
func again(t testing.TB, a, b *end, c config) {
	t.Helper()
	for _, e := range []*end{a, b} {
		require.NoError(t, e.qp.Reset())
		var drain [8]verbs.Completion
		for n := 1; n > 0; {
			var err error
			n, err = e.cq.Poll(drain[:], 1)
			require.NoError(t, err)
		}
		e.init(t, c)
	}
	connect(t, a, b)
}

func fill(m []byte, with byte) {
	for i := range m {
		m[i] = with
	}
}

func pattern(m []byte, seed byte) {
	for i := range m {
		m[i] = byte(i*7) + seed + byte(i>>8)
	}
}

func word(m []byte) uint64 { return binary.NativeEndian.Uint64(m) }

func openFiles(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(e)
}

// overDouble reports whether the library is the double.
func overDouble() bool { return os.Getenv("UBCOLL_TEST_LIBRARY") != "" }
