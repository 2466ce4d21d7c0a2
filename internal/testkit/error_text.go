package testkit

import (
	"fmt"
	"regexp"
	"strings"
)

// inner are words that only the library's own code uses.
var inner = regexp.MustCompile(`\b(agree|hello|attach|verdict|stage|staging|lanes?|mailbox|slots?|descriptors|arena|` +
	`generation|extent|IPC|join at|the other end)\b|\binvalid, |\bnone\b|count 0, `)

// teller is the rank that tells an error.
var teller = regexp.MustCompile(`\brank (\d+) (?:\(host |on host )`)

// repeated is the call of an error and the first word of its reason.
var repeated = regexp.MustCompile(`^(?:ubcoll: )?(\w+)(?: #\d+)?: rank \d+ \([^)]*\): (\w+)`)

// longest is how many words may occur twice in an error.
const longest = 5

// CheckErrorText returns what is wrong with a line that tells users of an error: it says something twice, or with words that
// only the library's code uses. It returns "" if nothing is.
func CheckErrorText(line string) string {
	if w := inner.FindString(strings.ReplaceAll(line, "CUDA IPC", "")); w != "" { // that is a transport's name
		return fmt.Sprintf("%q is an inner word", w)
	}
	tellers := teller.FindAllStringSubmatch(line, -1)
	if len(tellers) > 1 {
		return "it says twice which rank tells it"
	}
	for _, t := range tellers {
		if strings.Contains(line, "peer rank "+t[1]+":") || strings.Contains(line, "): rank "+t[1]+": ") {
			return fmt.Sprintf("rank %s says once more that it is rank %s", t[1], t[1])
		}
	}
	if call := repeated.FindStringSubmatch(line); call != nil && call[1] == call[2] {
		return fmt.Sprintf("it says the call %q twice", call[1])
	}
	parts := map[string]bool{}
	for part := range strings.SplitSeq(line, ": ") {
		if parts[part] {
			return fmt.Sprintf("%q is there twice", part)
		}
		parts[part] = true
	}
	words, have := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" ,:;()", c) }), map[string]bool{}
	for i := range len(words) - longest {
		s := strings.Join(words[i:i+longest+1], " ")
		if have[s] {
			return fmt.Sprintf("%q is there twice", s)
		}
		have[s] = true
	}
	return ""
}
