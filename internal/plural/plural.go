// Package plural writes numbers of things.
package plural

import "strconv"

// Count returns "1 repeat" or "3 repeats": n with the word one, which gets an s unless n is 1.
func Count(n int, one string) string {
	if n != 1 {
		one += "s"
	}
	return strconv.Itoa(n) + " " + one
}
