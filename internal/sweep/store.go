package sweep

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// The files of a run's folder.
const (
	PointsFile = "points.jsonl" // a Start for each time that the run was started, and a Record for each measurement
	CSVFile    = "points.csv"   // the records again, once all exist
	lockFile   = "lock"
)

// Schema is the version of those files. It changes when a key changes its meaning or is removed.
const Schema = 1

// Start says where records come from. Each start of the run writes one, before its records.
type Start struct {
	Kind        string            `json:"kind"` // "run"
	Schema      int               `json:"schema_version"`
	Title       string            `json:"title"`
	Time        string            `json:"start_time"`
	Args        []string          `json:"args"`
	Config      string            `json:"config"`      // the file's text
	SHA256      string            `json:"config_hash"` // of that text
	Settings    map[string]string `json:"settings"`    // the values in force, including flags and environment
	Ranks       int               `json:"ranks"`
	Version     string            `json:"ubcoll_version"` // with the commit
	Go          string            `json:"go_version"`
	Platform    string            `json:"platform"`
	MPI         bool              `json:"mpi"`
	Launcher    string            `json:"launcher"`
	Hosts       []string          `json:"hosts"`       // of all ranks, in order
	Environment map[string]string `json:"environment"` // the project's variables except secrets, and those of Go and OpenMP
}

// Record is one measurement.
type Record struct {
	Kind   string `json:"kind"` // "point"
	Repeat int    `json:"repeat"`
	At     string `json:"at"` // when it was written
	Point
	Size   int    `json:"size"`          // bytes that were moved: Bytes rounded down to whole elements
	Placed string `json:"actual_device"` // where the buffers were: "host", "cuda"
	*bench.Result
	Setup *bench.Setup      `json:"setup,omitempty"`
	Cache *bench.CacheTimes `json:"cache,omitempty"`
}

// Store is a run's folder. One process has it at a time.
type Store struct {
	dir     string
	lock    *os.File
	file    *os.File
	Records []Record
}

// Open opens the folder of a run, or makes it, and reads its records. If they belong to a run with other settings or
// another number of ranks, Open fails and says what differs; with fresh, it moves them aside instead. It cuts off a
// last line that was not written completely.
func Open(dir string, start Start, fresh bool) (_ *Store, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		if to, nolink := os.Readlink(dir); nolink == nil && errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%s is a link to %s, where there is no folder: make that folder, or remove the link: %w", dir, to,
				ubcoll.ErrArgument)
		}
		return nil, fmt.Errorf("results: %w", err)
	}
	s := &Store{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.lock, err = lock(filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, PointsFile)
	if fresh {
		if err := aside(name); err != nil {
			return nil, err
		}
	}
	starts, records, whole, err := read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case len(starts) > 0:
		if diff := differs(starts[len(starts)-1], start); diff != "" {
			return nil, fmt.Errorf("%s is of another run:\n%sgo on with that one, name another folder (-o), or start anew (-force, "+
				"which keeps %s under another name): %w", name, diff, PointsFile, ubcoll.ErrArgument)
		}
	}
	s.Records = records
	if s.file, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	if err := errors.Join(s.file.Truncate(whole), seekTo(s.file, whole)); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	return s, nil
}

func seekTo(f *os.File, at int64) error {
	_, err := f.Seek(at, 0)
	return err
}

// aside renames a file, if it exists.
func aside(name string) error {
	for i := 1; ; i++ {
		to := fmt.Sprintf("%s.%d", name, i)
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.Rename(name, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("results: %w", err)
		}
		return nil
	}
}

// differs lists, one on each line, the differences that keep two starts from belonging to one run; "" if there are
// none.
func differs(was, is Start) string {
	var b strings.Builder
	line := func(what string, was, is any) {
		if was != is {
			fmt.Fprintf(&b, "  %s: was %v, is %v\n", what, was, is)
		}
	}
	keys := map[string]bool{}
	for _, m := range []map[string]string{was.Settings, is.Settings} {
		for k := range m {
			keys[k] = true
		}
	}
	for _, k := range sorted(keys) {
		line(k, was.Settings[k], is.Settings[k])
	}
	line("ranks", was.Ranks, is.Ranks)
	line("hosts", strings.Join(was.Hosts, ","), strings.Join(is.Hosts, ","))
	line("ubcoll", was.Version, is.Version)
	return b.String()
}

func sorted(keys map[string]bool) []string {
	var l []string
	for k := range keys {
		l = append(l, k)
	}
	slices.Sort(l)
	return l
}

// Write adds a line, and returns when it is on disk.
func (s *Store) Write(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = s.file.Write(append(b, '\n'))
	}
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if r, ok := v.(Record); ok {
		s.Records = append(s.Records, r)
	}
	return nil
}

