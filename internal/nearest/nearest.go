// Package nearest finds the word that a mistyped one probably means.
package nearest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// same maps other libraries' names to the library's.
var same = map[string]string{"mean": "avg", "average": "avg", "add": "sum", "plus": "sum", "product": "prod", "mul": "prod",
	"multiply": "prod", "minimum": "min", "maximum": "max", "gpu": "cuda", "cpu": "host", "bcast": "broadcast",
	"all_to_all": "alltoall"}

// Word returns the word of words that is nearest to s, "" if none is near: in meaning, as the only one that begins with s,
// or in its letters. It ignores case.
func Word(s string, words []string) string {
	if w := same[strings.ToLower(s)]; slices.Contains(words, w) {
		return w
	}
	if w := begun(s, words); w != "" {
		return w
	}
	best, word := len(s)/3+2, ""
	for _, w := range words {
		if d := distance(strings.ToLower(s), strings.ToLower(w)); d < best {
			best, word = d, w
		}
	}
	return word
}

// begun returns the only one of words that begins with s, which has two letters or more; "" if there is none or more than one.
func begun(s string, words []string) (word string) {
	for _, w := range words {
		if len(s) < 2 || len(w) < len(s) || !strings.EqualFold(s, w[:len(s)]) {
			continue
		}
		if word != "" {
			return ""
		}
		word = w
	}
	return word
}

// File is Hint for a file or folder that is not there: it names the nearest one in the same folder.
func File(name string) string {
	folder, base := filepath.Split(name)
	there, _ := os.ReadDir(cmp.Or(folder, ".")) // of a folder that cannot be read, nothing is near
	var names []string
	for _, f := range there {
		names = append(names, f.Name())
	}
	if w := Word(base, names); w != "" {
		return ": did you mean " + folder + w + "?"
	}
	return ""
}

// Hint returns ": did you mean word?" with the word nearest to s, or "" if none is near.
func Hint(s string, words []string) string {
	if w := Word(s, words); w != "" {
		return ": did you mean " + w + "?"
	}
	return ""
}

// Unknown says that there is no such word, which words there are, and which of them s probably means: "unknown device "gpu"
// (one of host, cuda): did you mean cuda?".
func Unknown(what, s string, words []string) string {
	return fmt.Sprintf("unknown %s %q (one of %s)%s", what, s, strings.Join(words, ", "), Hint(s, words))
}

// distance is the number of letters to add, drop or change to turn a into b. Words of more than 64 bytes are near
// nothing.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
