package main

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/procs"
)

// longWait is how long a wait must be for ps to say who is waited for.
const longWait = time.Second

// psText is what ps shows: of each job who waits for whom, and what its ranks are in. every: each in a line of its own.
func psText(jobs []*procs.Job, hidden procs.Hidden, every bool, now time.Time) string {
	var b strings.Builder
	if len(jobs) == 0 {
		fmt.Fprintln(&b, "no job of this user on this host")
	}
	host, _ := os.Hostname()
	for i, j := range jobs {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintf(&b, "%s on %s: %s\n", programs(j), host, processes(len(j.Processes)))
		for _, s := range sentences(j, now) {
			fmt.Fprintf(&b, "  %s\n", s)
		}
		shown := j.Shown()
		if every {
			shown = j.Comms
		}
		for _, c := range shown {
			fmt.Fprintf(&b, "  communicator %x, %s\n", c.ID, members(c))
			table(&b, c, every, now)
			if late := c.Late(); late != nil && !every {
				fmt.Fprintf(&b, "    %v\n", late)
			}
		}
		if n := len(j.Comms) - len(shown); n > 0 {
			fmt.Fprintf(&b, "  %s in which nothing is under way (-v)\n", plural.Count(n, "more communicator"))
		}
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "%s could not be looked into\n", processes(int(hidden)))
	}
	return printable(b.String())
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// programs names a job's programs, and its user if that is another one.
func programs(j *procs.Job) string {
	var names []string
	for _, p := range j.Processes {
		names = append(names, p.Program)
	}
	slices.Sort(names)
	text := strings.Join(slices.Compact(names), ", ")
	if uid := j.Processes[0].UID; int(uid) != os.Geteuid() {
		name := strconv.Itoa(int(uid))
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		text += " of user " + name
	}
	return text
}

// members says which ranks of a communicator are here.
func members(c *procs.Comm) string {
	all := plural.Count(c.Size, "rank")
	if far := c.Elsewhere(); len(far) > 0 {
		return fmt.Sprintf("%s: %s here; others have ended, or are on other hosts: run ubcoll ps there", all, named(numbers(c.Ranks)))
	}
	return all
}

func numbers(all []*procs.Rank) (ranks []int) {
	for _, r := range all {
		ranks = append(ranks, r.Rank)
	}
	return slices.Compact(ranks)
}

// named is "rank 3" or "ranks 0-2,5".
func named(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + ranges(ranks)
}

// table has a line for ranks in the same, or for each.
func table(b *strings.Builder, c *procs.Comm, every bool, now time.Time) {
	type key struct {
		state procfs.State
		text  string
	}
	lines, order := map[key][]*procs.Rank{}, []key(nil)
	for _, r := range c.Ranks {
		k := key{r.Process.State, r.Doing()}
		if every {
			if r.Late != nil {
				k.text += "; " + r.Late.String()
			}
			k.text = fmt.Sprintf("%s\x00%d", k.text, r.Rank)
		}
		if lines[k] == nil {
			order = append(order, k)
		}
		lines[k] = append(lines[k], r)
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "    RANK\tPID\tSTATE\tBEGAN\tIN")
	for _, k := range order {
		var pids []int
		began, known := time.Duration(0), false
		for _, r := range lines[k] {
			pids = append(pids, r.Process.PID)
			if d, ok := r.Ago(now); ok {
				began, known = max(began, d), true
			}
		}
		slices.Sort(pids)
		ago := "-"
		if known {
			ago = short(began) + " ago"
		}
		text, _, _ := strings.Cut(k.text, "\x00")
		fmt.Fprintf(w, "    %s\t%s\t%s\t%s\t%s\n", ranges(numbers(lines[k])), ranges(slices.Compact(pids)), k.state, ago, printable(text))
	}
	w.Flush() // writing to a buffer cannot fail
}

// short is a time with two or three digits.
func short(d time.Duration) string {
	for _, u := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= 100*u || d >= time.Minute {
			return d.Round(u).String()
		}
		if d >= u {
			return d.Round(u / 10).String()
		}
	}
	return d.String()
}

// sentences say for whom ranks wait: the two that matter most.
func sentences(j *procs.Job, now time.Time) (all []string) {
	hangs := j.Hangs(now, longWait)
	for _, h := range hangs[:min(2, len(hangs))] {
		all = append(all, sentence(h, now))
	}
	return all
}

