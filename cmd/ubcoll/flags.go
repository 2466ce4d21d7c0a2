package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/usage"
)

// options holds the command line of bench.
type options struct {
	configs []measure.Config // one for each operation
	every   bool             // the user asks for all operations: those that cannot be measured are left out
	config  measure.Config   // flags are applied to this one
	job     ubcoll.Options
	threads int    // 0 = not given
	nvls    string // "" = not given
	output  string
	add     bool // append to output
}

// flags are the flags of bench: first nccl-tests' flags, with the same letters, then our own.
var flags = []struct {
	short, long, help string
	set               func(o *options, value string) error
}{
	{"b", "minbytes", "smallest size (32M)", size(func(o *options) *int { return &o.config.MinBytes })},
	{"e", "maxbytes", "largest size (32M)", size(func(o *options) *int { return &o.config.MaxBytes })},
	{"i", "stepbytes", "from one size to the next (1M)", size(func(o *options) *int { return &o.config.StepBytes })},
	{"f", "stepfactor", "multiply sizes instead", number(func(o *options) *int { return &o.config.StepFactor })},
	{"n", "iters", "timed calls (by size: 2000, from 64K 400, from 4M 20, and more until they have taken 50 ms; on devices and " +
		"in graphs 20)",
		number(func(o *options) *int { return &o.config.Iterations })},
	{"w", "warmup_iters", "calls before those (a tenth; on devices and in graphs 5)",
		number(func(o *options) *int { return &o.config.Warmup })},
	{"m", "agg_iters", "operations in one timed call, as a group (1)",
		number(func(o *options) *int { return &o.config.Aggregate })},
	{"W", "window-size", "messages in flight in each pair of mbw_mr, puts before each flush of put_bw (64)", number(func(o *options) *int { return &o.config.Window })},
	{"N", "run_cycles", "how often to go through all sizes; 0 = for ever (1)",
		number(func(o *options) *int { return &o.config.Cycles })},
	{"c", "check", "how often to check every element (1)", number(func(o *options) *int { return &o.config.Checks })},
	{"o", "op", "sum, prod, min, max, avg, mulsum (each source doubled first) or all (sum)", setReductions},
	{"d", "datatype", "int8 ... uint64, half, bfloat16, float, double, bool, several with commas, or all (float)", setTypes},
	{"r", "root", "root of rooted operations; -1 = each in turn (0)",
		number(func(o *options) *int { return &o.config.Root })},
	{"", "device", "where the buffers are: auto (each rank's GPU where all have one and OP runs there), host, cuda (auto)",
		setDevice},
	{"", "devices", "auto: ranks use GPUs if each has one of its own; share: they may share them; required; off (auto)",
		func(o *options, value string) error { return o.job.Devices.UnmarshalText([]byte(value)) }},
	{"", "nvls", nvlsHelp + " (off)", setNVLS},
	{"G", "cudagraph", "launches of a graph that holds the timed calls, a quarter of them from 64M on; 0 = no graph (0)",
		number(func(o *options) *int { return &o.config.Graphs })},
	{"R", "local_register", "buffers: 0 not registered (on the host Go slices), 1 registered, 3 of Alloc, which the library registers or not (1)",
		number(func(o *options) *int { return &o.config.Buffers })},
	{"a", "average", "the ranks' times of a call: 0 rank 0's, 1 mean, 2 min, 3 max (3)",
		number(func(o *options) *int { return &o.config.Average })},
	{"I", "per_iter_timing", "1: columns of the calls' spread (0)",
		boolean(func(o *options) *bool { return &o.config.PerCall })},
	{"K", "per_iter_skip", "the first timed calls that statistics leave out (0)",
		number(func(o *options) *int { return &o.config.Skip })},
	{"S", "report_timestamps", "1: a time stamp on each row (0)",
		boolean(func(o *options) *bool { return &o.config.Timestamps })},
	{"t", "nthreads", "goroutine ranks of each process, or of the only one (1 under a launcher, else NTHREADS, or 2)",
		setThreads},
	{"T", "timeout", "longest wait inside one operation, in seconds or as 2m (10m)", setTimeout},
	{"J", "output_file", "also write results to a new file: .json, .jsonl or .csv", setOutput},
	{"", "output", "the same as -J", setOutput},
	{"", "append", "add to that file if it is there, .jsonl or .csv (no value)", setAppend},
	{"", "also", "sizes beside those of -b, -e and -f, between the smallest and the largest: 2M,8M", setAlso},
	{"", "loop", "1: calls back to back on untouched buffers, as nccl-tests times them (0)",
		boolean(func(o *options) *bool { return &o.config.Loop })},
	{"", "overlap", "1: also how much of each collective, queued on a stream, overlaps with computation (0)",
		boolean(func(o *options) *bool { return &o.config.Overlap })},
	{"", "paths", "1: below each row, and at the end, which path it took and what registration cost (0)", setPaths},
	{"", "explain", "columns beside each row that say how its data moved, on rank 0 (no value)", setExplain},
	{"", "min-busbw", "fail with exit code 7 below this average bus bandwidth, in GB/s", setMinBusBW},
	{"", "algorithm", "the algorithm of all-reduces, and between hosts of most collectives; rows that take another one say so (the library chooses)", setAlgorithm},
	{"", "seed", "of the data (1)", setSeed},
}

