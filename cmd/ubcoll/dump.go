package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/plural"
)

const dumpUsage = `dump DIR [flags]

Compares what the ranks of a job have written to DIR, and says which rank to look at: the first call that differs, a rank or host
that is gone, ranks that wait for each other, a rank that has not called what others wait in, or an operation that has not
ended. Ranks write if UBCOLL_DUMP=DIR is set in the job: when a wait times out, a rank is lost or aborts, and at SIGUSR2 (in
programs of ubcoll.Main, and of DumpAtSignal: it ends others):

	UBCOLL_DUMP=/shared/dumps ubcoll launch -np 4 -- ./prog
	pkill -USR2 -x prog                              # on each host, while it hangs
	ubcoll dump /shared/dumps                        # the files of all hosts must be in one folder`

const latestJob = "latest"

// dump is the command dump.
func dump(args []string, out io.Writer) error {
	fs := newFlags("dump")
	job := fs.String("job", latestJob, "which `job` of the folder, or the beginning of its number")
	ops := fs.Int("ops", 0, "also the last so `many` operations of each communicator, side by side")
	asJSON := fs.Bool("json", false, "as JSON")
	folders, err := parseMixed(fs, args, dumpUsage, out)
	switch {
	case err != nil:
		return err
	case len(folders) == 0:
		return usageError("dump: which folder? ubcoll dump DIR, where the job had UBCOLL_DUMP=DIR; -h lists the flags")
	case len(folders) > 1:
		return usageError("dump: unexpected argument %q: one folder at a time", folders[1])
	case *ops < 0:
		return usageError("dump: --ops %d: want 0 or more", *ops)
	}
	jobs, err := readDumps(folders[0])
	if err != nil {
		return err
	}
	chosen, err := chooseJob(jobs, *job)
	if err != nil {
		return err
	}
	f := flight.Join(chosen)
	f.AddOps(*ops)
	if *asJSON {
		return writeJSON(out, f)
	}
	if err := f.Print(out); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	if *job == latestJob && len(jobs) > 1 {
		_, err = fmt.Fprintf(out, "\nThis is the latest job in %s, which has %s: -job %s\n", folders[0],
			plural.Count(len(jobs)-1, "other"), strings.Join(jobNames(jobs[1:]), ", "))
	}
	return err
}

// readDumps reads the dumps of a folder, of which there must be some.
func readDumps(folder string) ([][]*flight.Dump, error) {
	switch i, err := os.Stat(folder); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, usageError("dump: %s: there is no such folder%s", folder, nearest.File(folder))
	case err != nil:
		return nil, usageError("dump: %w", err)
	case !i.IsDir():
		return nil, usageError("dump: %s: want the folder, and that is a file", folder)
	}
	jobs, err := flight.Read(folder)
	if err != nil {
		return nil, usageError("dump: %w", err)
	}
	if len(jobs) == 0 {
		return nil, usageError("dump: %s has no dumps: ranks write them where the job has UBCOLL_DUMP=%[1]s, when a wait times out, a "+
			"rank is lost or aborts, and at SIGUSR2 (kill -USR2)", folder)
	}
	return jobs, nil
}

// chooseJob is the job of that number, or the only one whose number begins like that.
func chooseJob(jobs [][]*flight.Dump, name string) (found []*flight.Dump, err error) {
	if name == latestJob {
		return jobs[0], nil
	}
	for _, ds := range jobs {
		switch is := ds[0].Job; {
		case is == name:
			return ds, nil
		case !strings.HasPrefix(is, name):
		case found != nil:
			return nil, usageError("dump: --job %q: several jobs begin like that (%s)", name, strings.Join(jobNames(jobs), ", "))
		default:
			found = ds
		}
	}
	if found == nil {
		return nil, usageError("dump: --job: %s", nearest.Unknown("job", name, append(jobNames(jobs), latestJob)))
	}
	return found, nil
}

// jobNames are the numbers of jobs, those that wrote last first, and not too many.
func jobNames(jobs [][]*flight.Dump) (names []string) {
	const most = 8
	for i, ds := range jobs {
		if i == most {
			return append(names, "...")
		}
		names = append(names, ds[0].Job)
	}
	return names
}
