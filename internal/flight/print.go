package flight

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ubcoll/ubcoll/internal/plural"
)

// Print writes the findings for people: the first difference, the others, and a table of each communicator in which
// something is under way or differs.
func (f *Findings) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s (%s): %s, %s", f.Job, f.Program, plural.Count(f.Size, "rank"), plural.Count(f.Written.Len(), "dump"))
	if !f.First.IsZero() {
		fmt.Fprintf(&b, " of %s", f.First.Format("2006-01-02 "+clock))
		if d := f.Last.Sub(f.First); d > 0 {
			fmt.Fprintf(&b, " and up to %s later%s", short(d), f.clocks())
		}
	}
	b.WriteByte('\n')
	const most = 4
	for i, s := range f.Why {
		if i == most {
			fmt.Fprintf(&b, "  and %s\n", plural.Count(len(f.Why)-most, "other reason"))
			break
		}
		fmt.Fprintf(&b, "  %v wrote because of: %s\n", s.Ranks, s.Text)
	}
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	b.WriteByte('\n')
	switch {
	case len(f.Findings) == 0:
		b.WriteString("no difference: all ranks have called the same, and nothing waits\n")
	default:
		fmt.Fprintf(&b, "first difference (%s): %s\n", f.Findings[0].Kind, f.Findings[0].in(f))
		for _, o := range f.Findings[1:] {
			fmt.Fprintf(&b, "also (%s): %s\n", o.Kind, o.in(f))
		}
	}
	for _, t := range f.Comms {
		t.print(&b, f)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// clocks says by which clocks times differ, if by several.
func (f *Findings) clocks() string {
	if f.hosts > 1 {
		return " by the hosts' clocks"
	}
	return ""
}

// in is the text of a finding, with the communicator if there are several.
func (o Finding) in(f *Findings) string {
	if o.Comm == "" || len(f.Comms) == 1 {
		return o.Text
	}
	return fmt.Sprintf("communicator %s: %s", o.Comm, o.Text)
}

func (t *Table) print(b *strings.Builder, f *Findings) {
	fmt.Fprintf(b, "\ncommunicator %s (%v)", t.ID, t.Members)
	if t.Quiet {
		fmt.Fprintf(b, ": %s\n", t.Text)
	} else {
		b.WriteString(":\n")
		tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "  RANKS\tHOST\tPID\tLAST OPERATION\tSTATE\tFOR\tWAITS IN")
		for i, r := range t.Rows {
			if i == mostRows {
				n := 0
				for _, r := range t.Rows[i:] {
					n += r.Ranks.Len()
				}
				fmt.Fprintf(tw, "  and %s\t\t\t\t\t\t\n", plural.Count(n, "more rank"))
				break
			}
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Ranks.numbers(), dash(r.hosts()), dash(r.pid()), dash(r.call()), r.State,
				dash(r.Age), dash(r.Waits))
		}
		_ = tw.Flush() // writing to a Builder cannot fail
	}
	for _, s := range t.Broken {
		if !slices.ContainsFunc(f.Why, func(w Said) bool { return w.Text == s.Text }) {
			fmt.Fprintf(b, "  broken on %v: %s\n", s.Ranks, s.Text)
		}
	}
	if t.Late != "" {
		fmt.Fprintf(b, "  %s\n", t.Late)
	}
	for _, p := range t.Ops {
		p.print(b)
	}
}

func (p Position) print(b *strings.Builder) {
	fmt.Fprintf(b, "  #%d %s, %d bytes", p.Seq, p.Calls[0].Text, p.Bytes)
	if p.Way != "" {
		fmt.Fprintf(b, ", %s", p.Way)
	}
	for _, s := range p.Calls[1:] {
		fmt.Fprintf(b, "; %v: %s", s.Ranks, s.Text)
	}
	b.WriteString(": ")
	for i, s := range p.States {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s.Text)
		if len(p.States) > 1 {
			fmt.Fprintf(b, " on %v", s.Ranks)
		}
	}
	if p.Last != "" {
		fmt.Fprintf(b, "; %s", p.Last)
	}
	b.WriteByte('\n')
}

func (r Row) hosts() string {
	if len(r.Hosts) > mostHosts {
		return strings.Join(r.Hosts[:mostHosts], ", ") + ", ..."
	}
	return strings.Join(r.Hosts, ", ")
}

func (r Row) pid() string {
	if r.PID == 0 {
		return ""
	}
	return fmt.Sprint(r.PID)
}

func (r Row) call() string {
	if r.Call == "" {
		return ""
	}
	return fmt.Sprintf("#%d %s", r.Seq, r.Call)
}

// dash stands for what is not there.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