// benchGroups are the flags as the help shows them. Those of elsewhere, which ask for nothing, are in none.
var benchGroups = []flagGroup{
	{"The ten that matter first", []string{"b minbytes", "e maxbytes", "f stepfactor", "n iters", "d datatype", "o op", "device",
		"t nthreads", "R local_register", "J output_file output"}},
	{"Sizes and data", []string{"i stepbytes", "also", "r root", "seed"}},
	{"Calls", []string{"w warmup_iters", "G cudagraph", "m agg_iters", "W window-size", "N run_cycles", "loop", "overlap", "algorithm",
		"devices", "nvls"}},
	{"Checks and limits", []string{"c check", "min-busbw", "T timeout"}},
	{"Statistics and output", []string{"a average", "K per_iter_skip", "I per_iter_timing", "S report_timestamps", "explain", "paths", "append"}},
}

// elsewhere are flags of nccl-tests that only matter for CUDA devices. bench accepts nothing but neutral, the value
// that asks for nothing.
var elsewhere = []struct{ short, long, neutral string }{
	{"g", "ngpus", "1"}, {"p", "parallel_init", "0"}, {"z", "blocking", "0"}, {"y", "stream_null", "0"},
	{"C", "report_cputime", "0"}, {"x", "cta_policy", "0"}, {"D", "device_implementation", "0"},
	{"V", "device_cta_count", "16"}, {"M", "memory", "0"}, {"u", "unalign", "0"},
}

