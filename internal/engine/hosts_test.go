package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
)

// openEach opens a communicator over bs, each rank with its own options and transport, and closes bs.
func openEach(bs []bootstrap.Bootstrap, o func(rank int) engine.Options, newIPC func(rank int) engine.NewIPC) (
	[]*engine.Comm, []error) {
	comms := make([]*engine.Comm, len(bs))
	errs := testkit.Each(bs, func(b bootstrap.Bootstrap) (err error) {
		comms[b.Rank()], err = engine.Open(background, b, o(b.Rank()), nil, enginetest.ProvidersWith(newIPC(b.Rank())))
		return err
	})
	testkit.Each(bs, bootstrap.Bootstrap.Close)
	return comms, errs
}

func usual(int) engine.Options   { return engine.Options{Timeout: testkit.Limit} }
func usualIPC(int) engine.NewIPC { return ipc.New }

// requirePlaces checks that all ranks know which rank is on which host, and reach each other.
func requirePlaces(t *testing.T, comms []*engine.Comm, host func(rank int) int, name func(rank int) string) {
	t.Helper()
	all := make([][][]byte, len(comms))
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		all[c.Rank()], err = c.Exchange(background, team.KindSplit, []byte(fmt.Sprint("I am ", c.Rank())), nil)
		return err
	})...))
	for rank, c := range comms {
		local, size := 0, 0
		for other := range comms {
			require.Equal(t, name(other), c.Hostname(other))
			require.Equal(t, fmt.Sprint("I am ", other), string(all[rank][other]))
			if host(other) == host(rank) {
				if size++; other < rank {
					local++
				}
			}
		}
		require.Equal(t, []int{rank, len(comms), local, size}, []int{c.Rank(), c.Size(), c.LocalRank(), c.LocalSize()})
	}
}

func closeAll(t *testing.T, comms []*engine.Comm) {
	t.Helper()
	require.NoError(t, errors.Join(testkit.Each(comms, (*engine.Comm).Close)...))
}

func TestOpenOnHosts(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	for _, l := range []struct {
		name string
		n    int
		host func(rank int) int
	}{
		{"block", 4, func(r int) int { return r / 2 }},
		{"cyclic", 5, func(r int) int { return r % 2 }},
		{"uneven", 6, func(r int) int { return []int{7, 7, 3, 7, 1, 3}[r] }},
		{"a host each", 3, func(r int) int { return r }},
		{"64 hosts", 64, func(r int) int { return r * 37 % 64 }},
	} {
		t.Run(l.name, func(t *testing.T) {
			if l.n == 64 {
				testkit.Long(t) // TestAcross64Hosts of coll opens as many for the race detector
			}
			defer testkit.NoLeaks(t)()
			name := func(r int) string { return fmt.Sprint("host ", l.host(r)) }
			comms, errs := openEach(enginetest.Hosts(bootstrap.Local(l.n), name), usual, usualIPC)
			require.NoError(t, errors.Join(errs...))
			requirePlaces(t, comms, l.host, name)
			closeAll(t, comms)
		})
	}
}

// If one rank of one host fails or differs, all ranks of all hosts return an error that names it, and nothing stays
// open.
func TestOpenOnHostsRefused(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	const n, odd = 6, 3
	host := func(r int) string { return fmt.Sprint("host ", r%3) }
	failing := func(rank int) engine.NewIPC {
		if rank != odd {
			return ipc.New
		}
		return func(*mem.Heap, []byte) (engine.IPC, error) {
			return nil, fmt.Errorf("no memory for it: %w", fault.ErrLimit)
		}
	}
	for _, c := range []struct {
		name   string
		o      func(rank int) engine.Options
		newIPC func(rank int) engine.NewIPC
		want   error
		text   string
	}{
		{"no domain", usual, failing, fault.ErrLimit, "no memory for it"},
		{"other options", func(rank int) engine.Options {
			o := usual(rank)
			if rank == odd {
				o.Algorithm = "ring"
			}
			return o
		}, usualIPC, fault.ErrMismatch, "Options.Algorithm is  on rank 0 and ring on rank 3"},
		{"nobody there", usual, func(rank int) engine.NewIPC {
			return func(h *mem.Heap, secret []byte) (engine.IPC, error) {
				tr, err := ipc.New(h, secret)
				if rank == odd {
					tr = &cut{tr, fault.ErrStale}
				}
				return tr, err
			}
		}, fault.ErrStale, "reach rank 0"},
	} {
		for kind, bs := range map[string]func() []bootstrap.Bootstrap{
			"pairs": func() []bootstrap.Bootstrap { return bootstrap.Local(n) },
			"all": func() (bs []bootstrap.Bootstrap) {
				for _, b := range bootstrap.Local(n) {
					bs = append(bs, struct{ bootstrap.Bootstrap }{b})
				}
				return bs
			},
		} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				defer testkit.NoLeaks(t)()
				before := testkit.Descriptors(t)
				_, errs := openEach(enginetest.Hosts(bs(), host), c.o, c.newIPC)
				for rank, err := range errs {
					require.ErrorIs(t, err, c.want, "rank %d", rank)
					require.ErrorContains(t, err, c.text, "rank %d", rank)
					if e, _ := errors.AsType[*fault.Error](err); c.want != fault.ErrStale && rank != odd {
						require.Equal(t, odd, e.Peer, "%v", err)
					}
				}
				testkit.Eventually(t, func() bool { return before == testkit.Descriptors(t) })
			})
		}
	}
}

