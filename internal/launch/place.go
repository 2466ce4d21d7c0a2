package launch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Host is a host and how many ranks it takes before the next one gets any.
type Host struct {
	Name  string
	Slots int // 0 = not said
}

// ParseHosts parses "a,b" or "a:2,b:2". An IPv6 address stands in brackets. If a host is named twice, its slots add up.
func ParseHosts(s string) ([]Host, error) {
	var hosts []Host
	at := map[string]int{}
	for word := range strings.SplitSeq(s, ",") {
		h, err := parseHost(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		if i, twice := at[h.Name]; twice {
			hosts[i].Slots = max(hosts[i].Slots, 1) + max(h.Slots, 1)
			continue
		}
		at[h.Name] = len(hosts)
		hosts = append(hosts, h)
	}
	return hosts, nil
}

func parseHost(word string) (Host, error) {
	name, slots, said := word, "", false
	if inside, ok := strings.CutPrefix(word, "["); ok {
		var rest string
		if name, rest, ok = strings.Cut(inside, "]"); !ok || rest != "" && rest[0] != ':' {
			return Host{}, fmt.Errorf("host %q: want an address in brackets, as [fe80::1]:2", word)
		}
		_, slots, said = strings.Cut(rest, ":")
	} else if strings.Count(word, ":") < 2 {
		name, slots, said = strings.Cut(word, ":")
	} else {
		return Host{}, fmt.Errorf("host %q: an IPv6 address stands in brackets, as [%s]:2", word, word)
	}
	switch {
	case name == "":
		return Host{}, fmt.Errorf("host %q has no name: want names with commas between, as a,b or a:2,b:2", word)
	case strings.HasPrefix(name, "-") || strings.ContainsAny(name, " \t'\"\\$`;&|<>"):
		return Host{}, fmt.Errorf("host %q: this is no name of a host", word) // ssh would take it for an option
	case !said:
		return Host{Name: name}, nil
	}
	n, err := strconv.Atoi(slots)
	if err != nil || n < 1 {
		return Host{}, fmt.Errorf("host %q: want a number of ranks from 1 behind the colon, as %s:2", word, name)
	}
	return Host{name, n}, nil
}

// Place returns how many ranks each host runs: the first host has the first ranks, and so on. Hosts without slots share
// the ranks evenly. Hosts with slots are filled one after the other. Ranks that are left when all are full go round
// again, since there may be more ranks than processors. With ranks = 0 there are as many as slots.
func Place(hosts []Host, ranks int) ([]int, error) {
	var slots []int
	said, total := false, 0
	for _, h := range hosts {
		said = said || h.Slots > 0
		slots = append(slots, max(h.Slots, 1))
		total += max(h.Slots, 1)
	}
	switch {
	case ranks < 0:
		return nil, fmt.Errorf("%d: want a number of ranks from 1", ranks)
	case ranks > maxRanks || total > maxRanks:
		return nil, fmt.Errorf("%d ranks, more than %d", max(ranks, total), maxRanks)
	case total == 0:
		return nil, errors.New("no hosts")
	case ranks == 0:
		return slots, nil
	}
	counts := make([]int, len(hosts))
	if !said {
		for i := range counts {
			counts[i] = ranks / len(hosts)
			if i < ranks%len(hosts) {
				counts[i]++
			}
		}
		return counts, nil
	}
	for left := ranks; left > 0; {
		for i := range counts {
			n := min(left, slots[i])
			counts[i] += n
			left -= n
		}
	}
	return counts, nil
}

// maxRanks only catches nonsense: Open checks the library's own limit.
const maxRanks = 1 << 16
