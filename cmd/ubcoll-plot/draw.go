package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A picture is as wide as the text of a page with two columns, with letters of the size that captions have. Lengths are
// in points.
const (
	width   = 17.8 * vg.Centimeter
	edge    = 3
	large   = 9.5  // letters of the title
	normal  = 8    // of the legend and above plots
	small   = 7.25 // of ticks and of the note
	line    = 1.4  // from a line of text to the next, in sizes of its letters
	dots    = 300  // of PNG, per inch
	spacing = 6

	thumbnail = 24  // the length of a line in the legend
	tall      = 150 // the height of the only row of plots
	tickSize  = 3   // of those with labels; others are half as long
	beside    = 3   // from a tick to its label
	off       = 2   // from an axis to where plots begin, so that marks do not hide it
	gap       = 12  // between a plot and the labels of the next one
	overhang  = 12  // to the right of plots, for labels of sizes
)

var formats = map[string]func(*Figure, io.Writer) error{"svg": svg, "png": png}

func svg(f *Figure, w io.Writer) error {
	l := newLayout(f)
	c := vgsvg.New(width, l.height)
	l.draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	_, err := w.Write(inAnyFont(b.Bytes()))
	return err
}

func png(f *Figure, w io.Writer) error {
	l := newLayout(f)
	c := vgimg.NewWith(vgimg.UseWH(width, l.height), vgimg.UseDPI(dots))
	l.draw(draw.New(c))
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// The first six colours are from Okabe and Ito's palette, which colour-blind people can tell apart. In black and white,
// dashes and marks tell lines apart.
var (
	colours = []color.Color{
		color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
		color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
		color.RGBA{0x8c, 0x56, 0x4b, 0xff}, color.RGBA{0x70, 0x70, 0x70, 0xff},
	}
	dashes = [][]vg.Length{nil, {6, 2}, {2, 2}, {6, 2, 2, 2}}
	marks  = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{},
		draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}}
	ink      = color.RGBA{0x00, 0x00, 0x00, 0xff}
	paper    = color.RGBA{0xff, 0xff, 0xff, 0xff}
	gridline = draw.LineStyle{Color: color.RGBA{0xdd, 0xdd, 0xdd, 0xff}, Width: 0.4}
	axisLine = draw.LineStyle{Color: ink, Width: 0.6}
	grey     = color.RGBA{0x55, 0x55, 0x55, 0xff}
	ofBound  = look{line: draw.LineStyle{Color: grey, Width: 1.2, Dashes: []vg.Length{1, 2}}}
	ofLimits = [][]vg.Length{nil, {9, 3}, {4, 4}, {9, 3, 1, 3}}
)

// look says how a line is drawn. Without a shape it has neither marks nor bars.
type look struct {
	line draw.LineStyle
	mark draw.GlyphStyle
}

// look returns how s is drawn.
func (s *Series) look() look {
	if s.Bound {
		return ofBound
	}
	c, turn := colours[s.Look%len(colours)], s.Look+s.Look/len(colours)
	return look{
		line: draw.LineStyle{Color: c, Width: 1.1, Dashes: dashes[turn%len(dashes)]},
		mark: draw.GlyphStyle{Color: c, Radius: 2, Shape: marks[turn%len(marks)]},
	}
}

// entry is one of the legend.
type entry struct {
	name string
	look look
}

// legend returns the entries of all series, in the order of their looks, and of the limits; and the place of each look.
func (f *Figure) legend() (entries []entry, places map[int]int) {
	series := map[int]Series{}
	for _, p := range f.Panels {
		for _, s := range p.Series {
			series[s.Look] = s
		}
	}
	places = map[int]int{}
	for i, number := range slices.Sorted(maps.Keys(series)) {
		s := series[number]
		entries = append(entries, entry{s.Name, s.look()})
		places[number] = i
	}
	for i, limit := range f.Limits {
		entries = append(entries, entry{fmt.Sprintf("%s %.4g GB/s", limit.Name, limit.BusBW), limitLook(i)})
	}
	return entries, places
}

func limitLook(i int) look {
	return look{line: draw.LineStyle{Color: grey, Width: 0.8, Dashes: ofLimits[i%len(ofLimits)]}}
}

// layout says where the parts of a picture are. From the top these are the title, the legend, what the plots show, rows of
// panels with their titles, sizes, and the note.
type layout struct {
	f           *Figure
	title, note []string // their lines
	legend      []entry
	places      map[int]int // of series in the legend, by their looks
	columns     int         // of the legend
	across      int         // panels in a row
	heading     vg.Length   // the height of a panel's title
	tall        vg.Length   // the height of a plot
	height      vg.Length   // of the picture
}

