// Package invariants says whether checks are compiled in that cost too much for users: those of -tags invariants. Enabled
// is a constant, so that the compiler drops what stands under it. A check looks only at what this process wrote itself:
// what a peer has written may be wrong without a defect here, and is an error.
package invariants

import "fmt"

// Violated panics: the library itself is wrong. Call it under Enabled only.
func Violated(format string, args ...any) {
	panic("invariant violated: " + fmt.Sprintf(format, args...))
}
