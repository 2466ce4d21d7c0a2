// Command job is one rank of a job that runs the suite of bootstraps. scripts/conform-mpi starts it under MPI
// launchers, by the name conform.
//
//	conform SUITE [args]
package main

import (
	"fmt"
	"os"
	"slices"
)

// suites is what this binary can run. Each gets the rest of the command line. An error makes the exit code 1.
var suites = map[string]func(args []string) error{}

func main() {
	if len(os.Args) < 2 || suites[os.Args[1]] == nil {
		var names []string
		for name := range suites {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintln(os.Stderr, "usage: conform SUITE [args]; suites:", names)
		os.Exit(2)
	}
	if err := suites[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "conform %v: %v\n", os.Args[1:], err)
		os.Exit(1)
	}
}