// parse parses "OP [OP ...] [flags]". The error names every fault. If the user asks for help, parse writes the usage to
// help and returns flag.ErrHelp.
func parse(args []string, help io.Writer) (*options, error) {
	o := &options{}
	n := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	if n < 0 {
		n = len(args)
	}
	var faults, possible []error
	// Each operation has a configuration with defaults of its own, to which the flags are applied.
	var given []func() error
	fs := benchFlags(func(set func(*options, string) error, names, value string) {
		given = append(given, func() error {
			if err := set(o, value); err != nil {
				return fmt.Errorf("%s: %w", names, err)
			}
			return nil
		})
	}, func(err error) { faults = append(faults, err) })
	if err := fs.Parse(args[n:]); errors.Is(err, flag.ErrHelp) {
		benchUsage(help, fs)
		return nil, err
	} else if n == 0 {
		return nil, usageError("bench: which operation? (%s, all, mr)", strings.Join(measure.Names(), ", "))
	} else if err != nil {
		faults = append(faults, usage.Flag(fs, err))
	} else if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q: operations come before flags", fs.Arg(0)))
	}
	ops, every := operations(args[:n], measure.Names())
	o.every = every
	for i, op := range ops {
		o.config = measure.Default(op)
		o.config.Cache, o.config.Device = true, measure.Auto
		for _, set := range given {
			if err := set(); err != nil && i == 0 {
				faults = append(faults, err)
			}
		}
		if o.config.Op == "mr" {
			faults = append(faults, errors.New("mr has flags of its own: ubcoll bench mr -h lists them"))
			continue
		}
		possible = append(possible, o.config.Validate())
		o.configs = append(o.configs, o.config)
	}
	if !o.every || !slices.Contains(possible, nil) {
		faults = append(faults, distinct(possible)...)
	}
	if o.output != "" {
		if err := measure.CheckOutput(o.output, o.add); err != nil {
			faults = append(faults, fmt.Errorf("-J, --output_file: %w", err))
		}
	} else if o.add {
		faults = append(faults, errors.New("--append: no file to add to: name it with -J"))
	}
	if err := o.job.Validate(); err != nil {
		faults = append(faults, err)
	}
	if o.config.Buffers == measure.GoSlices { // otherwise memory of Alloc would be registered at its first use
		o.job.Register = ubcoll.RegisterExplicit
	}
	err := errors.Join(faults...)
	switch {
	case err == nil:
		return o, nil
	case errors.Is(err, fault.ErrNotSupported):
		return nil, exitError{fmt.Errorf("bench: %w", err), exitSupport}
	}
	return nil, usageError("bench: %w", err)
}

// benchFlags returns the flags. Parsing them calls given for each of flags, and bad for what is wrong with one of elsewhere.
func benchFlags(given func(set func(*options, string) error, names, value string), bad func(error)) *flag.FlagSet {
	fs := newFlags("bench")
	for _, f := range flags {
		set := func(value string) error {
			given(f.set, names(f.short, f.long), value)
			return nil
		}
		if f.long == "append" || f.long == "explain" {
			fs.BoolFunc(f.long, f.help, set)
			continue
		}
		each(f.short, f.long, func(name string) { fs.Func(name, f.help, set) })
	}
	for _, f := range elsewhere {
		set := func(value string) error {
			if value != f.neutral {
				bad(fmt.Errorf("%s %s, which nccl-tests has for CUDA devices: %w", names(f.short, f.long), value, fault.ErrNotSupported))
			}
			return nil
		}
		each(f.short, f.long, func(name string) { fs.Func(name, "", set) })
	}
	return fs
}

// operations returns the operations that args name, each once, and whether "all" is among the names, which stands for
// those of all. Names may be separated by commas as well.
func operations(args, all []string) (ops []string, every bool) {
	for _, op := range strings.Split(strings.Join(args, ","), ",") {
		named := []string{op}
		if op == everything {
			named, every = all, true
		}
		for _, op := range named {
			if !slices.Contains(ops, op) {
				ops = append(ops, op)
			}
		}
	}
	return ops, every
}

// distinct takes joined errors apart and returns each single error once: many are the same for all operations.
func distinct(errs []error) (all []error) {
	said := map[string]bool{}
	for _, err := range errs {
		if err == nil {
			continue
		}
		single := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			single = joined.Unwrap()
		}
		for _, err := range single {
			if !said[err.Error()] {
				said[err.Error()] = true
				all = append(all, err)
			}
		}
	}
	return all
}

func benchUsage(w io.Writer, fs *flag.FlagSet) {
	fmt.Fprintf(w, "Usage: ubcoll bench OP [OP ...] [flags]\n\nOP is one of %s, or all: a table for each, by one communicator.\n"+
		"Commas may stand between, too. mr, which stands alone and has flags of its own, is RDMA.\n"+
		"Sizes take K, M and G (1024, ...).\n\n",
		strings.Join(measure.Names(), ", "))
	printFlags(w, fs)
}

func each(short, long string, do func(name string)) {
	do(long)
	if short != "" {
		do(short)
	}
}

