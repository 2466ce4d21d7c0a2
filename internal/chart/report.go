package chart

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strings"
	"time"
)

//go:embed report.html
var reportText string

var reportPage = template.Must(template.New("report").Parse(reportText))

// prologue matches what stands before the picture in an SVG file. A page does not have it.
var prologue = regexp.MustCompile(`(?s)^.*?<svg `)

// WriteReport writes a page of HTML that needs no other file: the figures' pictures, one in SVG for each, their
// numbers, and where the numbers come from. The page has the figures' titles above the pictures, so these have none.
// Without a title, the page's title names the runs.
func WriteReport(w io.Writer, title string, runs []*Run, figures []Figure, pictures [][]byte, at time.Time) error {
	if title == "" {
		var names []string
		for _, r := range runs {
			names = append(names, r.Name)
		}
		title = "Results: " + strings.Join(names, ", ")
	}
	type pictured struct {
		Figure
		Picture template.HTML
	}
	page := struct {
		Title   string
		At      string
		Runs    []*Run
		Figures []pictured
		Wrong   int
	}{title, at.UTC().Format("2006-01-02 15:04 MST"), runs, nil, Wrong(figures)}
	for i, f := range figures {
		svg := prologue.ReplaceAll(pictures[i], []byte("<svg "))
		page.Figures = append(page.Figures, pictured{f, template.HTML(svg)})
	}
	if err := reportPage.Execute(w, page); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Size returns the point's size as text.
func (p Point) Size() string {
	n, unit := p.Bytes, 0
	for n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%d %s", n, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// Algorithms returns the algorithms that the point's calls took.
func (p Point) Algorithms() string { return strings.Join(p.Took, ", ") }

// Sure returns the confidence of the bars in percent; "" if they are no confidence intervals.
func (p Point) Sure() string {
	if p.Confidence == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*p.Confidence)
}
