//go:build cgo

package net

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// export registers b with a node's RDMA devices, for peers that may do what access says.
func export(t testing.TB, c transport.Config, b []byte, access ib.Access) (transport.Region, *mr.Export) {
	t.Helper()
	page := uintptr(os.Getpagesize())
	addr := uintptr(at(b))
	m := register.Memory{ID: 1, Generation: 1, Base: addr &^ (page - 1)}
	m.Bytes = int((addr+uintptr(len(b))+page-1)&^(page-1) - m.Base)
	x, err := c.NICs.Exact(m, addr, len(b), access)
	require.NoError(t, err)
	return transport.Region{Address: uint64(addr), Key: uint32(x.Token().Keys[0])}, x
}

const all = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead

// rdmaPair is a pair over the double, whose second side has memory that the first one knows the region of.
type rdmaPair struct {
	*pair
	sa, sb *server
	region transport.Region
	export *mr.Export
}

func newRDMAPair(t *testing.T, bytes int) *rdmaPair {
	t.Helper()
	a, b := nics(t), nics(t)
	b.Rank = 1
	r := &rdmaPair{pair: &pair{}, sa: &server{memory: make([]byte, bytes)}, sb: &server{memory: make([]byte, bytes)}}
	r.a, r.toldA = nodeWith(t, a)
	r.b, r.toldB = nodeWith(t, b)
	r.ab, r.ba = connect(t, r.a, r.b)
	r.la, r.lb = serve(t, r.a, commID, r.sa), serve(t, r.b, commID, r.sb)
	require.NoError(t, r.la.Ready(within(t)))
	require.NoError(t, r.lb.Ready(within(t)))
	r.region, r.export = export(t, b, r.sb.memory, all)
	return r
}

// called waits until the second side has had so many calls.
func (r *rdmaPair) called(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, func() bool { r.la.Poll(); r.lb.Poll(); return len(r.sb.heard()) >= n })
	require.Len(t, r.sb.heard(), n)
}

func (r *rdmaPair) end(t *testing.T) {
	t.Helper()
	r.close(t)
	require.NoError(t, r.export.Close())
	require.Empty(t, r.toldA.downs())
	require.Empty(t, r.toldB.downs())
}

// TestStraight: what is written and read by a region goes straight to that memory, and a call comes after it.
func TestStraight(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		r := newRDMAPair(t, 4<<20)
		want := make([]byte, len(r.sb.memory))
		calls := 0
		for i, n := range []int{frame.Short + 1, 5000, frame.MaxPayload, frame.MaxPayload + 1, 3 << 20, 8} {
			from := bytes.Repeat([]byte{byte(i + 1), 7, byte(n)}, n/3+1)[:n]
			to := transport.Target{Key: 9, Slot: 1, Offset: uint64(1000 * i), Region: r.region}
			copy(want[to.Offset:], from)
			before, work := r.la.Queued(), verbstest.Count(t, "work")
			r.la.Write(to, at(from), n, i%2 == 0)
			r.la.Call([]byte("call"))
			calls++
			r.called(t, calls)
			if work = verbstest.Count(t, "work") - work; calls > 1 { // the first makes the queue pair
				require.LessOrEqual(t, work, (n+frame.MaxPayload-1)/frame.MaxPayload+2, "chunks, the call, and perhaps credits")
			}
			require.Equal(t, want, r.sb.memory)
			r.la.allSent(t)
			require.Equal(t, before+2, r.la.Sent())

			var result transport.Result
			got := make([]byte, n)
			require.True(t, r.la.Read(to, at(got), n, &result))
			testkit.Eventually(t, func() bool { r.la.Poll(); over, _ := result.Ended(); return over })
			_, done := result.Ended()
			require.True(t, done)
			require.Equal(t, from, got)
		}
		require.Equal(t, []piece{{transport.Target{Key: 9, Slot: 1, Offset: 5000}, 8}}, r.sb.pieces(), "what is short is copied")
		r.end(t)
	})
}

// TestRefused: a write or read by a key that is no good ends itself alone. What is written to other keys, and calls, come in
// order, however much is under way; and so do puts.
func TestRefused(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		r := newRDMAPair(t, 4<<20)
		from := bytes.Repeat([]byte{7}, 1<<20)
		wrong := transport.Region{Address: r.region.Address, Key: r.region.Key ^ 0x5a00}
		random := rand.New(rand.NewPCG(1, 2))
		calls, puts := 0, uint64(0)
		for round := range testkit.Often(200) {
			key := uint64(100 + round)
			bad := transport.Target{Key: key, Slot: 1, Region: wrong}
			good := transport.Target{Key: 9, Slot: 1, Offset: 2 << 20, Region: r.region}
			number := func() []byte { calls++; return binary.LittleEndian.AppendUint64(nil, uint64(calls)) }
			for range random.IntN(4) {
				r.la.Call(number())
			}
			r.la.Write(bad, at(from), len(from), random.IntN(2) == 0)
			var result transport.Result
			read := random.IntN(2) == 0 && r.la.Read(bad, at(make([]byte, 8)), 8, &result)
			b := bytes.Repeat([]byte{byte(round)}, 300<<10)
			r.la.Write(good, at(b), len(b), true)
			for range 1 + random.IntN(40) {
				r.la.Call(number())
			}
			puts++
			r.la.Put(0, puts, nil, 0)
			r.called(t, calls)
			require.Equal(t, b, r.sb.memory[2<<20:][:len(b)])
			for i, got := range r.sb.heard() {
				require.EqualValues(t, i+1, binary.LittleEndian.Uint64([]byte(got)))
			}
			r.lb.until(t, 0, puts)
			r.la.allSent(t)
			denied := r.sa.deniedSoFar()
			require.NotEmpty(t, denied)
			require.Equal(t, key, denied[len(denied)-1].Key)
			if read {
				over, done := result.Ended()
				require.True(t, over)
				require.False(t, done)
			}
		}
		require.Zero(t, bytes.Count(r.sb.memory[:len(from)], []byte{7}))
		require.Nil(t, r.la.Err())
		r.end(t)
	})
}

