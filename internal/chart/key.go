package chart

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// key has a value for each axis, "" for an axis that the operation does not have.
type key [axesCount]string

// bound tells whether k is what the hardware can do.
func (k key) bound() bool { return k[contender] == "bound" }

// on returns k's values on some axes only.
func (k key) on(some []int) (part key) {
	for _, axis := range some {
		part[axis] = k[axis]
	}
	return part
}

// without returns k without the axes on which said has a value.
func (k key) without(said key) key {
	for axis := range k {
		if said[axis] != "" {
			k[axis] = ""
		}
	}
	return k
}

// compare orders keys by their values on the first axis, then by those on the second one, and so on.
func (k key) compare(other key) int { return slices.CompareFunc(k[:], other[:], natural) }

var wordsAndNumbers = regexp.MustCompile(`[0-9]+|[^0-9]+`)

// natural orders texts by their words and numbers: 2 is before 10, and int8 before int16.
func natural(a, b string) int {
	isNumber := func(s string) bool { return '0' <= s[0] && s[0] <= '9' }
	return cmp.Or(slices.CompareFunc(wordsAndNumbers.FindAllString(a, -1), wordsAndNumbers.FindAllString(b, -1), func(x, y string) int {
		if !isNumber(x) || !isNumber(y) {
			return cmp.Compare(x, y)
		}
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	}), cmp.Compare(a, b)) // 01 is not 1
}

// title says k in words. It leaves out axes on which all keys have the usual value.
func (k key) title(all []key) string {
	var says []string
	for axis, a := range axes {
		if v := k[axis]; v != "" && (v != a.usual || len(values(all, axis)) > 1) {
			says = append(says, a.say(v))
		}
	}
	return strings.Join(says, ", ")
}

// line names a line by its values on some axes, or, if it has none there, by its run.
func (k key) line(on []int) string {
	var says []string
	for _, axis := range on {
		if k[axis] != "" {
			says = append(says, axes[axis].say(k[axis]))
		}
	}
	return cmp.Or(strings.Join(says, ", "), k[theRun])
}

var notInNames = regexp.MustCompile(`[^a-z0-9_]+`)

// file returns k for the name of a file. It leaves out axes on which all keys have the same value. Values that do not
// explain themselves, such as numbers, have the axis' name before them.
func (k key) file(all []key) string {
	var says []string
	for axis, a := range axes {
		v := k[axis]
		if v == "" || !differ(all, axis) {
			continue
		}
		if a.say(v) != v {
			says = append(says, a.name)
		}
		says = append(says, v)
	}
	return notInNames.ReplaceAllString(strings.ToLower(strings.Join(says, "-")), "-")
}

// group divides keys by their values on some axes. The groups are in order, and so are the keys of each if all are.
func group(keys []key, by []int) (groups [][]key) {
	of := map[key][]key{}
	for _, k := range keys {
		of[k.on(by)] = append(of[k.on(by)], k)
	}
	for _, part := range slices.SortedFunc(maps.Keys(of), key.compare) {
		groups = append(groups, of[part])
	}
	return groups
}

// differ tells whether keys are not all the same on an axis.
func differ(keys []key, axis int) bool {
	return slices.ContainsFunc(keys, func(k key) bool { return k[axis] != keys[0][axis] })
}

// values returns the values that keys have on an axis.
func values(keys []key, axis int) map[string]bool {
	have := map[string]bool{}
	for _, k := range keys {
		have[k[axis]] = true
	}
	delete(have, "")
	return have
}

// common returns what keys have in common on the axes that do not tell lines apart. The run is none of it.
func common(keys []key, lines []int) key {
	k := keys[0]
	for axis := range k {
		if axis == theRun || slices.Contains(lines, axis) || differ(keys, axis) {
			k[axis] = ""
		}
	}
	return k
}
