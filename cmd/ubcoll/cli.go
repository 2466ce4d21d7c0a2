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

// parseFlags parses a command's flags. A usage error names the nearest flag. If the user asks for help, parseFlags
// writes text and the flags to help, and returns flag.ErrHelp.
func parseFlags(fs *flag.FlagSet, args []string, text string, help io.Writer) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(help, "Usage: ubcoll %s\n\n", strings.TrimSpace(text))
		fs.VisitAll(func(f *flag.Flag) {
			value, what := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
				what += " (" + f.DefValue + ")"
			}
			printFlag(help, usage.Dashed(f.Name), value, what)
		})
		return err
	}
	if err != nil {
		return usageError("%s: %w", fs.Name(), usage.Flag(fs, err))
	}
	return nil
}

// printFlag writes a flag as every command's help shows it. flagLines reads these lines for completions.
func printFlag(w io.Writer, names, value, text string) {
	if value != "" {
		names += " " + value
	}
	fmt.Fprintf(w, "  %s\n\t%s\n", names, text)
}

// noArguments returns an error if the user gave arguments to a command that takes none.
func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return usageError("%s: unexpected argument %q: -h lists what it takes", fs.Name(), fs.Arg(0))
	}
	return nil
}
