package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// small is a Config that takes milliseconds.
func small(op string) Config {
	c := Default(op)
	c.MinBytes, c.MaxBytes, c.StepFactor, c.Iterations, c.Warmup = 1, 5000, 70, 3, 1
	return c
}

// measure runs cfg on n goroutine ranks and gives rank 0's report and table.
func measure(t *testing.T, n int, cfg Config) (rep *Report, table string, err error) {
	var out bytes.Buffer
	o := ubcoll.Options{Timeout: testkit.Limit}
	err = ubcoll.Local(t.Context(), n, o, func(ctx context.Context, c *ubcoll.Comm) error {
		mine, err := Run(ctx, c, cfg, Program{Version: "test", Args: []string{"a"}, Threads: n}, &out, nil)
		if c.Rank() == 0 {
			rep = mine
		}
		return err
	})
	return rep, out.String(), err
}

func TestEveryOperation(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for _, name := range testkit.Sample(4, Names()) {
		if operationOf(name).open != nil {
			continue // see TestOneSided
		}
		ranks := testkit.Sample(4, []int{3, 1, 2, 5})
		if name == multiPair {
			ranks = testkit.Sample(2, []int{2, 4})
		}
		for _, n := range ranks {
			for _, buffers := range testkit.Sample(2, []int{Registered, GoSlices}) {
				cfg := small(name)
				cfg.Buffers, cfg.Root, cfg.Checks, cfg.Seed = buffers, n-1, 2, rng.Uint64()>>32
				if n == 3 {
					cfg.Root = -1
				}
				cfg.Types = []dtype.Type{dtype.All()[rng.IntN(len(dtype.All()))]}
				cfg.Reductions = []ubcoll.Op{[]ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg}[rng.IntN(5)]}
				if cfg.Types[0] == dtype.Bool {
					cfg.Reductions[0] = []ubcoll.Op{ubcoll.Min, ubcoll.Max}[rng.IntN(2)]
				}
				t.Run(fmt.Sprintf("%s/%d/%d/%v/%v", name, n, buffers, cfg.Types[0], cfg.Reductions[0]), func(t *testing.T) {
					rep, _, err := measure(t, n, cfg)
					require.NoError(t, err)
					op, roots := operationOf(name), 1
					if op.rooted && cfg.Root < 0 {
						roots = n
					}
					rows := 3 * roots // of 1, 70 and 4900 bytes
					if name == barrier {
						rows = 1
					}
					require.Len(t, rep.Results, rows)
					require.Equal(t, Bounds{0, true}, rep.Wrong)
					for _, r := range rep.Results {
						require.Equal(t, op.outOfPlace, r.In == nil)
						require.Equal(t, name == barrier, r.Out.Wrong == nil)
						require.Equal(t, 3, r.Out.Spread.Calls)
						require.LessOrEqual(t, r.Size, 4900)
						if n > 1 && name != barrier && r.Size > 0 {
							require.NotEmpty(t, r.Out.Source+r.Out.Destination)
							require.NotEmpty(t, r.Out.Algorithm)
						}
					}
				})
			}
		}
	}
}

