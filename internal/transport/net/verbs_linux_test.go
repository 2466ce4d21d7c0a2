package net

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/register"
)

// TestDouble runs the tests over verbs over the double.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{
		"InfiniBand": {"SILENT": "1"},
		"Ethernet":   {"LINK": "Ethernet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := verbstest.Again(t, knobs, "-test.run=^TestVerbs")
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestVerbsSuite")
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
			if name != "messages" && os.Getenv("UBCOLL_TEST_LIBRARY") == "" {
				t.Skip("memory of Go's heap is registered with the double alone")
			}
			verbsSuite(t, every)
		})
	}
}

// heap registers memory of Go's heap, page by page, which no device but the double takes. The same pages may be in
// several registrations, so each has a cache.
type heap struct {
	backend *mr.Backend
	mu      sync.Mutex
	caches  map[register.Memory]*register.Cache
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

// verbsSuite: of memory that is asked for, one of every is not registered.
func verbsSuite(t *testing.T, every uint64) {
	transporttest.Suite(t, func(t testing.TB, configs []transport.Config) transporttest.Network {
		t.Setenv("UBCOLL_NET", interfaces)
		var nodes []*Node
		n := transporttest.Network{
			Background: true,
			Kill:       func(rank int) { nodes[rank].die(t) },
			Cut: func(a, b int) {
				nodes[a].deafen(t, b)
				nodes[b].deafen(t, a)
			},
			Pairs: func(rank int) int { return nodes[rank].pairs() },
		}
		for _, c := range configs {
			if strings.HasSuffix(t.Name(), "/cut") { // others have time
				c.Timeout = time.Second
			}
			var err error
			c.NICs, err = mr.Open(mr.Config{})
			require.NoError(t, err)
			h := &heap{backend: c.NICs, caches: map[register.Memory]*register.Cache{}}
			t.Cleanup(func() { require.NoError(t, h.close()) })
			var asked atomic.Uint64
			c.Find = func(addr uintptr, n int) *register.Claim {
				if asked.Add(1)%every == 0 {
					return nil
				}
				return h.find(addr, n)
			}
			node, err := New(c)
			require.NoError(t, err)
			n.Nodes, nodes = append(n.Nodes, node), append(nodes, node)
		}
		return n
	})
}
