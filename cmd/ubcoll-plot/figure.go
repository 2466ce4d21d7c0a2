package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// version is the version of the figures that this program draws. It changes whenever a key does.
const version = 1

// Figure describes one picture.
type Figure struct {
	Version int      `json:"version"`
	Title   string   `json:"title"`
	Note    string   `json:"note"` // below the panels: what points and bars are
	Series  []Series `json:"series"`
	Limits  []Limit  `json:"limits"` // horizontal lines in the panel of bandwidths
}

// Series is a line.
type Series struct {
	Name   string  `json:"name"`
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
	points := 0
	for _, s := range f.Series {
		last := 0
		for _, p := range s.Points {
			points++
			switch {
			case p.Bytes <= last:
				return nil, fmt.Errorf("series %q: %d bytes after %d: want sizes that grow, from 1", s.Name, p.Bytes, last)
			case !p.Time.ordered() || p.Time.Low <= 0 || !p.BusBW.ordered() || p.BusBW.Low < 0:
				return nil, fmt.Errorf("series %q, %d bytes: want times more than 0 and bandwidths from 0, with low <= median <= high",
					s.Name, p.Bytes)
			}
			last = p.Bytes
		}
	}
	if points == 0 {
		return nil, errors.New("it has no points")
	}
	for _, l := range f.Limits {
		if !(l.BusBW > 0) || math.IsInf(l.BusBW, 0) {
			return nil, fmt.Errorf("limit %q: want a bandwidth of more than 0, not %g", l.Name, l.BusBW)
		}
	}
	return f, nil
}

func (r Range) ordered() bool {
	return r.Low <= r.Median && r.Median <= r.High && !math.IsInf(r.High, 0)
}
