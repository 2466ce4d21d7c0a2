package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/internal/stats"
)

// hostsPeers are the peers between hosts, in the order of columns. An MPI's time counts for the best MPI.
var hostsPeers = []struct {
	contender, name, how string
	mpi                  bool
}{
	{"openmpi", "Open MPI", "Open MPI with btl tcp,self, and vader within hosts of several ranks.", true},
	{"mpich", "MPICH", "MPICH with UCX_TLS=tcp,self, and its own shared memory within hosts of several ranks.", true},
	{"gloo", "gloo", "gloo with its TCP transport and default algorithms.", false},
	{"sockets", "sockets", "A program that polls two sockets, without any library.", false},
}

// layout is how many hosts there are, and ranks on all of them.
type layout struct{ hosts, ranks int }

func (l layout) String() string {
	if l.hosts == 0 {
		return fmt.Sprint(l.ranks)
	}
	return fmt.Sprintf("%d x %d", l.hosts, l.ranks/l.hosts)
}

// point is what is compared: an operation of one size in one layout.
type point struct {
	layout
	op    string
	bytes int64
}

// halfTrip is what is no operation of ours: half the round trip of 8 bytes between two polling sockets.
const halfTrip = "half_trip"

// points returns what was measured, in the order of tables.
func (m measured) points() []point {
	var all []point
	for k := range m {
		if k.op != halfTrip {
			all = append(all, point{layout{k.hosts, k.ranks}, k.op, k.bytes})
		}
	}
	slices.SortFunc(all, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hosts, b.hosts), cmp.Compare(a.ranks, b.ranks), cmp.Compare(a.op, b.op), cmp.Compare(a.bytes, b.bytes))
	})
	return slices.Compact(all)
}

// versus is a column of ratios: a peer's time / ours.
type versus struct {
	name string
	time func(point) float64
}

// hostsMessages says what the time of an operation is that is no collective.
var hostsMessages = map[string]string{
	"pingpong": "pingpong: half a round trip.",
	"sendrecv": "sendrecv: each rank sends to the next one and receives from the one before it.",
	"mbw_mr": "mbw_mr: 64 messages in flight from each rank of the first half to one of the second, and an answer; the time is\n" +
		"that of all divided by 64.",
	"put_bw": "put_bw: 64 puts from each rank of the first half to one place of a rank of the second, and a flush; the time is that\n" +
		"of all divided by 64. Sockets send as many bytes, and 8 come back.",
}