// An operation that goes wrong has to be noticed in both variants, or the checks are worth nothing.
func TestChecksNotice(t *testing.T) {
	for i := range operations {
		op := operations[i]
		if op.name == barrier || testkit.Daily() && i%7 != 0 {
			continue
		}
		for _, fault := range []struct {
			name string
			run  func(ctx context.Context, c *ubcoll.Comm, a *args, k *task) error
		}{
			{"writes past its result", func(ctx context.Context, c *ubcoll.Comm, a *args, k *task) error {
				err := op.run(ctx, c, a)
				if len(k.guard) > 0 {
					k.guard[0]++
				}
				return err
			}},
			{"does nothing", func(context.Context, *ubcoll.Comm, *args, *task) error { return nil }},
			{"spoils one element", func(ctx context.Context, c *ubcoll.Comm, a *args, k *task) error {
				err := op.run(ctx, c, a)
				if c.Rank() == c.Size()-1 && len(k.dst) > 0 {
					k.dst[len(k.dst)-1] ^= 0x40
				}
				return err
			}},
			{"writes to its source", func(ctx context.Context, c *ubcoll.Comm, a *args, k *task) error {
				err := op.run(ctx, c, a)
				if c.Rank() == a.root && len(k.src) > 0 && !k.inPlace {
					k.src[0] ^= 0x40
				}
				return err
			}},
		} {
			t.Run(op.name+"/"+fault.name, func(t *testing.T) {
				const count = 99
				n := 3
				if op.name == "pingpong" || op.name == multiPair {
					n = 4 // the last of 3 has no partner
				}
				root := n - 1
				if op.name == multiPair {
					root = 0 // has a source
				}
				var mu sync.Mutex
				wrong := map[bool]int{}
				err := ubcoll.Local(t.Context(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
					a, err := newMemory(c, ubcoll.Host, Registered, 4*count+guarded)
					if err != nil {
						return err
					}
					b, err := newMemory(c, ubcoll.Host, Registered, 4*count+guarded)
					if err != nil {
						return err
					}
					cfg := small(op.name)
					for _, inPlace := range []bool{false, true} {
						if inPlace && op.outOfPlace {
							continue
						}
						bad := op
						k := newTask(c, &cfg, &bad, op.shape(place{ranks: n, rank: c.Rank(), root: root}, count), dtype.Float32, ubcoll.Sum, root, a, b,
							inPlace)
						bad.run = func(ctx context.Context, c *ubcoll.Comm, a *args) error { return fault.run(ctx, c, a, k) }
						w, err := k.check(ctx, 1)
						if err != nil {
							return err
						}
						mu.Lock()
						wrong[inPlace] += w
						mu.Unlock()
					}
					return errors.Join(a.close(), b.close())
				})
				require.NoError(t, err)
				lastHasOutput := op.name != "broadcast" // whose last rank is the root here
				switch {
				case fault.name == "writes past its result" || fault.name == "writes to its source":
					require.Positive(t, wrong[false])
				case fault.name == "does nothing" || lastHasOutput:
					require.Positive(t, wrong[false])
					require.Equal(t, !op.outOfPlace, wrong[true] > 0)
				}
				if fault.name == "spoils one element" && lastHasOutput {
					require.Equal(t, 1, wrong[false])
				}
			})
		}
	}
}

func TestShapes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		op := &operations[rapid.IntRange(0, len(operations)-2).Draw(t, "op")] // all but the barrier
		n := rapid.IntRange(1, 9).Draw(t, "ranks")
		root, count := rapid.IntRange(0, n-1).Draw(t, "root"), rapid.IntRange(0, 500).Draw(t, "count")
		var all []shape
		for r := range n {
			all = append(all, op.shape(place{ranks: n, rank: r, root: root}, count))
		}
		for r, s := range all {
			require.Equal(t, all[0].size, s.size)
			require.Equal(t, all[0].param, s.param)
			require.LessOrEqual(t, s.size, count)
			require.Less(t, count-s.size, n, "no more is left out than does not divide")
			for _, p := range []span{s.src, s.dst} {
				require.LessOrEqual(t, p.at+p.n, s.size, "in place, both lie in one buffer")
			}
			covered := 0
			for _, p := range s.want {
				require.Equal(t, covered, p.at)
				covered += p.n
				if p.rank != reduced && !op.single {
					require.LessOrEqual(t, p.first+p.n, all[p.rank].src.n)
				}
			}
			if !op.single {
				require.Equal(t, s.dst.n, covered, "every element is checked")
			}
			for to, k := range s.sends {
				if all[to].recvs != nil {
					require.Equal(t, k, all[to].recvs[r])
				} else if r == root {
					require.Equal(t, k, all[to].dst.n)
				}
			}
			for from, k := range s.recvs {
				if all[from].sends == nil {
					require.Equal(t, k, all[from].src.n)
				}
			}
		}
	})
}

func TestUnevenAllToAllV(t *testing.T) {
	for n := 2; n < 8; n++ {
		s := allToAllV(place{ranks: n}, 1000)
		require.NotEqual(t, s.sends[0], s.sends[1], "%d ranks", n)
	}
}

