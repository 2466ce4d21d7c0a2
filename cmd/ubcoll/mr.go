package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	mr "github.com/ubcoll/ubcoll/internal/bench/rdma"
	"github.com/ubcoll/ubcoll/internal/experiment"
)

const mrUsage = `bench mr [flags]

What registering memory with an RDMA device costs, and puts, gets and atomic operations between two ranks, with
perftest's method and columns. The ranks are two processes, of mpirun or of UBCOLL_RANK, UBCOLL_SIZE and
UBCOLL_RENDEZVOUS; else two goroutines of one process. Sizes take K, M and G (1024, ...).

`

// benchMR is the command bench mr. It does not return if measuring fails: ubcoll.Main ends the job.
func benchMR(args []string, out io.Writer) error {
	cfg, job, output, err := parseMR(args, out)
	if err != nil {
		return err
	}
	threads, err := ranksHere(0)
	if err != nil {
		return err
	}
	p := measure.Program{Version: version(), Args: os.Args, Threads: threads}
	ubcoll.Main(job, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c, "verbs"); err != nil { // Run fails without verbs
			return err
		}
		rep, err := mr.Run(ctx, c, cfg, p, out)
		return measured(c, err, rep != nil, output, func() error { return measure.WriteJSON(rep, output) }, out)
	})
	return nil
}

// parseMR parses the flags. The error names every fault. If the user asks for help, parseMR writes the usage to help
// and returns flag.ErrHelp.
func parseMR(args []string, help io.Writer) (cfg mr.Config, job ubcoll.Options, output string, err error) {
	cfg = mr.Default()
	job = ubcoll.Options{Register: ubcoll.RegisterExplicit, Devices: ubcoll.DevicesOff}
	fs := newFlags("bench mr")
	bytes := func(name, usage string, at *int) {
		fs.Func(name, usage, func(s string) error {
			n, err := experiment.ParseSize(s)
			*at = int(n)
			return err
		})
	}
	bytes("b", "smallest `size` of a message, a multiple of 8; each is twice the one before (8)", &cfg.MinBytes)
	bytes("e", "largest `size` of a message (1M)", &cfg.MaxBytes)
	bytes("max", "largest `size` of a region to register; 0 = none (256M, or what limits allow)", &cfg.MaxRegion)
	fs.IntVar(&cfg.Iterations, "n", 0, "timed calls (by size: 2000, from 64K 400, from 4M 20; regions 200, above 1M 50, above 16M 10)")
	fs.StringVar(&cfg.Devices, "dev", "", "`devices` of whose ports the first active one is used, as NCCL_IB_HCA: mlx5_0:1,... (all)")
	fs.IntVar(&cfg.GID, "gid", cfg.GID, "`row` of the port's table of GIDs (-1: RoCE v2 before v1, IPv4 before IPv6)")
	fs.DurationVar(&job.Timeout, "T", 0, "longest wait of the ranks for each other (10m)")
	fs.StringVar(&output, "J", "", "also write results, with all spreads, to a new `file`: .json")
	if err := parseFlags(fs, args, mrUsage, help); err != nil {
		return cfg, job, "", err
	}
	var faults []error
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q: -h lists what it takes", fs.Arg(0)))
	}
	faults = append(faults, cfg.Validate(), job.Validate())
	if output != "" {
		if filepath.Ext(output) != ".json" {
			faults = append(faults, fmt.Errorf("-J %q: want a name that ends in .json", output))
		} else if err := measure.CheckOutput(output, false); err != nil {
			faults = append(faults, fmt.Errorf("-J: %w", err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return cfg, job, "", usageError("bench mr: %w", err)
	}
	return cfg, job, output, nil
}
