package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

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
		if rep != nil && o.output != "" {
			if c.Rank() == 0 {
				err = errors.Join(err, write(rep, o.output, out))
			} else if err != nil {
				time.Sleep(grace)
			}
		}
		if errors.Is(err, measure.ErrFailed) {
			err = exitError{err, exitFailed}
		}
		return err
	})
	return nil
}

// grace is how long the other ranks leave rank 0 to write what there is, before their errors end the job.
const grace = 300 * time.Millisecond

func write(rep *measure.Report, name string, out io.Writer) error {
	name, err := rep.Write(name)
	if err == nil {
		_, err = fmt.Fprintf(out, "# Results written to %s\n", name)
	}
	return err
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
