package rdma

import (
	"fmt"
	"io"
)

// text writes the tables: perftest's columns, and lines of text that begin with "#".
type text struct {
	w   io.Writer
	err error
}

func (t *text) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *text) header(r *Report) {
	t.printf("# ubcoll version %s\n# RDMA test starting: mr\n#\n# Using devices\n", r.Version)
	for _, s := range r.Ranks {
		t.printf("#  Rank %d Pid %6d on %10s device %s:%d [%s] %s, MTU %d, up to %d bytes inline\n", s.Rank, s.PID, s.Hostname,
			s.Device, s.Port, s.GID, s.Link, s.MTU, s.Inline)
	}
}

func (t *text) registrations() {
	t.printf("#\n# registration: of memory whose pages are there, of memory that nobody has touched, and a hit in the cache; medians\n")
	t.printf("# %10s  %11s  %20s  %22s  %21s  %23s  %9s\n", "#bytes", "#iterations", "resident: reg[usec]", "resident: dereg[usec]",
		"untouched: reg[usec]", "untouched: dereg[usec]", "hit[nsec]")
}

func (t *text) registration(r *Registration) {
	t.printf("  %10d  %11d  %20.2f  %22.2f  %21.2f  %23.2f  %9.1f\n", r.Bytes, r.Resident.Register.Calls, r.Resident.Register.Median,
		r.Resident.Deregister.Median, r.Untouched.Register.Median, r.Untouched.Deregister.Median, r.Hit.P50)
}

func (t *text) latencies(op, perftest string) {
	t.printf("#\n# %s latency, as %s\n", op, perftest)
	t.printf("# %10s  %11s  %11s  %11s  %15s  %11s  %13s  %20s  %22s\n", "#bytes", "#iterations", "t_min[usec]", "t_max[usec]",
		"t_typical[usec]", "t_avg[usec]", "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]")
}

func (t *text) latency(l *Latency) {
	t.printf("  %10d  %11d  %11.2f  %11.2f  %15.2f  %11.2f  %13.2f  %20.2f  %22.2f\n", l.Bytes, l.Calls, l.Min, l.Max, l.Median,
		l.Mean, l.StdDev, l.P99, l.P999)
}

func (t *text) bandwidths(op, perftest string) {
	t.printf("#\n# %s bandwidth, %d outstanding, as %s -t %d\n", op, outstanding, perftest, outstanding)
	t.printf("# %10s  %11s  %16s  %19s  %14s\n", "#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]")
}

func (t *text) bandwidth(b *Bandwidth) {
	t.printf("  %10d  %11d  %16.2f  %19.2f  %14.6f\n", b.Bytes, b.Iterations, b.Peak, b.Average, b.Rate)
}

func (t *text) footer(r *Report) {
	verdict := "OK"
	if r.Wrong > 0 {
		verdict = "FAILED"
	}
	t.printf("#\n# %-20s : %d %s\n# RDMA test concluded: mr\n", "Wrong words", r.Wrong, verdict)
}
