package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/chart"
)

const plotUsage = `plot RESULTS ... [flags]

Draws bus bandwidth and time against size. RESULTS are folders of ubcoll run, files of ubcoll bench -J, or pages of the
benchmark scripts; NAME=RESULTS gives one another name. All are in one figure, in which each operation has a panel. What
does not fit on a page becomes several files: what is constant in each goes to its name, as in plot-all_reduce.svg.
ubcoll-plot draws, beside ubcoll or in PATH:

	go install github.com/ubcoll/ubcoll/cmd/ubcoll-plot@latest   # in a clone: go install -C cmd/ubcoll-plot .`

// drawer is the program that draws. It is a module of its own, so that ubcoll does not depend on what it needs.
const drawer = "ubcoll-plot"

// plotted are the suffixes of files that plot writes. The drawer reads .json.
var plotted = []string{".svg", ".png", ".html", ".json"}

// plotOptions holds the command line of plot.
type plotOptions struct {
	runs    []*chart.Run
	only    []chart.Only
	limits  []chart.Limit
	outputs []string
	title   string
}

// plot draws figures of results, and writes reports.
func plot(args []string, out io.Writer) error {
	o, err := parsePlot(args, out)
	if err != nil {
		return err
	}
	figures, err := chart.Figures(o.runs, o.only, o.limits)
	if err != nil {
		return usageError("plot: %w", err)
	}
	files, err := o.files(figures)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	for _, f := range files { // none is written unless all could be made
		if err := os.WriteFile(f.name, f.text, 0o644); err != nil {
			return fmt.Errorf("plot: %w", err)
		}
		fmt.Fprintln(out, f.name)
	}
	if n := chart.Wrong(figures); n > 0 {
		fmt.Fprintf(os.Stderr, "ubcoll: plot: wrong elements in %d of the points: what was measured there is no result\n", n)
	}
	return nil
}

func parsePlot(args []string, help io.Writer) (*plotOptions, error) {
	o := &plotOptions{}
	fs := newFlags("plot")
	fs.Func("o", "the `file` to write: .svg, .png, .html (a report with figures, numbers and where they come from) or .json (what "+
		"ubcoll-plot reads); without suffix: .svg and .png; several times: several files (plot)", func(v string) error {
		suffix := filepath.Ext(v)
		switch {
		case v == "":
			return errors.New("want a file's name")
		case slices.Contains(plotted, suffix):
			o.outputs = append(o.outputs, v)
		case suffix == "" || strings.Trim(suffix[1:], "0123456789") == "": // a number is no suffix
			o.outputs = append(o.outputs, v+".svg", v+".png")
		default:
			return fmt.Errorf("%q: want a name that ends in %s, or in none of them", v, strings.Join(plotted, ", "))
		}
		return nil
	})
	fs.Func("only", "draw what has one of some values: `axis=value`,...; axes are called as in points.csv, as ranks=2,4, and "+
		"algorithm, and run and contender for lines of different results; several times: all must hold", func(v string) error {
		c, err := chart.ParseOnly(v)
		o.only = append(o.only, c)
		return err
	})
	fs.Func("bound", "a bus bandwidth that cannot be exceeded, as a line: `GB/s`, or NAME=GB/s; several times: several lines",
		func(v string) error {
			l := chart.Limit{Name: "bound"}
			value := v
			if i := strings.LastIndexByte(v, '='); i >= 0 {
				l.Name, value = v[:i], v[i+1:]
			}
			var err error
			if l.BusBW, err = strconv.ParseFloat(value, 64); err != nil || !(l.BusBW > 0 && l.BusBW < 1e9) {
				return fmt.Errorf("%q: want GB/s, more than 0, as 450 or NVLink=450", v)
			}
			o.limits = append(o.limits, l)
			return nil
		})
	fs.StringVar(&o.title, "title", "", "the `text` above the figures (what their lines have in common)")
	names, err := parseMixed(fs, args, plotUsage, help)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, usageError("plot: which results? ubcoll plot RESULTS ..., as results/smoke; -h lists the flags")
	}
	if o.outputs == nil {
		o.outputs = []string{"plot.svg", "plot.png"}
	}
	var faults []error
	for _, name := range names {
		r, err := chart.Read(name)
		faults = append(faults, err)
		o.runs = append(o.runs, r)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, usageError("plot: %w", err)
	}
	return o, nil
}

// output is a file to write.
type output struct {
	name string
	text []byte
}

// files returns the files that the user asked for.
func (o *plotOptions) files(figures []chart.Figure) (files []output, err error) {
	// The user's title stands above a picture, but what tells pictures apart is still said. A report has titles of its own.
	titled, untitled := slices.Clone(figures), slices.Clone(figures)
	for i, f := range figures {
		untitled[i].Title = ""
		if o.title != "" {
			titled[i].Title = o.title
			if len(figures) > 1 && f.Title != "" {
				titled[i].Title += ": " + f.Title
			}
		}
	}
	for _, name := range o.outputs {
		suffix := filepath.Ext(name)
		var texts [][]byte
		switch suffix {
		case ".html":
			svg, err := drawAll(untitled, "svg")
			if err != nil {
				return nil, err
			}
			var page bytes.Buffer
			if err := chart.WriteReport(&page, o.title, o.runs, figures, svg, time.Now()); err != nil {
				return nil, err
			}
			files = append(files, output{name, page.Bytes()})
			continue
		case ".json":
			texts, err = describe(titled)
		default:
			texts, err = drawAll(titled, suffix[1:])
		}
		if err != nil {
			return nil, err
		}
		for i, text := range texts {
			file := name
			if part := figures[i].Name; part != "" {
				file = strings.TrimSuffix(name, suffix) + "-" + part + suffix
			}
			files = append(files, output{file, text})
		}
	}
	return files, nil
}

// describe returns each figure in JSON, as the drawer reads it.
func describe(figures []chart.Figure) (texts [][]byte, err error) {
	for _, f := range figures {
		text, err := json.MarshalIndent(f, "", "\t")
		if err != nil {
			return nil, err
		}
		texts = append(texts, append(text, '\n'))
	}
	return texts, nil
}

// drawAll runs the drawer for each figure and returns the pictures.
func drawAll(figures []chart.Figure, format string) (pictures [][]byte, err error) {
	program, err := findDrawer()
	if err != nil {
		return nil, err
	}
	texts, err := describe(figures)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		cmd := exec.Command(program, format)
		var picture, messages bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &picture, &messages
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(messages.String()))
		}
		pictures = append(pictures, picture.Bytes())
	}
	return pictures, nil
}

// findDrawer returns the path of the drawer: the one beside this program, which was built with it, or else one in PATH.
func findDrawer() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), drawer)); err == nil {
			return beside, nil
		}
	}
	program, err := exec.LookPath(drawer)
	if err != nil {
		return "", exitError{fmt.Errorf("%s, which draws, is neither beside ubcoll nor in PATH. To get it, in a clone:\n"+
			"  go install -C cmd/%[1]s .\nand elsewhere:\n  go install github.com/ubcoll/ubcoll/cmd/%[1]s@latest", drawer), exitSupport}
	}
	return program, nil
}
