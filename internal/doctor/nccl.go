package doctor

import (
	"fmt"
	"strings"
)

// nccl looks for settings of NCCL that have a counterpart here and are not set here.
func nccl(v *View) Finding {
	var told, cures []string
	say := func(theirs, value, ours, here string) {
		told = append(told, fmt.Sprintf("%s=%s is set: %s=%s does that here", theirs, value, ours, here))
		cures = append(cures, fmt.Sprintf("%s=%s", ours, here))
	}
	if s := v.Getenv("NCCL_SOCKET_IFNAME"); s != "" && v.Getenv("UBCOLL_NET") == "" {
		here, err := interfaces(s, v.Interfaces)
		if err != nil {
			return found(Warn, "NCCL_SOCKET_IFNAME=%s is set, and UBCOLL_NET has no counterpart here: %v",
				"set UBCOLL_NET to what the job is to use: interfaces, subnets or addresses", s, err)
		}
		say("NCCL_SOCKET_IFNAME", s, "UBCOLL_NET", here)
	}
	// UBCOLL_IB_HCA has NCCL's syntax.
	if s := v.Getenv("NCCL_IB_HCA"); s != "" && v.Getenv("UBCOLL_IB_HCA") == "" && (v.IB == "on" || v.IB == "auto") {
		say("NCCL_IB_HCA", s, "UBCOLL_IB_HCA", s)
	}
	if told == nil {
		return found(Pass, "no setting of NCCL that is missing here", "")
	}
	return found(Warn, "%s", "export "+strings.Join(cures, " ")+", on all hosts", strings.Join(told, "; "))
}

// mostAddresses is how many addresses a rank listens on.
const mostAddresses = 4

// interfaces translates NCCL's list into names of this host's interfaces. NCCL's names are beginnings, after = whole
// names, and all others after ^ or ^= (NCCL's user guide, environment variables).
func interfaces(list string, all []Interface) (string, error) {
	rest, not := strings.CutPrefix(list, "^")
	rest, whole := strings.CutPrefix(rest, "=")
	matches := func(name string) bool {
		for one := range strings.SplitSeq(rest, ",") {
			if one != "" && (name == one || !whole && strings.HasPrefix(name, one)) {
				return true
			}
		}
		return false
	}
	var names []string
	addresses := 0
	for _, i := range all {
		// All others does not mean loopback, which NCCL takes last.
		if i.Up && len(i.Addresses) > 0 && matches(i.Name) != not && !(not && i.Loopback) {
			names = append(names, i.Name)
			addresses += len(i.Addresses)
		}
	}
	switch {
	case names == nil:
		return "", fmt.Errorf("no interface with an address matches it")
	case addresses > mostAddresses:
		return "", fmt.Errorf("%s have %d addresses, and a rank listens on %d at most", strings.Join(names, ", "), addresses, mostAddresses)
	}
	return strings.Join(names, ","), nil
}
