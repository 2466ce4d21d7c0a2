//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// providers are those that tests use where they are: soft ones, which need no hardware, and those of RDMA devices.
var providers = []string{"tcp;ofi_rxm", "udp;ofi_rxd", "sockets", "verbs;ofi_rxm"}

// list is ofi.List of everything, once.
func list(t testing.TB) []*ofi.Info {
	t.Helper()
	if p := ofi.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	infos, _, err := ofi.List(ctx, "", "")
	require.NoError(t, err)
	return infos
}

// each runs test over each provider of providers that is here, of IPv4 addresses. tcp and udp are everywhere.
func each(t *testing.T, test func(t *testing.T, i *ofi.Info)) {
	t.Helper()
	infos := list(t)
	for _, name := range providers {
		t.Run(name, func(t *testing.T) {
			for _, i := range infos {
				if i.Provider == name && (!i.Address.IsValid() || i.Address.Is4()) {
					test(t, i)
					return
				}
			}
			if name == "tcp;ofi_rxm" || name == "udp;ofi_rxd" {
				testkit.Missing(t, "libfabric", "libfabric has no provider "+name+" here")
			}
			if name == "verbs;ofi_rxm" && env.Requires("verbs") { // a machine with an RDMA device
				testkit.Missing(t, "verbs", "libfabric has no provider "+name+" here")
			}
			t.Skip("no provider ", name, " here")
		})
	}
}

// end is an endpoint in a domain of its own, so that two share nothing but the library.
type end struct {
	*ofi.Endpoint
	domain *ofi.Domain
	done   map[uint64]ofi.Completion // that nobody has asked for yet
	events []ofi.Completion          // writes of peers with data
}

func newEnd(t testing.TB, i *ofi.Info) *end {
	t.Helper()
	d, err := ofi.Open(i)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	e, err := d.Endpoint(64)
	require.NoError(t, err)
	x := &end{Endpoint: e, domain: d, done: map[uint64]ofi.Completion{}}
	t.Cleanup(func() {
		if err := e.Close(); !errors.Is(err, fault.ErrClosed) && err != nil {
			t.Error(err)
		}
	})
	return x
}

// pair makes two ends, each of which knows the other as a peer.
func pair(t testing.TB, i *ofi.Info) (a, b *end, toB, toA ofi.Peer) {
	t.Helper()
	a, b = newEnd(t, i), newEnd(t, i)
	var err error
	toB, err = a.Insert(b.Name())
	require.NoError(t, err)
	toA, err = b.Insert(a.Name())
	require.NoError(t, err)
	return a, b, toB, toA
}

// memory returns memory that is not Go's.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	return m
}

func address(m []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }

func (e *end) register(t testing.TB, m []byte, access ofi.Access) *ofi.MR {
	t.Helper()
	mr, err := e.domain.Register(address(m), len(m), access, hw.Host, e.Endpoint)
	require.NoError(t, err)
	t.Cleanup(func() { mr.Close() })
	return mr
}

// registered is memory of n bytes that is registered for everything.
func (e *end) registered(t testing.TB, n int) ([]byte, *ofi.MR) {
	t.Helper()
	m := memory(t, n)
	return m, e.register(t, m, ofi.Local|ofi.Peers)
}

var nextID atomic.Uint64

// work makes an operation of n bytes from an offset in one registration to an offset in another.
func work(op ofi.Op, peer ofi.Peer, from *ofi.MR, at int, to *ofi.MR, offset, n int) ofi.Work {
	w := ofi.Work{ID: nextID.Add(1), Op: op, Peer: peer, Local: from.Address() + uint64(at), Length: uint64(n), Desc: from.Desc()}
	if to != nil {
		w.Remote, w.Key = to.Remote(offset), to.Key()
	}
	return w
}

// limit is how long a test waits for a completion.
const limit = 20 * time.Second

// post posts one operation. Providers with manual progress need both ends polled, so it takes the other one.
func (e *end) post(other *end, w ofi.Work) error {
	for begin := time.Now(); ; {
		_, err := e.Post([]ofi.Work{w})
		if !errors.Is(err, ofi.ErrAgain) {
			return err
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("%v %d: %w for %v", w.Op, w.ID, err, limit)
		}
		if err := errors.Join(e.progress(), other.progress()); err != nil {
			return err
		}
	}
}

// progress polls once.
func (e *end) progress() error {
	var done [8]ofi.Completion
	n, err := e.Poll(done[:], 1)
	for _, c := range done[:n] {
		if c.Mine() {
			e.done[c.ID] = c
		} else {
			e.events = append(e.events, c)
		}
	}
	if n == 0 {
		runtime.Gosched()
	}
	return err
}

// wait waits until done, while both ends are polled.
func wait(a, b *end, what string, done func() bool) error {
	for begin := time.Now(); !done(); {
		if err := errors.Join(a.progress(), b.progress()); err != nil {
			return err
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
	}
	return nil
}

// finish waits for the end of an operation of e, and returns its failure.
func (e *end) finish(other *end, id uint64) (c ofi.Completion, err error) {
	err = wait(e, other, fmt.Sprintf("operation %d", id), func() bool {
		var ok bool
		c, ok = e.done[id]
		return ok
	})
	delete(e.done, id)
	if err == nil {
		err = e.Failure(&c)
	}
	return c, err
}

// do posts an operation and waits for its end.
func (e *end) do(other *end, w ofi.Work) (ofi.Completion, error) {
	if err := e.post(other, w); err != nil {
		return ofi.Completion{}, err
	}
	return e.finish(other, w.ID)
}

// data is v, as far as the provider carries data.
func data(i *ofi.Info, v uint64) uint64 { return v & (^uint64(0) >> (64 - 8*min(i.DataBytes, 8))) }

// event waits for a write of a peer with data.
func (e *end) event(other *end) (ofi.Completion, error) {
	if err := wait(e, other, "data of the peer", func() bool { return len(e.events) > 0 }); err != nil {
		return ofi.Completion{}, err
	}
	c := e.events[0]
	e.events = e.events[1:]
	return c, e.Failure(&c)
}

// pattern fills m with bytes that depend on seed.
func pattern(m []byte, seed byte) {
	for i := range m {
		m[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(e)
}
