package verbs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// ChooseGID picks the row of a port's table of GIDs that a queue pair sends from. want >= 0 asks for that row.
// Otherwise InfiniBand takes row 0, and Ethernet takes the best row by this order: RoCE v2 before v1, then wider scope
// before link-local addresses, then IPv4 before IPv6, then the lowest index. This is the order of UCX
// (uct_ib_device_select_gid), and its sense of scope.
func ChooseGID(link LinkLayer, table []GIDEntry, want int) (GIDEntry, error) {
	if want < 0 && link == LinkInfiniBand {
		want = 0
	}
	if want >= 0 {
		for _, e := range table {
			if e.Index == want && !e.GID.Zero() {
				return e, nil
			}
		}
		return GIDEntry{}, fmt.Errorf("the port's table of GIDs has nothing at index %d, of %v: %w", want, rows(table),
			fault.ErrArgument)
	}
	best, least := GIDEntry{}, -1
	for _, e := range table {
		if c := cost(e); !e.GID.Zero() && e.Index <= maxGID && (least < 0 || c < least || c == least && e.Index < best.Index) {
			best, least = e, c
		}
	}
	if least < 0 {
		return GIDEntry{}, fmt.Errorf("the port has no GID: its network interface needs an address, or is down: %w",
			fault.ErrNotSupported)
	}
	return best, nil
}

// maxGID is the last row that a queue pair can name. Tables may be longer.
const maxGID = 255

// cost orders rows: by version first, then by scope, then by family.
func cost(e GIDEntry) int {
	c := 0
	if e.Type != GIDRoCEv2 {
		c += 4
	}
	a := netip.AddrFrom16(e.GID)
	if !a.Is4In6() {
		c += 1
	}
	if a.Unmap().IsLinkLocalUnicast() {
		c += 2
	}
	return c
}

func rows(table []GIDEntry) string {
	if len(table) == 0 {
		return "no rows"
	}
	var s []string
	for _, e := range table {
		s = append(s, fmt.Sprintf("%d (%v, %v)", e.Index, e.GID, e.Type))
	}
	return strings.Join(s, ", ")
}

// Selection says which devices and ports to use. The zero Selection selects all.
type Selection struct {
	not, exact bool
	names      []port
}

type port struct {
	name string
	port int // 0: any
}

// ParseSelection reads a list of devices in the form of NCCL_IB_HCA: prefixes of device names, separated by commas,
// each with an optional ":port". A leading "=" means whole names instead of prefixes, "^" means all devices except
// those listed, and "^=" means both. "" selects all devices.
func ParseSelection(s string) (Selection, error) {
	var sel Selection
	list := s
	list, sel.not = strings.CutPrefix(list, "^")
	list, sel.exact = strings.CutPrefix(list, "=")
	if list == "" {
		if s == "" {
			return sel, nil
		}
		return Selection{}, fmt.Errorf("%q lists no device: want names with commas between, as mlx5_0:1,mlx5_1: %w", s, fault.ErrArgument)
	}
	for item := range strings.SplitSeq(list, ",") {
		name, number, ported := strings.Cut(strings.TrimSpace(item), ":")
		p := port{name: name}
		if ported {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > 255 {
				return Selection{}, fmt.Errorf("%q in %q: ports are numbers from 1 to 255: %w", item, s, fault.ErrArgument)
			}
			p.port = n
		}
		if name == "" || strings.ContainsAny(name, "^= \t/") {
			return Selection{}, fmt.Errorf("%q in %q is no name of a device: want name[:port],... after an optional ^, =, or ^=: %w",
				item, s, fault.ErrArgument)
		}
		sel.names = append(sel.names, p)
	}
	return sel, nil
}

// Match reports whether a port of a device is selected.
func (s Selection) Match(device string, number int) bool {
	if len(s.names) == 0 {
		return true
	}
	for _, p := range s.names {
		if (device == p.name || !s.exact && strings.HasPrefix(device, p.name)) && (p.port == 0 || p.port == number) {
			return !s.not
		}
	}
	return s.not
}

// String returns s in the form that ParseSelection reads.
func (s Selection) String() string {
	var b strings.Builder
	if s.not {
		b.WriteString("^")
	}
	if s.exact {
		b.WriteString("=")
	}
	for i, p := range s.names {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(p.name)
		if p.port != 0 {
			fmt.Fprintf(&b, ":%d", p.port)
		}
	}
	return b.String()
}
