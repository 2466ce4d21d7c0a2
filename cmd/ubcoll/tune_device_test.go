package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

func TestCrossovers(t *testing.T) {
	inf := math.Inf(1)
	for _, k := range []struct {
		name string
		us   [][]float64 // by size, then by algorithm
		want []int
	}{
		{"one algorithm", [][]float64{{1}, {2}}, []int{2}},
		{"one crossing", [][]float64{{1, 2}, {2, 3}, {4, 3}, {8, 4}}, []int{2, 4}},
		{"each in turn", [][]float64{{1, 2, 3}, {3, 2, 3}, {9, 4, 3}}, []int{1, 2, 3}},
		{"the first always", [][]float64{{1, 2}, {1, 2}}, []int{2, 2}},
		{"the last always", [][]float64{{2, 9, 1}, {2, 9, 1}}, []int{0, 0, 2}},
		{"one in between never", [][]float64{{1, 2, 3}, {3, 4, 2}}, []int{1, 1, 2}},
		{"equal", [][]float64{{1, 1}, {1, 1}, {2, 1}}, []int{2, 3}},
		{"a spoilt time", [][]float64{{1, 2}, {20, 2.5}, {3, 9}, {5, 20}, {40, 20}}, []int{4, 5}},
		{"a spoilt time beyond", [][]float64{{1, 2}, {5, 3}, {8, 4}, {9, 20}, {40, 20}}, []int{1, 5}},
		{"several crossings", [][]float64{{10, 20}, {21, 20}, {20, 22}, {50, 20}, {19, 20}, {50, 20}}, []int{3, 6}},
		{"not measured everywhere", [][]float64{{1, inf, inf}, {2, 3, inf}, {inf, 4, 5}, {inf, inf, 9}}, []int{2, 3, 4}},
		{"measured by nobody", [][]float64{{1, 2}, {inf, inf}, {2, 1}}, []int{2, 3}},
		{"no time at all", [][]float64{{0, 1}, {1, 0}}, []int{1, 2}},
	} {
		t.Run(k.name, func(t *testing.T) { require.Equal(t, k.want, crossovers(k.us)) })
	}
}

// No other way to divide the sizes loses less.
func TestCrossoversBest(t *testing.T) {
	rng := testkit.Random(t)
	for range 200 {
		n, sizes := 1+rng.IntN(4), 1+rng.IntN(5)
		us := make([][]float64, sizes)
		for s := range us {
			us[s] = make([]float64, n)
			for i := range us[s] {
				us[s][i] = float64(1 + rng.IntN(9))
			}
		}
		product := func(ends []int) float64 {
			p, i := 1.0, 0
			for s := range us {
				for s >= ends[i] {
					i++
				}
				p *= us[s][i]
			}
			return p
		}
		best := math.Inf(1)
		var try func(ends []int)
		try = func(ends []int) {
			if len(ends) == n-1 {
				best = min(best, product(append(ends, sizes)))
				return
			}
			from := 0
			if len(ends) > 0 {
				from = ends[len(ends)-1]
			}
			for end := from; end <= sizes; end++ {
				try(append(ends[:len(ends):len(ends)], end))
			}
		}
		try(nil)
		ends := crossovers(us)
		require.Equal(t, sizes, ends[n-1])
		require.InDelta(t, best, product(ends), best/1e9, "%v: %v", us, ends)
	}
}

