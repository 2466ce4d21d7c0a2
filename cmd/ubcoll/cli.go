package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/ubcoll/ubcoll/internal/usage"
)

// newFlags is the flags of a command, which parseFlags reads.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parseFlags reads a command's flags. The error is a usage error that names the nearest flag, or flag.ErrHelp after the
// usage went to help: text, and the flags.
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

// printFlag is how every command's help shows a flag; completions are made of these lines.
func printFlag(w io.Writer, names, value, text string) {
	if value != "" {
		names += " " + value
	}
	fmt.Fprintf(w, "  %s\n\t%s\n", names, text)
}

// noArguments is an error if a command that takes none was given some.
func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return usageError("%s: unexpected argument %q: -h lists what it takes", fs.Name(), fs.Arg(0))
	}
	return nil
}