func newLayout(f *Figure) *layout {
	l := &layout{f: f, across: 1}
	l.legend, l.places = f.legend()
	l.title = letters{size: large}.wrap(f.Title, width-2*edge)
	l.note = letters{size: small}.wrap(f.Note, width-2*edge)
	widest := vg.Length(0)
	for _, e := range l.legend {
		widest = max(widest, letters{size: normal}.width(e.name))
	}
	l.columns = min(len(l.legend), max(1, int((width-2*edge+2*spacing)/(thumbnail+spacing+widest+2*spacing))))
	if len(f.Panels) > 3 {
		l.across = 2
	}
	if slices.ContainsFunc(f.Panels, func(p Panel) bool { return p.Title != "" }) {
		l.heading = normal*line + spacing
	}
	rows := vg.Length(l.rows())
	l.tall = min(tall, max(tall*0.4, 240/rows))
	l.height = 2*edge + large*line*vg.Length(len(l.title)) + normal*line*vg.Length(l.legendRows()) + spacing + normal*line +
		rows*(l.heading+l.tall+spacing) + off + tickSize + beside + small*line + normal + spacing + small*line*vg.Length(len(l.note))
	return l
}

func (l *layout) rows() int       { return (len(l.f.Panels) + l.across - 1) / l.across }
func (l *layout) legendRows() int { return (len(l.legend) + l.columns - 1) / l.columns }