// What the times say becomes the table's sizes.
func TestAnswer(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	inf := math.Inf(1)
	for _, k := range []struct {
		name     string
		ranks    int
		lines    bool
		question int
		best     times
		want     map[string]int
	}{
		{"all-reduces of two", 2, true, 0, times{ // one-shot, lines, pull, push, wide push
			kib: {1, 2, inf, inf, inf}, 64 * kib: {4, 3, 8, 9, inf}, mib: {inf, 5, 8, 9, 9}, 16 * mib: {inf, 50, 30, 40, 60},
			64 * mib: {inf, 500, 300, 200, 210}, 512 * mib: {inf, inf, 300, 200, 190}},
			map[string]int{"one_shot_pair": kib, "lines_pair": mib, "push_from": 16*mib + 1, "push_wide_from": 64*mib + 1}},
		{"pulled never", 2, true, 0, times{mib: {inf, 5, 8, 9, 9}, 64 * mib: {inf, 500, 300, 200, 100}},
			map[string]int{"one_shot_pair": 1, "lines_pair": mib, "push_from": mib + 1, "push_wide_from": mib + 1}},
		{"nothing but the smallest", 2, true, 0, times{kib: {1, 2, inf, inf, inf}, 64 * kib: {3, 4, 8, 9, inf}},
			map[string]int{"one_shot_pair": 128 * kib, "lines_pair": 8 * mib, "push_from": 8 * mib, "push_wide_from": 32 * mib}},
		{"lines beyond what the table had", 2, true, 0, times{kib: {2, 1, inf, inf, inf}, 64 * mib: {inf, 1, 2, 3, 3}},
			map[string]int{"one_shot_pair": 1, "lines_pair": 64 * mib, "push_from": 64*mib + 1, "push_wide_from": 64*mib + 1}},
		{"lines never", 2, true, 0, times{kib: {1, 2, inf, inf, inf}, 64 * kib: {4, 9, 3, 9, inf}},
			map[string]int{"one_shot_pair": kib, "lines_pair": kib, "push_from": 8 * mib, "push_wide_from": 32 * mib}},
		{"not one line", 2, true, 0, times{64 * kib: {9, 9, 3, 9, inf}},
			map[string]int{"one_shot_pair": 1, "lines_pair": 1, "push_from": 8 * mib, "push_wide_from": 32 * mib}},
		{"of three, around a ring", 3, true, 0, times{ // one-shot, packets, lines, pull, push, wide push, ring
			kib: {1, 2, 3, inf, inf, inf, inf}, 64 * kib: {4, 3, 5, 8, 9, inf, inf}, mib: {inf, 8, 5, 8, 9, 9, 9},
			16 * mib: {inf, inf, 9, 5, 9, 9, 9}, 64 * mib: {inf, inf, 99, 50, 90, 40, 30}},
			map[string]int{"one_shot_few": kib, "two_shot_packets": 64 * kib, "lines_many": mib, "push_from": 16*mib + 1,
				"push_wide_from": 16*mib + 1, "ring_from": 16*mib + 1}},
		{"of eight without lines", 8, false, 0, times{kib: {1, 2, inf, inf, inf, inf}, 4 * kib: {3, 2, inf, inf, inf, inf},
			mib: {inf, inf, 1, 2, 3, 3}},
			map[string]int{"one_shot_many": kib, "two_shot_packets": 4 * kib, "push_from": 8 * mib, "push_wide_from": 32 * mib,
				"ring_from": 64 * mib}},
		{"reduce-scatters beyond lines", 2, true, 1, times{mib: {9, 1}, 16 * mib: {2, 3}, 64 * mib: {4, 3}},
			map[string]int{"push_scatter_from": 16*mib + 1}},
		{"pushed at once", 2, true, 1, times{mib: {1, 9}, 16 * mib: {3, 2}}, map[string]int{"push_scatter_from": 1}},
		{"no reduce-scatters beyond lines", 2, true, 1, times{mib: {9, 1}}, map[string]int{}},
		{"reduce-scatters by packets", 2, true, 2, times{kib: {1, 2}, 64 * kib: {3, 2}, 64 * mib: {1, 9}},
			map[string]int{"two_shot_packets": kib}},
		{"what moves, for each of four", 4, true, 2, times{4 * kib: {1, 2, inf}, mib: {3, 2, 9}, 16 * mib: {inf, 9, 2}},
			map[string]int{"move_packets": kib, "move_lines": mib / 4}},
		{"what moves without lines", 2, false, 2, times{4 * kib: {1, inf}, mib: {3, 2}}, map[string]int{"move_packets": 2 * kib}},
		{"passed on", 4, true, 3, times{2 * mib: {9, 1}, 4 * mib: {1, 2}, 16 * mib: {3, 2}},
			map[string]int{"pass_on_beyond": 8 * mib}},
	} {
		t.Run(k.name, func(t *testing.T) {
			q, table, found := questions(k.ranks, k.lines)[k.question], tuning.DefaultGPU(), map[string]int{}
			for _, us := range k.best {
				require.Len(t, us, len(q.kernels))
			}
			q.answer(&table, k.best, found)
			require.Equal(t, k.want, found)
			for name, n := range found {
				require.Equal(t, n, *table.Sizes()[name], name)
			}
		})
	}
}

