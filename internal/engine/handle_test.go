package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/shm"
	limits "github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

var (
	testIdentity = identity{secret: []byte("secret"), job: hash("job", []byte("secret")), host: 11,
		process: shm.Process{PID: 12, Start: 13}}
	testExport = export{at: mem.Location{Arena: 1, Slot: 2, Generation: 3, Offset: 4}, bytes: 5,
		grant: mem.Location{Slot: 6, Generation: 7}}
)

func TestHandleRoundTrip(t *testing.T) {
	h := testIdentity.marshal(99, testExport)
	require.Len(t, h, HandleBytes)
	e, domain, p, err := testIdentity.unmarshal(h)
	require.NoError(t, err)
	require.Equal(t, testExport, e)
	require.Equal(t, uint64(99), domain)
	require.Equal(t, testIdentity.process, p)
}

// TestHandleRefused has handles that are well signed but come from somewhere else, and those that are not well signed.
func TestHandleRefused(t *testing.T) {
	other := testIdentity
	other.secret = []byte("another")
	other.job = hash("job", other.secret)
	impostor := testIdentity // knows the job's name, not its secret
	impostor.secret = other.secret
	elsewhere := testIdentity
	elsewhere.host++
	whole := testIdentity.marshal(99, testExport)
	device := append([]byte{}, whole[:HandleBytes-codeBytes]...)
	binary.LittleEndian.PutUint32(device[84:], 2)
	device = append(device, testIdentity.code(device)...)
	newer := append([]byte{}, whole...)
	newer[4]++
	for _, k := range []struct {
		name   string
		handle []byte
		want   error
		text   string
	}{
		{"nil", nil, fault.ErrArgument, "0 bytes"},
		{"text", []byte("no handle at all"), fault.ErrArgument, "begins with"},
		{"truncated", whole[:HandleBytes-1], fault.ErrArgument, "truncated"},
		{"longer", append(append([]byte{}, whole...), 0), fault.ErrArgument, "truncated or with more"},
		{"newer version", newer, fault.ErrArgument, "version 3"},
		{"another job", other.marshal(99, testExport), fault.ErrStale, "another job"},
		{"a forger", impostor.marshal(99, testExport), fault.ErrArgument, "changed"},
		{"another host", elsewhere.marshal(99, testExport), hw.ErrNotSupported, "another host"},
		{"a device", device, hw.ErrNotSupported, "unknown kind of memory"},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, _, _, err := testIdentity.unmarshal(k.handle)
			require.ErrorIs(t, err, k.want)
			require.ErrorContains(t, err, k.text)
		})
	}
}

func TestHandleEveryBit(t *testing.T) {
	whole := testIdentity.marshal(99, testExport)
	for i := range 8 * len(whole) {
		bad := append([]byte{}, whole...)
		bad[i/8] ^= 1 << (i % 8)
		_, _, _, err := testIdentity.unmarshal(bad)
		require.Error(t, err, "bit %d", i)
	}
}

// FuzzHandle looks for bytes that are taken for a handle and are not the one that was made.
func FuzzHandle(f *testing.F) {
	whole := testIdentity.marshal(99, testExport)
	f.Add(whole)
	f.Add(whole[:40])
	f.Add([]byte("ubrh"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, _, err := testIdentity.unmarshal(b); err == nil && string(b) != string(whole) {
			t.Errorf("%x was taken for a handle", b)
		}
	})
}

type testNoun struct {
	gate
	moved
	ended atomic.Int32
	err   error
	told  error
}

func (n *testNoun) use() *gate        { return &n.gate }
func (n *testNoun) failed(err error)  { n.told = err }
func (n *testNoun) name() string      { return "the noun" }
func (n *testNoun) giveUp(bool) error { n.ended.Add(1); return n.err }

// TestGate has many goroutines use something while another closes it: it is given up once, after the last use.
func TestGate(t *testing.T) {
	for range 200 {
		n := &testNoun{}
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for begin(n) == nil {
					inside.Add(1)
					if n.ended.Load() != 0 {
						t.Error("used after its end")
					}
					inside.Add(-1)
					end(n)
				}
			})
		}
		errs := make([]error, 3)
		for i := range errs {
			wg.Go(func() { errs[i] = shut(n, false) })
		}
		wg.Wait()
		closed := 0
		for _, err := range errs {
			if err == nil {
				closed++
				continue
			}
			require.ErrorIs(t, err, fault.ErrClosed)
		}
		require.Equal(t, 1, closed)
		require.Equal(t, int32(1), n.ended.Load())
		require.ErrorIs(t, begin(n), fault.ErrClosed)
		require.Equal(t, int32(1), n.ended.Load())
	}
}

func TestGateWaitsForTheLastUse(t *testing.T) {
	for _, quick := range []bool{false, true} {
		n := &testNoun{err: errors.New("what giving up said")}
		require.NoError(t, begin(n))
		closed := make(chan error, 1)
		go func() { closed <- shut(n, quick) }()
		require.Eventually(t, n.isClosed, limits.Limit, time.Millisecond)
		if quick {
			require.NoError(t, <-closed)
		}
		require.Error(t, begin(n))
		time.Sleep(10 * time.Millisecond) // for Close not to return
		require.Empty(t, closed)
		require.Equal(t, int32(0), n.ended.Load())
		end(n)
		require.Equal(t, int32(1), n.ended.Load())
		if quick {
			require.ErrorIs(t, n.told, n.err)
		} else {
			require.ErrorIs(t, <-closed, n.err)
			require.NoError(t, n.told)
		}
	}
}

// lateNoun is closed by its owner when a communicator has seen that it is open.
type lateNoun struct {
	testNoun
	looks int
}

func (n *lateNoun) use() *gate {
	if n.looks++; n.looks == 2 {
		n.gate.close()
	}
	return &n.gate
}

func TestNounsCloseWithTheirOwner(t *testing.T) {
	var ns nouns
	n := &lateNoun{}
	ns.add(n)
	require.NoError(t, ns.close(true))
	require.True(t, n.isClosed())
}

// mortalPeer has memory that lives for some looks.
type mortalPeer struct {
	team.PeerMemory
	looks int
}

func (p *mortalPeer) Live(mem.Location) bool { p.looks--; return p.looks >= 0 }

// TestCopyLooks: a copy ends with the piece during which the peer has taken its memory back.
func TestCopyLooks(t *testing.T) {
	const n = 3*copyPiece + 5
	for looks := range 6 {
		for _, put := range []bool{false, true} {
			here, there := make([]byte, n), make([]byte, n)
			src, dst := there, here
			if put {
				src, dst = here, there
			}
			for i := range src {
				src[i] = 1
			}
			m := &Remote{c: &Comm{}, mem: &mortalPeer{looks: looks}, ptr: unsafe.Pointer(&there[0]), bytes: n}
			var copies atomic.Uint64
			err := m.copy(&copies, 0, unsafe.Pointer(&here[0]), n, put)
			if looks == 5 { // before it, and after each piece
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, fault.ErrStale)
			}
			require.Equal(t, min(looks*copyPiece, n), bytes.Count(dst, []byte{1}), "%d looks, put %v", looks, put)
			require.Zero(t, copies.Load())
		}
	}
}

func TestWindowFlagsString(t *testing.T) {
	for f, want := range map[WindowFlags]string{WindowDefault: "default", WindowCollSymmetric: "coll_symmetric",
		WindowCollSymmetric | WindowStrictOrdering: "coll_symmetric|strict_ordering", 8: "0x8"} {
		require.Equal(t, want, fmt.Sprint(f))
	}
}
