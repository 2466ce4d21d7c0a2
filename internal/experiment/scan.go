package experiment

import "strings"

// scanner walks over a text that may be TOML. It recognizes strings, so that their contents are skipped.
type scanner struct {
	text string
	pos  int
	line int
}

// peek returns the next byte, 0 at the end.
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
