//go:build cgo

package net

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/register"
)

// TestDouble runs the tests over verbs over the double.
func TestDouble(t *testing.T) {
	for memory, knobs := range map[string]verbstest.Knobs{
		"both":       {"SILENT": "1", "DEVICES": "2"},
		"registered": {"LINK": "Ethernet"},
	} {
		t.Run(memory, func(t *testing.T) {
			if race.Enabled && memory != "both" {
				t.Skip("one will do")
			}
			t.Setenv("UBCOLL_TEST_MEMORY", memory)
			out := verbstest.Again(t, knobs, "-test.run=^TestVerbs")
			require.Contains(t, out, "--- PASS: TestVerbsSuite/"+memory)
		})
	}
}

// TestVerbsSuite: verbs does what every transport does, with memory that is registered and with memory that is not.
func TestVerbsSuite(t *testing.T) {
	if p := ib.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	for name, every := range map[string]uint64{"messages": 1, "registered": 1 << 60, "both": 3} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv("UBCOLL_TEST_LIBRARY") != "" && name != os.Getenv("UBCOLL_TEST_MEMORY") && !testkit.Full() {
				t.Skip("it is left to another run over the double")
			}
			if name != "messages" && os.Getenv("UBCOLL_TEST_LIBRARY") == "" {
				t.Skip("memory of Go's heap is registered with the double alone")
			}
			of := 1
			if name == "both" { // those of the others
				of = 2
			}
			verbsSuite(t, of, every)
		})
	}
}

// heap registers memory of Go's heap, page by page, which no device takes but the double, and providers in software. The same pages may be in
// several registrations, so each has a cache.
type heap struct {
	backend interface {
		register.Backend
		Close() error
	}
	mu     sync.Mutex
	caches map[register.Memory]*register.Cache
}

func (h *heap) find(addr uintptr, n int) *register.Claim {
	page := uintptr(os.Getpagesize())
	m := register.Memory{ID: 1, Generation: 1, Base: addr &^ (page - 1)}
	m.Bytes = int((addr+uintptr(n)+page-1)&^(page-1) - m.Base)
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.caches[m]
	if c == nil {
		var err error
		if c, err = register.New(register.Config{Backends: []register.Backend{h.backend}}); err != nil {
			panic(err)
		}
		h.caches[m] = c
	}
	cl, err := c.RegisterAuto(m, m.Base, m.Bytes)
	if err != nil {
		panic(err)
	}
	return cl
}

// close fails if claims are in use.
func (h *heap) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, c := range h.caches {
		errs = append(errs, c.End())
	}
	return errors.Join(append(errs, h.backend.Close())...)
}

// verbsSuite: of memory that is asked for, one of every is not registered. The suite's tests take turns, one in of.
func verbsSuite(t *testing.T, of int, every uint64) {
	transporttest.SuiteTurns(t, 0, of, network(func(t testing.TB, c *transport.Config) {
		*c = withNICs(t, *c)
		find, asked := c.Find, new(atomic.Uint64)
		c.Find = func(addr uintptr, n int) *register.Claim {
			if asked.Add(1)%every == 0 {
				return nil
			}
			return find(addr, n)
		}
	}))
}

// nics is a node's config with the RDMA devices: see withNICs.
func nics(t testing.TB) transport.Config { return withNICs(t, transport.Config{}) }

// withNICs adds the RDMA devices, which are open until the end of the test. Memory of Go's heap counts as registered.
func withNICs(t testing.TB, c transport.Config) transport.Config { return withThese(t, c, mr.Config{}) }

// withThese adds the RDMA devices that a config selects.
func withThese(t testing.TB, c transport.Config, which mr.Config) transport.Config {
	t.Helper()
	var err error
	c.NICs, err = mr.Open(which)
	require.NoError(t, err)
	h := &heap{backend: c.NICs, caches: map[register.Memory]*register.Cache{}}
	t.Cleanup(func() { require.NoError(t, h.close()) })
	c.Find = h.find
	return c
}

// TestFallBack: where one side has no RDMA, or it does not work, TCP carries the data. Both sides say so once; if they must
// not, no wire is made.
func TestFallBack(t *testing.T) {
	for name, k := range map[string]struct {
		knobs verbstest.Knobs
		none  bool // the other side has no device
		once  bool // the next try works
		why   string
	}{
		"no device":        {nil, true, false, "it offers none"},
		"no queue":         {verbstest.Knobs{"FAIL": "create_srq:*:ENOMEM"}, false, false, "ibv_create_srq"},
		"no queue pair":    {verbstest.Knobs{"FAIL": "create_qp:*:ENOMEM"}, false, false, "ibv_create_qp"},
		"one queue pair":   {verbstest.Knobs{"FAIL": "create_qp:2:ENOMEM"}, false, true, "it offers none"},
		"not connected":    {verbstest.Knobs{"FAIL": "modify_qp:3:EINVAL"}, false, true, "its side has failed"},
		"a ping is lost":   {verbstest.Knobs{"STATUS": "SEND:1:NEVER"}, false, true, "no answer to a ping"},
		"a ping fails":     {verbstest.Knobs{"STATUS": "SEND:1:RETRY_EXC_ERR"}, false, true, "retries exceeded"},
		"no memory for it": {verbstest.Knobs{"MEMLOCK": "16"}, false, false, "RLIMIT_MEMLOCK"},
	} {
		for _, required := range []bool{false, true} {
			if required && k.once {
				continue
			}
			t.Run(fmt.Sprintf("%s, required %v", name, required), func(t *testing.T) {
				knobs := maps.Clone(k.knobs)
				if knobs == nil {
					knobs = verbstest.Knobs{}
				}
				knobs["SILENT"] = "1"
				verbstest.Over(t, knobs, func(t *testing.T) {
					log, said := testkit.Logs(slog.LevelInfo)
					t.Setenv("UBCOLL_REQUIRE", "")
					a := nics(t)
					b := transport.Config{Rank: 1}
					if !k.none {
						b = nics(t)
					}
					a.Log = log
					b.Log = a.Log
					if required {
						requireNone(t, a, b, k.why)
						return
					}
					p := pairOf(t, 1, a, b)
					require.Equal(t, "tcp lo instead of verbs", p.la.Name())
					from, to := bytes.Repeat([]byte{7}, 1<<20), make([]byte, 1<<20)
					p.lb.Grant(0, 1, at(to), len(to))
					testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Granted(0).Load() == 1 })
					p.la.Put(0, 1, at(from), len(from))
					p.lb.until(t, 0, 1)
					require.Equal(t, from, to)
					p.close(t)
					require.Contains(t, said.String(), k.why)
					require.LessOrEqual(t, strings.Count(said.String(), "no RDMA"), 2, "each side says so once")
				})
			})
		}
	}
}

