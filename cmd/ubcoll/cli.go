package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// newFlags is the flags of a command, which parseFlags reads.
func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parseFlags reads a command's flags. The error is a usage error that names the nearest flag, or flag.ErrHelp after the
// usage went to help: what usage says, and the flags.
func parseFlags(fs *flag.FlagSet, args []string, usage string, help io.Writer) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(help, "Usage: ubcoll %s\n\n", strings.TrimSpace(usage))
		fs.VisitAll(func(f *flag.Flag) {
			value, text := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
				text += " (" + f.DefValue + ")"
			}
			printFlag(help, dashed(f.Name), value, text)
		})
		return err
	}
	if err != nil {
		return usageError("%s: %w", fs.Name(), unknownFlag(fs, err))
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

// dashed is a flag as help shows it; one dash and two mean the same.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// unknownFlag is err with the nearest flag, if it is about one that there is not.
func unknownFlag(fs *flag.FlagSet, err error) error {
	_, name, ok := strings.Cut(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	name = strings.TrimLeft(name, "-")
	var names []string
	fs.VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 { // all letters are near each other
			names = append(names, f.Name)
		}
	})
	hint := ""
	if near := nearest.Word(name, names); near != "" {
		hint = ": did you mean " + dashed(near) + "?"
	}
	return fmt.Errorf("unknown flag %s%s", dashed(name), hint)
}

// noArguments is an error if a command that takes none was given some.
func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return usageError("%s: unexpected argument %q", fs.Name(), fs.Arg(0))
	}
	return nil
}
