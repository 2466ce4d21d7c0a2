package main

import (
	"fmt"
	"io"
)

// goals are the rows of the channels' table. tutorial is the time in microseconds that MSCCL++ 0.9.0's tutorial
// (bidir_memory_channel, 1000 launches in a graph) took in November 2026 on H200s with NVSwitch. The goal is at most
// atMost microseconds, or at least rate GB/s.
var goals = []struct {
	op           string
	bytes        int64
	tutorial     float64
	atMost, rate float64
}{
	{"put", 1 << 10, 6.79, 5.0, 0},
	{"put", 1 << 20, 9.43, 8.5, 0},
	{"put", 128 << 20, 388, 0, 355},
	{"get", 1 << 10, 4.76, 4.76, 0},
	{"get", 1 << 20, 7.73, 7.73, 0},
	{"get", 128 << 20, 416, 416, 0},
	{"packet", 1 << 10, 4.09, 4.09, 0},
	{"packet", 1 << 20, 10.4, 10.4, 0},
	{"packet", 128 << 20, 1006, 1006, 0},
}

func channelTables(w io.Writer, p *page) {
	fmt.Fprintf(w, `# Memory channels on GPUs, %s

Microseconds a call, medians of %d rounds; both ranks at once, synchronized before a put and after it, but
only before a get, whose data do not change between calls, as in MSCCL++'s tutorial, whose figures are of another
day: means of %d calls in a graph launched %d times, the slower rank counts. One process for each GPU.
hw/cuda captures the graph, and so kernels are launched early; in captures of other libraries they are not.

%s

| | bytes | MSCCL++ tutorial | ours | tutorial / ours | ours GB/s | wanted | |
| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |
`, p.Date, p.Rounds, p.Calls, p.Graphs, channelNVLS)
	for _, g := range goals {
		us := rows{all: p.times, op: g.op, ranks: 2}.median("ours", g.bytes)
		our, ratio, rate, verdict := "-", "-", "-", "-"
		wanted := fmt.Sprintf("at most %v us", g.atMost)
		if g.rate > 0 {
			wanted = fmt.Sprintf("at least %v GB/s", g.rate)
		}
		if us > 0 {
			gbs := float64(g.bytes) / us / 1e3
			our, ratio, rate = fmt.Sprintf("%.2f", us), fmt.Sprintf("%.2f", g.tutorial/us), fmt.Sprintf("%.1f", gbs)
			verdict = "missed"
			if g.rate > 0 && gbs >= g.rate || us <= g.atMost {
				verdict = "met"
			}
		}
		fmt.Fprintf(w, "| %s | %d | %v | %s | %s | %s | %s | %s |\n", g.op, g.bytes, g.tutorial, our, ratio, rate, wanted, verdict)
	}
	fmt.Fprintln(w)
}