// requireNone makes sure that two nodes make no wire, since TCP must not carry the data.
func requireNone(t *testing.T, a, b transport.Config, why string) {
	a.Required = "the test says so"
	b.Rank, b.Required = 1, a.Required
	na, _ := nodeWith(t, a)
	nb, _ := nodeWith(t, b)
	var errs [2]error
	var both sync.WaitGroup
	begin := time.Now()
	both.Go(func() { _, errs[0] = na.Connect(within(t), 1, nb.row) })
	both.Go(func() { _, errs[1] = nb.Connect(within(t), 0, na.row) })
	both.Wait()
	require.Less(t, time.Since(begin), testkit.Limit/2)
	for _, err := range errs {
		require.Error(t, err)
	}
	require.Contains(t, errs[0].Error()+errs[1].Error(), why)
	require.Contains(t, errs[0].Error()+errs[1].Error(), "the test says so")
	require.ErrorIs(t, errors.Join(errs[:]...), fault.ErrNotSupported)
}

// TestQueuePairFails: a queue pair that fails under way, while the peer lives, ends the wire. Both ends learn why, and nothing
// is written any more.
func TestQueuePairFails(t *testing.T) {
	for name, k := range map[string]struct{ knob, value, why string }{
		"retries":   {"STATUS", "WRITE_WITH_IMM:2:RETRY_EXC_ERR", "retries exceeded"},
		"wrong key": {"STATUS", "WRITE_WITH_IMM:2:REM_ACCESS_ERR", "remote access error"},
		"post":      {"FAIL", "post_send:1:EINVAL", "ibv_post_send"},
		"port down": {"PORT", "down", "port error"},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
				p := pairOf(t, 2, nics(t), nics(t))
				require.Equal(t, "verbs double0:1", p.la.Name())
				p.cutBy(t, k.knob, k.value, k.why)
				require.Zero(t, p.lb.Word(0).Load())
			})
		})
	}
}

// cutBy puts while a knob of the double is turned: the wire ends, and both ends say why.
func (p *pair) cutBy(t *testing.T, knob, value, why string) {
	t.Helper()
	const n = 4 << 20
	from, to := bytes.Repeat([]byte{7}, n), make([]byte, n)
	p.lb.Grant(0, 1, at(to), n)
	testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Granted(0).Load() == 1 })
	verbstest.Set(t, knob, value)
	p.la.Put(0, 1, at(from), n)
	testkit.Eventually(t, func() bool { return p.la.Err() != nil && p.lb.Err() != nil })
	for _, l := range []*Link{p.la, p.lb} {
		require.Equal(t, transport.Cut, l.Err().Kind)
		require.ErrorIs(t, l.Err(), fault.ErrPeerLost)
		require.ErrorContains(t, l.Err(), why)
	}
	clear(to)
	time.Sleep(20 * time.Millisecond)
	require.Equal(t, make([]byte, n), to)
	p.close(t)
}

// TestStalePut: once Close has returned, a put that answers a grant of before changes no byte, however late it comes: its peer
// has acknowledged, or the queue pair is destroyed.
func TestStalePut(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) { stalePuts(t, testkit.Often(1000), nics(t), nics(t)) })
}

func stalePuts(t *testing.T, rounds int, a, b transport.Config) {
	defer func(limit time.Duration) { takeBackLimit = limit }(takeBackLimit)
	acknowledged := 0
	for round := range rounds {
		early := round%4 == 0 // it goes on while the peer closes
		takeBackLimit = 3 * time.Millisecond
		if early {
			takeBackLimit = time.Second
		}
		p := pairOf(t, 2, a, b)
		const n = 64 << 10
		from, to := bytes.Repeat([]byte{7}, n), make([]byte, n)
		p.lb.Grant(0, 1, at(to), n)
		testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Granted(0).Load() == 1 })
		resume := hold(t, p.a) // a's process is stopped: it has the grant, and does not see that it is taken back
		p.la.putting.Lock()
		var late sync.WaitGroup
		if early {
			late.Go(func() { p.la.putting.Unlock(); resume(); p.la.Put(0, 1, at(from), n) })
		}
		p.lb.Close()
		if p.ba.Err() == nil {
			acknowledged++
		}
		for i := range to {
			to[i] = 9
		}
		if !early {
			p.la.putting.Unlock()
			p.la.Put(0, 1, at(from), n)
			resume()
		}
		late.Wait()
		for range 20 {
			p.la.Poll()
			p.lb.Poll()
		}
		require.Equal(t, bytes.Repeat([]byte{9}, n), to)
		p.a.Close(0)
		p.b.Close(0)
	}
	t.Logf("%d of %d were acknowledged", acknowledged, rounds)
	require.Positive(t, acknowledged)
	require.Less(t, acknowledged, rounds)
}
