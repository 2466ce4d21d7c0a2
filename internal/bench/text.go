package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/stats"
)

// text writes nccl-tests' table byte for byte, because scrapers count columns from the right and look for words of the
// footer. Everything that nccl-tests does not print is on lines of its own that begin with "#".
type text struct {
	w        io.Writer
	progress io.Writer // or nil
	cfg      *Config
	asked    string // the algorithm; "" = the library chooses
	later    bool   // another table stands above, with the version and the devices
	beat     int    // the length of the line on progress
	err      error
}

func (t *text) printf(format string, args ...any) {
	if t.err == nil {
		t.heartbeat("")
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// heartbeat replaces the line on progress, or with "" removes it.
func (t *text) heartbeat(format string, args ...any) {
	if t.progress == nil {
		return
	}
	line := fmt.Sprintf(format, args...)
	if t.beat > 0 {
		fmt.Fprintf(t.progress, "\r%*s\r", t.beat, "")
	}
	fmt.Fprint(t.progress, line)
	t.beat = len(line)
}

func (t *text) header(r *Report) {
	c := t.cfg
	t.asked = r.Config.Algorithm
	if !t.later {
		t.printf("# ubcoll version %s\n", r.Version)
	}
	t.printf("# Collective test starting: %s\n", c.Op)
	step, unit := c.StepBytes, "bytes"
	if c.StepFactor > 1 {
		step, unit = c.StepFactor, "factor"
	}
	warmup, timed := c.calls(c.MinBytes)
	t.printf("# nThread %d nGpus 1 minBytes %d maxBytes %d step: %d(%s) warmup iters: %d iters: %d agg iters: %d "+
		"validation: %d graph: %d unalign: 0\n", r.Config.Threads, c.MinBytes, c.MaxBytes, step, unit, warmup, timed,
		c.Aggregate, c.Checks, c.Graphs)
	if c.PerCall {
		t.printf("# Per-Iteration Report: host clock timing; i_* uses %s over ranks\n", r.Config.Average)
	}
	if t.asked != "" {
		of := ""
		if !t.hasAsked() {
			of = ", which " + c.Op + " does not have"
		}
		t.printf("# Algorithm asked for: %s%s\n", t.asked, of)
	}
	if t.later {
		return
	}
	if r.Config.NVLS != "" {
		t.printf("# NVLS: %s\n", r.Config.NVLS)
	}
	t.printf("#\n# Using devices\n")
	for _, i := range r.Ranks {
		t.printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", i.Rank, 0, i.PID, i.Hostname,
			i.Index, strings.TrimSuffix(i.PCI, ".0"), i.Name)
	}
}

// leftOut says which variants are not measured, since there are none on devices of several hosts.
func (t *text) leftOut(variants []string) {
	if len(variants) > 0 {
		t.printf("#\n# Left out: %s on devices of several hosts (on host memory: -device host): not supported\n", strings.Join(variants, ", "))
	}
}

func (t *text) columns() {
	stamp, stampFormat, width := "", "", 0
	if t.cfg.Timestamps {
		stamp, stampFormat, width = "timestamp", "%Y-%m-%d %H:%M:%S", 19
	}
	title := "           out-of-place                       in-place          "
	names := []any{"time", "algbw", "busbw", "#wrong"}
	units := []any{"(us)", "(GB/s)", "(GB/s)", ""}
	format := "  %7s  %6s  %6s  %6s"
	if t.cfg.PerCall {
		title = "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
		names = append(names, "i_min", "i_max", "i_p99", "i_cv%")
		units = append(units, "(us)", "(us)", "(us)", "(%)")
		format += "  %7s  %7s  %7s  %7s"
	}
	first := "# %10s  %12s  %8s  %6s  %6s"
	line := func(left []any, right []any, last, more string) {
		all := slices.Concat(left, right, right, []any{width, last})
		t.printf(first+format+format+" %*s%s\n", append(all, more)...)
	}
	explained := ""
	if t.cfg.Explain {
		explained = explain(func(c *explainedColumn) string { return c.name })
	}
	if t.cfg.Explain && t.cfg.Timestamps { // nccl-tests' rows are longer than its header, without them shorter
		explained = " " + explained
	}
	t.printf("#\n"+first+"%s\n", "", "", "", "", "", title)
	line([]any{"size", "count", "type", "redop", "root"}, names, stamp, explained)
	line([]any{"(B)", "(elements)", "", "", ""}, units, stampFormat, "")
}

func (t *text) row(r *Row) {
	var b strings.Builder
	fmt.Fprintf(&b, "%12d  %12d  %8s  %6s  %6d", r.Size, r.Count, r.Type, r.Reduction, r.Root)
	for _, v := range []*Result{r.Out, r.In} {
		if v == nil { // print zeros, so that scrapers can count columns
			v = &Result{Spread: &stats.Spread{}}
		}
		wrong := "   N/A"
		if v.Wrong != nil {
			wrong = fmt.Sprintf("%6.6g", float64(*v.Wrong))
		}
		fmt.Fprintf(&b, "  %7s  %6s  %6s  %s", number(v.Time, 7), number(v.AlgBW, 6), number(v.BusBW, 6), wrong)
		if s := v.Spread; t.cfg.PerCall {
			fmt.Fprintf(&b, "  %7s  %7s  %7s  %7s", number(s.Min, 7), number(s.Max, 7), number(s.P99, 7), number(s.CV, 7))
		}
	}
	if t.cfg.Timestamps {
		fmt.Fprintf(&b, "%21s", time.Now().Format(time.DateTime))
	}
	if t.cfg.Explain {
		if !t.cfg.Timestamps { // see columns
			b.WriteByte(' ')
		}
		b.WriteString(explain(func(c *explainedColumn) string { return c.of(r) }))
	}
	t.printf("%s\n", b.String())
	t.other(r)
	if t.cfg.Paths {
		t.path("out-of-place", r.Out)
		t.path("in-place", r.In)
	}
}

// hasAsked reports whether the operation can take the algorithm that was asked for, on one host or between hosts.
func (t *text) hasAsked() bool { return slices.Contains(Algorithms(t.cfg.Op), t.asked) }

// other prints a line if another algorithm ran than the one that was asked for.
func (t *text) other(r *Row) {
	if t.asked == "" || !t.hasAsked() {
		return
	}
	var took []string
	for _, v := range []struct {
		name string
		*Result
	}{{"out-of-place", r.Out}, {"in-place", r.In}} {
		if v.Result != nil && !strings.Contains(v.Algorithm, t.asked) { // as in "two-shot, pushed"
			took = append(took, v.name+" "+strings.TrimSpace(v.Algorithm))
		}
	}
	if len(took) > 0 {
		t.printf("#   not %s: %s\n", t.asked, strings.Join(took, ", "))
	}
}

func (t *text) path(name string, r *Result) {
	if r == nil {
		return
	}
	t.printf("#   %s: %s", name, strings.TrimSpace(r.Algorithm))
	if several(r.Levels) {
		t.printf(", %s", r.LevelsText())
	} else {
		if r.Source != "" {
			t.printf(", source %s", r.Source)
		}
		if r.Destination != "" {
			t.printf(", destination %s", r.Destination)
		}
	}
	if s := r.Spread; s != nil {
		t.printf(", median %s p99 %s max %s us of %d", number(s.Median, 0), number(s.P99, 0), number(s.Max, 0), s.Calls)
	}
	t.printf(", cache hits %d misses %d\n", r.Hits, r.Misses)
}

// latencies prints the columns of perftest's latency tests, for operations between two ranks, if their calls were timed
// one by one. perftest's typical time is the median.
func (t *text) latencies(r *Report) {
	o := operationOf(t.cfg.Op)
	if o == nil || o.trips == 0 || o.window || len(r.Results) == 0 || !r.Results[0].timedEach() {
		return
	}
	redop := ""
	if o.variants != nil {
		redop = "  redop"
	}
	t.printf("#\n# %10s  %11s  %11s  %11s  %15s  %11s  %13s  %20s  %22s%s\n", "#bytes", "#iterations", "t_min[usec]",
		"t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]", "99% percentile[usec]",
		"99.9% percentile[usec]", redop)
	for _, row := range r.Results {
		if o.variants != nil {
			redop = "  " + row.Reduction
		}
		s := row.Out.Spread
		t.printf("# %10d  %11d  %11.2f  %11.2f  %15.2f  %11.2f  %13.2f  %20.2f  %22.2f%s\n", row.Size, s.Calls, s.Min,
			s.Max, s.Median, s.Mean, s.StdDev, s.P99, s.P999, redop)
	}
	t.printf("#\n")
}

// spreads prints means and tails beside the medians, which are the rows' times, if calls were timed one by one.
// latencies prints them for operations between two ranks.
func (t *text) spreads(r *Report) {
	if o := operationOf(t.cfg.Op); o == nil || o.trips > 0 || len(r.Results) == 0 || !r.Results[0].timedEach() {
		return
	}
	column := func(a, b, c, d, e string) string { return fmt.Sprintf("  %8s  %8s  %8s  %8s  %8s", a, b, c, d, e) }
	names, in := column("#calls", "p50", "mean", "p99", "p99.9"), ""
	if r.Results[0].In != nil {
		in = "  in-place:" + names
	}
	t.printf("#\n# Single calls (us)\n# %10s  %8s  %6s  %4s%s%s\n", "size", "type", "redop", "root", names, in)
	for _, row := range r.Results {
		line := fmt.Sprintf("# %10d  %8s  %6s  %4d", row.Size, row.Type, row.Reduction, row.Root)
		for i, v := range []*Result{row.Out, row.In} {
			if v == nil || v.Spread == nil {
				continue
			}
			if i > 0 {
				line += "           "
			}
			s := v.Spread
			line += column(strconv.Itoa(s.Calls), number(s.Median, 8), number(s.Mean, 8), number(s.P99, 8), number(s.P999, 8))
		}
		t.printf("%s\n", line)
	}
	t.printf("#\n")
}

func (t *text) footer(r *Report) {
	t.latencies(r)
	t.rates(r)
	t.spreads(r)
	t.overlaps(r)
	if s := r.Setup; s != nil && t.cfg.Paths {
		t.printf("# First touch of %d bytes: allocate %.1f us, register %.1f us\n", s.Bytes, s.Alloc, s.Register)
		if s.FirstUse > 0 {
			t.printf("# First use of the buffers: %.1f us, in which ranks opened %d of their peers' buffers; "+
				"later %d, staging memory included\n", s.FirstUse, s.Opened, s.OpenedLater)
		}
	}
	if c := r.Cache; c != nil && t.cfg.Paths {
		t.printf("# Registration cache: %d lookups, %.4g%% hits; a hit takes %.3g ns, p99 %.3g ns\n", c.Hits+c.Misses,
			100*c.HitRate, c.HitP50, c.HitP99)
		t.printf("# Registering again: %.3g us, p99 %.3g us; allocate, register, use once, free %d bytes: %.3g us, "+
			"p99 %.3g us\n", c.Again.Median, c.Again.P99, c.ChurnBytes, c.Churn.Median, c.Churn.P99)
	}
	if d := r.Device; d != nil {
		const mib = 1 << 20
		t.printf("# %-20s : %.1f MiB of the library's own when open, %.1f MiB now\n", "Device memory", float64(d.Open)/mib,
			float64(d.End)/mib)
	}
	t.printf("# %-20s : %d %s\n", "Out of bounds values", r.Wrong.Count, verdict(r.Wrong.OK))
	checked := ""
	if r.Average.OK != nil {
		checked = verdict(*r.Average.OK)
	}
	t.printf("# %-20s : %.6g %s\n", "Avg bus bandwidth", r.Average.Bandwidth, checked)
	t.printf("#\n# Collective test concluded: %s\n#\n\n", t.cfg.Op)
}

func verdict(ok bool) string {
	if ok {
		return "OK"
	}
	return "FAILED"
}

// number formats v in the given width with as many decimals as fit, two at most.
func number(v float64, width int) string {
	digits := 0
	for p := 1.0; v >= p && digits < 20; p *= 10 {
		digits++
	}
	switch {
	case width == 0 || digits < width-2:
		return fmt.Sprintf("%*.2f", width, v)
	case digits < width-1:
		return fmt.Sprintf("%*.1f", width, v)
	case digits <= width:
		return fmt.Sprintf("%*.0f", width, v)
	case width >= 7:
		return fmt.Sprintf("%*.1e", width, v)
	}
	return fmt.Sprintf("%*.0e", width, v)
}