func TestModes(t *testing.T) {
	for _, c := range testkit.Sample(3, []struct {
		name   string
		change func(*Config)
		rows   int
		check  func(t *testing.T, r *Report)
	}{
		{"sizes by steps", func(c *Config) { c.MinBytes, c.MaxBytes, c.StepFactor, c.StepBytes = 8, 24, 1, 8 }, 3, nil},
		{"two cycles", func(c *Config) { c.Cycles = 2 }, 6, nil},
		{"all types and reductions", func(c *Config) {
			c.MinBytes, c.Types, c.Reductions = 5000, dtype.All(), []ubcoll.Op{ubcoll.Sum, ubcoll.Max}
		}, 2*len(dtype.All()) - 1, nil}, // bools have no sum
		{"loop", func(c *Config) { c.Loop = true }, 3, func(t *testing.T, r *Report) {
			require.Equal(t, "loop", r.Config.Protocol)
			require.Nil(t, r.Results[0].Out.Spread)
			require.Positive(t, r.Results[0].Out.Time)
		}},
		{"graphs", func(c *Config) { c.Graphs, c.Iterations = 2, 25 }, 3, func(t *testing.T, r *Report) {
			require.Equal(t, "loop", r.Config.Protocol)
			require.Equal(t, 2, r.Config.Graphs)
			require.Positive(t, r.Results[0].Out.Time)
			require.Positive(t, r.Results[0].In.Time)
		}},
		{"device by itself", func(c *Config) { c.Device = Auto; c.Op = "alltoallv" }, 3, func(t *testing.T, r *Report) {
			require.Equal(t, Host, r.Config.Device)
			require.Equal(t, "each", r.Config.Protocol)
		}},
		{"groups", func(c *Config) { c.Aggregate = 4 }, 3, nil},
		{"unchecked", func(c *Config) { c.Checks = 0 }, 3, func(t *testing.T, r *Report) {
			require.Nil(t, r.Results[0].Out.Wrong)
		}},
		{"skipped", func(c *Config) { c.Skip = 2 }, 3, func(t *testing.T, r *Report) {
			require.Equal(t, 1, r.Results[0].Out.Spread.Calls)
		}},
		{"rank 0's times", func(c *Config) { c.Average = FromRank0 }, 3, nil},
		{"cache", func(c *Config) { c.Cache, c.MinBytes, c.MaxBytes = true, 1<<20, 1<<20 }, 1, func(t *testing.T, r *Report) {
			require.Positive(t, r.Setup.Alloc)
			require.Positive(t, r.Cache.HitP50)
			require.Equal(t, churns, r.Cache.Churn.Calls)
			require.Equal(t, churns, r.Cache.Again.Calls)
			require.Positive(t, r.Cache.Hits)
			require.Positive(t, r.Results[0].Out.Hits)
			require.Zero(t, r.Results[0].Out.Misses, "registered once over the whole length")
		}},
		{"cache with Go slices", func(c *Config) { c.Cache, c.Buffers = true, GoSlices }, 3, func(t *testing.T, r *Report) {
			require.Nil(t, r.Setup)
			require.Zero(t, r.Cache.HitP50)
		}},
	}) {
		t.Run(c.name, func(t *testing.T) {
			cfg := small("all_reduce")
			c.change(&cfg)
			rep, table, err := measure(t, 2, cfg)
			require.NoError(t, err)
			require.Len(t, rep.Results, c.rows)
			rows, _ := scrape(t, table, cfg.PerCall)
			require.Len(t, rows, c.rows)
			if c.check != nil {
				c.check(t, rep)
			}
		})
	}
}

func TestPossible(t *testing.T) {
	cfgs := []Config{Default("all_reduce"), Default("broadcast"), Default("channel")}
	cfgs[1].Root, cfgs[2].Buffers = 2, GoSlices
	for _, c := range []struct {
		ranks int
		can   []string
		why   int
	}{{2, []string{"all_reduce"}, 2}, {3, []string{"all_reduce", "broadcast"}, 1}} {
		can, why := Possible(cfgs, c.ranks)
		var names []string
		for _, cfg := range can {
			names = append(names, cfg.Op)
		}
		require.Equal(t, c.can, names)
		require.Len(t, why, c.why)
	}
}

