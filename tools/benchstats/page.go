package main

import (
	"fmt"
	"math"
	"strings"
)

// page has what a script says about a run, and the samples.
type page struct {
	Date       string
	Ops        []string
	Ranks      []int
	Rounds     int
	Calls      int
	Graphs     int
	Registered bool
	NVLS       string // NCCL_NVLS_ENABLE as NCCL had it
	Cores      int

	Command, Commit, Machine string
	Note                     string

	Samples, First string
	times          measured
}

// how returns the end of every page: the command that repeats the run, the commit, the machine, and all samples.
func (p *page) how() string {
	var b strings.Builder
	ranks := "ranks"
	for k := range p.times {
		if k.hosts > 0 {
			ranks = "hosts x ranks"
		}
	}
	fmt.Fprintf(&b, "## How\n\n```\n%s\n```\n\nCommit %s.\n\n```\n%s\n```\n\n", p.Command, p.Commit, strings.TrimRight(p.Machine, "\n"))
	fmt.Fprintf(&b, "## Samples\n\nOperation, contender, %s, bytes, microseconds, way.\n\n```\n%s\n```\n", ranks, strings.TrimRight(p.Samples, "\n"))
	if first := strings.TrimRight(p.First, "\n"); first != "" {
		fmt.Fprintf(&b, "\nThe first round, with a quarter of the launches:\n\n```\n%s\n```\n", first)
	}
	return b.String()
}

// withNVLS reports whether NCCL could use NVLS.
func (p *page) withNVLS() bool { return p.NVLS != "0" }

// buffers says which kind of buffers ours were.
func (p *page) buffers() string {
	if p.Registered {
		return "registered buffers"
	}
	return "Go slices"
}

// cell formats a time or a rate for a table; "-" if there is none.
func cell(x float64) string {
	switch {
	case !positive(x):
		return "-"
	case x < 100:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// fine formats a ratio with three decimals; "-" if there is none.
func fine(x float64) string {
	if !positive(x) {
		return "-"
	}
	return fmt.Sprintf("%.3f", x)
}

// positive reports whether x is a proper value. A missing time is NaN, and a ratio to a time of 0 is infinite.
func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

// least returns the smaller of two times, either or both of which may be missing.
func least(a, b float64) float64 {
	if positive(a) && !(positive(b) && b <= a) {
		return a
	}
	return b
}
