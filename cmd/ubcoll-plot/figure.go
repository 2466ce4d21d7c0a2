package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// version is the version of the figures that this program draws. It changes whenever a key does.
const version = 2

// Figure describes one picture.
type Figure struct {
	Version int     `json:"version"`
	Title   string  `json:"title"`
	Note    string  `json:"note"` // below the panels: what points and bars are
	Panels  []Panel `json:"panels"`
	Limits  []Limit `json:"limits"` // horizontal lines in the plots of bandwidths
}

// Panel is two plots beside each other, of bandwidth and of time.
type Panel struct {
	Title  string   `json:"title"`
	Series []Series `json:"series"`
}

// Series is a line.
type Series struct {
	Name   string  `json:"name"`   // the same in all panels
	Look   int     `json:"look"`   // from 0: its colour, dashes and marks, and its place in the legend
	Bound  bool    `json:"bound"`  // what the hardware can do: grey, without marks
	Points []Point `json:"points"` // by size, which is more than 0
}

// Point has the values of one size.
type Point struct {
	Bytes int   `json:"bytes"`
	Time  Range `json:"time_us"` // microseconds of a call, more than 0
	BusBW Range `json:"bus_bw"`  // bus bandwidth, GB/s
}

// Range is a median and the ends of its bar. If they are equal, there is no bar.
type Range struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Limit is a bandwidth that cannot be exceeded.
type Limit struct {
	Name  string  `json:"name"`
	BusBW float64 `json:"bus_bw"` // GB/s
}

// read reads a figure, and refuses what cannot be drawn.
func read(in io.Reader) (*Figure, error) {
	text, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	var v struct{ Version int }
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	if v.Version != version {
		return nil, fmt.Errorf("it is of version %d, and this ubcoll-plot draws version %d: build both of one commit", v.Version, version)
	}
	f := &Figure{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, err
	}
	if len(f.Panels) == 0 {
		return nil, errors.New("it has no panels")
	}
	names := map[int]string{}
	for i, panel := range f.Panels {
		points := 0
		for j, s := range panel.Series {
			if name, known := names[s.Look]; s.Look < 0 || known && name != s.Name {
				return nil, fmt.Errorf("series %q has look %d, and so has series %q: want a number from 0 for each name", s.Name, s.Look, name)
			}
			if slices.ContainsFunc(panel.Series[:j], func(o Series) bool { return o.Look == s.Look }) {
				return nil, fmt.Errorf("panel %d has series %q twice", i, s.Name)
			}
			names[s.Look] = s.Name
			if err := s.check(); err != nil {
				return nil, err
			}
			points += len(s.Points)
		}
		if points == 0 {
			return nil, fmt.Errorf("panel %d has no points", i)
		}
	}
	for _, l := range f.Limits {
		if !(l.BusBW > 0) || math.IsInf(l.BusBW, 0) {
			return nil, fmt.Errorf("limit %q: want a bandwidth of more than 0, not %g", l.Name, l.BusBW)
		}
	}
	return f, nil
}

func (s *Series) check() error {
	last := 0
	for _, p := range s.Points {
		switch {
		case p.Bytes <= last:
			return fmt.Errorf("series %q: %d bytes after %d: want sizes that grow, from 1", s.Name, p.Bytes, last)
		case !p.Time.ordered() || p.Time.Low <= 0 || !p.BusBW.ordered() || p.BusBW.Low < 0:
			return fmt.Errorf("series %q, %d bytes: want times more than 0 and bandwidths from 0, with low <= median <= high",
				s.Name, p.Bytes)
		}
		last = p.Bytes
	}
	return nil
}

func (r Range) ordered() bool {
	return r.Low <= r.Median && r.Median <= r.High && !math.IsInf(r.High, 0)
}
