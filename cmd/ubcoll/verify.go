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
)

// verify is the command verify. It does not return if verification fails: ubcoll.Main ends the job.
func verify(args []string, out io.Writer) error {
	v, o, own, err := parseVerify(args, out)
	if err != nil {
		return err
	}
	if _, err := ranksHere(own.threads); err != nil {
		return err
	}
	if err := permitNVLS("verify", own.nvls); err != nil {
		return err
	}
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

// ofProcess is what flags of verify say of this process.
type ofProcess struct {
	threads int    // 0 if no flag gives it
	nvls    string // likewise ""
}

// parseVerify parses "[OP ...] [flags]"; flags may also come before operations. The error names every fault. If the user
// asks for help, parseVerify writes the usage to help and returns flag.ErrHelp.
func parseVerify(args []string, help io.Writer) (v measure.Verification, o ubcoll.Options, own ofProcess, err error) {
	o.Register = ubcoll.RegisterExplicit
	fs := newFlags("verify")
	fs.StringVar(&v.Device, "device", measure.Auto, "auto: GPUs where all ranks have one; host; cuda")
	fs.TextVar(&o.Devices, "devices", o.Devices, "auto: ranks use GPUs if each has one of its own; share: they may share them; required; off")
	fs.Func("nvls", nvlsHelp, func(value string) error { own.nvls = value; return experiment.IsNVLS(value) })
	least := fs.String("b", "8", "the smallest `size` of a rank's larger buffer, in bytes")
	most := fs.String("e", "40M", "the largest `size`; from 40M on, sums only")
	types := fs.String("d", "all", "element `types`: int8 ... uint64, half, bfloat16, float, double, bool, several with commas, or all")
	fs.Uint64Var(&v.Seed, "seed", 1, "of the data, below 2^32")
	fs.IntVar(&own.threads, "t", 0,
		"goroutine ranks of each process, or of the only one (1 under a launcher, else NTHREADS, or 2)")
	fs.DurationVar(&o.Timeout, "T", time.Minute, "longest wait inside one operation")
	ops, err := parseMixed(fs, args, verifyUsage(), help)
	if err != nil {
		return v, o, own, err
	}
	if named, every := operations(ops, nil); len(ops) > 0 && !every {
		v.Ops = named
	}
	var faults []error
	bad := func(err error) { faults = append(faults, err) }
	for _, f := range []struct {
		name, value string
		to          *int
	}{{"-b", *least, &v.MinBytes}, {"-e", *most, &v.MaxBytes}} {
		n, err := experiment.ParseSize(f.value)
		if err != nil {
			bad(fmt.Errorf("%s: %w", f.name, err))
		}
		*f.to = int(n)
	}
	if *types != everything {
		var err error
		if v.Types, err = parseTypes(*types); err != nil {
			bad(fmt.Errorf("-d: %w", err))
		}
	}
	if faults == nil {
		bad(v.Validate())
	}
	if v.Seed >= 1<<32 {
		bad(fmt.Errorf("-seed %d: want a whole number below 2^32", v.Seed))
	}
	if o.Timeout <= 0 {
		bad(fmt.Errorf("-T %v: want more than 0", o.Timeout))
	}
	if err := errors.Join(faults...); err != nil {
		return v, o, own, usageError("verify: %w", err)
	}
	return v, o, own, nil
}

func verifyUsage() string {
	var not []string
	for _, name := range measure.Names() {
		if !slices.Contains(measure.Verifiable(), name) {
			not = append(not, name)
		}
	}
	return fmt.Sprintf("verify [OP ...] [flags]\n\nOP is one of %s, or all, as by default. Commas may stand between.\nSizes take K, M and G "+
		"(1024, ...). Verified are the smallest, the largest, and a few between.\nNot %s, which have no result of their own to "+
		"check, or are checked by ubcoll bench.", strings.Join(measure.Verifiable(), ", "), strings.Join(not, ", "))
}
