package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A picture is as wide as the text of a page with two columns, with letters of the size that captions have.
const (
	width  = 17.8 * vg.Centimeter
	panel  = 6.4 * vg.Centimeter // height of a panel
	gap    = 0.5 * vg.Centimeter // between panels
	edge   = vg.Millimeter
	large  = 9.5 // points
	normal = 8
	small  = 7.25
	dots   = 300 // of PNG, per inch
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
	// For viewers without Liberation Sans: these fonts have letters of the same width.
	_, err := w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
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
	gridline = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
	ofBound  = draw.LineStyle{Color: color.RGBA{0x55, 0x55, 0x55, 0xff}, Width: 1.2, Dashes: []vg.Length{1, 2}}
)

// look says how a series is drawn.
type look struct {
	line draw.LineStyle
	mark draw.GlyphStyle
}

// looks returns how each of f's series is drawn. All bounds look the same.
func looks(f *Figure) (all []look) {
	i := 0
	for _, s := range f.Series {
		if s.Bound {
			all = append(all, look{line: ofBound})
			continue
		}
		c := colours[i%len(colours)]
		all = append(all, look{
			line: draw.LineStyle{Color: c, Width: 1.1, Dashes: dashes[(i+i/len(colours))%len(dashes)]},
			mark: draw.GlyphStyle{Color: c, Radius: 2.2, Shape: marks[(i+i/len(colours))%len(marks)]},
		})
		i++
	}
	return all
}

// layout says where the parts of a picture go: the title, the legend, two panels beside each other, and the note.
type layout struct {
	f       *Figure
	looks   []look
	columns int       // of the legend
	row     vg.Length // the height of one of its rows
	height  vg.Length // of the picture
}

func newLayout(f *Figure) *layout {
	l := &layout{f: f, looks: looks(f), row: vg.Points(normal * 1.4)}
	widest := vg.Length(1)
	for _, s := range f.Series {
		widest = max(widest, letters(normal).Width(s.Name))
	}
	l.columns = min(len(f.Series), max(1, int((width-2*edge)/(widest+thumbnail+2*spacing))))
	l.height = 2*edge + vg.Points(large*1.6) + l.row*vg.Length(l.rows()) + spacing + panel + vg.Points(normal*1.8)
	return l
}

func (l *layout) rows() int { return (len(l.f.Series) + l.columns - 1) / l.columns }

const (
	thumbnail = 24 // length of a line in the legend, in points
	spacing   = 6
)

func (l *layout) draw(c draw.Canvas) {
	c.FillPolygon(paper, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}})
	c = draw.Crop(c, edge, -edge, edge, -edge)
	title := fitting(l.f.Title, large, c.Size().X)
	title.XAlign, title.YAlign = text.XCenter, text.YTop
	c.FillText(title, vg.Point{X: c.Center().X, Y: c.Max.Y}, l.f.Title)
	top := c.Max.Y - vg.Points(large*1.6)
	l.legend(draw.Crop(c, 0, 0, 0, top-c.Max.Y))
	top -= l.row*vg.Length(l.rows()) + spacing
	note := fitting(l.f.Note, small, c.Size().X)
	note.XAlign = text.XCenter
	c.FillText(note, vg.Point{X: c.Center().X, Y: c.Min.Y + note.FontExtents().Descent}, l.f.Note)
	// Labels of axes are drawn here, because plot does not put them in the middle of a logarithmic axis.
	const label = normal * 1.5
	panels := draw.Crop(c, 0, 0, normal*1.8+label, top-c.Max.Y)
	plots := [][]*plot.Plot{{l.bandwidth(), l.time()}}
	for i, at := range plot.Align(plots, draw.Tiles{Rows: 1, Cols: 2, PadLeft: label, PadX: gap + label}, panels)[0] {
		plots[0][i].Draw(at)
		data := plots[0][i].DataCanvas(at)
		sty := letters(normal)
		sty.XAlign = text.XCenter
		c.FillText(sty, vg.Point{X: data.Center().X, Y: at.Min.Y - normal}, "Size")
		sty.Rotation = math.Pi / 2
		c.FillText(sty, vg.Point{X: at.Min.X - label + normal, Y: data.Center().Y}, []string{"Bus bandwidth (GB/s)", "Time of a call"}[i])
	}
}

// legend names the series, in rows from the top.
func (l *layout) legend(c draw.Canvas) {
	column := c.Size().X / vg.Length(l.columns)
	for i, s := range l.f.Series {
		x := c.Min.X + column*vg.Length(i%l.columns)
		if len(l.f.Series) <= l.columns { // one row stands in the middle
			x += (column - thumbnail - spacing - letters(normal).Width(s.Name)) / 2
		}
		y := c.Max.Y - l.row*(vg.Length(i/l.columns)+0.5)
		c.StrokeLine2(l.looks[i].line, x, y, x+thumbnail, y)
		if l.looks[i].mark.Shape != nil {
			c.DrawGlyph(l.looks[i].mark, vg.Point{X: x + thumbnail/2, Y: y})
		}
		sty := fitting(s.Name, normal, c.Max.X-x-thumbnail-spacing)
		c.FillText(sty, vg.Point{X: x + thumbnail + spacing, Y: y - normal*0.35}, s.Name)
	}
}