func (l *layout) draw(c draw.Canvas) {
	c.FillPolygon(paper, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	c = draw.Crop(c, edge, -edge, edge, -edge)
	top := paragraph(c, l.title, large, c.Max.Y)
	top = l.drawLegend(c, top) - spacing
	top = l.drawPanels(c, top) - spacing
	paragraph(c, l.note, small, top)
}

// paragraph writes lines below top and returns where it ends.
func paragraph(c draw.Canvas, lines []string, size, top vg.Length) (bottom vg.Length) {
	for _, s := range lines {
		letters{size: size}.fitting(s, c.Size().X).write(c, s, c.Center().X, top-size, centre)
		top -= size * line
	}
	return top
}

// drawLegend names the lines, in rows, and returns where it ends.
func (l *layout) drawLegend(c draw.Canvas, top vg.Length) (bottom vg.Length) {
	column := c.Size().X / vg.Length(l.columns)
	for i, e := range l.legend {
		x := c.Min.X + column*vg.Length(i%l.columns)
		name := letters{size: normal}.fitting(e.name, column-thumbnail-spacing)
		if l.legendRows() == 1 {
			x += (column - thumbnail - spacing - name.width(e.name)) / 2
		}
		y := top - normal*line*(vg.Length(i/l.columns)+0.5)
		c.StrokeLine2(e.look.line, x, y, x+thumbnail, y)
		if e.look.mark.Shape != nil {
			c.DrawGlyph(e.look.mark, vg.Point{X: x + thumbnail/2, Y: y})
		}
		name.write(c, e.name, x+thumbnail+spacing, y-name.middle(), left)
	}
	return top - normal*line*vg.Length(l.legendRows())
}

// The plots of a panel, from the left.
var measures = []struct {
	name  string
	of    func(Point) Range
	log   bool
	scale scale
}{
	{"Bus bandwidth (GB/s)", func(p Point) Range { return p.BusBW }, false, bandwidths},
	{"Time of a call", func(p Point) Range { return p.Time }, true, times},
}

// plot is one of the plots of a panel.
type plot struct {
	series []Series
	limits []Limit
	of     func(Point) Range
	x, y   axis
	yTicks []tick
}

// drawPanels draws all plots, in columns, and returns where the lowest ones' labels end.
func (l *layout) drawPanels(c draw.Canvas, top vg.Length) (bottom vg.Length) {
	// The labels of vertical axes say how much room is left for plots, which are all of one width.
	columns := make([][]plot, len(measures)*l.across)
	labels := make([]vg.Length, len(columns))
	size := l.f.sizes()
	for i, panel := range l.f.Panels {
		for j, m := range measures {
			p := plot{series: panel.Series, of: m.of, x: size, y: axis{log: m.log}}
			if !m.log {
				p.limits = l.f.Limits
			}
			p.y.low, p.y.high = p.values()
			p.y.to = top - normal*line - l.heading - (l.heading+l.tall+spacing)*vg.Length(i/l.across)
			p.y.from = p.y.to - l.tall
			bottom = p.y.from - off - tickSize - beside
			p.yTicks = p.y.ticks(m.scale, func(string) vg.Length { return small * 1.5 })
			column := i%l.across*len(measures) + j
			for _, t := range p.yTicks {
				labels[column] = max(labels[column], off+tickSize+beside+letters{size: small}.width(t.label))
			}
			columns[column] = append(columns[column], p)
		}
	}
	wide := c.Size().X - overhang - gap*vg.Length(len(columns)-1)
	for _, w := range labels {
		wide -= w
	}
	wide /= vg.Length(len(columns))
	x := c.Min.X
	for i, column := range columns {
		x += labels[i]
		name := measures[i%len(measures)].name
		letters{size: normal}.write(c, name, x+wide/2, top-normal, centre)
		for j, p := range column {
			p.x.from, p.x.to = x, x+wide
			if i%len(measures) == 0 {
				title, space := l.f.Panels[j*l.across+i/len(measures)].Title, 2*wide+gap+labels[i+1]
				letters{size: normal, bold: true}.fitting(title, space).write(c, title, x, p.y.to+spacing, left)
			}
			p.draw(c, l.places, j == len(column)-1)
		}
		x += wide + gap
	}
	bottom -= small*line + normal
	letters{size: normal}.write(c, "Size", c.Center().X, bottom, centre)
	return bottom
}

// sizes returns the horizontal axis of all plots, without its ends.
func (f *Figure) sizes() axis {
	low, high := math.Inf(1), 0.0
	for _, p := range f.Panels {
		for _, s := range p.Series {
			for _, at := range s.Points {
				low, high = min(low, float64(at.Bytes)), max(high, float64(at.Bytes))
			}
		}
	}
	room := max(math.Pow(high/low, 0.03), 1.1)
	return axis{low: low / room, high: high * room, log: true}
}

// values returns what the ends of the vertical axis stand for.
func (p *plot) values() (low, high float64) {
	low = math.Inf(1)
	for _, s := range p.series {
		for _, at := range s.Points {
			low, high = min(low, p.of(at).Low), max(high, p.of(at).High)
		}
	}
	for _, limit := range p.limits {
		high = max(high, limit.BusBW)
	}
	if p.y.log {
		return low / 1.25, high * 1.25
	}
	return 0, max(high*1.06, 1e-9)
}

// draw draws the plot. Of the plots of a column, only the lowest has labels of sizes.
func (p *plot) draw(c draw.Canvas, places map[int]int, lowest bool) {
	letter := letters{size: small}
	length := func(t tick) vg.Length {
		if t.label == "" {
			return tickSize / 2
		}
		return tickSize
	}
	x, y := p.x.from-off, p.y.from-off
	for _, t := range p.x.ticks(sizes, func(label string) vg.Length { return letter.width(label) + spacing }) {
		at := p.x.at(t.value)
		c.StrokeLine2(axisLine, at, y, at, y-length(t))
		if t.label != "" {
			c.StrokeLine2(gridline, at, p.y.from, at, p.y.to)
		}
		if lowest {
			letter.write(c, t.label, at, y-tickSize-beside-2*letter.middle(), centre)
		}
	}
	for _, t := range p.yTicks {
		at := p.y.at(t.value)
		c.StrokeLine2(axisLine, x, at, x-length(t), at)
		if t.label != "" {
			c.StrokeLine2(gridline, p.x.from, at, p.x.to, at)
		}
		letter.write(c, t.label, x-tickSize-beside, at-letter.middle(), right)
	}
	c.StrokeLine2(axisLine, p.x.from, y, p.x.to, y)
	c.StrokeLine2(axisLine, x, p.y.from, x, p.y.to)
	for i, limit := range p.limits {
		at := p.y.at(limit.BusBW)
		c.StrokeLine2(limitLook(i).line, p.x.from, at, p.x.to, at)
	}
	for _, s := range p.series {
		// Bars stand beside their points, so that those of different series do not hide each other.
		aside := vg.Length(places[s.Look]) - vg.Length(len(places)-1)/2
		p.drawSeries(c, s, aside*3.6/vg.Length(len(places)))
	}
}

// drawSeries draws a line with its marks and bars. The bars stand aside of the marks.
func (p *plot) drawSeries(c draw.Canvas, s Series, aside vg.Length) {
	look := s.look()
	var points []vg.Point
	for _, at := range s.Points {
		points = append(points, vg.Point{X: p.x.at(float64(at.Bytes)), Y: p.y.at(p.of(at).Median)})
	}
	bar := look.line
	bar.Width, bar.Dashes = 0.7, nil
	for i, at := range s.Points {
		if r := p.of(at); r.Low < r.High && look.mark.Shape != nil {
			at, low, high := points[i].X+aside, p.y.at(r.Low), p.y.at(r.High)
			const end = 1.6
			c.StrokeLine2(bar, at, low, at, high)
			c.StrokeLine2(bar, at-end, low, at+end, low)
			c.StrokeLine2(bar, at-end, high, at+end, high)
		}
	}
	c.StrokeLines(look.line, points)
	if look.mark.Shape != nil {
		for _, at := range points {
			c.DrawGlyph(look.mark, at)
		}
	}
}