// quick is a measurement whose times mean nothing.
func quick(t *testing.T) tuneJob {
	_, cfg, err := tuneSizes(measure.CUDA, "")
	require.NoError(t, err)
	cfg.MaxBytes, cfg.StepFactor, cfg.Iterations, cfg.Warmup, cfg.Graphs, cfg.Checks = 64<<10, 64, 1, 0, 1, 1
	return tuneJob{name: filepath.Join(t.TempDir(), "table.json"), device: measure.CUDA, devices: cfg, rounds: 1}
}

// Every kernel is measured, as it is asked for, and its data are right.
func TestAsked(t *testing.T) {
	testkit.Long(t) // TestTuneDevices asks, too
	for _, k := range []struct {
		name  string
		ranks int
		lines bool
	}{{"two", 2, true}, {"two without lines", 2, false}, {"three", 3, true}} {
		t.Run(k.name, func(t *testing.T) {
			j := quick(t)
			if !k.lines {
				gputest.Enough(t, 2) // only links between devices can have none
				t.Setenv("UBCOLL_EMULATE_ATOMICS", "0")
			}
			gputest.Run(t, k.ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
				table := (*inside.Comm)(c).View().Team().Tuning()
				before := *table
				var progress bytes.Buffer
				all := questions(c.Size(), k.lines)
				best, err := j.asked(ctx, c, all, &progress)
				if err != nil || c.Rank() != 0 {
					return err
				}
				for i, q := range all {
					for at, kernel := range q.kernels {
						least := math.Inf(1)
						for _, us := range best[i] {
							least = min(least, us[at])
						}
						if math.IsInf(least, 1) {
							return fmt.Errorf("%s: no time of %s (%d)", q.op, kernel.name, at)
						}
						line := fmt.Sprintf("tune: round 1 of 1: devices: %s, %s, ", q.op, kernel.name)
						if !strings.Contains(progress.String(), line) {
							return fmt.Errorf("no %q in\n%s", line, &progress)
						}
					}
				}
				if *table != before {
					return fmt.Errorf("the table is another one: %v, and was %v", *table, before)
				}
				return nil
			})
		})
	}
}

// What is measured goes to the file, beside what it has already.
func TestTuneDevices(t *testing.T) {
	j := quick(t)
	j.devices.MaxBytes, j.devices.Checks = 1<<10, 0
	j.old = tuning.File{Version: tuning.Version, Machine: "old", Host: map[string]int{"push_from": 12345}, Devices: "8 x GPU",
		Device: map[string]int{"one_shot_many": 77, "move_packets": 1 << 40}}
	for _, k := range testkit.Sample(3, []struct {
		name    string
		ranks   int
		atomics string
		want    string // sizes that the file has beside those of before
		lines   bool
	}{
		{"two", 2, "1", "lines_pair move_lines one_shot_pair two_shot_packets", true},
		{"three", 3, "1", "lines_many one_shot_few", true},
		{"without lines", 2, "0", "", false},
	}) {
		t.Run(k.name, func(t *testing.T) {
			if k.atomics == "0" {
				gputest.Enough(t, 2) // only links between devices can have none
			}
			t.Setenv("UBCOLL_EMULATE_ATOMICS", k.atomics)
			var out, progress bytes.Buffer
			gputest.Run(t, k.ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
				return j.run(ctx, c, &out, &progress)
			})
			require.Contains(t, out.String(), "use it with UBCOLL_TUNING="+j.name)
			require.NotContains(t, progress.String(), "eager", "host memory is not measured")
			f, err := tuning.Read(j.name)
			require.NoError(t, err)
			require.Equal(t, j.old.Machine, f.Machine)
			require.Equal(t, j.old.Host, f.Host)
			require.Regexp(t, fmt.Sprintf("^%d x .*GPU", k.ranks), f.Devices)
			require.Equal(t, 77, f.Device["one_shot_many"])
			require.Less(t, f.Device["move_packets"], 1<<40)
			for _, size := range strings.Fields(k.want) {
				require.Contains(t, f.Device, size)
				require.NotContains(t, j.old.Device, size)
			}
			for _, size := range []string{"lines_pair", "move_lines"} {
				require.Equal(t, k.lines, f.Device[size] > 0, size)
			}
			j.old = f
		})
	}
	gputest.Run(t, 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
		return testkit.Wants(j.run(ctx, c, io.Discard, io.Discard), ubcoll.ErrArgument)
	})
}

