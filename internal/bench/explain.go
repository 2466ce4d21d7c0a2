package bench

import (
	"cmp"
	"fmt"
	"strings"
)

// explainedColumn is a column that Config.Explain adds to the table, behind all others.
type explainedColumn struct {
	name  string
	width int // of usual values, which begin at the left; a longer one shifts what follows
	value func(*Row, *Result) string
}

// explained are these columns, on rank 0. The last one may have values of any length.
var explained = []explainedColumn{
	{"way", 16, func(_ *Row, v *Result) string { return strings.TrimSpace(v.outermost().Algorithm) }},
	{"source", 6, func(_ *Row, v *Result) string { return v.reached(v.Source, func(l *Level) string { return l.Source }) }},
	{"destination", 11, func(_ *Row, v *Result) string {
		return v.reached(v.Destination, func(l *Level) string { return l.Destination })
	}},
	{"model us", 9, func(w *Row, _ *Result) string {
		if w.Model == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", w.Model)
	}},
	{"wire", 0, func(_ *Row, v *Result) string { return v.outermost().Transport }},
}

// explain returns a line of these columns, with a gap before.
func explain(cell func(*explainedColumn) string) string {
	var b strings.Builder
	for i := range explained {
		fmt.Fprintf(&b, "  %-*s", explained[i].width, cell(&explained[i]))
	}
	return strings.TrimRight(b.String(), " ")
}

// of is the column's value in a row: both variants' where they differ, as "push/two-shot", and "-" where there is none.
func (c *explainedColumn) of(r *Row) string {
	var all []string
	for _, v := range []*Result{r.Out, r.In} {
		if v == nil {
			continue
		}
		if s := cmp.Or(c.value(r, v), "-"); len(all) == 0 || all[0] != s {
			all = append(all, s)
		}
	}
	return strings.Join(all, "/")
}

// outermost is the level between hosts, if there is one, or the host's.
func (r *Result) outermost() Level {
	if n := len(r.Levels); n > 0 {
		return r.Levels[n-1]
	}
	return Level{Algorithm: r.Algorithm}
}

// reached says in a word how a buffer was reached, of which buffer has what a level says: "direct" if the library made no copy of
// it, or "staged". What the kernel copies between hosts is not staged. Without levels, how counts.
func (r *Result) reached(how string, buffer func(*Level) string) string {
	if len(r.Levels) > 0 {
		l := &r.Levels[0]
		if how = buffer(l); l.Why != "" && how == "staged: "+l.Why {
			return "direct"
		}
	}
	switch {
	case strings.HasPrefix(how, "staged"):
		return "staged"
	case how == "", how == "direct":
		return how
	}
	return "alone" // there are no peers
}
