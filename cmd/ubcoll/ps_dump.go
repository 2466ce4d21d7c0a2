package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/procs"
)

// dumpJobs makes processes write dumps: this user's, or those named. It returns an error if one of those does not.
func dumpJobs(pids []int, out io.Writer) error {
	all, _, err := procs.Find(pids...)
	if err != nil {
		return fmt.Errorf("ps: %w", err)
	}
	if len(pids) == 0 { // root looks at all, and does not meddle with others' jobs unless it is told
		all = slices.DeleteFunc(all, func(p *procs.Process) bool { return int(p.UID) != os.Geteuid() })
	}
	errs := missing(all, pids)
	if len(all) == 0 && len(pids) == 0 {
		fmt.Fprintln(out, "no job of this user on this host")
	}
	for _, p := range all {
		who := fmt.Sprintf("process %d (%s)", p.PID, p.Program)
		switch err := p.Dump(); {
		case err == nil:
			fmt.Fprint(out, printable(who+": sent SIGUSR2: "+writesTo(p)+"\n"))
		case len(pids) > 0:
			errs = append(errs, fmt.Errorf("ps: %s: %w", printable(who), err))
		default:
			fmt.Fprint(out, printable(fmt.Sprintf("%s: %v\n", who, err)))
		}
	}
	return errors.Join(errs...)
}

// writesTo says where a process's dumps go, as far as that can be known: by the environment with which it was started.
func writesTo(p *procs.Process) string {
	text := "it writes to its standard error, since UBCOLL_DUMP names no folder"
	if folder := p.Variable(env.Dump.Name); folder != "" {
		text = "it writes to " + p.Path(folder)
	}
	if p.State == procfs.Halted || p.State == procfs.Traced {
		text += ", once it goes on: it is " + string(p.State)
	}
	return text
}