// One operation that fails its verdict does not keep the others from being measured; a broken communicator does.
func TestRunAll(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Config)
		reports int
		want    error
	}{
		{"good", func(*Config) {}, 3, nil},
		{"too slow", func(c *Config) { c.MinBusBW = 1e9 }, 3, ErrFailed},
		{"not valid", func(c *Config) { c.Root = 9 }, 1, ubcoll.ErrArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := []Config{small("all_reduce"), small("broadcast"), small("all_gather")}
			c.change(&all[1])
			var out bytes.Buffer
			var reps []*Report
			err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				mine, err := RunAll(ctx, c, all, Program{Threads: 2}, &out, nil)
				if c.Rank() == 0 {
					reps = mine
				}
				return err
			})
			require.ErrorIs(t, err, c.want)
			if err != nil {
				require.ErrorContains(t, err, "broadcast: ")
			}
			require.Len(t, reps, c.reports)
			require.Equal(t, 1, strings.Count(out.String(), "# Using devices"))
			require.Equal(t, c.reports, strings.Count(out.String(), "# Collective test concluded"))
			for i, rep := range reps {
				require.Equal(t, all[i].Op, rep.Config.Op)
				require.Len(t, rep.Ranks, 2)
			}
		})
	}
}

// What a run of several operations prints, but for times and the machine's names. UPDATE=1 rewrites the file.
func TestSeveralTables(t *testing.T) {
	all := []Config{small("all_reduce"), small(multiPair), small(barrier)}
	all[0].Overlap, all[2].Overlap = true, true
	var out bytes.Buffer
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		_, err := RunAll(ctx, c, all, Program{Version: "v1", Threads: 2}, &out, nil)
		return err
	})
	require.NoError(t, err)
	got := out.String()
	for _, x := range []struct{ pattern, with string }{
		{`(# +Rank +\d+ ).*`, "${1}..."},
		{`(Avg bus bandwidth *: )\S+`, "${1}T"},
		{`( float +(?:sum|none) +-1| float) .*\d.*`, "${1} T"},
		{` {2,}`, " "},
	} {
		got = regexp.MustCompile(x.pattern).ReplaceAllString(got, x.with)
	}
	file := filepath.Join("testdata", "several.golden")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestCombine(t *testing.T) {
	for how, want := range map[int]float64{FromRank0: 1, Mean: 2, Min: 1, Max: 3} {
		err := ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			v := []float64{float64(c.Rank() + 1), 7}
			err := combine(ctx, c, v, how)
			if err == nil && (v[0] != want || v[1] != 7) {
				return fmt.Errorf("rank %d has %v, not %v", c.Rank(), v, want)
			}
			return err
		})
		require.NoError(t, err)
	}
}

func TestVerdict(t *testing.T) {
	cfg := small("all_reduce")
	cfg.MinBusBW = 1e9
	rep, table, err := measure(t, 2, cfg)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "less than 1e+09")
	require.False(t, *rep.Average.OK)
	require.Regexp(t, `(?m)^# Avg bus bandwidth    : [0-9.e-]+ FAILED$`, table)

	cfg.MinBusBW = 1e-9
	rep, _, err = measure(t, 2, cfg)
	require.NoError(t, err)
	require.True(t, *rep.Average.OK)
}

func TestWrongDataFail(t *testing.T) {
	r := runner{rep: &Report{Wrong: Bounds{Count: 3}}, cfg: &Config{}}
	require.ErrorIs(t, r.verdict(), ErrFailed)
	require.ErrorContains(t, r.verdict(), "3 wrong elements")
}

func TestEveryLine(t *testing.T) {
	for _, n := range []int{0, 1, 64, 65, 1000} {
		b := make([]byte, n)
		before := read(b)
		rewrite(b)
		lines := 0
		for i, x := range b {
			require.Equal(t, i%line == 0, x != 0)
			lines += int(x)
		}
		require.Equal(t, (n+line-1)/line, lines)
		require.Equal(t, byte(lines), read(b)-before, "every line that was rewritten is looked at")
	}
}

