package main

import (
	"fmt"
	"math"
	"strings"
)

// page is what a script says of a run, and its samples.
type page struct {
	Date       string
	Ops        []string
	Ranks      []int
	Rounds     int
	Calls      int
	Graphs     int
	Registered bool
	Cores      int

	Command, Commit, Machine string
	Note                     string

	Samples, First string
	times          measured
}

// how is the end of every page: what repeats the run, where it ran, and what was measured.
func (p *page) how() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## How\n\n```\n%s\n```\n\nCommit %s.\n\n```\n%s\n```\n\n", p.Command, p.Commit, strings.TrimRight(p.Machine, "\n"))
	fmt.Fprintf(&b, "## Samples\n\nOperation, contender, ranks, bytes, microseconds, way.\n\n```\n%s\n```\n", strings.TrimRight(p.Samples, "\n"))
	if first := strings.TrimRight(p.First, "\n"); first != "" {
		fmt.Fprintf(&b, "\nThe first round, with a quarter of the launches:\n\n```\n%s\n```\n", first)
	}
	return b.String()
}

// buffers says which ones were ours.
func (p *page) buffers() string {
	if p.Registered {
		return "registered buffers"
	}
	return "Go slices"
}

// cell is a time or a rate in a table; what there is not is "-".
func cell(x float64) string {
	switch {
	case !positive(x):
		return "-"
	case x < 100:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// fine is a ratio to three places.
func fine(x float64) string {
	if !positive(x) {
		return "-"
	}
	return fmt.Sprintf("%.3f", x)
}

// positive is whether there is x: what has no time is NaN, and a ratio to a time of 0 is infinite.
func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

// least is the smaller of two times, of which there may be one or none.
func least(a, b float64) float64 {
	if positive(a) && !(positive(b) && b <= a) {
		return a
	}
	return b
}