// bandwidth returns the left panel.
func (l *layout) bandwidth() *plot.Plot {
	p := l.panel(func(p Point) Range { return p.BusBW })
	p.Y.Tick.Marker = evenTicks{}
	p.Y.Min = 0
	high := p.Y.Max
	for _, limit := range l.f.Limits {
		high = max(high, limit.BusBW)
		p.Add(&limitLine{limit})
	}
	p.Y.Max = max(high*1.06, 1e-9)
	return p
}

// time returns the right panel.
func (l *layout) time() *plot.Plot {
	p := l.panel(func(p Point) Range { return p.Time })
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, timeTicks{}
	p.Y.Min, p.Y.Max = p.Y.Min/1.25, p.Y.Max*1.25
	return p
}

// panel returns a plot of all series against size.
func (l *layout) panel(of func(Point) Range) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil // the picture has a background
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, sizeTicks{}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font = letters(small).Font
		a.Tick.Length, a.Padding = 3, 2
		a.LineStyle.Width, a.Tick.LineStyle.Width = 0.6, 0.6
	}
	grid := plotter.NewGrid()
	grid.Horizontal = draw.LineStyle{Color: gridline, Width: 0.4}
	grid.Vertical = grid.Horizontal
	p.Add(grid)
	for i, s := range l.f.Series {
		aside := vg.Length(i) - vg.Length(len(l.f.Series)-1)/2
		p.Add(&seriesLine{s.Points, of, l.looks[i], aside * 3.6 / vg.Length(len(l.f.Series))})
	}
	low, high := p.X.Min, p.X.Max
	room := max(math.Pow(high/low, 0.03), 1.1)
	p.X.Min, p.X.Max = low/room, high*room
	return p
}

// seriesLine draws the line of a series, with its marks and bars.
type seriesLine struct {
	points []Point
	of     func(Point) Range
	look   look
	aside  vg.Length // how far bars stand beside their points, so that bars of different series do not hide each other
}

// Plot implements plot.Plotter.
func (s *seriesLine) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	var line []vg.Point
	for _, at := range s.points {
		line = append(line, vg.Point{X: x(float64(at.Bytes)), Y: y(s.of(at).Median)})
	}
	bar := s.look.line
	bar.Width, bar.Dashes = 0.7, nil
	for i, at := range s.points {
		if r := s.of(at); r.Low < r.High && s.look.mark.Shape != nil {
			at, low, high := line[i].X+s.aside, y(r.Low), y(r.High)
			const end = 1.6
			c.StrokeLine2(bar, at, low, at, high)
			c.StrokeLine2(bar, at-end, low, at+end, low)
			c.StrokeLine2(bar, at-end, high, at+end, high)
		}
	}
	c.StrokeLines(s.look.line, line)
	if s.look.mark.Shape != nil {
		for _, at := range line {
			c.DrawGlyph(s.look.mark, at)
		}
	}
}

// DataRange implements plot.DataRanger.
func (s *seriesLine) DataRange() (left, right, low, high float64) {
	left, low = math.Inf(1), math.Inf(1)
	for _, p := range s.points {
		r := s.of(p)
		left, right = min(left, float64(p.Bytes)), max(right, float64(p.Bytes))
		low, high = min(low, r.Low), max(high, r.High)
	}
	return left, right, low, high
}

// limitLine draws a limit across the whole panel, with its name.
type limitLine struct{ Limit }

// Plot implements plot.Plotter.
func (l *limitLine) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	at := y(l.BusBW)
	c.StrokeLine2(ofBound, c.Min.X, at, c.Max.X, at)
	name := fmt.Sprintf("%s %.4g GB/s", l.Name, l.BusBW)
	sty := fitting(name, small, c.Size().X)
	sty.YAlign = text.YTop
	c.FillText(sty, vg.Point{X: c.Min.X + spacing, Y: at - 1.5}, name)
}

// letters returns the style of all text, in a size of this many points.
func letters(points float64) text.Style {
	return text.Style{Color: ink, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, vg.Points(points)),
		Handler: plot.DefaultTextHandler}
}

// fitting returns letters of at most this size, small enough for s to fit into space.
func fitting(s string, points float64, space vg.Length) text.Style {
	if w := letters(points).Width(s); w > space && space > 0 {
		points *= float64(space / w)
	}
	return letters(points)
}
