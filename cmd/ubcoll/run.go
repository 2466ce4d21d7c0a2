package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/sweep"
)

// sweepFlags are the flags that set keys of an experiment's file. Lists take commas.
var sweepFlags = []struct{ name, key, help string }{
	{"operation", "sweep.operation", "all_reduce, ...: see ubcoll bench -h"},
	{"bytes", "sweep.bytes", "sizes and ranges: 8,1K..64M x4"},
	{"type", "sweep.type", "element types"},
	{"reduction", "sweep.reduction", "sum, prod, min, max, avg, mulsum"},
	{"algorithm", "sweep.algorithm", "of all-reduces: auto, ring, one-shot, two-shot, push; between hosts doubling, halving, chain, tree, scatter, pairwise, collnet: see docs/tuning.md"},
	{"registration", "sweep.registration", "explicit, auto, off, slices"},
	{"device", "sweep.device", "auto, host, cuda"},
	{"graph", "sweep.graph", "launches of a graph; 0 = none"},
	{"ranks", "sweep.ranks", "how many ranks take part; 0 = all"},
	{"in-place", "sweep.in_place", "false, true"},
	{"net", "sweep.net", "what carries data between hosts: auto, tcp, verbs, ofi, ofi:PROVIDER"},
	{"repeats", "run.repeats", "how often each point is measured"},
	{"seed", "run.seed", "of the order and the data"},
	{"iterations", "run.iterations", "timed calls of a point; 0 = by size and time"},
	{"min-time", "run.min_time", "how long those of a point take at least, as 50ms; less makes fewer calls"},
	{"max-time", "run.max_time", "how long all calls of a point take at most, as 2s; 0 = no limit"},
	{"devices", "run.devices", "auto, share, required, off: whether ranks use GPUs, and may share them"},
	{"nvls", "run.nvls", "off, on: whether multicast objects may be made on GPUs, as UBCOLL_NVLS says; never on a host that others use without its operator's leave"},
	{"timeout", "run.timeout", "longest wait inside one operation, as 90s"},
}

// runGroups are the flags as the help shows them.
var runGroups = []flagGroup{
	{"The ten that matter first", []string{"o", "n dry-run", "quick", "operation", "bytes", "type", "ranks", "device", "registration",
		"repeats"}},
	{"Other lists", []string{"reduction", "algorithm", "graph", "in-place", "net"}},
	{"How each point is measured", []string{"iterations", "min-time", "max-time", "seed", "devices", "nvls", "timeout"}},
	{"The run", []string{"t", "force"}},
}

// sweepOptions holds the command line of run.
type sweepOptions struct {
	job        sweep.Job
	threads    int
	dry, quick bool
	given      map[string]string // values of sweepFlags by key
}

// flags returns the flags, which set o.
func (o *sweepOptions) flags() *flag.FlagSet {
	fs := newFlags("run")
	fs.StringVar(&o.job.Dir, "o", "", "the `folder` of the results (results/NAME of the file)")
	fs.BoolVar(&o.job.Fresh, "force", false, "start anew where the folder has another run; its results get another name")
	fs.BoolVar(&o.dry, "n", false, "print the points, how many they are and about how long they take, and measure nothing")
	fs.BoolVar(&o.dry, "dry-run", false, "the same")
	fs.BoolVar(&o.quick, "quick", false, "a trial: each point once, two calls, 64K at most")
	fs.IntVar(&o.threads, "t", 0,
		"goroutine `ranks` of each process, or of the only one (1 under a launcher, else NTHREADS, the file's, or 2)")
	for _, f := range sweepFlags {
		fs.Func(f.name, f.help, func(v string) error { o.given[f.key] = v; return nil })
	}
	return fs
}

