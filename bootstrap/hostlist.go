package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts is how many hosts a list may have, as Slurm limits it (MAX_RANGE in its hostlist.c).
const maxHosts = 1 << 16

var errManyHosts = fmt.Errorf("more than %d hosts", maxHosts)

// hostlist expands Slurm's form of a list of hosts, as `scontrol show hostnames` does: node[01-03,7],login is node01,
// node02, node03, node7, login. With several brackets the last one varies fastest.
func hostlist(s string) (hosts []string, err error) {
	for s != "" {
		var one string
		if one, s, err = cutHost(s); err != nil {
			return nil, err
		}
		names, err := expand(one)
		if err != nil {
			return nil, err
		}
		if hosts = append(hosts, names...); len(hosts) > maxHosts {
			return nil, errManyHosts
		}
	}
	if len(hosts) == 0 {
		return nil, errors.New("want at least one host")
	}
	return hosts, nil
}

// cutHost cuts s behind its first comma outside of brackets.
func cutHost(s string) (one, rest string, err error) {
	inside := false
	for i, c := range s {
		switch {
		case c == '[' && inside, c == ']' && !inside:
			return "", "", fmt.Errorf("a bracket too many at byte %d", i)
		case c == '[' || c == ']':
			inside = c == '['
		case c == ',' && !inside:
			return s[:i], s[i+1:], nil
		}
	}
	if inside {
		return "", "", errors.New("a bracket is not closed")
	}
	return s, "", nil
}

// expand returns the hosts of one element; none for an empty one. Its brackets are balanced.
func expand(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	before, rest, found := strings.Cut(s, "[")
	if !found {
		return []string{s}, nil
	}
	inside, after, _ := strings.Cut(rest, "]")
	tails := []string{""}
	if after != "" {
		var err error
		if tails, err = expand(after); err != nil {
			return nil, err
		}
	}
	var hosts []string
	for part := range strings.SplitSeq(inside, ",") {
		first, last, width, err := span(part)
		if err != nil {
			return nil, err
		}
		if (last-first+1)*uint64(len(tails)) > uint64(maxHosts-len(hosts)) {
			return nil, errManyHosts
		}
		for n := first; n <= last; n++ {
			for _, tail := range tails {
				hosts = append(hosts, fmt.Sprintf("%s%0*d%s", before, width, n, tail))
			}
		}
	}
	return hosts, nil
}

// span reads 7 or 01-12. Numbers have at least as many digits as the first.
func span(s string) (first, last uint64, width int, err error) {
	low, high, two := strings.Cut(s, "-")
	if !two {
		high = low
	}
	first, err = strconv.ParseUint(low, 10, 32)
	last, errLast := strconv.ParseUint(high, 10, 32)
	if err != nil || errLast != nil || first > last || len(low) > maxDigits {
		return 0, 0, 0, fmt.Errorf("%q is no range of numbers, as 01-12", s)
	}
	if last-first >= maxHosts {
		return 0, 0, 0, errManyHosts
	}
	return first, last, len(low), nil
}

// maxDigits bounds the zeros before a number.
const maxDigits = 32
