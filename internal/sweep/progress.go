package sweep

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// every is how often a run reports its progress in a log.
const every = 30 * time.Second

// Progress reports how far a run is: on a terminal as a bar of one line, else as a line now and then.
type Progress struct {
	W        io.Writer // nil: nowhere
	Terminal bool

	begun  time.Time
	first  int // measurements that existed before
	last   time.Time
	length int // of the line on the terminal
}

// step reports that done of all measurements exist, and which is next.
func (p *Progress) step(now time.Time, done, all int, next string) {
	if p.W == nil {
		return
	}
	if p.begun.IsZero() {
		p.begun, p.first, p.last = now, done, now
	}
	left := ""
	if n := done - p.first; n > 0 {
		d := now.Sub(p.begun) / time.Duration(n) * time.Duration(all-done)
		left = ", " + max(d, time.Second).Round(time.Second).String() + " left"
	}
	switch {
	case p.Terminal:
		const width = 20
		full := width * done / max(1, all)
		line := fmt.Sprintf("[%s%s] %d/%d%s: %s", strings.Repeat("=", full), strings.Repeat(" ", width-full), done, all, left, next)
		if len(line) > 100 {
			line = line[:100]
		}
		p.clear()
		fmt.Fprint(p.W, line)
		p.length = len(line)
	case now.Sub(p.last) >= every:
		p.last = now
		fmt.Fprintf(p.W, "ubcoll run: %d of %d measurements%s: %s\n", done, all, left, next)
	}
}

// clear removes the line on the terminal.
func (p *Progress) clear() {
	if p.length > 0 {
		fmt.Fprintf(p.W, "\r%*s\r", p.length, "")
		p.length = 0
	}
}