// TestRefusedBothWays: both sides write by keys that end meanwhile, and call each other; all calls come, in order.
func TestRefusedBothWays(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		r := newRDMAPair(t, 1<<20)
		var both sync.WaitGroup
		rounds := testkit.Often(300)
		for _, side := range []struct {
			l    *Link
			peer *server
			c    transport.Config
		}{{r.la, r.sb, r.b.config}, {r.lb, r.sa, r.a.config}} {
			both.Go(func() {
				from := bytes.Repeat([]byte{3}, 64<<10)
				for i := range rounds {
					region, x := export(t, side.c, side.peer.memory, all)
					to := transport.Target{Key: uint64(i + 1), Slot: 1, Region: region}
					side.l.Write(to, at(from), len(from), false)
					if i%3 == 0 {
						if err := x.Close(); err != nil {
							t.Error(err)
						}
					}
					side.l.Write(to, at(from), len(from), true)
					side.l.Call(binary.LittleEndian.AppendUint64(nil, uint64(i+1)))
					queued := side.l.Queued()
					for begin := time.Now(); side.l.Sent() < queued && time.Since(begin) < testkit.Limit; {
						side.l.Poll()
					}
					if i%3 != 0 {
						if err := x.Close(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		both.Wait()
		for _, s := range []*server{r.sa, r.sb} {
			testkit.Eventually(t, func() bool { r.la.Poll(); r.lb.Poll(); return len(s.heard()) == rounds })
			for i, got := range s.heard() {
				require.EqualValues(t, i+1, binary.LittleEndian.Uint64([]byte(got)))
			}
		}
		r.end(t)
	})
}

func (s *server) deniedSoFar() []transport.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]transport.Target(nil), s.denied...)
}

// TestNoOneSided: without queue pairs of their own, writes and calls go in messages, in order, and both say so.
func TestNoOneSided(t *testing.T) {
	for i, what := range []string{"this end", "the other end"} {
		t.Run(what, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
				log, said := testkit.Logs(slog.LevelInfo)
				r := newRDMAPair(t, 4<<20)
				r.a.config.Log = log
				verbstest.Set(t, "FAIL", fmt.Sprintf("create_qp:%d:ENOMEM", i+1))
				from := bytes.Repeat([]byte{7}, 1<<20)
				to := transport.Target{Key: 9, Slot: 1, Region: r.region}
				for k := range 3 {
					r.la.Call([]byte("first"))
					r.la.Write(to, at(from), len(from), true)
					r.la.Call([]byte("second"))
					r.called(t, 2*(k+1))
					require.Equal(t, from, r.sb.memory[:len(from)])
					clear(r.sb.memory)
				}
				require.NotEmpty(t, r.sb.pieces())
				require.False(t, r.la.Read(to, at(from), len(from), new(transport.Result)))
				require.Contains(t, said.String(), "ibv_create_qp")
				r.a.Leave(commID)
				r.b.Leave(commID)
				testkit.Eventually(t, func() bool { return r.a.pairs() == 0 && r.b.pairs() == 0 })
				r.end(t)
			})
		})
	}
}

// TestOneSidedGo: links that have used the connections of one-sided operations leave nothing behind, whatever is under way.
func TestOneSidedGo(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		r := newRDMAPair(t, 1<<20)
		from := make([]byte, 1<<20)
		for round := range testkit.Often(50) {
			id := uint64(1000 + round)
			sa, sb := &server{memory: make([]byte, 8)}, &server{memory: make([]byte, 8)}
			la, lb := serve(t, r.a, id, sa), serve(t, r.b, id, sb)
			require.NoError(t, la.Ready(within(t)))
			require.NoError(t, lb.Ready(within(t)))
			var both sync.WaitGroup
			to := transport.Target{Key: 9, Slot: 1, Region: r.region}
			both.Go(func() {
				for range round % 5 {
					la.Write(to, at(from), len(from), false)
					la.Call([]byte("x"))
				}
				r.a.Leave(id)
			})
			both.Go(func() {
				if round%2 == 0 {
					lb.Call([]byte("y"))
				}
				r.b.Leave(id)
			})
			both.Wait()
			testkit.Eventually(t, func() bool { return r.a.pairs() == 2 && r.b.pairs() == 2 }, "what is kept of the other communicator")
		}
		r.end(t)
	})
}

// TestStaleWrite: once an export's key has ended, what a peer still writes there changes no byte, however late it comes.
func TestStaleWrite(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		r := newRDMAPair(t, 64<<10)
		from := bytes.Repeat([]byte{7}, len(r.sb.memory))
		for round := range testkit.Often(1000) {
			region, x := export(t, r.b.config, r.sb.memory, all)
			to := transport.Target{Key: uint64(round + 1), Slot: 1, Region: region}
			if round%2 == 0 { // it is under way
				r.la.Write(to, at(from), len(from), false)
			}
			require.NoError(t, x.Close())
			copy(r.sb.memory, bytes.Repeat([]byte{9}, len(from)))
			r.la.Write(to, at(from), len(from), true)
			r.la.Call([]byte("call"))
			r.called(t, round+1)
			require.Equal(t, len(from), bytes.Count(r.sb.memory, []byte{9}))
		}
		require.NotEmpty(t, r.sa.deniedSoFar())
		r.end(t)
	})
}