// runSweep is the command run. It does not return if measuring fails: ubcoll.Main ends the job.
func runSweep(args []string, out io.Writer) error {
	o, err := parseRun(args, out)
	if err != nil {
		return err
	}
	if o.threads == 0 { // the largest number of ranks in the file
		o.threads = slices.Max(o.job.Spec.Sweep.Ranks)
		if v := threadsVariable(); v.IsSet() || v == env.RanksPerProcess {
			o.threads = 0
		}
	}
	threads, err := ranksHere(o.threads)
	if err != nil {
		return err
	}
	if o.dry {
		return dryRun(&o.job, threads, out)
	}
	if err := permitNVLS("run", o.job.Spec.Run.NVLS); err != nil {
		return err
	}
	o.job.Program = measure.Program{Version: version(), Args: os.Args, Threads: threads}
	options := ubcoll.Options{Timeout: time.Duration(o.job.Spec.Run.Timeout), NetTimeout: time.Duration(o.job.Spec.Run.NetTimeout),
		Devices: o.job.Spec.Run.Devices}
	ubcoll.Main(options, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c); err != nil {
			return err
		}
		job := o.job // each rank has its own
		job.Options = options
		err := sweep.Measure(ctx, c, &job)
		if errors.Is(err, measure.ErrFailed) {
			err = exitError{err, exitFailed}
		}
		return err
	})
	return nil
}

// dryRun prints the points of a job with threads ranks in each process, and an estimate of its time.
func dryRun(job *sweep.Job, threads int, out io.Writer) error {
	ranks, first := threads, true
	if n, err := env.Size.Get(); err == nil && env.Size.IsSet() {
		r, _ := env.Rank.Get()
		ranks, first = n*threads, r == 0
	} else if name, size := bootstrap.Launcher(); name != "" {
		join := bootstrap.MPI
		if bootstrap.EnvSource() != "" {
			join = bootstrap.Env
		}
		b, err := join()
		if err != nil && size != 1 {
			return err
		}
		if err == nil {
			ranks, first = b.Size()*threads, b.Rank() == 0
			defer b.Close()
		}
	}
	p, err := job.Spec.Plan(ranks)
	if err != nil {
		return usageError("run: %w", err)
	}
	if first {
		_, err = io.WriteString(out, p.Print(true)+job.Spec.Estimate(p))
	}
	return err
}

// parseRun parses "FILE [flags]"; flags may also come before FILE. The error names every fault. If the user asks for
// help, parseRun writes the usage to help and returns flag.ErrHelp.
func parseRun(args []string, help io.Writer) (*sweepOptions, error) {
	o := &sweepOptions{given: map[string]string{}}
	files, err := parseMixed(o.flags(), args, runUsage, help)
	switch {
	case err != nil:
		return nil, err
	case len(files) == 0:
		return nil, usageError("run: which file? ubcoll run FILE.toml [flags]; -h lists them")
	case len(files) > 1:
		return nil, usageError("run: one file at a time, not %s as well: ubcoll check takes several", strings.Join(files[1:], " "))
	}
	if i, err := os.Stat(o.job.Dir); err == nil && !i.IsDir() {
		return nil, usageError("run: -o %s: want a folder, and that is a file", o.job.Dir)
	}
	s, text, err := loadSweep(files[0])
	if err != nil {
		return nil, usageError("run: %w", err)
	}
	if o.quick {
		quicken(s)
	}
	var faults []error
	if err := s.FromEnvironment(); err != nil {
		faults = append(faults, err)
	}
	for _, f := range sweepFlags {
		if v, ok := o.given[f.key]; ok {
			if err := experiment.Set(s, f.key, v); err != nil {
				faults = append(faults, fmt.Errorf("--%s: %w", f.name, err))
			}
		}
	}
	faults = append(faults, s.Validate())
	if err := errors.Join(faults...); err != nil {
		return nil, usageError("run: %w", err)
	}
	o.job.Spec, o.job.Config = s, string(text)
	if o.job.Dir == "" {
		o.job.Dir = filepath.Join("results", strings.TrimSuffix(filepath.Base(files[0]), filepath.Ext(files[0])))
	}
	o.job.Out = os.Stdout
	o.job.Progress = sweep.Progress{W: os.Stderr, Terminal: terminal(os.Stderr) != nil}
	return o, nil
}

// quicken makes s a trial: each point once, with two timed calls, of 64 KiB at most.
func quicken(s *sweep.Spec) {
	s.Run.Repeats, s.Run.Iterations, s.Run.Warmup, s.Run.MinTime = 1, 2, 0, 0
	for i := range s.Sweep.Bytes {
		b := &s.Sweep.Bytes[i]
		b.From, b.To = min(b.From, 64<<10), min(b.To, 64<<10)
	}
	for i, n := range s.Sweep.Graph {
		s.Sweep.Graph[i] = min(n, 2)
	}
}

