package launch

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"time"
)

// errorMerger is standard error of all ranks. If several ranks of the job fail with the same error, ubcoll.Main prints it on
// each of them; errorMerger writes one line that says how many more there are. It holds such a line back until the rank
// writes something else, the launcher says something, or a second is over: a rank that has printed its error ends half a
// second later. Of the notices that a signal has come, it writes the first, or none if the launcher has told of it: then it is told before
// what ranks write because of it, whichever of them is heard first. Everything else it passes on at once. Its
// caller has the launcher's lock.
type errorMerger struct {
	to      io.Writer
	held    []heldError
	notices map[string]bool // notices
	told    bool            // the launcher has told of a signal: no notices
}

// heldError is an error that one rank or more have printed.
type heldError struct {
	key   string // the line without what differs between ranks
	line  []byte // of the lowest rank, without its end
	low   int    // that rank
	ranks []int
}

// The parts of ubcoll.Main's lines that tell ranks apart.
var (
	teller = regexp.MustCompile(`\brank \d+ (\(host [^)]*\)|on host [^ :]+)`)
	notice = regexp.MustCompile(`^ubcoll: host \S+, pid \d+: signal: `)
)

// hold is how long a line is held back at most.
const hold = time.Second

// add takes what rank has written: whole lines, each with prefix before it. It reports whether lines are held back that
// were not before.
func (c *errorMerger) add(rank int, text []byte, prefix string) (holds bool) {
	c.release(rank)
	if line := bytes.TrimSuffix(text, []byte("\n")); bytes.HasPrefix(line, []byte("ubcoll: ")) && bytes.Count(text, []byte("\n")) == 1 {
		if at := teller.FindIndex(line); at != nil {
			return c.merge(rank, string(line[:at[0]])+"\n"+string(line[at[1]:]), append([]byte(prefix), line...))
		}
	}
	for line := range bytes.Lines(text) {
		if at := notice.FindIndex(line); at != nil {
			if key := string(line[at[1]:]); c.told || c.notices[key] {
				continue
			} else if c.notices == nil {
				c.notices = map[string]bool{key: true}
			} else {
				c.notices[key] = true
			}
		}
		c.write(append([]byte(prefix), line...))
	}
	return false
}

// merge adds a rank's line to the others of its key.
func (c *errorMerger) merge(rank int, key string, line []byte) (holds bool) {
	for i := range c.held {
		if v := &c.held[i]; v.key == key {
			if v.ranks = append(v.ranks, rank); rank < v.low {
				v.low, v.line = rank, line
			}
			return false
		}
	}
	c.held = append(c.held, heldError{key, line, rank, []int{rank}})
	return true
}

// release writes what is held back of a rank.
func (c *errorMerger) release(rank int) {
	for _, v := range c.held {
		for _, r := range v.ranks {
			if r == rank {
				c.flush()
				return
			}
		}
	}
}

// flush writes all that is held back.
func (c *errorMerger) flush() {
	for _, v := range c.held {
		switch n := len(v.ranks) - 1; n {
		case 0:
		case 1:
			v.line = append(v.line, " (and 1 more rank)"...)
		default:
			v.line = fmt.Appendf(v.line, " (and %d more ranks)", n)
		}
		c.write(append(v.line, '\n'))
	}
	c.held = nil
}

func (c *errorMerger) write(text []byte) { _, _ = c.to.Write(text) } // a reader that has closed it wants no more
