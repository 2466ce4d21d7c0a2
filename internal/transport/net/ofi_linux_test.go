//go:build cgo

package net

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/register"
)

// providers are those that tests use of the loopback interface: in short runs the first. UBCOLL_OFI_PROVIDER names another one.
var providers = []string{"tcp;ofi_rxm", "udp;ofi_rxd"}

func someProviders() []string {
	if p := os.Getenv(env.OFIProvider.Name); p != "" {
		return []string{p}
	}
	if testkit.Full() {
		return providers
	}
	return providers[:1]
}

// TestOFISuite: libfabric does what every transport does, with memory that is registered and with memory that is not, and without
// the provider's remote memory access.
func TestOFISuite(t *testing.T) {
	for _, provider := range someProviders() {
		for i, k := range []struct {
			name  string
			every uint64 // so many of the buffers that are asked for is not registered
			off   bool   // remote memory access
		}{{"both", 3, false}, {"messages", 1, false}, {"registered", 1 << 60, false}, {"two-sided", 1 << 60, true}} {
			t.Run(provider+"/"+k.name, func(t *testing.T) {
				transporttest.SuiteTurns(t, i, 4, network(func(t testing.TB, c *transport.Config) {
					*c = withOFI(t, *c, provider)
					c.OFI.Rails()[0].Messages = k.off
					find, asked := c.Find, new(atomic.Uint64)
					c.Find = func(addr uintptr, n int) *register.Claim {
						if asked.Add(1)%k.every == 0 {
							return nil
						}
						return find(addr, n)
					}
				}))
			})
		}
	}
}

// ofiNode is a node's config with a provider.
func ofiNode(t testing.TB, provider string) transport.Config {
	return withOFI(t, transport.Config{}, provider)
}

// TestOFI: the bytes of long puts go from memory to memory, those of others in messages.
func TestOFI(t *testing.T) {
	p := pairOf(t, 2, ofiNode(t, providers[0]), ofiNode(t, providers[0]))
	require.Equal(t, "ofi tcp;ofi_rxm lo", p.la.Name())
	name, connections := p.a.Transport()
	require.Equal(t, []any{"ofi", 1}, []any{name, connections})
	p.transfer(t, 1<<20, 2, atOnce)
	require.Less(t, p.ab.data[0].traffic().SentBytes, uint64(2<<20+4096), "heads of 4 KiB messages would be more")
	p.close(t)
}

// TestOFIMessages: where one side does not use the provider's remote memory access, all bytes go in messages.
func TestOFIMessages(t *testing.T) {
	for i, name := range []string{"sender", "receiver"} {
		t.Run(name, func(t *testing.T) {
			nodes := []transport.Config{ofiNode(t, providers[0]), ofiNode(t, providers[0])}
			nodes[i].OFI.Rails()[0].Messages = true
			p := pairOf(t, 2, nodes[0], nodes[1])
			p.transfer(t, 1<<20, 2, atOnce)
			require.Greater(t, p.ab.data[0].traffic().SentBytes, uint64(2<<20+2<<20/slotted*frame.HeaderSize))
			p.close(t)
		})
	}
}

// slotted is more than one message holds.
const slotted = 16 << 10

// TestOFIFallsBack: where the other side has no libfabric, or another provider, TCP carries the data. Both sides say so once; if
// it must not, no wire is made.
func TestOFIFallsBack(t *testing.T) {
	for name, k := range map[string]struct {
		other func(t testing.TB) transport.Config
		why   string
	}{
		"nothing":          {func(testing.TB) transport.Config { return transport.Config{} }, "it offers none"},
		"another provider": {func(t testing.TB) transport.Config { return ofiNode(t, "udp;ofi_rxd") }, "it offers libfabric (provider"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("UBCOLL_REQUIRE", "")
			log, said := testkit.Logs(slog.LevelInfo)
			a, b := ofiNode(t, providers[0]), k.other(t)
			a.Log, b.Log = log, log
			p := pairOf(t, 2, a, b)
			require.Equal(t, "tcp lo instead of ofi", p.la.Name())
			p.transfer(t, 1<<20, 2, atOnce)
			p.close(t)
			require.Contains(t, said.String(), k.why)
			require.LessOrEqual(t, strings.Count(said.String(), "no libfabric"), 2, "each side says so once")
			a.Required, b.Required = "the test says so", "the test says so"
			requireNone(t, a, b, k.why)
		})
	}
}

