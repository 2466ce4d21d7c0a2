package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/ubcoll/ubcoll/internal/usage"
)

// newFlags returns an empty set of flags for a command. parseFlags parses it.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// flagGroup is a part of a command's help: flags under a heading. An entry is a flag's name, or several with spaces
// between that mean the same.
type flagGroup struct {
	heading string
	flags   []string
}

// flagGroups has the groups of commands with many flags. Every flag is in one of them.
var flagGroups = map[string][]flagGroup{"bench": benchGroups, "run": runGroups}

// parseFlags parses a command's flags. A usage error names the nearest flag. If the user asks for help, parseFlags
// writes text and the flags to help, and returns flag.ErrHelp.
func parseFlags(fs *flag.FlagSet, args []string, text string, help io.Writer) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(help, "Usage: ubcoll %s\n\n", strings.TrimSpace(text))
		printFlags(help, fs)
		return err
	}
	if err != nil {
		return usageError("%s: %w", fs.Name(), usage.Flag(fs, err))
	}
	return nil
}

// printFlags writes the flags of a command, in its groups if it has some.
func printFlags(w io.Writer, fs *flag.FlagSet) {
	groups := flagGroups[fs.Name()]
	if groups == nil {
		fs.VisitAll(func(f *flag.Flag) { printFlag(w, fs, f.Name) })
	}
	for i, g := range groups {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s:\n", g.heading)
		for _, names := range g.flags {
			printFlag(w, fs, strings.Fields(names)...)
		}
	}
}

// printFlag writes a flag, which may have several names. flagLines reads these lines for completions.
func printFlag(w io.Writer, fs *flag.FlagSet, names ...string) {
	f := fs.Lookup(names[0])
	value, what := flag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
		what += " (" + f.DefValue + ")"
	}
	for i, n := range names {
		names[i] = usage.Dashed(n)
	}
	line := strings.Join(names, ", ")
	if value != "" {
		line += " " + value
	}
	fmt.Fprintf(w, "  %s\n\t%s\n", line, what)
}

// noArguments returns an error if the user gave arguments to a command that takes none.
func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return usageError("%s: unexpected argument %q: -h lists what it takes", fs.Name(), fs.Arg(0))
	}
	return nil
}
