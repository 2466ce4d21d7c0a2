package chart

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/stats"
	"github.com/ubcoll/ubcoll/internal/sweep"
)

// Run has the contents of one file of results.
type Run struct {
	Name   string // what figures call it
	File   string
	Origin []Fact // where its numbers come from, as far as the file says
	Config string // the text of the experiment's file

	samples []sample
}

// Fact is something that a file says about itself.
type Fact struct{ What, Says string }

// sample is one measurement.
type sample struct {
	key
	bytes       int
	time, busBW float64       // microseconds, GB/s
	calls       *stats.Spread // nil if its calls were not timed one by one
	took        string        // the algorithm
	way         string        // that between hosts; "" on one
	wrong       int           // elements
}

const wanted = "want a folder of ubcoll run, its points.jsonl or points.csv, a file of ubcoll bench -J, or a page of the " +
	"benchmark scripts with samples"

// Read reads a file of results. arg is "FILE", or "NAME=FILE" to give the run a name. Read recognizes the kind of file
// by its text.
func Read(arg string) (*Run, error) {
	r := &Run{File: arg}
	if name, file, named := strings.Cut(arg, "="); named && name != "" {
		if _, err := os.Lstat(arg); err != nil {
			r.Name, r.File = name, file
		}
	}
	text, err := r.text()
	if err != nil {
		return nil, err
	}
	if r.Name == "" {
		r.Name = strings.TrimSuffix(filepath.Base(r.File), filepath.Ext(r.File))
		if dir := filepath.Dir(r.File); r.Name+"."+"jsonl" == sweep.PointsFile && dir != "." {
			r.Name = filepath.Base(dir)
		}
	}
	read, what := r.table, "CSV"
	start := bytes.TrimLeft(text, " \t\r\n")
	switch {
	case len(start) == 0:
		return nil, r.fault("it is empty: %s", wanted)
	case start[0] == '{':
		read, what = r.json, "JSON"
	case start[0] == '[':
		read, what = r.reports, "JSON"
	case start[0] == '#':
		read, what = r.page, "a page"
	}
	if err := read(text); err != nil {
		return nil, r.fault("as %s: %w: %s", what, err, wanted)
	}
	if len(r.samples) == 0 {
		return nil, r.fault("it has no measurement yet")
	}
	for i := range r.samples {
		r.samples[i].normalize()
	}
	return r, nil
}

func (r *Run) fault(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %w", r.File, fmt.Errorf(format, args...), ubcoll.ErrArgument)
}

// text returns the text of the file, or if it is a folder, of the file of points in it.
func (r *Run) text() ([]byte, error) {
	if filepath.Ext(r.File) == ".toml" {
		folder := filepath.Join("results", strings.TrimSuffix(filepath.Base(r.File), ".toml"))
		return nil, r.fault("it is an experiment: ubcoll run %s writes its results to %s", r.File, folder)
	}
	i, err := os.Stat(r.File)
	if err == nil && i.IsDir() {
		text, err := os.ReadFile(filepath.Join(r.File, sweep.PointsFile))
		if !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
		below, _ := filepath.Glob(filepath.Join(r.File, "*", sweep.PointsFile)) // the pattern is valid
		if len(below) == 0 {
			return nil, r.fault("there is no %s in it: %s", sweep.PointsFile, wanted)
		}
		for i := range below {
			below[i] = filepath.Dir(below[i])
		}
		return nil, r.fault("there is no %s in it: did you mean %s?", sweep.PointsFile, strings.Join(below, " "))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, r.fault("there is no such file: %s", wanted)
	}
	return os.ReadFile(r.File)
}

// json reads the lines of ubcoll run or of ubcoll bench, or the object that ubcoll bench writes for one operation.
func (r *Run) json(text []byte) error {
	var first struct {
		Kind    string
		Results json.RawMessage
		Config  json.RawMessage
	}
	err := json.NewDecoder(bytes.NewReader(text)).Decode(&first)
	switch {
	case err != nil:
		return err
	case first.Kind == "run":
		return r.sweep()
	case first.Results != nil:
		return r.reports(slices.Concat([]byte("["), text, []byte("]")))
	case first.Config != nil:
		return r.lines(text)
	}
	return errors.New("no results")
}

// sweep reads what ubcoll run has written.
func (r *Run) sweep() error {
	starts, records, err := sweep.Read(r.File)
	if err != nil {
		return err
	}
	s := starts[len(starts)-1]
	r.Config = s.Config
	r.fact("title", s.Title)
	r.fact("command", strings.Join(s.Args, " "))
	r.fact("started", s.Time)
	if len(starts) > 1 {
		r.fact("first started", fmt.Sprintf("%s; went on %d times", starts[0].Time, len(starts)-1))
	}
	r.fact("ubcoll", s.Version)
	r.fact("Go", s.Go+" "+s.Platform)
	r.job(s.Ranks, s.Hosts)
	if s.MPI {
		r.fact("bootstrap", "MPI")
	}
	r.fact("launcher", s.Launcher)
	r.facts("environment", s.Environment)
	r.facts("settings", s.Settings)
	r.fact("SHA-256 of the experiment", s.SHA256)
	each := "each"
	if s.Settings["run.loop"] == "true" {
		each = "loop"
	}
	for _, x := range records {
		p := x.Point
		k := key{operation: p.Operation, variant: p.Variant, elements: p.Type, reduction: p.Reduction, ranks: strconv.Itoa(p.Ranks),
			algorithm: p.Algorithm, registration: p.Registration, device: cmp.Or(x.Placed, p.Device), graphs: strconv.Itoa(p.Graph),
			inPlace: strconv.FormatBool(p.InPlace), root: s.Settings["run.root"], protocol: each, average: "max"}
		r.add(k, x.Size, x.Result)
	}
	return nil
}

