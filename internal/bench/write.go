package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// formats are the suffixes of files that reports are written to.
var formats = []string{".json", ".jsonl", ".csv"}

// CheckOutput returns an error unless Write can write to name: it knows the suffix, the folder exists, and the file
// does not exist, or add is set and lines can be added to it. Call it before measuring anything.
func CheckOutput(name string, add bool) error {
	kind := filepath.Ext(name)
	if !slices.Contains(formats, kind) {
		return fmt.Errorf("output %q: want a name that ends in .json, .jsonl or .csv: %w", name, ubcoll.ErrArgument)
	}
	_, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(name)); err != nil {
			return fmt.Errorf("output %q: %w", name, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("output: %w", err)
	case !add:
		return fmt.Errorf("output %q is there already: remove it, name another, or add to it (-append, for .jsonl and .csv): %w",
			name, ubcoll.ErrArgument)
	case kind == ".json":
		return fmt.Errorf("output %q is one JSON object, to which nothing can be added: name a .jsonl or .csv: %w", name,
			ubcoll.ErrArgument)
	case kind == ".csv":
		return sameHeader(name)
	}
	return nil
}

// Write writes r to a file: one object as JSON, or a line for each variant of each row as JSONL (which repeats the
// settings) or CSV. With add it appends the lines to the file. It returns the errors of CheckOutput.
func (r *Report) Write(name string, add bool) error { return write(name, add, []*Report{r}, r) }

// WriteAll writes several reports to a file as Write does. As JSON, they are a list of objects.
func WriteAll(all []*Report, name string, add bool) error { return write(name, add, all, all) }

// write writes reports to a file: the lines of all, or whole if the file is JSON.
func write(name string, add bool, all []*Report, whole any) error {
	if err := CheckOutput(name, add); err != nil {
		return err
	}
	how := os.O_EXCL // somebody may have created the file since the check
	if add {
		how = os.O_APPEND
	}
	return writeFile(name, how, func(f *os.File) ([]byte, error) {
		var b bytes.Buffer
		var err error
		switch filepath.Ext(name) {
		case ".json":
			e := json.NewEncoder(&b)
			e.SetIndent("", "\t")
			err = e.Encode(whole)
		case ".jsonl":
			for _, r := range all {
				err = errors.Join(err, r.jsonl(&b))
			}
		case ".csv":
			w := csv.NewWriter(&b)
			if i, serr := f.Stat(); serr != nil || i.Size() == 0 { // otherwise the file has its header
				err = w.Write(header())
			}
			for _, r := range all {
				err = errors.Join(err, r.csv(w))
			}
			w.Flush()
			err = errors.Join(err, w.Error())
		}
		return b.Bytes(), err
	})
}

// WriteJSON writes v, as one object, to a new file. It fails if the file exists.
func WriteJSON(v any, name string) error {
	return writeFile(name, os.O_EXCL, func(*os.File) ([]byte, error) {
		b, err := json.MarshalIndent(v, "", "\t")
		return append(b, '\n'), err
	})
}

// writeFile opens a file, with the flag how, and writes what text returns to it.
func writeFile(name string, how int, text func(*os.File) ([]byte, error)) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|how, 0o644)
	if err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	b, err := text(f)
	_, werr := f.Write(b)
	if err = errors.Join(err, werr, f.Close()); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}

// header returns the first line of CSV.
func header() []string {
	var line []string
	for _, c := range columns {
		line = append(line, c.name)
	}
	return line
}

// sameHeader returns an error if the CSV file has other columns than this version writes.
func sameHeader(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	line, err := csv.NewReader(io.LimitReader(f, 64<<10)).Read()
	if err == io.EOF { // empty
		return nil
	}
	if err != nil || !slices.Equal(line, header()) {
		return fmt.Errorf("output %q has other columns than this version writes: name another file: %w", name,
			ubcoll.ErrArgument)
	}
	return nil
}

// record is a line of JSONL: everything that the result depends on, and the result.
type record struct {
	Schema int      `json:"schema_version"`
	Start  string   `json:"start_time"`
	Config Settings `json:"config"`
	Row             // without its results
	Out    *Result  `json:"out_of_place,omitempty"` // hides the row's
	In     *Result  `json:"in_place,omitempty"`
}

func (r *Report) jsonl(w io.Writer) error {
	e := json.NewEncoder(w)
	for _, row := range r.Results {
		rec := record{r.Schema, r.Start.Format("2006-01-02T15:04:05Z07:00"), r.Config, row, row.Out, nil}
		if err := e.Encode(rec); err != nil {
			return err
		}
		if row.In == nil {
			continue
		}
		rec.Out, rec.In = nil, row.In
		if err := e.Encode(rec); err != nil {
			return err
		}
	}
	return nil
}