// interrupter ends a job when it has printed a row of the table.
type interrupter struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (w *interrupter) Write(b []byte) (int, error) {
	if f := bytes.Fields(b); len(f) > 0 && f[0][0] != '#' {
		w.cancel()
	}
	return w.Buffer.Write(b)
}

func TestInterrupted(t *testing.T) {
	cfg := small("all_reduce")
	cfg.Cycles = 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var rep *Report
	out := &interrupter{cancel: cancel}
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(_ context.Context, c *ubcoll.Comm) error {
		mine, err := Run(ctx, c, cfg, Program{}, out, nil)
		if c.Rank() == 0 {
			rep = mine
		}
		return err
	})
	require.Error(t, err)
	require.NotEmpty(t, rep.Results, "what was measured is not lost")
	require.Len(t, rep.Errors, 1)
	require.Contains(t, out.String(), "# ")
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"operation", func(c *Config) { c.Op = "allreduce" }, `unknown operation "allreduce"`},
		{"sizes", func(c *Config) { c.MinBytes, c.MaxBytes = 8, 4 }, "sizes from 8 to 4 bytes"},
		{"more than the largest", func(c *Config) { c.Also = []int{c.MaxBytes, c.MaxBytes + 1} }, "33554433 bytes (--also): want"},
		{"less than the smallest", func(c *Config) { c.Also = []int{0} }, "0 bytes (--also): want one between 33554432 and"},
		{"factor", func(c *Config) { c.StepFactor = 0 }, "step factor 0"},
		{"step", func(c *Config) { c.StepBytes = 0 }, "step of 0 bytes"},
		{"endless", func(c *Config) { c.MinBytes, c.StepFactor = 0, 2 }, "never gets beyond size 0"},
		{"iterations", func(c *Config) { c.Iterations = -1 }, "-1 iterations"},
		{"skip", func(c *Config) { c.Iterations, c.Skip = 5, 5 }, "5 calls to skip of 5"},
		{"skip by size", func(c *Config) { c.Skip = 20 }, "20 calls to skip of 20"},
		{"loop with spread", func(c *Config) { c.Loop, c.PerCall = true, true }, "no times of single calls"},
		{"buffers", func(c *Config) { c.Buffers = 4 }, "buffers of kind 4"},
		{"average", func(c *Config) { c.Average = -1 }, "average of kind -1"},
		{"root", func(c *Config) { c.Root = -2 }, "root -2"},
		{"type", func(c *Config) { c.Types = []dtype.Type{dtype.Bool} }, "no [sum] of [bool]: only max and min"},
		{"window", func(c *Config) { c.Window = 0 }, "a window of 0 messages (-W)"},
		{"graph", func(c *Config) { c.Aggregate, c.Iterations, c.Graphs = 5, -5, 2 }, "-5 iterations"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default("all_reduce")
			require.NoError(t, cfg.Validate())
			c.change(&cfg)
			err := cfg.Validate()
			require.ErrorIs(t, err, ubcoll.ErrArgument)
			require.ErrorContains(t, err, c.want)
			require.NotErrorIs(t, err, ubcoll.ErrLimit, "nothing is too large")
		})
	}
	cfg := Default("all_reduce")
	cfg.Buffers = Symmetric
	require.ErrorIs(t, cfg.Validate(), fault.ErrNotSupported)
	cfg = Default("broadcast")
	cfg.Root = 2
	_, _, err := measure(t, 2, cfg)
	require.ErrorContains(t, err, "root 2 of 2 ranks")
}

func TestHeartbeat(t *testing.T) {
	var out, progress strings.Builder
	x := &text{w: &out, progress: &progress, cfg: &Config{}}
	x.heartbeat("size %d", 1)
	x.heartbeat("ab")
	x.printf("row\n")
	require.Equal(t, "size 1\r      \rab\r  \r", progress.String())
	require.Equal(t, "row\n", out.String())
}

func TestClockCost(t *testing.T) {
	d := clockCost()
	require.GreaterOrEqual(t, d, time.Duration(0))
	require.Less(t, d, time.Millisecond) // the median of many, which has been left alone
}