func sentence(h *procs.Hang, now time.Time) string {
	who, wait := named(h.Waiting), "wait"
	switch {
	case h.All() && h.Circle == nil && h.At != nil && h.In == h.Comm:
		who = "all others"
	case h.All():
		who = "all"
	case len(h.Waiting) == 1:
		wait = "waits"
	}
	if h.All() && len(h.Comm.Elsewhere()) > 0 {
		who += " here"
	}
	of := func(c *procs.Comm) string {
		if h.In == h.Comm && !slices.ContainsFunc(h.Circle, func(r *procs.Rank) bool { return r.Comm() != h.Comm }) {
			return ""
		}
		return fmt.Sprintf(" of communicator %x", c.ID)
	}
	if h.Circle != nil {
		var circle []string
		for _, r := range h.Circle {
			circle = append(circle, fmt.Sprintf("rank %d%s", r.Rank, of(r.Comm())))
		}
		text := strings.Join(circle, ", ") + " wait for each other"
		if of(h.Comm) != "" || len(h.Waiting) > len(h.Circle) {
			text += fmt.Sprintf("; %s%s %s for them", who, of(h.Comm), wait)
		}
		return text
	}
	return fmt.Sprintf("%s%s %s for rank %d%s, which %s", who, of(h.Comm), wait, h.Rank, of(h.In), is(h, now))
}

// is says what keeps the rank that is waited for.
func is(h *procs.Hang, now time.Time) string {
	r := h.At
	if r == nil {
		return "has no process here: it is on another host, or has ended"
	}
	pid := fmt.Sprintf("(pid %d)", r.Process.PID)
	switch r.Process.State {
	case procfs.Halted:
		return "is stopped " + pid
	case procfs.Traced:
		return "a debugger has stopped " + pid
	}
	text := fmt.Sprintf("waits for nobody %s: it %s", pid, r.Doing())
	if d, ok := r.Ago(now); ok {
		text += ", begun " + short(d) + " ago"
	}
	return text
}

// printable replaces what a terminal would not print: names come from the processes.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// What -json writes.
type (
	psJSON struct {
		Host   string      `json:"host"`
		Time   time.Time   `json:"time"`
		Jobs   []psJobJSON `json:"jobs"`
		Hidden int         `json:"hidden"` // processes that could not be looked into
	}
	psJobJSON struct {
		Waits     []string        `json:"waits"` // who waits for whom
		Processes []psProcessJSON `json:"processes"`
	}
	psProcessJSON struct {
		PID     int          `json:"pid"`
		State   procfs.State `json:"state"`
		Program string       `json:"program"`
		User    uint32       `json:"uid"`
		Dumps   bool         `json:"dumps"` // it takes SIGUSR2
		Ranks   []psRankJSON `json:"ranks"`
	}
	psRankJSON struct {
		Comm   string `json:"communicator"`
		Rank   int    `json:"rank"`
		Size   int    `json:"size"`
		Broken string `json:"broken,omitempty"`
		Doing  string `json:"doing"`
		flight.Side
	}
)

// psReport is what ps -json writes.
func psReport(jobs []*procs.Job, hidden procs.Hidden, now time.Time) psJSON {
	host, _ := os.Hostname()
	all := psJSON{Host: host, Time: now, Jobs: []psJobJSON{}, Hidden: int(hidden)}
	for _, j := range jobs {
		job := psJobJSON{Waits: append([]string{}, sentences(j, now)...)}
		for _, p := range j.Processes {
			q := psProcessJSON{PID: p.PID, State: p.State, Program: p.Program, User: p.UID, Dumps: p.Writes()}
			for _, c := range j.Comms {
				for _, r := range c.Ranks {
					if r.Process != p {
						continue
					}
					k := psRankJSON{Comm: fmt.Sprintf("%016x", c.ID), Rank: r.Rank, Size: c.Size, Doing: r.Doing(), Side: r.Side}
					if r.Broken {
						k.Broken = cmp.Or(r.Why, "broken")
					}
					q.Ranks = append(q.Ranks, k)
				}
			}
			job.Processes = append(job.Processes, q)
		}
		all.Jobs = append(all.Jobs, job)
	}
	return all
}