// reports reads the objects of ubcoll bench, one for each operation.
func (r *Run) reports(text []byte) error {
	var all []bench.Report
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, b := range all {
		if err := schema(b.Schema); err != nil {
			return err
		}
		r.report(&b)
	}
	return nil
}

func (r *Run) report(b *bench.Report) {
	r.fact("command", strings.Join(b.Args, " "))
	r.fact("started", b.Start.Format("2006-01-02T15:04:05Z07:00"))
	r.fact("ended", b.End.Format("2006-01-02T15:04:05Z07:00"))
	r.fact("ubcoll", b.Version)
	var names, devices []string
	for _, x := range b.Ranks {
		names = append(names, x.Hostname)
		devices = append(devices, x.Name)
	}
	r.job(b.Config.Ranks, names)
	r.fact("devices", counted(devices))
	r.facts("environment", b.Env)
	for _, e := range b.Errors {
		r.fact("error", e)
	}
	for _, row := range b.Results {
		r.row(&b.Config, &row)
	}
}

// lines reads the lines of ubcoll bench.
func (r *Run) lines(text []byte) error {
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line struct {
			Schema int            `json:"schema_version"`
			Start  string         `json:"start_time"`
			Config bench.Settings `json:"config"`
			bench.Row
		}
		if err := d.Decode(&line); err != nil {
			return err
		}
		if err := schema(line.Schema); err != nil {
			return err
		}
		r.fact("started", line.Start)
		r.row(&line.Config, &line.Row)
	}
	return nil
}

func schema(version int) error {
	if version != bench.SchemaVersion {
		return fmt.Errorf("version %d of these files, not %d", version, bench.SchemaVersion)
	}
	return nil
}

// row adds both variants of a row of ubcoll bench.
func (r *Run) row(c *bench.Settings, row *bench.Row) {
	k := key{operation: c.Op, elements: row.Type, reduction: row.Reduction, root: strconv.Itoa(row.Root), ranks: strconv.Itoa(c.Ranks),
		algorithm: c.Algorithm, registration: c.Registration, device: c.Device, graphs: strconv.Itoa(c.Graphs), protocol: c.Protocol,
		average: c.Average}
	for _, v := range []*bench.Result{row.Out, row.In} {
		if v != nil {
			k[inPlace] = strconv.FormatBool(v == row.In)
			r.add(k, row.Size, v)
		}
	}
}

func (r *Run) add(k key, size int, v *bench.Result) {
	k[wire] = v.Wire
	if n := v.Hosts(); n > 0 {
		k[hosts] = strconv.Itoa(n)
	}
	s := sample{key: k, bytes: size, time: v.Time, busBW: v.BusBW, calls: v.Spread, took: v.Algorithm, way: v.Way}
	if v.Wrong != nil {
		s.wrong = *v.Wrong
	}
	r.samples = append(r.samples, s)
}

// normalize gives one name to things that the kinds of files call differently.
func (s *sample) normalize() {
	if t, err := dtype.Parse(s.key[elements]); err == nil { // bench has nccl-tests' names
		s.key[elements] = t.String()
	}
	if _, _, variants := bench.Has(s.key[operation]); variants != nil && s.key[variant] == "" { // bench has it with the reductions
		s.key[variant], s.key[reduction] = s.key[reduction], ""
	}
	if s.key[reduction] == "none" {
		s.key[reduction] = ""
	}
	if s.key[root] == "-1" {
		s.key[root] = ""
	}
	if s.key[contender] == "" { // an operation without algorithms to choose from takes the library's choice as well
		s.key[algorithm] = cmp.Or(s.key[algorithm], "auto")
	}
	if s.key[registration] == "local" {
		s.key[registration] = "explicit"
	}
	for _, a := range []int{root, graphs, inPlace, protocol, average} { // what a file does not say has the usual value
		s.key[a] = cmp.Or(s.key[a], axes[a].usual)
	}
}

// fact adds a fact to r.Origin, once. It skips empty ones.
func (r *Run) fact(what, says string) {
	if f := (Fact{what, says}); says != "" && !slices.Contains(r.Origin, f) {
		r.Origin = append(r.Origin, f)
	}
}

func (r *Run) facts(what string, says map[string]string) {
	var all []string
	for k, v := range says {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	r.fact(what, strings.Join(all, "\n"))
}

func (r *Run) job(ranks int, names []string) {
	r.fact("ranks", strconv.Itoa(ranks))
	r.fact("hosts", counted(names))
}

// counted lists names, each once, with its number of occurrences.
func counted(names []string) string {
	count := map[string]int{}
	for _, n := range names {
		count[n]++
	}
	var all []string
	for _, n := range names {
		if count[n] > 0 {
			all = append(all, fmt.Sprintf("%s (%d)", n, count[n]))
			count[n] = 0
		}
	}
	return strings.Join(all, ", ")
}
