// Package chart makes figures of results. It reads files of ubcoll run, of ubcoll bench and of the benchmark scripts,
// sums up repeats, and describes figures for a drawing program. It also writes the report in HTML. Everything in it is
// local.
package chart

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Everything that a measurement depends on, except its size. Measurements with the same values form a series.
const (
	theRun = iota
	contender
	operation
	variant
	elements
	reduction
	ranks
	hosts
	root
	algorithm
	registration
	device
	wire
	graphs
	inPlace
	protocol
	average
	axesCount
)

// axes has the name of each axis, on the command line and in points.csv, and the text of its values in a figure. If all
// series have the usual value, a figure does not mention it.
var axes = [axesCount]struct {
	name, usual string
	say         func(value string) string
}{
	theRun: {"run", "", as("%s")},
	contender: {"contender", "", words(map[string]string{"ours": "ubcoll", "in-place": "ubcoll, in place",
		"unregistered": "ubcoll, unregistered", "openmpi": "Open MPI", "mpich": "MPICH", "sockets": "sockets", "nccl": "NCCL", "symm-mem": "symmetric memory",
		"bound": "the hardware's bound"})},
	operation: {"operation", "", as("%s")},
	variant:   {"variant", "", as("%s")},
	elements:  {"type", "", as("%s")},
	reduction: {"reduction", "", as("%s")},
	ranks:     {"ranks", "", words(map[string]string{"1": "1 rank"}, "%s ranks")},
	hosts:     {"hosts", "", as("%s hosts")},
	root:      {"root", "0", as("root %s")},
	algorithm: {"algorithm", "auto", words(map[string]string{"auto": "the library's choice"})},
	registration: {"registration", "", words(map[string]string{"explicit": "registered", "auto": "registered by the library", "off": "staged", "slices": "Go slices",
		"none": "not registered"})},
	device:   {"device", "", words(map[string]string{"host": "host memory", "cuda": "GPUs"})},
	wire:     {"wire", "", as("%s")},
	graphs:   {"graph", "0", words(map[string]string{"0": "without graph", "1": "graph launched once"}, "graph launched %s times")},
	inPlace:  {"in_place", "false", words(map[string]string{"false": "out of place", "true": "in place"})},
	protocol: {"protocol", "each", words(map[string]string{"each": "calls one by one", "loop": "calls back to back"})},
	average:  {"average", "max", words(map[string]string{"max": "slowest rank", "min": "fastest rank", "avg": "mean of the ranks", "rank0": "rank 0"})},
}

func as(format string) func(string) string {
	return func(v string) string { return fmt.Sprintf(format, v) }
}

// words returns the text of a value from a table, and for a value that the table lacks, from a format.
func words(table map[string]string, other ...string) func(string) string {
	return func(v string) string {
		return cmp.Or(table[v], fmt.Sprintf(append(other, "%s")[0], v))
	}
}

// Only selects the measurements that have one of its values on its axis.
type Only struct {
	axis   int
	values []string
}

// ParseOnly parses "AXIS=VALUE,...".
func ParseOnly(text string) (Only, error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || list == "" {
		return Only{}, fmt.Errorf("%q: want an axis and its values, as ranks=2,4", text)
	}
	var names []string
	for i, a := range axes {
		if a.name == name {
			return Only{i, strings.Split(list, ",")}, nil
		}
		names = append(names, a.name)
	}
	return Only{}, errors.New(nearest.Unknown("axis", name, names))
}

// says returns choices as text for an error.
func says(choices []Only) (text string) {
	for _, o := range choices {
		text += " and " + axes[o.axis].name + "=" + strings.Join(o.values, ",")
	}
	return text
}

// choose returns the samples that all choices select. A value that no sample has is an error.
func choose(samples []sample, choices []Only) ([]sample, error) {
	for _, o := range choices {
		have := valuesOf(samples, o.axis)
		for _, v := range o.values {
			if !slices.Contains(have, v) {
				return nil, fmt.Errorf("no measurement has %s=%s: there is %s%s", axes[o.axis].name, v,
					cmp.Or(strings.Join(have, ", "), "nothing of it"), nearest.Hint(v, have))
			}
		}
		samples = slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return !slices.Contains(o.values, s.key[o.axis]) })
	}
	return samples, nil
}

// valuesOf returns the values that samples have on an axis, each once, in the order of the samples.
func valuesOf(samples []sample, axis int) (values []string) {
	seen := map[string]bool{"": true}
	for _, s := range samples {
		if v := s.key[axis]; !seen[v] {
			seen[v] = true
			values = append(values, v)
		}
	}
	return values
}