// TestOffer: offers of two kinds, or of two providers, do not meet; a bad one is no offer.
func TestOffer(t *testing.T) {
	tcp, udp, verbs, none := newOffer("ofi"), newOffer("ofi"), newOffer("verbs"), newOffer("")
	tcp.over("tcp;ofi_rxm")
	udp.over("udp;ofi_rxd")
	for i, a := range []offer{tcp, udp, verbs, none} {
		require.Len(t, a, offerSize)
		for k, b := range []offer{tcp, udp, verbs, none} {
			require.Equal(t, i == k, a.same(b))
		}
	}
	require.Contains(t, verbs.kind(), "RDMA")
	require.Contains(t, tcp.kind(), "libfabric")
	tcp.add(1, []byte{7})
	tcp.add(0, []byte{8})
	tcp.add(1, []byte{9})
	require.Equal(t, 3, tcp.count())
	of, err := tcp.addresses()
	require.NoError(t, err)
	require.Equal(t, []byte{7, 8, 9}, []byte{of[1][0][0], of[0][0][0], of[1][1][0]})
	tcp[5] = transport.MostConnections + 1
	_, err = tcp.addresses()
	require.ErrorContains(t, err, "an offer of 9 connections")
}

// TestOFIStalePut is TestStalePut over libfabric.
func TestOFIStalePut(t *testing.T) {
	for _, provider := range someProviders() {
		t.Run(provider, func(t *testing.T) {
			rounds := testkit.Often(200)
			if provider == providers[0] {
				rounds = testkit.Often(1000)
			}
			stalePuts(t, rounds, ofiNode(t, provider), ofiNode(t, provider))
		})
	}
}

// TestOFIRefused: a put by a key that is no good, or was taken back, changes no byte, and ends the wire at both sides within the
// network's timeout, whether the provider tells or not. What was registered can be deregistered, and a further wire works.
func TestOFIRefused(t *testing.T) {
	for _, provider := range someProviders() {
		for name, spoil := range map[string]func(t *testing.T, p *pair, c *transport.Config){
			"wrong key": func(_ *testing.T, p *pair, _ *transport.Config) { p.la.places[0].theirs.landing.Keys[0] ^= 1 << 40 },
			"beyond the registration": func(_ *testing.T, p *pair, _ *transport.Config) {
				p.la.places[0].theirs.landing.Address += 64 << 20
			},
		} {
			t.Run(provider+"/"+name, func(t *testing.T) {
				for range max(testkit.Often(20), 1) {
					a, b := ofiNode(t, provider), ofiNode(t, provider)
					a.Timeout, b.Timeout = time.Second, time.Second
					p := pairOf(t, 2, a, b)
					const n = 1 << 20
					from, to := bytes.Repeat([]byte{7}, n), make([]byte, n)
					p.lb.Grant(0, 1, at(to), n)
					testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Granted(0).Load() == 1 })
					spoil(t, p, &b)
					begin := time.Now()
					p.la.Put(0, 1, at(from), n)
					testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return p.la.Err() != nil && p.lb.Err() != nil })
					t.Logf("%v after %v", p.la.Err(), time.Since(begin))
					for _, l := range []*Link{p.la, p.lb} {
						require.Equal(t, transport.Cut, l.Err().Kind)
						require.ErrorIs(t, l.Err(), fault.ErrPeerLost)
					}
					require.Zero(t, p.lb.Word(0).Load())
					require.Equal(t, make([]byte, n), to)
					require.EqualValues(t, 1, p.la.Sent())
					p.close(t)
				}
			})
		}
	}
}

// withOFI adds a provider's domain on the loopback interface, which is open until the end of the test. Memory of Go's heap
// counts as registered.
func withOFI(t testing.TB, c transport.Config, provider string) transport.Config {
	t.Helper()
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	infos, _, err := fabric.List(t.Context(), provider, "")
	require.NoError(t, err)
	for _, i := range infos {
		if !i.Address.Is4() || !i.Address.IsLoopback() && i.Core() != "verbs" { // no RDMA device is there
			continue
		}
		d, err := fabric.Open(i)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close(), "a registration is left") })
		c.OFI = ofi.New([]ofi.Rail{{Domain: d}}, nil)
		h := &heap{backend: c.OFI, caches: map[register.Memory]*register.Cache{}}
		t.Cleanup(func() { require.NoError(t, h.close()) })
		c.Find = h.find
		return c
	}
	testkit.Missing(t, "libfabric", "libfabric has no provider "+provider+" of the loopback interface here")
	return c
}
