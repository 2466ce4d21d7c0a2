// Package usage says what is wrong with a program's command line, and what would be right.
package usage

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Dashed returns a flag's name with its dashes, as our help texts show it. One dash and two mean the same.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

var (
	unknown = regexp.MustCompile(`^flag provided but not defined: -+(.*)$`)
	missing = regexp.MustCompile(`^flag needs an argument: -+(.*)$`)
	invalid = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-([^:]*): (.*)$`)
)

// Flag returns an error that replaces err, which fs.Parse returned. It says what would be right: the flag that the user
// probably meant, or the values that the flag takes.
func Flag(fs *flag.FlagSet, err error) error {
	text := err.Error()
	if m := unknown.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("unknown flag %s%s", Dashed(m[1]), meant(fs, m[1]))
	}
	if m := missing.FindStringSubmatch(text); m != nil {
		_, help := flag.UnquoteUsage(fs.Lookup(m[1]))
		return fmt.Errorf("%s needs a value: %s", Dashed(m[1]), help)
	}
	if m := invalid.FindStringSubmatch(text); m != nil {
		value, name, why := m[1], m[2], m[3]
		switch want := wanted(fs.Lookup(name)); {
		case want != "":
			return fmt.Errorf("%s %s: want %s", Dashed(name), value, want)
		case strings.Contains(why, value):
			return fmt.Errorf("%s: %s", Dashed(name), why)
		}
		return fmt.Errorf("%s %s: %s", Dashed(name), value, why)
	}
	return err
}

// meant returns a hint: the nearest flag, or how to list all flags.
func meant(fs *flag.FlagSet, name string) string {
	var names []string
	fs.VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 { // any single letter is near any other
			names = append(names, f.Name)
		}
	})
	if near := nearest.Word(name, names); near != "" {
		return ": did you mean " + Dashed(near) + "?"
	}
	return ": -h lists the flags"
}

// wanted says which values a flag takes; "" if the flag's own error says it.
func wanted(f *flag.Flag) string {
	g, ok := f.Value.(flag.Getter)
	if !ok {
		return ""
	}
	switch g.Get().(type) {
	case bool:
		return "true or false"
	case int:
		return "a whole number"
	case uint64:
		return "a whole number from 0"
	case time.Duration:
		return "a duration, as 30s or 10m"
	}
	return ""
}
