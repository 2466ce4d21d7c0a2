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
	"github.com/ubcoll/ubcoll/bootstrap"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
)

// defaultRanks is how many goroutine ranks run if nobody says: one has no peer to talk to.
const defaultRanks = 2

// bench measures. It does not return if that fails: ubcoll.Main ends the job.
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

// possible is what to measure. Of all operations those are left out that cannot be measured so, which rank 0 says.
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

// measured is the end of a measurement: rank 0 writes what was found, if anything was, to a file that is named, and data that
// were wrong have an exit code of their own.
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

// grace is how long the other ranks leave rank 0 to write what there is, before their errors end the job.
const grace = 300 * time.Millisecond

// ranksHere sets how many goroutine ranks this process will run, and returns that; want is 0 if nobody says.
func ranksHere(want int) (int, error) {
	if want < 0 {
		return 0, usageError("-t %d: want a number of ranks", want)
	}
	v, unsaid := env.Threads, defaultRanks
	if name, _ := bootstrap.Launcher(); name != "" || env.Rank.IsSet() || env.Size.IsSet() {
		v, unsaid = env.RanksPerProcess, 1
	}
	if want == 0 && v.IsSet() {
		n, err := v.Get()
		if err != nil {
			return 0, exitError{err, exitUsage}
		}
		return n, nil
	}
	if want == 0 {
		want = unsaid
	}
	s := strconv.Itoa(want)
	// A launcher's only process may turn out to need no launcher.
	return want, errors.Join(os.Setenv(v.Name, s), os.Setenv(env.Threads.Name, s))
}

// terminal is f if somebody is looking at it.
func terminal(f *os.File) io.Writer {
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return f
}
