package experiment

import (
	"strings"

	"github.com/BurntSushi/toml"
)

// lineTable has the line at which each key of a TOML text first appears, by its path joined with NUL. The TOML parser
// has these positions but does not give them away.
type lineTable map[string]int

// of is the line of path, or of the innermost table around it that has one, or 0.
func (t lineTable) of(path []string) int {
	for n := len(path); n > 0; n-- {
		if line, ok := t[strings.Join(path[:n], "\x00")]; ok {
			return line
		}
	}
	return 0
}

// keyLines scans a text that the TOML parser has accepted. On any other text it still ends, with lines that exist.
func keyLines(text string) lineTable {
	s := scanner{text: strings.TrimPrefix(text, "\ufeff"), line: 1, lines: lineTable{}}
	var prefix []string
	for s.blank(true); s.pos < len(s.text); s.blank(true) {
		if s.take("[") {
			s.take("[")
			prefix = s.key(nil)
			s.until("\n")
			continue
		}
		s.entry(prefix)
		s.until("\n")
	}
	return s.lines
}

type scanner struct {
	text  string
	pos   int
	line  int
	lines lineTable
}

// peek is the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

// next steps over n bytes, counting lines.
func (s *scanner) next(n int) {
	n = min(n, len(s.text)-s.pos)
	s.line += strings.Count(s.text[s.pos:s.pos+n], "\n")
	s.pos += n
}

// take steps over token if it comes next.
func (s *scanner) take(token string) bool {
	if !strings.HasPrefix(s.text[s.pos:], token) {
		return false
	}
	s.next(len(token))
	return true
}

// until steps to the next of the bytes in stops, or to the end.
func (s *scanner) until(stops string) {
	if n := strings.IndexAny(s.text[s.pos:], stops); n >= 0 {
		s.next(n)
	} else {
		s.next(len(s.text))
	}
}

// blank steps over spaces and, if lines is set, over line ends and comments.
func (s *scanner) blank(lines bool) {
	for {
		switch c := s.peek(); {
		case c == ' ' || c == '\t', lines && (c == '\n' || c == '\r'):
			s.next(1)
		case lines && c == '#':
			s.until("\n")
		default:
			return
		}
	}
}

// entry reads key = value below prefix.
func (s *scanner) entry(prefix []string) {
	path := s.key(prefix)
	s.blank(false)
	if s.take("=") {
		s.value(path)
	}
}

// key reads a dotted key below prefix, notes the line of each of its parts and returns the whole path.
func (s *scanner) key(prefix []string) []string {
	path := prefix[:len(prefix):len(prefix)] // so that append copies
	for {
		s.blank(false)
		start := s.pos
		var part string
		if c := s.peek(); c == '"' || c == '\'' {
			s.str()
			part = unquote(s.text[start:s.pos])
		} else {
			s.until(" \t\r\n.=]#\"'{}[,")
			part = s.text[start:s.pos]
		}
		if s.pos == start { // no key here: not TOML
			return path
		}
		path = append(path, part)
		if at := strings.Join(path, "\x00"); s.lines[at] == 0 {
			s.lines[at] = s.line
		}
		s.blank(false)
		if !s.take(".") {
			return path
		}
	}
}

// unquote has the parser itself undo the quotes and escapes of a key.
func unquote(quoted string) string {
	var v struct{ K string }
	if _, err := toml.Decode("K = "+quoted, &v); err != nil {
		return quoted
	}
	return v.K
}

// value steps over a value and notes the keys of inline tables in it.
func (s *scanner) value(path []string) {
	s.blank(false)
	switch c := s.peek(); c {
	case '"', '\'':
		s.str()
	case '[', '{':
		s.next(1)
		for s.blank(true); s.pos < len(s.text); s.blank(true) {
			start := s.pos
			switch {
			case s.take("]"), s.take("}"):
				return
			case s.take(","):
			case c == '[':
				s.value(path)
			default:
				s.entry(path)
			}
			if s.pos == start {
				return // not TOML
			}
		}
	default:
		s.until(",]}#\n")
	}
}

// str steps over a string of any of the four kinds.
func (s *scanner) str() {
	quote := s.text[s.pos : s.pos+1]
	if long := strings.Repeat(quote, 3); s.take(long) {
		for s.pos < len(s.text) && !s.take(long) {
			s.char(quote)
		}
		for range 2 { // up to two quotes may stand before the closing three
			s.take(quote)
		}
		return
	}
	s.next(1)
	for s.pos < len(s.text) && s.peek() != '\n' && !s.take(quote) {
		s.char(quote)
	}
}

// char steps over one byte of a string, or over an escape of two.
func (s *scanner) char(quote string) {
	if quote == `"` && s.peek() == '\\' {
		s.next(1)
	}
	s.next(1)
}