// Close releases the folder to other processes.
func (s *Store) Close() error {
	var errs []error
	for _, f := range []*os.File{s.file, s.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Read returns the records of a run. name is its folder or its points.jsonl.
func Read(name string) ([]Start, []Record, error) {
	if i, err := os.Stat(name); err == nil && i.IsDir() {
		name = filepath.Join(name, PointsFile)
	}
	starts, records, _, err := read(name)
	return starts, records, err
}

// read returns a file's contents, and how many of its bytes are complete lines.
func read(name string) (starts []Start, records []Record, whole int64, err error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, 0, fmt.Errorf("results: %w%s", err, nearest.File(name))
	} else if err != nil {
		return nil, nil, 0, fmt.Errorf("results: %w", err)
	}
	starts, records, whole, err = parse(b)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("%s:%w", name, err)
	}
	return starts, records, whole, nil
}

// parse is read for a text. A last line that has no end, or is not JSON, was not written completely.
func parse(b []byte) (starts []Start, records []Record, whole int64, err error) {
	lines := bufio.NewReader(bytes.NewReader(b))
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the line's end is missing
			return starts, records, whole, nil
		}
		var kind struct{ Kind string }
		bad := json.Unmarshal(line, &kind)
		switch {
		case bad != nil:
		case kind.Kind == "run":
			var s Start
			if bad = json.Unmarshal(line, &s); bad == nil && s.Schema != Schema {
				return nil, nil, 0, fmt.Errorf("%d: version %d of these files, not %d: %w", n, s.Schema, Schema, ubcoll.ErrArgument)
			}
			if bad == nil {
				starts = append(starts, s)
			}
		case kind.Kind == "point":
			r := Record{Result: &bench.Result{}}
			if bad = json.Unmarshal(line, &r); bad == nil {
				records = append(records, r)
			}
		default:
			bad = fmt.Errorf("a line of kind %q", kind.Kind)
		}
		if len(starts) == 0 && bad == nil {
			bad = errors.New("the first line is not of kind \"run\"")
		}
		if bad != nil {
			if whole+int64(len(line)) == int64(len(b)) && len(starts) > 0 {
				return starts, records, whole, nil
			}
			return nil, nil, 0, fmt.Errorf("%d: no results of ubcoll run: %w: %w", n, bad, ubcoll.ErrArgument)
		}
		whole += int64(len(line))
	}
}

// columns are the columns of the CSV file.
var columns = []struct {
	name  string
	value func(*Record) any
}{
	{"operation", func(r *Record) any { return r.Operation }},
	{"ranks", func(r *Record) any { return r.Ranks }},
	{"bytes", func(r *Record) any { return r.Bytes }},
	{"size", func(r *Record) any { return r.Size }},
	{"type", func(r *Record) any { return r.Type }},
	{"reduction", func(r *Record) any { return r.Reduction }},
	{"variant", func(r *Record) any { return r.Variant }},
	{"requested_algorithm", func(r *Record) any { return r.Point.Algorithm }},
	{"algorithm", func(r *Record) any { return r.Result.Algorithm }},
	{"registration", func(r *Record) any { return r.Registration }},
	{"source", func(r *Record) any { return r.Source }},
	{"destination", func(r *Record) any { return r.Destination }},
	{"levels", func(r *Record) any { return r.LevelsText() }},
	{"way", func(r *Record) any { return r.Way }},
	{"wire", func(r *Record) any { return r.Wire }},
	{"hosts", func(r *Record) any {
		if n := r.Hosts(); n > 0 {
			return n
		}
		return ""
	}},
	{"device", func(r *Record) any { return r.Device }},
	{"actual_device", func(r *Record) any { return r.Placed }},
	{"graph", func(r *Record) any { return r.Graph }},
	{"in_place", func(r *Record) any { return r.InPlace }},
	{"net", func(r *Record) any { return r.Point.Net }},
	{"repeat", func(r *Record) any { return r.Repeat }},
	{"time", func(r *Record) any { return r.Result.Time }},
	{"alg_bw", func(r *Record) any { return r.AlgBW }},
	{"bus_bw", func(r *Record) any { return r.BusBW }},
	{"nwrong", func(r *Record) any {
		if r.Wrong == nil {
			return ""
		}
		return *r.Wrong
	}},
	{"cache_hits", func(r *Record) any { return r.Hits }},
	{"cache_misses", func(r *Record) any { return r.Misses }},
}

// WriteCSV writes the records as CSV to the folder, in the order of the plan.
func (s *Store) WriteCSV(p *Plan) error {
	at := map[Point]int{}
	for i, x := range p.Points {
		at[x] = i
	}
	records := slices.Clone(s.Records)
	slices.SortStableFunc(records, func(a, b Record) int {
		if d := at[a.Point] - at[b.Point]; d != 0 {
			return d
		}
		return a.Repeat - b.Repeat
	})
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	var line []string
	for _, c := range columns {
		line = append(line, c.name)
	}
	err := w.Write(line)
	for i := range records {
		line = line[:0]
		for _, c := range columns {
			line = append(line, fmt.Sprint(c.value(&records[i])))
		}
		err = errors.Join(err, w.Write(line))
	}
	w.Flush()
	name := filepath.Join(s.dir, CSVFile)
	err = errors.Join(err, w.Error(), os.WriteFile(name+".new", b.Bytes(), 0o644))
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}
