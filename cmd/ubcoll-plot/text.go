package main

import (
	"bytes"
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"

	xfont "golang.org/x/image/font"
	gonum "gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// letters are those of a text.
type letters struct {
	size vg.Length
	bold bool
}

const (
	left   = 0.0
	centre = 0.5
	right  = 1.0
)

func (l letters) face() font.Face {
	f := font.Font{Typeface: "Liberation", Variant: "Sans"}
	if l.bold {
		f.Weight = xfont.WeightBold
	}
	return gonum.DefaultTextHandler.Cache().Lookup(f, l.size)
}

func (l letters) width(s string) vg.Length { f := l.face(); return f.Width(s) }

// middle is how far above the line on which letters stand the middle of digits is.
func (l letters) middle() vg.Length { return 0.35 * l.size }

// fitting returns letters of at most this size, small enough for s to fit into space.
func (l letters) fitting(s string, space vg.Length) letters {
	if w := l.width(s); w > space {
		l.size *= space / w
	}
	return l
}

// write writes s on a line at y, with its left end, its centre or its right end at x.
func (l letters) write(c draw.Canvas, s string, x, y, align vg.Length) {
	if s != "" {
		c.SetColor(ink)
		c.FillString(l.face(), vg.Point{X: x - align*l.width(s), Y: y}, s)
	}
}

// wrap divides s into lines that are no wider than space, if its words are not.
func (l letters) wrap(s string, space vg.Length) (lines []string) {
	for _, word := range strings.Fields(s) {
		if n := len(lines); n > 0 && l.width(lines[n-1]+" "+word) <= space {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

var textInSVG = regexp.MustCompile(`(?s)<text (x=[^>]*;font-weight:(\w+);[^>]*;font-size:([0-9.]+)px[^>]*>)([^<]*)</text>`)

// inAnyFont makes text as long in other fonts as in Liberation Sans, in which it was measured: a viewer that lacks it takes
// one of which letters may be wider, and then labels would touch what stands beside them.
func inAnyFont(svg []byte) []byte {
	svg = bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return textInSVG.ReplaceAllFunc(svg, func(element []byte) []byte {
		part := textInSVG.FindSubmatch(element)
		size, err := strconv.ParseFloat(string(part[3]), 64)
		if err != nil {
			panic(err) // it is of digits
		}
		l := letters{vg.Length(size), string(part[2]) == "bold"}
		return fmt.Appendf(nil, `<text textLength="%.5g" lengthAdjust="spacingAndGlyphs" %s%s</text>`,
			l.width(html.UnescapeString(string(part[4]))).Points(), part[1], part[4])
	})
}
