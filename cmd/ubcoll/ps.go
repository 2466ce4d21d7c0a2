package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/internal/procs"
)

const psUsage = `ps [flags] [PID ...]

Shows the jobs on this host, this user's or for root all: what each rank is in, since when, and for whom it waits, also if the
processes hang, are stopped, or are in a debugger. They do nothing for it, and notice nothing. PIDs: the jobs of these
processes alone. --dump sends SIGUSR2 to this user's processes, or those named, which have said that they write dumps then
(programs of ubcoll.Main do). Others, which it would end, are left alone.`

// psFlags are the flags of ps.
type psFlags struct {
	all, json, dump bool
	watch           time.Duration
	pids            []int
}

// showJobs is the command ps.
func showJobs(args []string, out io.Writer) error {
	f, err := parsePS(args, out)
	if err != nil {
		return err
	}
	if f.dump {
		return dumpJobs(f.pids, out)
	}
	if f.watch == 0 {
		return f.show(out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	again := time.NewTicker(f.watch)
	defer again.Stop()
	for clear := clears(out); ; {
		if !f.json {
			fmt.Fprint(out, clear)
		}
		if err := f.show(out); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

func parsePS(args []string, help io.Writer) (f psFlags, err error) {
	fs := newFlags("ps")
	fs.BoolVar(&f.all, "v", false, "each rank in a line of its own, in all communicators")
	fs.BoolVar(&f.json, "json", false, "as JSON, all communicators")
	fs.DurationVar(&f.watch, "watch", 0, "look again after this `time`, as 1s, until Ctrl-C")
	fs.BoolVar(&f.dump, "dump", false, "make the processes write dumps, for ubcoll dump")
	if err := parseFlags(fs, args, psUsage, help); err != nil {
		return f, err
	}
	switch {
	case f.watch < 0:
		return f, usageError("ps: --watch %v: want more than 0", f.watch)
	case f.dump && (f.watch != 0 || f.json || f.all):
		return f, usageError("ps: --dump shows nothing: want it alone")
	}
	for _, s := range fs.Args() {
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 0 {
			return f, usageError("ps: unexpected argument %q: want numbers of processes, behind the flags", s)
		}
		f.pids = append(f.pids, pid)
	}
	return f, nil
}

// show looks once.
func (f *psFlags) show(out io.Writer) error {
	all, hidden, err := procs.Find()
	if err != nil {
		return fmt.Errorf("ps: %w", err)
	}
	if err := errors.Join(missing(all, f.pids)...); err != nil {
		return err
	}
	jobs, now := procs.Jobs(all), time.Now()
	if len(f.pids) > 0 {
		jobs = slices.DeleteFunc(jobs, func(j *procs.Job) bool {
			return !slices.ContainsFunc(j.Processes, func(p *procs.Process) bool { return slices.Contains(f.pids, p.PID) })
		})
	}
	switch {
	case f.json && f.watch > 0: // a line each time
		return json.NewEncoder(out).Encode(psReport(jobs, hidden, now))
	case f.json:
		return writeJSON(out, psReport(jobs, hidden, now))
	}
	_, err = io.WriteString(out, psText(jobs, hidden, f.all, now))
	return err
}

// missing are errors for those of pids that are not among all.
func missing(all []*procs.Process, pids []int) (errs []error) {
	for _, pid := range pids {
		if !slices.ContainsFunc(all, func(p *procs.Process) bool { return p.PID == pid }) {
			errs = append(errs, fmt.Errorf("ps: process %d has no open communicator, is gone, or is another user's", pid))
		}
	}
	return errs
}

// clears is what goes between two looks: on a terminal, what clears it.
func clears(out io.Writer) string {
	if f, ok := out.(*os.File); ok && terminal(f) != nil {
		return "\x1b[H\x1b[2J"
	}
	return "\n"
}