// parseMixed is parseFlags for commands whose arguments may stand before, between and after the flags. It returns the
// arguments.
func parseMixed(fs *flag.FlagSet, args []string, usage string, help io.Writer) (others []string, err error) {
	for rest := args; ; {
		if err := parseFlags(fs, rest, usage, help); err != nil {
			return nil, err
		}
		if fs.NArg() == 0 {
			return others, nil
		}
		others, rest = append(others, fs.Arg(0)), fs.Args()[1:]
	}
}

// threadsVariable returns the variable that sets how many goroutine ranks this process has.
func threadsVariable() *env.Var[int] {
	if name, _ := bootstrap.Launcher(); name != "" || env.Rank.IsSet() || env.Size.IsSet() {
		return env.RanksPerProcess
	}
	return env.Threads
}

// loadSweep reads a sweep's file.
func loadSweep(name string) (*sweep.Spec, []byte, error) {
	text, err := experiment.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	s, err := sweep.Parse(name, text)
	if err != nil && isJob(text) {
		return nil, nil, fmt.Errorf("%s is for allreduce_ub -config %s: ubcoll run wants a table [sweep]", name, name)
	}
	return s, text, err
}

// isJob reports whether text is a file for allreduce_ub.
func isJob(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		switch strings.TrimSpace(line) {
		case "[allreduce]":
			return true
		case "[sweep]":
			return false
		}
	}
	return false
}

// check is the command check. It reads files for run and for allreduce_ub, and reports everything that is wrong with
// them.
func check(args []string, out io.Writer) error {
	fs := newFlags("check")
	args, err := parseMixed(fs, args, checkUsage, out)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return usageError("check: which files? ubcoll check FILE.toml ...")
	}
	var faults []error
	for _, name := range args {
		text, err := experiment.ReadFile(name)
		what := "an experiment of allreduce_ub"
		switch {
		case err != nil:
		case isJob(text):
			_, err = experiment.Parse(name, text)
		default:
			var s *sweep.Spec
			if s, err = sweep.Parse(name, text); err == nil {
				var p *sweep.Plan
				if p, err = s.Plan(max(defaultRanks, slices.Max(s.Sweep.Ranks))); err == nil {
					what = plural.Count(len(p.Points), "point") + ", " + plural.Count(p.Repeats, "repeat")
				} else {
					err = fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", name, what); err != nil {
			return err
		}
	}
	if err := errors.Join(faults...); err != nil {
		return exitError{err, exitUsage}
	}
	return nil
}

const runUsage = `run FILE.toml [flags]

Measures every combination of the file's lists. Results go to a folder as they come; the same command again goes on with
those that are missing. Flags replace what the file and the environment say; lists take commas.`

const checkUsage = `check FILE.toml ...

Says everything that is wrong with files for ubcoll run and allreduce_ub -config, each with its line.`

const compareUsage = `compare A B [flags]

A and B are folders of ubcoll run, or their points.jsonl. Ratios are of the medians over the repeats, with Moses'
rank-based confidence interval (95 %, which takes 4 repeats).`

// compare is the command compare. It prints how much longer one run's calls take than another's.
func compare(args []string, out io.Writer) error {
	fs := newFlags("compare")
	threshold := -1.0
	fs.Func("threshold", "fail with exit code 7 where B is slower than A by more than so many `percent`: a point with its "+
		"whole interval, or the geometric mean", func(v string) error {
		x, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
		if err != nil || !(x >= 0 && x < 1e6) {
			return fmt.Errorf("%q: want percent, 0 or more", v)
		}
		threshold = x
		return nil
	})
	runs, err := parseMixed(fs, args, compareUsage, out)
	if err != nil {
		return err
	}
	if len(runs) != 2 {
		return usageError("compare: want two runs, not %d: ubcoll compare A B", len(runs))
	}
	var records [2][]sweep.Record
	for i, name := range runs {
		var err error
		if _, records[i], err = sweep.Read(name); err != nil {
			return usageError("compare: %w", err)
		}
	}
	slower, mean, err := sweep.Compare(records[0], records[1], max(0, threshold), out)
	switch {
	case err != nil:
		return usageError("compare: %w", err)
	case threshold >= 0 && (len(slower) > 0 || mean):
		return exitError{fmt.Errorf("compare: %s is slower than %s by more than %g %%: %s, the mean: %v", runs[1], runs[0],
			threshold, plural.Count(len(slower), "point"), mean), exitFailed}
	}
	return nil
}