// cut is a transport that cannot attach any peer.
type cut struct {
	engine.IPC
	err error
}

func (u *cut) Attach(context.Context, json.RawMessage) (team.PeerMemory, error) {
	return nil, fmt.Errorf("it is out of reach: %w", u.err)
}

// If a rank cannot reach the memory of another rank of its host, each rank there becomes a host, and everything works.
func TestOpenParts(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	for _, l := range []struct {
		name string
		n    int
		host func(rank int) int
		bad  []int // ranks that cannot reach others at first
	}{
		{"the only one", 3, func(int) int { return 0 }, []int{1}},
		{"one of three", 7, func(r int) int { return r % 3 }, []int{4}},
		{"two of three", 7, func(r int) int { return r / 3 }, []int{0, 5, 3}},
	} {
		t.Run(l.name, func(t *testing.T) {
			defer testkit.NoLeaks(t)()
			var log safeBuffer
			o := func(rank int) engine.Options {
				o := usual(rank)
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				return o
			}
			parted := map[int]bool{}
			for _, r := range l.bad {
				parted[l.host(r)] = true
			}
			called := func(r int) string { return fmt.Sprint("host-", l.host(r)) }
			name := func(r int) string { // with its place among the ranks whose hosts have the same name
				at := 1
				for other := range r {
					if parted[l.host(r)] && l.host(other) == l.host(r) {
						at++
					}
				}
				return strings.TrimSuffix(fmt.Sprint(called(r), "/", at), "/1")
			}
			comms, errs := openEach(enginetest.Hosts(bootstrap.Local(l.n), called), o, func(rank int) engine.NewIPC {
				return func(h *mem.Heap, secret []byte) (engine.IPC, error) {
					tr, err := ipc.New(h, secret)
					for _, bad := range l.bad {
						if bad == rank {
							tr = &cut{tr, fault.ErrNotSupported}
						}
					}
					return tr, err
				}
			})
			require.NoError(t, errors.Join(errs...))
			requirePlaces(t, comms, func(r int) int {
				if parted[l.host(r)] {
					return 100 + r
				}
				return l.host(r)
			}, name)
			require.Equal(t, len(parted), bytes.Count(log.bytes(), []byte("level=WARN")), "%s", log.bytes())
			require.Contains(t, string(log.bytes()), "it is out of reach")
			for rank, c := range comms { // errors have these names, too
				require.ErrorContains(t, c.LocalError("x", fault.ErrLimit), "(host "+name(rank)+")")
				require.Equal(t, name(rank), c.Team().Peers[c.Team().Rank()].Host)
			}
			closeAll(t, comms)
		})
	}
}

// The log says how much memory the hosts take, and nothing of it on one host.
func TestLogMemory(t *testing.T) {
	for _, k := range []struct {
		hosts int
		want  string
	}{{1, ""}, {3, ` memory="` + hosts.MemoryText(3, 3) + `"`}} {
		log := &safeBuffer{}
		o := engine.Options{Timeout: testkit.Limit, Logger: slog.New(slog.NewTextHandler(log, nil))}
		comms, errs := enginetest.OpenOver(enginetest.Hosts(bootstrap.Local(3), func(r int) string { return fmt.Sprint(r % k.hosts) }), o)
		require.NoError(t, errors.Join(errs...))
		lines := strings.Split(string(log.bytes()), "\n")
		for _, line := range lines[:3] {
			require.Contains(t, line, "communicator opened")
			require.Equal(t, k.want != "", strings.HasSuffix(line, k.want) && strings.Contains(line, "memory="), line)
		}
		closeAll(t, comms)
	}
}

