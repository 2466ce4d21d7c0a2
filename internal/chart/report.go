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

// prologue is what stands before the picture in a file of SVG, and not in a page.
var prologue = regexp.MustCompile(`(?s)^.*?<svg `)

// WriteReport writes a page of HTML that needs nothing else: the pictures of the figures, one of SVG for each, their
// numbers, and where these come from. Without a title the page has the runs' names.
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

// Size is the point's size for people.
func (p Point) Size() string {
	n, unit := p.Bytes, 0
	for n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%d %s", n, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// Algorithms is which ones the point's calls took.
func (p Point) Algorithms() string { return strings.Join(p.Took, ", ") }

// Sure is the confidence of the bars in percent; "" where they are none of confidence.
func (p Point) Sure() string {
	if p.Confidence == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*p.Confidence)
}