// Another file than ubcoll tune's is not written over.
func TestTuneOver(t *testing.T) {
	for _, text := range []string{`{"version":1,"eager_total":4096}`, "my notes"} {
		name := filepath.Join(t.TempDir(), "table.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		_, stderr, code := testkit.Program(t, nil, "tune", "-o", name, "-device", "host", "-e", "64K")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "remove that file, or name another one (-o): tuning table "+name)
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
}

// A file's sizes for devices are those by which operations choose.
func TestTunedDevices(t *testing.T) {
	for _, k := range testkit.Sample(2, []struct {
		name  string
		ranks int
		sizes map[string]int
		want  string // of an all-reduce of 4 KiB
	}{
		{"none", 2, nil, "one-shot packets"},
		{"lines", 2, map[string]int{"one_shot_pair": 4<<10 - 1}, "lines"},
		{"as packets of another number", 2, map[string]int{"one_shot_few": 0}, "one-shot packets"},
		{"in two steps", 3, map[string]int{"one_shot_few": 0}, "two-shot packets"},
		{"pulled", 2, map[string]int{"one_shot_pair": 0, "lines_pair": 1}, "two-shot"},
		{"pushed", 2, map[string]int{"lines_pair": 1, "push_from": 4 << 10}, "two-shot, pushed"},
		{"pushed always", 2, map[string]int{"lines_pair": 0, "push_from": 0}, "two-shot, pushed"},
		{"ring", 3, map[string]int{"ring_from": 4 << 10}, "ring"},
		{"ring always", 3, map[string]int{"ring_from": 0}, "ring"},
	}) {
		t.Run(k.name, func(t *testing.T) {
			f := tuning.File{Device: k.sizes}
			name := filepath.Join(t.TempDir(), "table.json")
			require.NoError(t, os.WriteFile(name, f.Bytes(), 0o600))
			t.Setenv(env.Tuning.Name, name)
			gputest.Run(t, k.ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				b, err := gputest.Floats(ctx, c, dev, 1<<10, 1)
				if err != nil {
					return err
				}
				if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
					return err
				}
				if got := c.LastOp().Algorithm; got != k.want {
					return fmt.Errorf("%s, and %s wanted", got, k.want)
				}
				none := b.Vec().Slice(0, 0)
				return testkit.InOrder(
					func() error { return coll.AllReduce(ctx, c, none, none, ubcoll.Sum) },
					func() error { return gputest.All(ctx, c, b, float32(c.Size())) },
					b.Free)
			})
		})
	}
}

// Ranks with different files, of devices and of messages too, are told so.
func TestTunedApart(t *testing.T) {
	testkit.LongOrRace(t)
	for part, file := range map[string]func(n int) tuning.File{
		"device":   func(n int) tuning.File { return tuning.File{Device: map[string]int{"ring_from": n}} },
		"messages": func(n int) tuning.File { return tuning.File{Messages: map[string]int{"eager_few": n}} },
	} {
		t.Run(part, func(t *testing.T) {
			dir, name := t.TempDir(), rand.Text()
			var stderr [2]string
			var codes [2]int
			var wait sync.WaitGroup
			for r := range 2 {
				table := filepath.Join(dir, strconv.Itoa(r))
				require.NoError(t, os.WriteFile(table, file(r).Bytes(), 0o600))
				wait.Go(func() {
					_, stderr[r], codes[r] = testkit.Program(t,
						append(bootstrap.EnvVars(r, 2, "unix:@"+name, name), env.Tuning.Name+"="+table), "bench", "barrier", "-n", "2")
				})
			}
			wait.Wait()
			for r := range 2 {
				require.NotZero(t, codes[r])
				require.Contains(t, stderr[r], "the tuning table's hash")
			}
		})
	}
}