// columns are the columns of CSV: what a result depends on, then the result. Times are in microseconds, bandwidths in
// GB/s.
var columns = []struct {
	name  string
	value func(*Report, *Row, *Result) any
}{
	{"schema_version", func(r *Report, _ *Row, _ *Result) any { return r.Schema }},
	{"operation", func(r *Report, _ *Row, _ *Result) any { return r.Config.Op }},
	{"ranks", func(r *Report, _ *Row, _ *Result) any { return r.Config.Ranks }},
	{"registration", func(r *Report, _ *Row, _ *Result) any { return r.Config.Registration }},
	{"protocol", func(r *Report, _ *Row, _ *Result) any { return r.Config.Protocol }},
	{"device", func(r *Report, _ *Row, _ *Result) any { return r.Config.Device }},
	{"graph", func(r *Report, _ *Row, _ *Result) any { return r.Config.Graphs }},
	{"average", func(r *Report, _ *Row, _ *Result) any { return r.Config.Average }},
	{"size", func(_ *Report, w *Row, _ *Result) any { return w.Size }},
	{"count", func(_ *Report, w *Row, _ *Result) any { return w.Count }},
	{"type", func(_ *Report, w *Row, _ *Result) any { return w.Type }},
	{"redop", func(_ *Report, w *Row, _ *Result) any { return w.Reduction }},
	{"root", func(_ *Report, w *Row, _ *Result) any { return w.Root }},
	{"in_place", func(_ *Report, w *Row, v *Result) any { return v == w.In }},
	{"time", func(_ *Report, _ *Row, v *Result) any { return v.Time }},
	{"alg_bw", func(_ *Report, _ *Row, v *Result) any { return v.AlgBW }},
	{"bus_bw", func(_ *Report, _ *Row, v *Result) any { return v.BusBW }},
	{"nwrong", func(_ *Report, _ *Row, v *Result) any {
		if v.Wrong == nil {
			return ""
		}
		return *v.Wrong
	}},
	{"calls", ofSpread(func(s *stats.Spread) any { return s.Calls })},
	{"min_us", ofSpread(func(s *stats.Spread) any { return s.Min })},
	{"p50_us", ofSpread(func(s *stats.Spread) any { return s.Median })},
	{"avg_us", ofSpread(func(s *stats.Spread) any { return s.Mean })},
	{"p95_us", ofSpread(func(s *stats.Spread) any { return s.P95 })},
	{"p99_us", ofSpread(func(s *stats.Spread) any { return s.P99 })},
	{"p99.9_us", ofSpread(func(s *stats.Spread) any { return s.P999 })},
	{"stdev_us", ofSpread(func(s *stats.Spread) any { return s.StdDev })},
	{"max_us", ofSpread(func(s *stats.Spread) any { return s.Max })},
	{"requested_algorithm", func(r *Report, _ *Row, _ *Result) any { return r.Config.Algorithm }},
	{"algorithm", func(_ *Report, _ *Row, v *Result) any { return v.Algorithm }},
	{"source", func(_ *Report, _ *Row, v *Result) any { return v.Source }},
	{"destination", func(_ *Report, _ *Row, v *Result) any { return v.Destination }},
	{"levels", func(_ *Report, _ *Row, v *Result) any { return v.LevelsText() }},
	{"way", func(_ *Report, _ *Row, v *Result) any { return v.Way }},
	{"wire", func(_ *Report, _ *Row, v *Result) any { return v.Wire }},
	{"model_us", func(_ *Report, w *Row, _ *Result) any {
		if w.Model == 0 {
			return ""
		}
		return w.Model
	}},
	{"hosts", func(_ *Report, _ *Row, v *Result) any {
		if n := v.Hosts(); n > 0 {
			return n
		}
		return ""
	}},
	{"cache_hits", func(_ *Report, _ *Row, v *Result) any { return v.Hits }},
	{"cache_misses", func(_ *Report, _ *Row, v *Result) any { return v.Misses }},
	{"messages_per_second", func(_ *Report, _ *Row, v *Result) any {
		if v.Rate == 0 {
			return ""
		}
		return v.Rate
	}},
	{"overall_us", ofOverlap(func(o *Overlap) any { return o.Overall })},
	{"compute_us", ofOverlap(func(o *Overlap) any { return o.Compute })},
	{"pure_comm_us", ofOverlap(func(o *Overlap) any { return o.Comm })},
	{"overlap_percent", ofOverlap(func(o *Overlap) any { return o.Percent })},
	{"nvls", func(r *Report, _ *Row, _ *Result) any { return r.Config.NVLS }},
}

// ofSpread returns the value of a column that is empty unless calls were timed one by one.
func ofSpread(value func(*stats.Spread) any) func(*Report, *Row, *Result) any {
	return func(_ *Report, _ *Row, v *Result) any {
		if v.Spread == nil {
			return ""
		}
		return value(v.Spread)
	}
}

// ofOverlap returns the value of a column that is empty unless --overlap is set.
func ofOverlap(value func(*Overlap) any) func(*Report, *Row, *Result) any {
	return func(_ *Report, _ *Row, v *Result) any {
		if v.Overlap == nil {
			return ""
		}
		return value(v.Overlap)
	}
}

func (r *Report) csv(w *csv.Writer) error {
	var line []string
	for i := range r.Results {
		row := &r.Results[i]
		for _, v := range []*Result{row.Out, row.In} {
			if v == nil {
				continue
			}
			line = line[:0]
			for _, c := range columns {
				line = append(line, fmt.Sprint(c.value(r, row, v)))
			}
			if err := w.Write(line); err != nil {
				return err
			}
		}
	}
	return nil
}
