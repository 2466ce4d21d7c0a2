package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/ubcoll/ubcoll/internal/stats"
)

// machine has what the known times depend on.
type machine struct {
	ranks int
	graph bool
	nvls  bool // NCCL may use it
}

// known has times in microseconds of all-reduces of 16, 64, 256, ... bytes, measured once, in November 2026 on H200s
// with NVSwitch and without NVLS: the better of MSCCL++ 0.9.0 and NCCL 2.28.9, and the best of NCCL. 64 bytes were not measured.
var known = map[machine][][2]float64{
	{2, true, false}: {{3.40, 3.40}, {}, {3.35, 3.35}, {2.67, 3.50}, {3.71, 3.87}, {4.17, 4.17}, {4.54, 7.00}, {6.22, 8.05},
		{13.1, 14.32}, {28.36, 28.36}, {73.41, 73.41}, {237, 237}, {852, 852}, {3251, 3251}},
	{2, false, false}: {{7.05, 7.05}, {}, {6.49, 6.49}, {5.61, 6.84}, {6.46, 6.70}, {7.47, 7.47}, {6.18, 7.65}, {7.93, 9.17},
		{14.9, 14.95}, {34.64, 34.64}, {77.77, 77.77}, {248, 248}, {893, 894}, {3234, 3234}},
	{4, true, false}: {{3.69, 3.69}, {}, {3.72, 3.72}, {3.06, 3.88}, {3.51, 4.25}, {4.56, 4.56}, {5.51, 8.56}, {7.37, 10.84},
		{15.8, 17.19}, {34.29, 34.29}, {98.7, 99.15}, {310, 310}, {1181, 1181}, {4545, 4571}},
	{4, false, false}: {{8.42, 8.42}, {}, {9.70, 9.70}, {6.90, 9.85}, {5.96, 10.17}, {8.05, 11.29}, {7.01, 11.63}, {8.97, 12.06},
		{17.1, 19.09}, {42.22, 42.22}, {99.46, 99.46}, {320, 320}, {1180, 1180}, {4520, 4520}},
}

// scaled returns the known better time, scaled by the factor between NCCL's best time now and NCCL's known one. It is
// NaN where no time is known.
func scaled(op string, at machine, bytes int64, nccl float64) float64 {
	if op == "all_reduce" {
		for i, then := range known[at] {
			if bytes == 16<<(2*i) {
				return then[0] * nccl / then[1] // 0/0 is NaN
			}
		}
	}
	return math.NaN()
}

// bus returns how often a result's bytes cross the busiest link.
func bus(op string, ranks int) float64 {
	n := float64(ranks)
	switch op {
	case "all_reduce":
		return 2 * (n - 1) / n
	case "broadcast", "reduce", "sendrecv":
		return 1
	}
	return (n - 1) / n
}

// withoutNVLS and channelNVLS stand below what the columns of a page mean. Source of what NCCL's default is: NCCL's user guide,
// Environment Variables, NCCL_NVLS_ENABLE.
const (
	withoutNVLS = `NVLS (NVLink SHARP, by which the NVLink switch copies and adds up) was off for the peers too, because ubcoll has none
yet: NCCL ran with NCCL_NVLS_ENABLE=0. NCCL's default is to use it where the machine has it (H100, H200 and later GPUs
behind NVSwitch), in all-reduces, all-gathers and reduce-scatters. So none of these figures says "faster than NCCL's
default" there: docs/benchmarking.md, section NVLS, has what it changes, and how to measure with it.`
	withNVLS = `NCCL ran with NCCL_NVLS_ENABLE=%s: it may use NVLS (NVLink SHARP, by which the NVLink switch copies and adds up) where the
machine has it. ubcoll has none yet. docs/benchmarking.md, section NVLS, has what it changes.`
	channelNVLS = `NVLS, by which the NVLink switch copies and adds up, has no part in this: a channel is between two GPUs.`
)

