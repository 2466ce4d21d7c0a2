package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/cuda"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

const tuneUsage = `tune [flags]

Measures where algorithms cross over, on devices for jobs of as many ranks, and writes the table for UBCOLL_TUNING. In a job of
several hosts, measures what moving data between them costs instead.`

// tune is the command tune. It measures where the algorithms of collectives cross over, or what they cost between hosts, and
// writes the file for UBCOLL_TUNING.
func tune(args []string, out io.Writer) error {
	fs := newFlags("tune")
	name := fs.String("o", "ubcoll-tuning.json", "the table's file; of an existing one, what is not measured stays")
	device := fs.String("device", measure.Auto,
		"what to measure: host memory, cuda (devices), or auto: both, where all ranks have a GPU")
	most := fs.String("e", "", "largest size in bytes, from 64K (64M of host memory, 512M on devices)")
	threads := fs.Int("t", 0,
		"goroutine ranks of each process, or of the only one (1 under a launcher, else NTHREADS, or 2)")
	if err := parseFlags(fs, args, tuneUsage, out); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	j := tuneJob{name: *name, device: *device, rounds: 3}
	var err error
	if j.host, j.devices, err = tuneSizes(*device, *most); err != nil {
		return err
	}
	if j.old, err = tuning.Read(*name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return usageError("tune: remove that file, or name another one (-o): %w", err)
	}
	folder := filepath.Dir(*name)
	if i, err := os.Stat(folder); err != nil || !i.IsDir() {
		return usageError("tune: -o %s: there is no folder %s%s", *name, folder, nearest.File(folder))
	}
	if _, err := ranksHere(*threads); err != nil {
		return err
	}
	ubcoll.Main(ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c); err != nil {
			return err
		}
		return j.run(ctx, c, out, os.Stderr)
	})
	return nil
}

// tuneJob says what to measure, and which file gets the table.
type tuneJob struct {
	name, device  string
	old           tuning.File // the existing file, if there is one
	host, devices measure.Config
	rounds        int // how often each algorithm is measured
}

// run measures. Rank 0 writes the table to the file and to out, and says on progress how far it is. Collective.
func (j *tuneJob) run(ctx context.Context, c *ubcoll.Comm, out, progress io.Writer) error {
	if c.Rank() != 0 {
		progress = io.Discard
	}
	f, err := j.measure(ctx, c, progress)
	if err != nil || c.Rank() != 0 {
		return err
	}
	_, err = out.Write(f.Bytes()) // first, so that the table is not lost if the file cannot be written
	if err = errors.Join(err, os.WriteFile(j.name, f.Bytes(), 0o644)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "# measured on %s; use it with UBCOLL_TUNING=%s\n", plural.Count(c.Size(), "rank"), j.name)
	return err
}

// measure returns the old file, updated with what it measures. Only rank 0's is complete. Collective.
func (j *tuneJob) measure(ctx context.Context, c *ubcoll.Comm, progress io.Writer) (f tuning.File, err error) {
	f = j.old
	if a := (*inside.Comm)(c).View().Options().Algorithm; a != "" {
		return f, fmt.Errorf("tune: %s asks for %s: unset it: %w", env.Algorithm.Name, a, ubcoll.ErrArgument)
	}
	if (*inside.Comm)(c).View().Team().Hosts != nil {
		if j.device == measure.CUDA {
			return f, fmt.Errorf("tune: devices are measured on one host, and these ranks are on several: %w", ubcoll.ErrArgument)
		}
		network, m, err := j.tunedHosts(ctx, c, progress)
		if err == nil {
			f.SetHosts(network, (*inside.Comm)(c).View().Team().Hosts.Layout().RDMA, m)
		}
		return f, err
	}
	dev, err := measure.Place(ctx, c, j.device, c.Size() > 1)
	if err != nil {
		return f, err
	}
	if j.device != measure.CUDA {
		t, err := j.tunedHost(ctx, c, progress)
		if err != nil {
			return f, err
		}
		f.SetHost(t)
	}
	if dev.IsHost() {
		return f, nil
	}
	i, err := cuda.Describe(dev)
	if err != nil {
		return f, err
	}
	found, err := j.tunedDevices(ctx, c, progress)
	f.Devices, f.Device = fmt.Sprintf("%d x %s", c.Size(), i.Name), map[string]int{}
	maps.Copy(f.Device, j.old.Device) // keeps sizes for other numbers of ranks
	maps.Copy(f.Device, found)
	return f, err
}

const never = math.MaxInt >> 1

// algorithms has, for each algorithm, a table that forces it wherever it can run. They are in the order in which they
// take over as sizes grow.
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

// tuneSizes returns what to measure of each algorithm, on the host and on devices. On devices calls are in graphs, so
// that the host does not slow them down. most is the largest size, or "" for the default.
func tuneSizes(device, most string) (host, devices measure.Config, err error) {
	host = measure.Default("all_reduce")
	host.StepFactor, host.Checks, host.MinTime, host.Device = 2, 0, 0, device
	host.MinBytes, host.MaxBytes = 64, 64<<20
	devices = host
	devices.MinBytes, devices.MaxBytes, devices.Graphs = 1<<10, 512<<20, 20
	if most != "" {
		n, err := experiment.ParseSize(most)
		if err == nil && n < 64<<10 {
			err = fmt.Errorf("%d bytes: want 64K or more", n)
		}
		if err != nil {
			return host, devices, usageError("tune: -e: %w", err)
		}
		host.MaxBytes, devices.MaxBytes = int(n), int(n)
	}
	if err := host.Validate(); err != nil { // checks the device
		return host, devices, usageError("tune: %w", err)
	}
	host.Device, devices.Device = measure.Host, measure.CUDA
	return host, devices, nil
}

// tunedHost measures all algorithms on host memory several times, and chooses by the best median of each. Collective.
func (j *tuneJob) tunedHost(ctx context.Context, c *ubcoll.Comm, progress io.Writer) (tuning.Table, error) {
	t, start := tuning.Default(), time.Now()
	t.Machine = tuning.Machine()
	best := map[int][]float64{} // by size, then by algorithm
	algorithms := algorithms
	team := (*inside.Comm)(c).View().Team()
	before := *team.Tuning()
	defer team.Tune(before)
	if team.Groups() == 0 {
		algorithms = algorithms[:len(algorithms)-1]
	}
	for round := range j.rounds {
		for i, a := range algorithms {
			fmt.Fprintf(progress, "tune: round %d of %d: %s (%d of %d), %v\n", round+1, j.rounds, a.name,
				round*len(algorithms)+i+1, j.rounds*len(algorithms), time.Since(start).Round(time.Second))
			a.table.GPU, a.table.Messages = before.GPU, before.Messages
			team.Tune(a.table)
			rep, err := measure.Run(ctx, c, j.host, measure.Program{Version: version()}, io.Discard, nil)
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

// choose sets t's sizes by the times: each algorithm is used up to the largest size at which it is still the fastest of
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
