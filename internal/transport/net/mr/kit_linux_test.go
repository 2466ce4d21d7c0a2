package mr_test

import (
	"flag"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// open opens a backend. The end of the test closes it, and checks that nothing is left.
func open(t testing.TB, c mr.Config) *mr.Backend {
	t.Helper()
	if p := verbs.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	b, err := mr.Open(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

var lastID atomic.Uint64

// memory returns n bytes outside the Go heap, mapped until the test ends.
func memory(t testing.TB, n int) (register.Memory, []byte) {
	t.Helper()
	return mapped(t, n, unix.PROT_READ|unix.PROT_WRITE)
}

func mapped(t testing.TB, n, protection int) (register.Memory, []byte) {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, protection, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	return register.Memory{ID: lastID.Add(1), Generation: 1, Base: uintptr(unsafe.Pointer(unsafe.SliceData(m))), Bytes: n,
		Device: hw.Host, Kind: "adopted"}, m
}

func registered(t testing.TB, b *mr.Backend, m register.Memory) *mr.Region {
	t.Helper()
	h, err := b.Register(m)
	require.NoError(t, err)
	return h.(*mr.Region)
}

func export(t testing.TB, b *mr.Backend, m register.Memory, off, n int, access verbs.Access) *mr.Export {
	t.Helper()
	e, err := b.Exact(m, m.Base+uintptr(off), n, access)
	require.NoError(t, err)
	return e
}

// peer is a connection from a NIC to itself; its near end puts by tokens.
type peer struct {
	nic   int
	b     *mr.Backend
	cq    *verbs.CQ
	a, z  *verbs.QP
	local []byte
	mine  *mr.Export
}

func newPeer(t testing.TB, b *mr.Backend, nic int) *peer {
	t.Helper()
	p := &peer{nic: nic, b: b}
	n := b.NICs()[nic]
	var err error
	p.cq, err = n.Device.CreateCQ(16, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.cq.Close()) })
	for _, q := range []**verbs.QP{&p.a, &p.z} {
		*q, err = n.PD.CreateQP(verbs.QPConfig{Send: p.cq, Receive: p.cq, Work: 4, Receives: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, (*q).Close()) })
	}
	p.connect(t)
	m, local := memory(t, 4096)
	p.local, p.mine = local, export(t, b, m, 0, 4096, verbs.LocalWrite)
	t.Cleanup(func() { require.NoError(t, p.mine.Close()) })
	return p
}

func (p *peer) connect(t testing.TB) {
	t.Helper()
	path := verbs.DefaultPath()
	path.Port, path.Timeout = p.b.NICs()[p.nic].Ports[0], 14
	a, err := p.a.Init(path, verbs.LocalWrite|verbs.Remote)
	require.NoError(t, err)
	z, err := p.z.Init(path, verbs.LocalWrite|verbs.Remote)
	require.NoError(t, err)
	require.NoError(t, p.a.Connect(z, "z"))
	require.NoError(t, p.z.Connect(a, "a"))
}

// do moves n bytes between the beginning of p's memory and off in the region of a token, and returns the NIC's error.
func (p *peer) do(t testing.TB, op verbs.Op, to mr.Token, off, n int) error {
	t.Helper()
	keys, err := p.mine.For(verbs.LocalWrite)
	require.NoError(t, err)
	_, err = p.a.Post(verbs.Work{ID: 1, Op: op, Flags: verbs.Signaled, Local: p.mine.Address(), Length: uint32(n),
		Key: keys[p.nic].Local, Remote: to.Address + uint64(off), Peer: to.Keys[p.nic]})
	require.NoError(t, err)
	var c [1]verbs.Completion
	for start := time.Now(); ; {
		k, err := p.cq.Poll(c[:], 100)
		require.NoError(t, err)
		if k == 1 {
			break
		}
		require.Less(t, time.Since(start), testkit.Limit, "no completion")
	}
	if err = p.cq.Failure(&c[0]); err == nil {
		return nil
	}
	for _, q := range []*verbs.QP{p.a, p.z} {
		require.NoError(t, q.Reset())
	}
	for k := 1; k > 0; {
		var drained error
		k, drained = p.cq.Poll(c[:], 1)
		require.NoError(t, drained)
	}
	p.connect(t)
	return err
}

var long = flag.Bool("long", false, "register until soft-RoCE gives a key again, which takes minutes")

// mustRecur fails t where keys have to recur.
func mustRecur(t *testing.T) {
	t.Helper()
	if *long || os.Getenv("VERBSTEST_DEVICES") != "" {
		t.Error("the test shows nothing")
	}
}

// gpu is a mr.GPU.
type gpu struct {
	reach  error
	late   bool // it is not Ordered
	export func(m register.Memory) (fd int, offset uint64, err error)
	asked  int // how often export was called
}

func (g *gpu) Reachable() error { return g.reach }

func (g *gpu) Ordered() bool { return !g.late }

func (g *gpu) DMABuf(m register.Memory) (fd int, offset uint64, err error) {
	g.asked++
	return g.export(m)
}

// peerModule makes it look as if the kernel had its module for memory of GPUs, or had not, until the test ends.
func peerModule(t testing.TB, loaded bool) {
	was := mr.PeerModules
	t.Cleanup(func() { mr.PeerModules = was })
	mr.PeerModules = []string{"/nothing/here"}
	if loaded {
		mr.PeerModules = append(mr.PeerModules, t.TempDir())
	}
}
