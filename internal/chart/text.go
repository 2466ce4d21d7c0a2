package chart

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// columnOf has the axis of each column of CSV, as ubcoll run and ubcoll bench write it. If several columns have the
// same axis, the last one with a value counts.
var columnOf = []struct {
	name string
	axis int
}{
	{"contender", contender}, {"operation", operation}, {"variant", variant}, {"type", elements}, {"reduction", reduction},
	{"redop", reduction}, {"ranks", ranks}, {"root", root}, {"requested_algorithm", algorithm}, {"registration", registration},
	{"device", device}, {"actual_device", device}, {"wire", wire}, {"hosts", hosts}, {"graph", graphs}, {"in_place", inPlace}, {"protocol", protocol},
	{"average", average},
}

// table reads CSV of ubcoll run, of ubcoll bench, or any other that has columns size, time and bus_bw.
func (r *Run) table(text []byte) error {
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return err
	}
	header := lines[0]
	for _, name := range []string{"size", "time", "bus_bw"} {
		if !slices.Contains(header, name) {
			return fmt.Errorf("no column %q in the first line", name)
		}
	}
	for n, line := range lines[1:] {
		cell := func(name string) string {
			if i := slices.Index(header, name); i >= 0 {
				return line[i]
			}
			return ""
		}
		s := sample{took: cell("algorithm"), way: cell("way")}
		for _, c := range columnOf {
			if v := cell(c.name); v != "" {
				s.key[c.axis] = v
			}
		}
		var errs []error
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(cell(name), 64)
			errs = append(errs, err)
			return v
		}
		s.bytes, s.time, s.busBW = int(number("size")), number("time"), number("bus_bw")
		if cell("nwrong") != "" {
			s.wrong = int(number("nwrong"))
		}
		if cell("min_us") != "" {
			s.calls = &stats.Spread{Calls: int(number("calls")), Min: number("min_us"), P95: number("p95_us")}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("line %d: %w", n+2, err)
		}
		r.samples = append(r.samples, s)
	}
	return nil
}

// samplesOf finds the block of samples on a page of the benchmark scripts, and the line that names its columns.
var samplesOf = regexp.MustCompile("(?s)\n## Samples\n+([^\n]+)\\.\n+```\n(.*?)```")

// commitOf finds the commit that was measured.
var commitOf = regexp.MustCompile(`(?m)^Commit ([^\s.]+)`)

// page reads the samples of a page of the benchmark scripts. Its first line names the operation, if no column does.
func (r *Run) page(text []byte) error {
	found := samplesOf.FindSubmatch(text)
	if found == nil {
		return errors.New("no section \"Samples\"")
	}
	columns := strings.Split(strings.ToLower(string(found[1])), ", ")
	title, _, _ := strings.Cut(strings.TrimLeft(string(text), "# \n"), "\n")
	about, _, _ := strings.Cut(title, " ")
	r.fact("title", title)
	if c := commitOf.FindSubmatch(text); c != nil {
		r.fact("commit", string(c[1]))
	}
	for line := range strings.Lines(string(found[2])) {
		cell := func(name string) string {
			if i, words := slices.Index(columns, name), strings.Fields(line); i >= 0 && i < len(words) {
				return words[i]
			}
			return ""
		}
		s := sample{took: cell("way")}
		s.key[operation], s.key[contender], s.key[ranks] = cell("operation"), cell("contender"), cell("ranks")
		if s.key[operation] == "" {
			s.key[operation] = about
		}
		if s.key[ranks] == "" { // a page about two hosts: one rank on each
			s.key[ranks] = "2"
		}
		var errs [3]error
		var n int
		n, errs[0] = strconv.Atoi(s.key[ranks])
		s.bytes, errs[1] = strconv.Atoi(cell("bytes"))
		s.time, errs[2] = strconv.ParseFloat(cell("microseconds"), 64)
		if err := errors.Join(errs[:]...); err != nil {
			return fmt.Errorf("sample %q: %w", strings.TrimSpace(line), err)
		}
		if !slices.Contains(bench.Names(), s.key[operation]) {
			return fmt.Errorf("%q is no operation (%s)", s.key[operation], strings.Join(bench.Names(), ", "))
		}
		_, s.busBW = bench.Bandwidth(s.key[operation], n, s.bytes, s.time)
		r.samples = append(r.samples, s)
	}
	return nil
}
