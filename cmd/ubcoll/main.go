// Command ubcoll is the tool: it measures and verifies the collectives, runs experiments, starts ranks without MPI, and
// says what a machine can do.
//
//	mpirun -np 4 ubcoll bench all_reduce -b 8 -e 64M -f 4
//	ubcoll bench all_reduce -t 2 -R 0 -J result.csv
//	mpirun -np 2 ubcoll bench all_reduce -device cuda -G 20 -b 16 -e 1G -f 4
//	mpirun -np 2 ubcoll verify -device cuda
//	mpirun -np 2 ubcoll tune -device cuda
//	ubcoll launch -np 4 -- ./prog
//	ubcoll ps
//	ubcoll info -env
//
// Exit codes: 0 done, 1 internal, 3 a peer was lost or ranks disagree, 4 timed out, 5 not supported, 6 bad usage, 7
// wrong data or less bandwidth than -min-busbw.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/launch"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Exit codes that this program sets itself. ubcoll.Main sets the others.
const (
	exitSupport = 5
	exitUsage   = 6
	exitFailed  = 7
)

type command struct {
	name, help string
	run        func(args []string, out io.Writer) error // does not return if a job fails: ubcoll.Main ends the process
}

var commands = []command{
	{"bench", "measure collectives: ubcoll bench OP [OP ...] [flags], as nccl-tests' programs; -h lists the flags", bench},
	{"run", "measure a sweep of points: ubcoll run FILE.toml [flags]; the same command again goes on", runSweep},
	{"check", "say everything that is wrong with experiment files: ubcoll check FILE.toml ...", check},
	{"compare", "two runs' times, as ratios with confidence intervals: ubcoll compare A B", compare},
	{"plot", "figures of results, SVG and PNG, and a report in HTML: ubcoll plot RESULTS ... -o report.html", plot},
	{"verify", "check every element of the collectives' results: ubcoll verify [OP ...] [flags]; -h lists them", verify},
	{"tune", "measure where algorithms cross over, and write the table for UBCOLL_TUNING", tune},
	{"model", "which way collectives take between hosts, and about how long: ubcoll model [OP ...] -hosts 2,16,1024", priceModel},
	{"launch", "start a program as the ranks of a job, without MPI: ubcoll launch -np 4 [-hosts a,b] -- ./prog", startRanks},
	{"dump", "name the first difference between the ranks of a job that hangs or failed: ubcoll dump DIR", dump},
	{"env", "shell lines to build with MPI and to start: eval \"$(ubcoll env)\"", mpiEnv},
	{"version", "of what this program was built; -json", printVersion},
	{"completion", "completions for a shell: ubcoll completion bash|zsh|fish", completion},
	{"doctor", "look for what keeps jobs from running here, and say what to do; -json", examine},
	{"ps", "what the jobs on this host are in, and who waits for whom: ubcoll ps [PID ...]; -dump makes them write dumps", showJobs},
	{"info", "what this build and this machine have; -env adds the environment variables; -json", info},
}

// commandTable returns commands. The commands themselves call it: if they named the variable, its initialization would
// refer to itself.
var commandTable func() []command

func init() { commandTable = func() []command { return commands } }

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(os.Stderr, "ubcoll: %v\n", err)
	}
	os.Exit(exitCode(err))
}

// exitCode returns the exit code for err.
func exitCode(err error) int {
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return ubcoll.ExitCode(err)
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return usageError("which command? ubcoll help lists them")
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(out, "Usage: ubcoll COMMAND [arguments]\n\n")
		for _, c := range commands {
			fmt.Fprintf(out, "  %-10s %s\n", c.name, c.help)
		}
		fmt.Fprint(out, "\nubcoll COMMAND -h says more. One dash and two mean the same.\n")
		return nil
	}
	if args[0] == agentName {
		return launch.Agent(os.Stdin, os.Stdout)
	}
	names := []string{"help"}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(args[1:], out)
		}
		names = append(names, c.name)
	}
	return usageError("unknown command %q%s ubcoll help lists them", args[0], cmp.Or(nearest.Hint(args[0], names), ":"))
}

// exitError is an error with an exit code, which both main and ubcoll.Main use.
type exitError struct {
	error
	code int
}

// ExitCode returns the exit code. ubcoll.Main looks for this method.
func (e exitError) ExitCode() int { return e.code }

// Unwrap returns the reason, for errors.Is and errors.As.
func (e exitError) Unwrap() error { return e.error }

func usageError(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitUsage}
}
