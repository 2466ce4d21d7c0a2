package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
)

// defaultRanks is the number of goroutine ranks if the user gives none. One rank would have no peer.
const defaultRanks = 2

// bench is the command bench. It does not return if measuring fails: ubcoll.Main ends the job.
func bench(args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "mr" {
		return benchMR(args[1:], out)
	}
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	threads, err := ranksHere(o.threads)
	if err != nil {
		return err
	}
	if err := permitNVLS("bench", o.nvls); err != nil {
		return err
	}
	p := measure.Program{Version: version(), Args: os.Args, Threads: threads}
	ubcoll.Main(o.job, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := measure.Required(c); err != nil {
			return err
		}
		configs, err := o.possible(c, out)
		if err != nil {
			return err
		}
		reps, err := measure.RunAll(ctx, c, configs, p, out, terminal(os.Stderr))
		return measured(c, err, len(reps) > 0, o.output, func() error {
			if len(o.configs) > 1 {
				return measure.WriteAll(reps, o.output, o.add)
			}
			return reps[0].Write(o.output, o.add)
		}, out)
	})
	return nil
}

// possible returns what to measure. If the user asked for all operations, it leaves out those that this job cannot
// measure, and rank 0 prints why. Local.
func (o *options) possible(c *ubcoll.Comm, out io.Writer) ([]measure.Config, error) {
	if !o.every {
		return o.configs, nil
	}
	can, why := measure.Possible(o.configs, c.Size())
	if len(can) == 0 {
		return nil, errors.Join(why...)
	}
	for _, err := range why {
		if c.Rank() == 0 {
			fmt.Fprintf(out, "# Left out: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	return can, nil
}

// measured ends a measurement: if anything was found and a file is named, rank 0 writes it there. measured returns err,
// with the exit code for a failed measurement if it is one.
func measured(c *ubcoll.Comm, err error, found bool, name string, write func() error, out io.Writer) error {
	switch {
	case !found || name == "":
	case c.Rank() == 0:
		werr := write()
		if werr == nil {
			_, werr = fmt.Fprintf(out, "# Results written to %s\n", name)
		}
		err = errors.Join(err, werr)
	case err != nil:
		time.Sleep(grace)
	}
	if errors.Is(err, measure.ErrFailed) {
		err = exitError{err, exitFailed}
	}
	return err
}

// grace is how long the other ranks wait before their errors end the job, so that rank 0 can write its results.
const grace = 300 * time.Millisecond

// ranksHere sets how many goroutine ranks this process runs, and returns their number. want is 0 if no flag gives it.
func ranksHere(want int) (int, error) {
	if want < 0 {
		return 0, usageError("-t %d: want a number of ranks from 1", want)
	}
	v, byDefault := threadsVariable(), defaultRanks
	if v == env.RanksPerProcess {
		byDefault = 1
	}
	if want == 0 && v.IsSet() {
		n, err := v.Get()
		if err != nil {
			return 0, exitError{err, exitUsage}
		}
		return n, nil
	}
	if want == 0 {
		want = byDefault
	}
	s := strconv.Itoa(want)
	// Both variables: a launcher's only process may run without the launcher.
	return want, errors.Join(os.Setenv(v.Name, s), os.Setenv(env.Threads.Name, s))
}

// terminal returns f if it is a terminal, else nil.
func terminal(f *os.File) io.Writer {
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return f
}
