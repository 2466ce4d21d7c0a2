package main

import (
	"fmt"
	"io"
)

// peersTables writes the tables of an operation between the ranks of one host.
func peersTables(w io.Writer, p *page) {
	op := p.Ops[0]
	fmt.Fprintf(w, `# %s on one host, %s

Microseconds, float32 (sum), out of place; medians of %d alternating rounds of medians over calls. Every rank
rewrites its input and reads its output before each call, and the slower rank counts. A bytes column counts the
larger of a rank's two buffers. Ours: %s.

`, op, p.Date, p.Rounds, p.buffers())
	for _, n := range p.Ranks {
		fmt.Fprintf(w, "## %d ranks on %d processors\n\n", n, p.Cores)
		fmt.Fprintln(w, "| bytes | ours | Open MPI | MPICH | bound | better peer / ours | ours / bound | our path |")
		fmt.Fprintln(w, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
		r := rows{all: p.times, op: op, ranks: n}
		for _, s := range r.sizes() {
			our, bound := r.median("ours", s), r.median("bound", s)
			openmpi, mpich := r.median("openmpi", s), r.median("mpich", s)
			fmt.Fprintf(w, "| %d | %s | %s | %s | %s | %s | %s | %s |\n", s, cell(our), cell(openmpi), cell(mpich), cell(bound),
				cell(least(openmpi, mpich)/our), cell(our/bound), r.way("ours", s))
		}
		fmt.Fprintln(w)
	}
}