// What is held of calls and buffers at once counts for all ranks of a host.
func TestRoom(t *testing.T) {
	cfg := Default("all_reduce")
	cfg.MaxBytes = 1 << 30
	require.Equal(t, 2<<30, cfg.memory(operationOf("all_reduce")))
	require.Equal(t, 6<<30, cfg.memory(operationOf("channel")))
	cfg.Device = CUDA // the region is there, and the host has a copy of two parts
	require.Equal(t, 2<<30, cfg.memory(operationOf("channel")))
	cfg.Device = Host
	cfg.MinBytes, cfg.MaxBytes, cfg.Aggregate = 8, 8, 1<<20
	require.Equal(t, workBytes<<20, cfg.memory(operationOf("all_reduce")))
	cfg.Graphs, cfg.Iterations = 10, 7
	require.Equal(t, 70*workBytes<<20, cfg.memory(operationOf("all_reduce")))
	require.NoError(t, room("x", 1<<30, 1<<30))
	err := room("x", 1<<30, 700<<20)
	require.ErrorIs(t, err, ubcoll.ErrLimit)
	require.EqualError(t, err, "x: each rank needs 1024 MiB, and a host has 700 MiB for each of its ranks (MemAvailable, or the "+
		"control group's limit): ask for less, or start fewer ranks: limit reached")

	// Hosts with one and with three ranks: what only the one has room for, nobody takes.
	need := shm.FreeMemory() / 2
	bs := enginetest.Hosts(bootstrap.Local(4), func(r int) string { return "host-" + "abbb"[r:r+1] })
	for _, err := range testkit.Each(bs, func(b bootstrap.Bootstrap) error {
		c, err := ubcoll.Open(t.Context(), b, ubcoll.Options{})
		if err != nil {
			return err
		}
		return errors.Join(CheckMemory(t.Context(), c, "x", need), c.Close(), b.Close())
	}) {
		require.ErrorIs(t, err, ubcoll.ErrLimit)
	}
}

// Calls of nothing are measured like others, also where no larger ones follow.
func TestNothing(t *testing.T) {
	for _, name := range testkit.Sample(6, Names()) {
		for _, kind := range []int{GoSlices, Registered} {
			if kind == GoSlices && operationOf(name).open != nil {
				continue // for registered memory alone
			}
			cfg := small(name)
			cfg.MinBytes, cfg.MaxBytes, cfg.StepFactor, cfg.Buffers = 0, 0, 1, kind
			rep, _, err := measure(t, 2, cfg)
			require.NoError(t, err, name)
			require.NotEmpty(t, rep.Results, name)
			require.Zero(t, rep.Wrong.Count, name)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name                    string
		low, high, step, factor int
		also, want              []int
	}{
		{"factor", 8, 64, 0, 2, nil, []int{8, 16, 32, 64}},
		{"steps", 8, 24, 8, 1, nil, []int{8, 16, 24}},
		{"one", 8, 8, 8, 1, nil, []int{8}},
		{"factor beyond an int", 1, math.MaxInt, 0, 1 << 40, nil, []int{1, 1 << 40}},
		{"step beyond an int", 1, math.MaxInt, math.MaxInt - 1, 1, nil, []int{1, math.MaxInt}},
		{"more, some of them there", 4, 70, 0, 4, []int{70, 8, 16, 4}, []int{4, 8, 16, 64, 70}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{MinBytes: c.low, MaxBytes: c.high, StepBytes: c.step, StepFactor: c.factor, Also: c.also}
			require.Equal(t, c.want, cfg.sizes())
			require.Equal(t, c.want, cfg.sizes(), "it changes nothing")
		})
	}
}

