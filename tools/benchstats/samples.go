package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/internal/stats"
)

// key identifies a measurement, which has a time in each round.
type key struct {
	op, contender string
	ranks         int // all
	hosts         int // on so many hosts; 0: on one that is not counted
	bytes         int64
}

// times has all samples of a key: microseconds, and the way that each took.
type times struct {
	us   []float64
	ways []string
}

// measured has all samples of a run.
type measured map[key]times

// parse reads lines "operation contender ranks bytes microseconds [way]". Ranks on several hosts are HOSTSxRANKS, as 2x4.
func parse(text string) (measured, error) {
	m := measured{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 5 && len(f) != 6 {
			return nil, fmt.Errorf("line %d: %q: want operation, contender, ranks, bytes, microseconds and perhaps a way", i+1, line)
		}
		k := key{op: f[0], contender: f[1]}
		var err error
		hosts, each, several := strings.Cut(f[2], "x")
		if !several {
			each = f[2]
		} else if k.hosts, err = strconv.Atoi(hosts); err != nil || k.hosts < 1 {
			return nil, fmt.Errorf("line %d: %q is no number of hosts", i+1, hosts)
		}
		if k.ranks, err = strconv.Atoi(each); err != nil || k.ranks < 1 {
			return nil, fmt.Errorf("line %d: %q is no number of ranks", i+1, each)
		}
		k.ranks *= max(k.hosts, 1)
		if k.bytes, err = strconv.ParseInt(f[3], 10, 64); err != nil || k.bytes < 0 {
			return nil, fmt.Errorf("line %d: %q is no number of bytes", i+1, f[3])
		}
		us, err := strconv.ParseFloat(f[4], 64)
		if err != nil || !(us >= 0) || math.IsInf(us, 0) {
			return nil, fmt.Errorf("line %d: %q is no time in microseconds", i+1, f[4])
		}
		t := m[k]
		t.us = append(t.us, us)
		t.ways = append(t.ways, strings.Join(f[5:], ""))
		m[k] = t
	}
	return m, nil
}

// rows selects the samples of one table: an operation on one number of ranks, and of hosts if there are several.
type rows struct {
	all          measured
	op           string
	ranks, hosts int
}

// sizes returns the sizes in ascending order, each once.
func (r rows) sizes() []int64 {
	var all []int64
	for k := range r.all {
		if k.op == r.op && k.ranks == r.ranks && k.hosts == r.hosts {
			all = append(all, k.bytes)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r rows) of(contender string, bytes int64) times {
	return r.all[key{op: r.op, contender: contender, ranks: r.ranks, hosts: r.hosts, bytes: bytes}]
}

// median returns the contender's median time, or NaN if it has none.
func (r rows) median(contender string, bytes int64) float64 {
	return stats.Median(r.of(contender, bytes).us)
}

// way returns the way that the contender took in its slowest round, or "-".
func (r rows) way(contender string, bytes int64) string {
	t := r.of(contender, bytes)
	slowest, way := 0.0, "-"
	for i, us := range t.us {
		if us >= slowest && t.ways[i] != "" {
			slowest, way = us, t.ways[i]
		}
	}
	return way
}

// best returns a contender's fastest way for each operation and size, as a plan: "way:operation:bytes,bytes ...".
func best(m measured, contender string, ranks int) string {
	sizes := map[string][]int64{} // by "way:operation"
	for k, t := range m {
		if k.contender != contender || k.ranks != ranks {
			continue
		}
		fastest := 0
		for i, us := range t.us {
			if us < t.us[fastest] {
				fastest = i
			}
		}
		part := t.ways[fastest] + ":" + k.op
		sizes[part] = append(sizes[part], k.bytes)
	}
	var plan []string
	for part, list := range sizes {
		slices.Sort(list)
		plan = append(plan, part+":"+strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]"))
	}
	slices.Sort(plan)
	return strings.Join(plan, " ")
}

// ours writes the samples of a file that ubcoll bench -J wrote. The contender is "ours" or "in-place". A channel's put,
// get and packet count as operations.
func ours(out io.Writer, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(lines) == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	column := map[string]int{}
	for i, c := range lines[0] {
		column[c] = i
	}
	for _, c := range []string{"operation", "ranks", "size", "redop", "in_place", "time", "algorithm"} {
		if _, ok := column[c]; !ok {
			return fmt.Errorf("%s has no column %s", name, c)
		}
	}
	for i, line := range lines[1:] {
		cell := func(c string) string { return line[column[c]] }
		op, contender := cell("operation"), "ours"
		way := strings.NewReplacer(", ", "-", " ", "-").Replace(cell("algorithm"))
		if op == "channel" {
			op, way = cell("redop"), "channel"
		}
		if cell("in_place") == "true" {
			contender = "in-place"
		}
		us, err := strconv.ParseFloat(cell("time"), 64)
		if err != nil {
			return fmt.Errorf("%s, line %d: %q is no time", name, i+2, cell("time"))
		}
		if _, err := fmt.Fprintln(out, op, contender, cell("ranks"), cell("size"), fmt.Sprintf("%.3f", us), way); err != nil {
			return err
		}
	}
	return nil
}
