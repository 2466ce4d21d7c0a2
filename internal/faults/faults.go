// Package faults lets a rank fail on request, so that programs can test what they do then. UBCOLL_FAULT says how.
package faults

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Action is what happens to a rank.
type Action string

// The actions.
const (
	Kill Action = "kill" // its process gets SIGKILL
	Stop Action = "stop" // its process gets SIGSTOP, and SIGCONT after Fault.For if that is not 0
	Slow Action = "slow" // each of its operations begins Fault.By later, for Fault.For if that is not 0
	Cut  Action = "cut"  // its connections to other hosts fall silent, as when a cable is pulled
)

// Fault is one entry of the variable: what happens to which rank, and when.
type Fault struct {
	Action Action
	Rank   int // in the job
	// It happens before the rank's operation with the number Operations, from 0; or, if Timed, when Open returned that
	// long ago.
	Operations int
	Timed      bool
	Time       time.Duration
	For        time.Duration
	By         time.Duration
}

// actions are the actions in the order of error texts, with the keys of each.
var actions = []struct {
	name Action
	keys []string
}{
	{Kill, []string{"rank", "after"}},
	{Stop, []string{"rank", "after", "for"}},
	{Slow, []string{"rank", "after", "for", "by"}},
	{Cut, []string{"rank", "after"}},
}

// Parse reads entries of the form ACTION:KEY=VALUE,... with semicolons between them. Its error names the entry, and says what
// is possible.
func Parse(s string) ([]Fault, error) {
	var all []Fault
	for entry := range strings.SplitSeq(s, ";") {
		entry = strings.TrimSpace(entry)
		f, err := parse(entry)
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", entry, err)
		}
		all = append(all, f)
	}
	return all, nil
}

func parse(entry string) (f Fault, err error) {
	word, settings, _ := strings.Cut(entry, ":")
	var names, keys []string
	for _, a := range actions {
		names = append(names, string(a.name))
		if string(a.name) == word {
			f.Action, keys = a.name, a.keys
		}
	}
	if f.Action == "" {
		return f, errors.New("want an action and its rank, as kill:rank=2: the actions are " + strings.Join(names, ", ") +
			meant(word, names))
	}
	var given []string
	for setting := range strings.SplitSeq(settings, ",") {
		key, value, _ := strings.Cut(setting, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !slices.Contains(keys, key):
			return f, fmt.Errorf("%q: the keys of %s are %s, each as rank=2%s", setting, word, strings.Join(keys, ", "), meant(key, keys))
		case slices.Contains(given, key):
			return f, fmt.Errorf("%s is there twice", key)
		}
		given = append(given, key)
		if err := f.set(key, value); err != nil {
			return f, fmt.Errorf("%s=%s: %w", key, value, err)
		}
	}
	for _, key := range []string{"rank", "by"} {
		if slices.Contains(keys, key) && !slices.Contains(given, key) {
			return f, fmt.Errorf("%s needs %s", word, key)
		}
	}
	return f, nil
}

func meant(word string, known []string) string {
	if near := nearest.Word(word, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

func (f *Fault) set(key, value string) (err error) {
	switch key {
	case "rank":
		f.Rank, err = count(value)
	case "after":
		if f.Operations, err = count(value); err == nil {
			return nil
		}
		f.Timed = true
		if f.Time, err = time.ParseDuration(value); err != nil || f.Time < 0 {
			return errors.New("want a number of operations, from 0, or a time, as 2s")
		}
	case "for":
		f.For, err = duration(value)
	case "by":
		f.By, err = duration(value)
	}
	return err
}

func count(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, errors.New("want a whole number, from 0")
	}
	return n, nil
}

func duration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("want a time over zero, as 2s or 100us")
	}
	return d, nil
}

// String is the entry, with its defaults.
func (f Fault) String() string {
	s := fmt.Sprintf("%s:rank=%d,after=%d", f.Action, f.Rank, f.Operations)
	if f.Timed {
		s = fmt.Sprintf("%s:rank=%d,after=%v", f.Action, f.Rank, f.Time)
	}
	if f.For > 0 {
		s += fmt.Sprintf(",for=%v", f.For)
	}
	if f.By > 0 {
		s += fmt.Sprintf(",by=%v", f.By)
	}
	return s
}