func gpuTables(w io.Writer, p *page) {
	not, graph := " not", ", no graph"
	if p.Registered {
		not = ""
	}
	if p.Graphs > 0 {
		graph = fmt.Sprintf(" in a graph launched %d times (from 64 MiB a quarter)", p.Graphs)
	}
	peers, frontier, nvls := "NVLS and multicast are off for everyone.", `better of both, or for all-reduces what MSCCL++ 0.9.0, measured once on the same kind of machine, had at that size,
scaled by what the best NCCL has changed since.`, withoutNVLS
	if p.withNVLS() {
		peers, frontier, nvls = "NCCL may use NVLS, nobody else does.", "better of both.", fmt.Sprintf(withNVLS, p.NVLS)
	}
	fmt.Fprintf(w, `# %s on GPUs against NCCL and symmetric memory, %s

Microseconds, float32, sums, root 0; medians of %d rounds in turns, one process for each GPU, by nccl-tests'
method: means of %d calls%s, the slowest rank counts. Bytes are of all
ranks' parts together, where there are parts. %s Ours: buffers%s registered.
NCCL runs in the mode, and PyTorch's symmetric memory in the way, that was best at that size in a first round of all;
those whose names end in in-place, and two_shot, are in place, and so is every broadcast of ours. The frontier is the
%s Ratios above 1 mean that we are faster. GB/s are of the bus, as
nccl-tests counts them.

%s

`, strings.Join(p.Ops, ", "), p.Date, p.Rounds, p.Calls, graph, peers, not, frontier, nvls)
	var summary strings.Builder
	for _, n := range p.Ranks {
		for _, op := range p.Ops {
			fmt.Fprintf(w, "## %s, %d GPUs\n\n", op, n)
			gpuTable(w, &summary, rows{all: p.times, op: op, ranks: n}, machine{n, p.Graphs > 0, p.withNVLS()})
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, `## Summary

| GPUs | operation | sizes | NCCL / ours | frontier / ours | least | at bytes |
| ---: | --- | ---: | ---: | ---: | ---: | ---: |
%s
NCCL / ours and frontier / ours are geometric means over the sizes; least is the smallest frontier / ours.

`, summary.String())
}

// gpuTable writes the medians of an operation on one number of ranks to w, and its line of the summary to summary.
func gpuTable(w, summary io.Writer, r rows, on machine) {
	fmt.Fprintln(w, "| bytes | NCCL | its mode | symmetric memory | its way | frontier | ours | in place | frontier / ours | ours GB/s | our way |")
	fmt.Fprintln(w, "| ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |")
	var nccls, frontiers []float64 // ratios
	low, at := math.Inf(1), "-"
	for _, s := range r.sizes() {
		nccl, symmetric, our := r.median("nccl", s), r.median("symm-mem", s), r.median("ours", s)
		frontier := least(least(nccl, symmetric), scaled(r.op, on, s, nccl))
		if ratio := nccl / our; positive(ratio) {
			nccls = append(nccls, ratio)
		}
		ratio := frontier / our
		if positive(ratio) {
			frontiers = append(frontiers, ratio)
			if ratio < low {
				low, at = ratio, fmt.Sprint(s)
			}
		}
		fmt.Fprintf(w, "| %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", s, cell(nccl), r.way("nccl", s), cell(symmetric),
			r.way("symm-mem", s), cell(frontier), cell(our), cell(r.median("in-place", s)), fine(ratio),
			cell(float64(s)/our/1e3*bus(r.op, r.ranks)), r.way("ours", s))
	}
	if len(frontiers) == 0 {
		low = math.NaN()
	}
	fmt.Fprintf(summary, "| %d | %s | %d | %s | %s | %s | %s |\n", r.ranks, r.op, len(frontiers), fine(stats.GeometricMean(nccls)),
		fine(stats.GeometricMean(frontiers)), fine(low), at)
}