func names(short, long string) string {
	if short == "" {
		return "--" + long
	}
	return "-" + short + ", --" + long
}

func size(at func(*options) *int) func(*options, string) error {
	return func(o *options, value string) error {
		n, err := experiment.ParseSize(value)
		*at(o) = int(n)
		return err
	}
}

func setAlso(o *options, value string) error {
	o.config.Also = nil
	for s := range strings.SplitSeq(value, ",") {
		n, err := experiment.ParseSize(s)
		if err != nil {
			return err
		}
		o.config.Also = append(o.config.Also, int(n))
	}
	return nil
}

func number(at func(*options) *int) func(*options, string) error {
	return func(o *options, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("%q: want a whole number", value)
		}
		*at(o) = n
		return nil
	}
}

func boolean(at func(*options) *bool) func(*options, string) error {
	return func(o *options, value string) error {
		if value != "0" && value != "1" {
			return fmt.Errorf("%q: want 0 or 1", value)
		}
		*at(o) = value == "1"
		return nil
	}
}

func setReductions(o *options, value string) error {
	if value == everything {
		o.config.Reductions = []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg,
			measure.MulSum}
		return nil
	}
	if value == "mulsum" {
		o.config.Reductions = []ubcoll.Op{measure.MulSum}
		return nil
	}
	op, err := ubcoll.ParseOp(value)
	o.config.Reductions = []ubcoll.Op{op}
	return err
}

func setTypes(o *options, value string) error {
	types, err := parseTypes(value)
	if err == nil {
		o.config.Types = types
	}
	return err
}

// parseTypes parses names of element types with commas between, or "all".
func parseTypes(value string) (types []dtype.Type, err error) {
	if value == everything {
		return dtype.All(), nil
	}
	for name := range strings.SplitSeq(value, ",") {
		t, err := dtype.Parse(name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types, nil
}

// everything stands for all element types, reductions or operations.
const everything = "all"

func setThreads(o *options, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return fmt.Errorf("%q: want a number of ranks from 1", value)
	}
	o.threads = n
	return nil
}

func setTimeout(o *options, value string) error {
	if _, err := strconv.Atoi(value); err == nil {
		value += "s"
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("%q: want seconds, or a duration as 2m", value)
	}
	o.job.Timeout = d
	return nil
}

func setOutput(o *options, value string) error {
	o.output = value
	return nil
}

func setAppend(o *options, value string) error { return setBool(&o.add, value) }

func setExplain(o *options, value string) error { return setBool(&o.config.Explain, value) }

// setBool is for flags that need no value.
func setBool(at *bool, value string) (err error) {
	if *at, err = strconv.ParseBool(value); err != nil {
		return fmt.Errorf("%q: want true or false", value)
	}
	return nil
}

func setDevice(o *options, value string) error {
	o.config.Device = value
	return nil
}

func setPaths(o *options, value string) error {
	return boolean(func(o *options) *bool { return &o.config.Paths })(o, value)
}

func setMinBusBW(o *options, value string) error {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x > 0) {
		return fmt.Errorf("%q: want GB/s, more than 0", value)
	}
	o.config.MinBusBW = x
	return nil
}

func setAlgorithm(o *options, value string) error {
	o.job.Algorithm = ubcoll.Algorithm(value)
	return nil
}

func setNVLS(o *options, value string) error {
	o.nvls = value
	return experiment.IsNVLS(value)
}

const nvlsHelp = "on: multicast objects may be made on GPUs, as with UBCOLL_NVLS=on, in builds that have them; off. Never on a host that others use without its operator's leave"

// permitNVLS does what a command's -nvls says. The caller then opens the communicator.
func permitNVLS(command, value string) error {
	if err := experiment.SetNVLS(value); err != nil {
		return exitError{fmt.Errorf("%s: -nvls %s: %w", command, value, err), exitSupport}
	}
	return nil
}

func setSeed(o *options, value string) error {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return fmt.Errorf("%q: want a whole number below 2^32", value)
	}
	o.config.Seed = n
	return nil
}
