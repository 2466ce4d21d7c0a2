package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// tune measures where the algorithms of an all-reduce cross over, and writes the table for UBCOLL_TUNING.
func tune(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("tune", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	name := fs.String("o", "ubcoll-tuning.json", "the table's file; an existing one is replaced")
	threads := fs.Int("t", 0,
		"goroutine ranks of each process, or of the only one (1 under a launcher, else NTHREADS, or 2)")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, "Usage: ubcoll tune [flags]\n\n")
		fs.SetOutput(out)
		fs.PrintDefaults()
		return err
	} else if err != nil {
		return usageError("tune: %w", err)
	}
	if fs.NArg() > 0 {
		return usageError("tune: unexpected argument %q", fs.Arg(0))
	}
	if _, err := ranksHere(*threads); err != nil {
		return err
	}
	ubcoll.Main(ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c); err != nil {
			return err
		}
		progress := io.Discard
		if c.Rank() == 0 {
			progress = os.Stderr
		}
		t, err := tuned(ctx, c, tuneSizes(), progress)
		if err != nil || c.Rank() != 0 {
			return err
		}
		_, err = out.Write(t.Bytes()) // first, so that it is not lost where the file cannot be
		if err = errors.Join(err, os.WriteFile(*name, t.Bytes(), 0o644)); err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "# measured on %d ranks; use it with UBCOLL_TUNING=%s\n", c.Size(), *name)
		return err
	})
	return nil
}

const never = math.MaxInt >> 1

// algorithms are tables that force one each wherever it can be had, in the order in which they take over as sizes grow.
var algorithms = []struct {
	name  string
	table tuning.Table
}{
	{"eager", tuning.Table{EagerTotal: never, PushFrom: never, StreamFrom: never}},
	{"one-shot", tuning.Table{OneShotTotal: never, PushFrom: never, StreamFrom: never}},
	{"push", tuning.Table{StreamFrom: never}},
	{"two-shot", tuning.Table{PushFrom: never, StreamFrom: never}},
	{"push with streaming", tuning.Table{}},
	{"groups", tuning.Table{CombineUpTo: never}}, // last: only measured where there are groups
}

// tuneSizes is what is measured of each algorithm.
func tuneSizes() measure.Config {
	cfg := measure.Default("all_reduce")
	cfg.MinBytes, cfg.MaxBytes, cfg.StepFactor, cfg.Checks, cfg.Iterations, cfg.MinTime = 64, 64<<20, 2, 0, 0, 0
	return cfg
}

// rounds is how often each algorithm is measured.
const rounds = 3

// tuned measures all algorithms as cfg has it, several times, and takes each one's best median. It says on progress how
// far it is.
func tuned(ctx context.Context, c *ubcoll.Comm, cfg measure.Config, progress io.Writer) (tuning.Table, error) {
	t, start := tuning.Default(), time.Now()
	t.Machine = tuning.Machine()
	best := map[int][]float64{} // by size, then by algorithm
	algorithms := algorithms
	if (*inside.Comm)(c).View().Team().Groups() == 0 {
		algorithms = algorithms[:len(algorithms)-1]
	}
	for round := range rounds {
		for i, a := range algorithms {
			fmt.Fprintf(progress, "tune: round %d of %d: %s (%d of %d), %v\n", round+1, rounds, a.name,
				round*len(algorithms)+i+1, rounds*len(algorithms), time.Since(start).Round(time.Second))
			a.table.Version, a.table.GPU = tuning.Version, t.GPU
			(*inside.Comm)(c).View().Team().Tune(a.table)
			rep, err := measure.Run(ctx, c, cfg, measure.Program{Version: version()}, io.Discard, nil)
			if err != nil {
				return t, err
			}
			for _, row := range rep.Results {
				us := best[row.Size]
				if us == nil {
					us = slices.Repeat([]float64{math.Inf(1)}, len(algorithms))
					best[row.Size] = us
				}
				us[i] = min(us[i], row.Out.Time)
			}
		}
	}
	choose(&t, best, c.Size())
	return t, nil
}

// choose sets t to what the times say: each algorithm up to the largest size at which it is still the quickest of
// those that remain.
func choose(t *tuning.Table, best map[int][]float64, ranks int) {
	sizes := make([]int, 0, len(best))
	for s := range best {
		sizes = append(sizes, s)
	}
	slices.Sort(sizes)
	t.EagerTotal, t.OneShotTotal, t.PushFrom, t.StreamFrom = 0, 0, never, never
	combine := 0
	for _, s := range sizes {
		us := best[s]
		if grouped := len(algorithms) - 1; len(us) > grouped {
			if s <= team.PartialBytes && us[grouped] <= slices.Min(us[:grouped]) {
				combine = s
			}
			t.CombineUpTo = combine
		}
		eager, oneShot, push, twoShot, streamed := us[0], us[1], us[2], us[3], us[4]
		if eager <= min(oneShot, push, twoShot) && s <= 16<<10 {
			t.EagerTotal = s * ranks
		}
		if oneShot <= min(push, twoShot) {
			t.OneShotTotal, t.PushFrom, t.StreamFrom = s*ranks, never, never
		} else if t.PushFrom == never && min(push, streamed) <= twoShot {
			t.PushFrom = s
		}
		if streamed > push {
			t.StreamFrom = never
		} else if t.StreamFrom == never {
			t.StreamFrom = s
		}
	}
}
