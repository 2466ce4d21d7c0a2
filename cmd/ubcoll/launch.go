package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/launch"
)

// agentName is the command that launch runs on each host. It is not for users.
const agentName = "launch-agent"

const launchUsage = `launch [flags] -- PROGRAM [arguments]

Starts PROGRAM as the ranks of a job, without MPI: on this host, or on several by ssh. Output comes by whole lines; the
same error of several ranks is one line. Standard input goes to nobody. The exit code is that of the first rank that failed, which ends the others.`

// startRanks is the command launch.
func startRanks(args []string, out io.Writer) error {
	j, err := parseLaunch(args, out)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	code, err := launch.Run(j, signals)
	switch {
	case err != nil:
		return fmt.Errorf("launch: %w", err)
	case code != 0:
		return exitError{errReported, code}
	}
	return nil
}

// errReported is the error of a failure that has been printed already. main only sets the exit code.
var errReported = errors.New("")

func parseLaunch(args []string, help io.Writer) (j launch.Job, err error) {
	fs := newFlags("launch")
	ranks := fs.Int("np", 0, "number of ranks (one for each slot of --hosts; more than processors are allowed)")
	hosts := fs.String("hosts", "", "`hosts` that run them, in this order: a,b or, with their slots, a:2,b:2 (this one)")
	var names []string
	fs.Func("x", "`variable` to give to ranks on other hosts too, beside all that begin with UBCOLL_: NAME or NAME=value; more -x "+
		"give more", func(s string) error {
		names = append(names, s)
		return nil
	})
	fs.BoolVar(&j.Prefix, "prefix", false, "begin each line with the rank that wrote it: [0] text")
	fs.BoolVar(&j.Survive, "survive", false, "let the other ranks go on when one fails or is killed, as programs that call Shrink want it; the exit code "+
		"is then that of those that were not killed")
	fs.DurationVar(&j.Grace, "grace", 5*time.Second, "how long ranks may take to end, from SIGTERM to SIGKILL")
	if err := parseFlags(fs, args, launchUsage, help); err != nil {
		return j, err
	}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if j.Args = fs.Args(); len(j.Args) == 0 {
		bad("which program? ubcoll launch -np 4 -- ./prog")
	} else if !strings.Contains(j.Args[0], "/") && *hosts == "" {
		if _, err := exec.LookPath(j.Args[0]); err != nil {
			if s, _ := os.Stat(j.Args[0]); s != nil && !s.IsDir() {
				bad("%s is not in PATH: did you mean ./%s?", j.Args[0], j.Args[0])
			} else {
				bad("%s is not in PATH: programs elsewhere are named with their folder, as bin/%s", j.Args[0], j.Args[0])
			}
		}
	}
	said := false
	fs.Visit(func(f *flag.Flag) { said = said || f.Name == "np" })
	switch {
	case said && *ranks < 1:
		bad("--np %d: want a number of ranks from 1", *ranks)
	case !said && *hosts == "":
		bad("how many ranks? -np 4")
	}
	if *hosts != "" {
		if j.Hosts, err = launch.ParseHosts(*hosts); err != nil {
			bad("--hosts: %w", err)
		}
	} else {
		j.Hosts = []launch.Host{{Name: "localhost"}}
	}
	if len(faults) == 0 {
		if j.Counts, err = launch.Place(j.Hosts, *ranks); err != nil {
			bad("--np: %w", err)
		}
	}
	if j.Grace <= 0 {
		bad("--grace %v: want more than 0", j.Grace)
	}
	if j.RSH, err = env.RSH.Get(); err != nil {
		faults = append(faults, err)
	}
	if j.Env, err = launch.Travels(os.Environ(), names); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return j, usageError("launch: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return j, err
	}
	if j.Dir, err = os.Getwd(); err != nil {
		return j, err
	}
	j.Agent, j.Stdout, j.Stderr = []string{self, agentName}, os.Stdout, os.Stderr
	return j, nil
}