// Where nobody gives the number of calls, there are enough for the time of a size, the same on all ranks.
func TestMinTime(t *testing.T) {
	testkit.Long(t)
	for _, loop := range []bool{false, true} {
		cfg := small("all_reduce")
		cfg.Iterations, cfg.MinTime, cfg.Loop, cfg.Warmup = 0, 20*time.Millisecond, loop, -1
		rep, table, err := measure(t, 2, cfg)
		require.NoError(t, err)
		require.Equal(t, 0, rep.Config.Iterations)
		require.Equal(t, !loop, strings.Contains(table, "# Single calls (us)\n"))
		for _, row := range rep.Results {
			for _, v := range []*Result{row.Out, row.In} {
				if loop {
					require.Nil(t, v.Spread)
					continue
				}
				require.GreaterOrEqual(t, v.Spread.Calls, 800)
				if v.Spread.Calls < mostByTime {
					require.GreaterOrEqual(t, v.Spread.Mean*float64(v.Spread.Calls), 20_000*(1-1e-9))
				}
			}
		}
	}
}

func TestMore(t *testing.T) {
	cfg := Default("all_reduce")
	require.Equal(t, 0, cfg.more(2000, 50_000), "they took long enough")
	require.Equal(t, 2000*55/10-2000, cfg.more(2000, 10_000))
	require.Equal(t, mostByTime-2000, cfg.more(2000, 0), "a clock that is too coarse")
	require.Equal(t, 0, cfg.more(mostByTime, 1))
	require.Equal(t, 201, cfg.more(2000, 49_999), "or it might take round after round")
	cfg.Iterations = 3
	require.Equal(t, 0, cfg.more(3, 1))
	cfg.Iterations, cfg.MinTime = 0, 0
	require.Equal(t, 0, cfg.more(2000, 1))
}

// How many calls there are says nothing about how they went: by time, the ranks agree on going on between them.
func TestWentByTime(t *testing.T) {
	testkit.SkipRace(t)
	t.Setenv("UBCOLL_CUDA", "off")
	for _, loop := range []bool{false, true} {
		cfg := small("all_reduce")
		cfg.MinBytes, cfg.MaxBytes, cfg.Paths, cfg.Loop = 4<<20, 4<<20, true, loop
		want, _, err := measure(t, 2, cfg)
		require.NoError(t, err)
		cfg.Iterations, cfg.MinTime = 0, time.Millisecond
		rep, table, err := measure(t, 2, cfg)
		require.NoError(t, err)
		for i, r := range []*Result{rep.Results[0].Out, rep.Results[0].In} {
			w := []*Result{want.Results[0].Out, want.Results[0].In}[i]
			require.Equal(t, []string{w.Algorithm, "direct", "direct"}, []string{r.Algorithm, r.Source, r.Destination})
			require.Equal(t, []Level{{Where: "in the host", Algorithm: w.Algorithm, Transport: "shared memory", Source: "direct",
				Destination: "direct", Text: "in the host " + w.Algorithm + ", shared memory: direct"}}, r.Levels)
		}
		require.Regexp(t, `out-of-place: `+want.Results[0].Out.Algorithm+`, source direct, destination direct`, table)
		dir := t.TempDir()
		for _, name := range []string{"x.csv", "x.jsonl", "x.json"} {
			require.NoError(t, rep.Write(filepath.Join(dir, name), false))
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Contains(t, string(text), "in the host "+want.Results[0].Out.Algorithm+", shared memory: direct")
			require.NotContains(t, string(text), "staged")
		}
	}
}

func TestOver(t *testing.T) {
	host := Level{Where: "in the host", Source: "direct", Destination: "staged: a Go slice"}
	tcp := Level{Where: "between hosts", Source: "staged: copied by the kernel", Why: "copied by the kernel"}
	for _, k := range []struct {
		name             string
		levels           []Level
		source, destined string
	}{
		{"none", nil, "", ""},
		{"one", []Level{host}, "direct", "staged: a Go slice"},
		{"between hosts of one rank", []Level{tcp}, "between hosts copied by the kernel", ""},
		{"two", []Level{host, tcp}, "in the host direct; between hosts copied by the kernel", "in the host staged: a Go slice"},
	} {
		t.Run(k.name, func(t *testing.T) {
			require.Equal(t, k.source, over(k.levels, func(l *Level) string { return l.Source }))
			require.Equal(t, k.destined, over(k.levels, func(l *Level) string { return l.Destination }))
		})
	}
}
