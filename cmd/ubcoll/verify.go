package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// verify checks the collectives' results. It does not return if that fails: ubcoll.Main ends the job.
func verify(args []string, out io.Writer) error {
	v := measure.Verification{}
	fs := newFlags("verify")
	fs.StringVar(&v.Device, "device", measure.Auto, "auto: GPUs where all ranks have one; host; cuda")
	most := fs.String("e", "40M", "the largest size in bytes, from 1K")
	fs.Uint64Var(&v.Seed, "seed", 1, "of the data, below 2^32")
	threads := fs.Int("t", 0,
		"goroutine ranks of each process, or of the only one (1 under a launcher, else NTHREADS, or 2)")
	timeout := fs.Duration("T", time.Minute, "longest wait inside one operation")
	if err := parseFlags(fs, args, verifyUsage(), out); err != nil {
		return err
	}
	v.Ops = fs.Args()
	n, err := experiment.ParseSize(*most)
	if err != nil {
		return usageError("verify: -e: %w", err)
	}
	v.MaxBytes = int(n)
	switch v.Device {
	case measure.Auto, measure.Host, measure.CUDA:
	default:
		return usageError("verify: unknown device %q (auto, host or cuda)%s", v.Device,
			nearest.Hint(v.Device, []string{measure.Auto, measure.Host, measure.CUDA}))
	}
	if v.Seed >= 1<<32 {
		return usageError("verify: -seed %d: want less than 2^32", v.Seed)
	}
	if *timeout <= 0 {
		return usageError("verify: -T %v: want more than 0", *timeout)
	}
	if _, err := ranksHere(*threads); err != nil {
		return err
	}
	o := ubcoll.Options{Timeout: *timeout, Register: ubcoll.RegisterExplicit}
	ubcoll.Main(o, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c); err != nil {
			return err
		}
		err := measure.Verify(ctx, c, v, out)
		if errors.Is(err, measure.ErrFailed) {
			err = exitError{err, exitFailed}
		}
		return err
	})
	return nil
}

func verifyUsage() string {
	var not []string
	for _, name := range measure.Names() {
		if !slices.Contains(measure.Verifiable(), name) {
			not = append(not, name)
		}
	}
	return fmt.Sprintf("verify [flags] [OP ...]\n\nOP is one of %s; by default all.\nNot %s, which have no result of their own to "+
		"check, or are checked by ubcoll bench.", strings.Join(measure.Verifiable(), ", "), strings.Join(not, ", "))
}