// hostsTables writes the tables of collectives and messages between hosts: geometric means by layout and operation, all points,
// and how many of them are slower than a peer.
func hostsTables(w io.Writer, p *page) {
	time := func(pt point, contender string) float64 {
		return rows{all: p.times, op: pt.op, ranks: pt.ranks, hosts: pt.hosts}.median(contender, pt.bytes)
	}
	points := p.times.points()
	var ops, hows []string
	var peers, against []versus
	mpis := 0
	for _, pt := range points {
		ops = append(ops, pt.op)
	}
	slices.Sort(ops)
	ops = slices.Compact(ops)
	for _, peer := range hostsPeers {
		if !slices.ContainsFunc(points, func(pt point) bool { return positive(time(pt, peer.contender)) }) {
			continue
		}
		peers = append(peers, versus{peer.name, func(pt point) float64 { return time(pt, peer.contender) }})
		hows = append(hows, peer.how)
		if peer.mpi {
			mpis++
		}
	}
	against = peers
	if mpis > 1 {
		against = append(slices.Clip(peers), versus{"the best MPI", func(pt point) float64 { return least(time(pt, "openmpi"), time(pt, "mpich")) }})
	}
	var messages []string
	for _, op := range ops {
		if how := hostsMessages[op]; how != "" {
			messages = append(messages, how)
		}
	}
	what, data := "Collectives", "float32 (sum), out of place"
	switch {
	case len(messages) == len(ops):
		what, data = "Messages", "float32"
	case len(messages) > 0:
		what = "Collectives and messages"
	}
	hows = append(messages, hows...)
	if len(ops) == 1 {
		what = ops[0]
	}
	fmt.Fprintf(w, `# %s between hosts, %s

Microseconds, %s; medians of %d alternating rounds of medians over calls; the slowest rank counts.
Hosts are network namespaces on one machine, joined by veth links of MTU 1500, TCP with cubic. Ours: %s.
%s
Ratios are a peer's time / ours: above 1 means that we are faster.

`, what, p.Date, data, p.Rounds, p.buffers(), strings.Join(hows, "\n"))
	means(w, p, points, ops, against)
	fmt.Fprintln(w)
	for _, a := range against {
		slower, n := 0, 0
		for _, pt := range points {
			if r := a.time(pt) / time(pt, "ours"); positive(r) {
				n++
				if r < 1 {
					slower++
				}
			}
		}
		fmt.Fprintf(w, "- Slower than %s: %d of %d points.\n", a.name, slower, n)
	}
	const smallest = 8
	if trip := stats.Median(p.times.of(halfTrip)); positive(trip) {
		fmt.Fprintf(w, "\nHalf the round trip of 8 bytes between two polling sockets: %s us.", cell(trip))
		for _, op := range []string{"all_reduce", "pingpong"} {
			if us := time(point{layout{2, 2}, op, smallest}, "ours"); positive(us) {
				fmt.Fprintf(w, " Our %s of 8 bytes between 2 x 1 takes %s times that.", op, cell(us/trip))
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\n## All points\n\n| hosts x ranks | operation | bytes | ours |")
	for _, peer := range peers {
		fmt.Fprintf(w, " %s |", peer.name)
	}
	heads(w, against)
	fmt.Fprintf(w, " our way |\n| --- | --- | ---: | ---: |%s --- |\n", strings.Repeat(" ---: |", len(peers)+len(against)))
	for _, pt := range points {
		our := time(pt, "ours")
		fmt.Fprintf(w, "| %s | %s | %d | %s |", pt.layout, pt.op, pt.bytes, cell(our))
		for _, peer := range peers {
			fmt.Fprintf(w, " %s |", cell(peer.time(pt)))
		}
		for _, a := range against {
			fmt.Fprintf(w, " %s |", cell(a.time(pt)/our))
		}
		fmt.Fprintf(w, " %s |\n", rows{all: p.times, op: pt.op, ranks: pt.ranks, hosts: pt.hosts}.way("ours", pt.bytes))
	}
	fmt.Fprintf(w, "\n%s\n", p.Note)
}

// means writes the geometric means of ratios by layout and operation, of all layouts by operation, and of all.
func means(w io.Writer, p *page, points []point, ops []string, against []versus) {
	fmt.Fprint(w, "## Geometric means\n\n| hosts x ranks | operation |")
	heads(w, against)
	fmt.Fprintf(w, "\n| --- | --- |%s\n", strings.Repeat(" ---: |", len(against)))
	row := func(where, op string, in func(point) bool) {
		fmt.Fprintf(w, "| %s | %s |", where, op)
		for _, a := range against {
			var ratios []float64
			for _, pt := range points {
				our := rows{all: p.times, op: pt.op, ranks: pt.ranks, hosts: pt.hosts}.median("ours", pt.bytes)
				if r := a.time(pt) / our; positive(r) && in(pt) {
					ratios = append(ratios, r)
				}
			}
			fmt.Fprintf(w, " %s |", cell(stats.GeometricMean(ratios)))
		}
		fmt.Fprintln(w)
	}
	last := point{}
	for _, pt := range points {
		if pt.layout != last.layout || pt.op != last.op {
			row(pt.layout.String(), pt.op, func(o point) bool { return o.layout == pt.layout && o.op == pt.op })
		}
		last = pt
	}
	for _, op := range ops {
		row("all", op, func(o point) bool { return o.op == op })
	}
	if len(ops) > 1 {
		row("all", "all", func(point) bool { return true })
	}
}

func heads(w io.Writer, against []versus) {
	for _, a := range against {
		fmt.Fprintf(w, " %s / ours |", strings.TrimPrefix(a.name, "the "))
	}
}

// of returns all times of an operation, whoever did it.
func (m measured) of(op string) (us []float64) {
	for k, t := range m {
		if k.op == op {
			us = append(us, t.us...)
		}
	}
	return us
}
