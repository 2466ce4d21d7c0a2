package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
)

// defaultRanks is how many goroutine ranks run if nobody says: one has no peer to talk to.
const defaultRanks = 2

// bench measures. It does not return if that fails: ubcoll.Main ends the job.
func bench(args []string, out io.Writer) error {
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
		rep, err := measure.Run(ctx, c, o.config, p, out, terminal(os.Stderr))
		if errors.Is(err, measure.ErrFailed) {
			err = exitError{err, exitFailed}
		}
		if rep == nil || c.Rank() != 0 || o.output == "" {
			return err
		}
		name, wrote := rep.Write(o.output)
		if wrote == nil {
			_, wrote = fmt.Fprintf(out, "# Results written to %s\n", name)
		}
		return errors.Join(err, wrote)
	})
	return nil
}

// ranksHere sets how many goroutine ranks this process will run, and returns that: 1 in a job of processes.
func ranksHere(want int) (int, error) {
	if name, _ := bootstrap.Launcher(); name != "" || env.Rank.IsSet() || env.Size.IsSet() {
		if want > 1 {
			return 0, exitError{fmt.Errorf("-t %d, but each process of a job is one rank: %w", want, hw.ErrNotSupported),
				exitSupport}
		}
		return 1, nil
	}
	if want == 0 {
		if env.Threads.IsSet() {
			n, err := env.Threads.Get()
			if err != nil {
				return 0, exitError{err, exitUsage}
			}
			return n, nil
		}
		want = defaultRanks
	}
	return want, os.Setenv(env.Threads.Name, strconv.Itoa(want))
}

// terminal is f if somebody is looking at it.
func terminal(f *os.File) io.Writer {
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return f
}