// safeBuffer is a buffer that several goroutines may write to.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}

// counted counts the exchanges of a rank.
type counted struct {
	bootstrap.Bootstrap
	bootstrap.Exchanger
	gathers, pairs int
}

func (c *counted) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	c.gathers++
	return c.Bootstrap.AllGather(ctx, mine)
}

func (c *counted) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	c.pairs++
	return c.Exchanger.Exchange(ctx, peer, mine)
}

// Open makes three exchanges of all ranks on one host; on several hosts it makes one, and exchanges of pairs.
func TestOpenCounts(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	for hosts, want := range map[int][2]int{1: {3, 0}, 2: {1, 3 * (2 + 1)}} { // with four ranks; only first ranks' pairs are checked
		bs, cs := bootstrap.Local(4), make([]*counted, 4)
		for r, b := range bs {
			cs[r] = &counted{Bootstrap: b, Exchanger: b.(bootstrap.Exchanger)}
			bs[r] = cs[r]
		}
		comms, errs := openEach(enginetest.Hosts(bs, func(r int) string { return fmt.Sprint(r % hosts) }), usual, usualIPC)
		require.NoError(t, errors.Join(errs...))
		for r, c := range cs {
			require.Equal(t, want[0], c.gathers)
			if r < hosts {
				require.Equal(t, want[1], c.pairs)
			}
		}
		closeAll(t, comms)
	}
}

// openOnHosts opens a communicator of ranks, each of them on each host.
func openOnHosts(t *testing.T, ranks, each int) []*engine.Comm {
	t.Helper()
	t.Setenv(env.Net.Name, "lo")
	comms, errs := openEach(enginetest.Hosts(bootstrap.Local(ranks), func(r int) string { return fmt.Sprint(r / each) }), usual, usualIPC)
	require.NoError(t, errors.Join(errs...))
	return comms
}

// TestBrokenBeforeTheVerdict: if a communicator breaks after a team has agreed but before the hosts have, the operation
// fails, because there is no result to take.
func TestBrokenBeforeTheVerdict(t *testing.T) {
	for _, here := range []bool{false, true} {
		comms := openOnHosts(t, 2, 1)
		for r, err := range testkit.Each(comms, func(c *engine.Comm) error {
			return c.Gather(background, &engine.Gathering{Kind: team.KindSplit, HostOnly: here, Before: func() ([]byte, error) {
				if c.Rank() == 0 {
					c.Abort(errors.New("enough"))
				}
				return []byte("mine"), nil
			}, After: func([][]byte) { t.Errorf("rank %d takes records", c.Rank()) }})
		}) {
			require.ErrorIs(t, err, fault.ErrAborted, "rank %d", r)
		}
		testkit.Each(comms, (*engine.Comm).Close)
	}
}

// TestSplitThatFails: whichever step of a Split fails on one rank, all ranks return the error, no rank waits for a
// connection that never comes, and nothing stays in quarantine.
func TestSplitThatFails(t *testing.T) {
	comms := openOnHosts(t, 4, 2)
	for step := range 4 {
		for fails := range comms {
			for r, err := range testkit.Each(comms, func(c *engine.Comm) error {
				return c.SplitThatFails(step, func() error {
					if c.Rank() == fails {
						return fmt.Errorf("no: %w", fault.ErrLimit)
					}
					return nil
				})
			}) {
				require.ErrorIs(t, err, fault.ErrLimit, "step %d, rank %d", step, r)
			}
		}
	}
	for r, c := range comms { // once the last rank has left the last broken communicator, which the next Free notices
		require.True(t, testkit.Until(func() bool {
			a, err := c.Alloc(hw.Host, 100)
			require.NoError(t, errors.Join(err, c.Free(a)))
			return !c.Domain().Heap.Quarantined()
		}), "rank %d", r)
	}
	require.NoError(t, errors.Join(testkit.Each(comms, (*engine.Comm).Close)...))
}
