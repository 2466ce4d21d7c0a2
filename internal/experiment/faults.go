package experiment

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// Fault is one thing that is wrong with an experiment.
type Fault struct {
	File string // as given to Parse; "" if the value did not come from a file
	Line int    // from 1; 0 if unknown
	Key  string // dotted: "allreduce.type"; "" if the fault is not about one key
	Msg  string // what is wrong, and what would be right

	path  []string // Key before quoting, to find the line
	limit bool     // it exceeds a limit of what is read
}

// String is "file:line: key: what is wrong".
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d", f.Line)
		}
		b.WriteString(": ")
	}
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	return b.String() + f.Msg
}

// Faults is everything that is wrong with an experiment. It wraps ErrArgument, or ErrLimit if the file was not read
// because it exceeds a limit.
type Faults []Fault

// Error has one line for each fault.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns ErrArgument, or ErrLimit, for errors.Is.
func (fs Faults) Unwrap() error {
	for _, f := range fs {
		if f.limit {
			return fault.ErrLimit
		}
	}
	return fault.ErrArgument
}
