package experiment

import (
	"fmt"
	"strings"
)

// No experiment needs more than this. Beyond it the TOML parser takes gigabytes: it keeps every table on the path of
// each key.
const (
	maxFile  = 64 << 10
	maxDepth = 8   // nested brackets
	maxParts = 8   // of a dotted key
	maxKey   = 256 // bytes of a dotted key
)

// limits checks a text before the parser does, in one pass that stores nothing. It returns a fault if the text exceeds
// a limit.
func limits(text string) (line int, msg string) {
	if len(text) > maxFile {
		return 0, fmt.Sprintf("longer than %d bytes: this is no experiment", maxFile)
	}
	s := scanner{text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	depth, parts := 0, 1
	begin, start := 0, 0 // beginnings of the line, and of what may be a key
	header := false      // the line begins with a bracket, so what is in it is a key
	for s.pos < len(s.text) {
		switch c := s.peek(); c {
		case '"', '\'':
			s.str()
			continue
		case '#':
			s.until("\n")
			continue
		case '[', '{':
			if depth++; depth > maxDepth {
				return s.line, fmt.Sprintf("more than %d brackets within each other", maxDepth)
			}
			header = header || depth == 1 && c == '[' && strings.TrimSpace(s.text[begin:s.pos]) == ""
		case ']', '}':
			depth = max(0, depth-1)
		case '.':
			if parts++; parts > maxParts {
				return s.line, fmt.Sprintf("a key of more than %d parts", maxParts)
			}
		}
		switch c := s.peek(); c {
		case '=', '\n', ',', '[', '{', ']', '}':
			if (c == '=' || header) && s.pos-start > maxKey {
				return s.line, fmt.Sprintf("a key of more than %d bytes", maxKey)
			}
			parts = 1
			if c != '[' || !header {
				start = s.pos + 1
			}
			if c == '\n' {
				begin, header = s.pos+1, false
			}
		}
		s.next(1)
	}
	return 0, ""
}
