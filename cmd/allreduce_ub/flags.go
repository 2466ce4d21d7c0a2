package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/usage"
)

// flags are the keys of an experiment that the command line can set. Short names are those of nccl-tests.
var flags = []struct{ name, short, key, help string }{
	{"elements", "", "allreduce.elements", "elements per buffer, as in 1M (K = 1024)"},
	{"bytes", "b", "allreduce.bytes", "bytes per buffer, as in 4M (the default)"},
	{"type", "d", "allreduce.type", "int8 ... uint64, float16 (half), bfloat16, float32 (float), float64 (double), bool"},
	{"op", "o", "allreduce.op", "sum, prod, min, max, avg"},
	{"iterations", "n", "allreduce.iterations", "how many all-reduces; of several it prints time and bandwidth"},
	{"in-place", "", "allreduce.in_place", "reduce in the send buffer"},
	{"registration", "", "allreduce.registration",
		"explicit: the job registers its buffers; auto: the library does; off: all is staged"},
	{"device", "", "allreduce.device", "auto: each rank's GPU where all have one, else the host; host; cuda"},
	{"devices", "", "options.devices", "auto: ranks use GPUs if each has one of its own; share: they may share them; required; off"},
	{"timeout", "", "options.timeout", "the longest wait inside one operation, as in 90s"},
	{"algorithm", "", "options.algorithm", "which algorithm (the plan chooses if empty)"},
	{"pin", "", "options.pin", "auto: registered memory is locked as far as ulimit -l allows; required: else registering fails"},
}

// configure returns the experiment that args ask for: the file of -config, or the defaults, changed by the flags. The
// error has every fault of both. For -h it is flag.ErrHelp, with the usage written to help.
func configure(args []string, help io.Writer) (*experiment.Experiment, error) {
	fs := flag.NewFlagSet("allreduce_ub", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	config := fs.String("config", "", configHelp)
	given := map[string]string{} // by key; the last value counts
	for _, f := range flags {
		store := func(value string) error { given[f.key] = value; return nil }
		for _, name := range strings.Fields(f.name + " " + f.short) {
			if f.name == "in-place" {
				fs.BoolFunc(name, f.help, store)
			} else {
				fs.Func(name, f.help, store)
			}
		}
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		printUsage(help)
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("allreduce_ub: %w", usage.Flag(fs, err))
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("allreduce_ub: unexpected argument %q: it takes flags alone", fs.Arg(0))
	}

	var faults []error
	e := experiment.Default()
	if *config != "" {
		loaded, err := experiment.Load(*config)
		switch known, _ := errors.AsType[experiment.Faults](err); {
		case slices.ContainsFunc(known, func(f experiment.Fault) bool { return f.Key == "sweep" }):
			faults = append(faults, fmt.Errorf("%s is for ubcoll run %s: allreduce_ub wants a table [allreduce]", *config, *config))
		case err != nil:
			faults = append(faults, err)
		default:
			e = loaded
		}
	}
	for _, v := range []struct { // the environment overrides the file, and flags override both
		is        bool
		name, key string
	}{{env.Algorithm.IsSet(), env.Algorithm.Name, "options.algorithm"}, {env.Timeout.IsSet(), env.Timeout.Name, "options.timeout"},
		{env.NetTimeout.IsSet(), env.NetTimeout.Name, "options.net_timeout"},
		{env.Register.IsSet(), env.Register.Name, "allreduce.registration"}, {env.Pin.IsSet(), env.Pin.Name, "options.pin"},
		// Devices that the file requires stay required: the variable says whether ranks may share them.
		{env.CUDA.IsSet() && e.Options.Devices != ubcoll.DevicesRequired, env.CUDA.Name, "options.devices"},
		{env.NVLS.IsSet(), env.NVLS.Name, "options.nvls"}} {
		if _, flagged := given[v.key]; v.is && !flagged && *config != "" {
			_ = e.Set(v.key, os.Getenv(v.name)) // Open reports malformed values
		}
	}
	_, elements := given["allreduce.elements"]
	_, bytes := given["allreduce.bytes"]
	if elements || bytes { // a size here replaces the file's, in either unit
		e.AllReduce.Elements, e.AllReduce.Bytes = nil, nil
	}
	for _, f := range flags {
		if value, ok := given[f.key]; ok {
			if err := e.Set(f.key, value); err != nil {
				faults = append(faults, fmt.Errorf("--%s: %w", f.name, err))
			}
		}
	}
	if err := e.Validate(); err != nil {
		faults = append(faults, err)
	}
	return e, errors.Join(faults...)
}

const configHelp = "a TOML experiment; flags override it"

func printUsage(w io.Writer) {
	fmt.Fprintf(w, "Usage: allreduce_ub [flags]\n\n  --config FILE\n\t%s\n", configHelp)
	for _, f := range flags {
		name := usage.Dashed(f.name)
		if f.short != "" {
			name = usage.Dashed(f.short) + ", " + name
		}
		fmt.Fprintf(w, "  %s\n\t%s\n", name, f.help)
	}
}
