package launch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestErrorMerger checks what becomes of what ranks write on standard error: "3|text" is rank 3's, "flush" the launcher's.
func TestErrorMerger(t *testing.T) {
	fails := func(rank int, host, why string) string {
		return fmt.Sprintf("%d|ubcoll: barrier #1: rank %d (host %s): %s\n", rank, rank, host, why)
	}
	notice := func(rank int) string {
		return fmt.Sprintf("%d|ubcoll: host a, pid %d: signal: interrupt: ends\n", rank, 100+rank)
	}
	for _, k := range []struct {
		name   string
		prefix bool
		in     []string
		want   string
	}{
		{"one", false, []string{fails(1, "a", "no")}, "ubcoll: barrier #1: rank 1 (host a): no\n"},
		{"two", false, []string{fails(1, "a", "no"), fails(0, "b", "no")}, "ubcoll: barrier #1: rank 0 (host b): no (and 1 more rank)\n"},
		{"four", true, []string{fails(1, "a", "no"), fails(0, "a", "no"), fails(3, "b", "no"), fails(2, "b", "no")},
			"[0] ubcoll: barrier #1: rank 0 (host a): no (and 3 more ranks)\n"},
		{"another error stays", false, []string{fails(0, "a", "no"), fails(1, "a", "well"), fails(2, "a", "no")},
			"ubcoll: barrier #1: rank 0 (host a): no (and 1 more rank)\nubcoll: barrier #1: rank 1 (host a): well\n"},
		{"the program's own", false, []string{"0|ubcoll: rank 0 on host a: no luck\n", "1|ubcoll: rank 1 on host b: no luck\n"},
			"ubcoll: rank 0 on host a: no luck (and 1 more rank)\n"},
		{"several lines", false, []string{"0|ubcoll: rank 0 on host a: panic: no\n\nstack\n", "1|ubcoll: rank 1 on host a: panic: no\n\nstack\n"},
			"ubcoll: rank 0 on host a: panic: no\n\nstack\nubcoll: rank 1 on host a: panic: no\n\nstack\n"},
		{"lines that come one by one", false, []string{"0|ubcoll: rank 0 on host a: panic: no\n", "0|stack\n"},
			"ubcoll: rank 0 on host a: panic: no\nstack\n"},
		{"others' lines do not wait", false, []string{fails(0, "a", "no"), "1|hello\n"}, "hello\nubcoll: barrier #1: rank 0 (host a): no\n"},
		{"late", false, []string{fails(0, "a", "no"), "flush", fails(1, "a", "no")},
			"ubcoll: barrier #1: rank 0 (host a): no\nubcoll: barrier #1: rank 1 (host a): no\n"},
		{"what the program writes", true, []string{"0|same\n", "1|same\n"}, "[0] same\n[1] same\n"},
		{"a signal", false, []string{notice(0), notice(1), "0|24 of 648\n", notice(2)},
			"ubcoll: host a, pid 100: signal: interrupt: ends\n24 of 648\n"},
		{"a signal of which the launcher has told", false, []string{"told", "0|24 of 648\n", notice(1)}, "24 of 648\n"},
	} {
		t.Run(k.name, func(t *testing.T) {
			var out strings.Builder
			c := errorMerger{to: &out}
			for _, s := range k.in {
				var rank int
				who, text, ok := strings.Cut(s, "|")
				switch {
				case who == "told":
					c.told = true
					continue
				case !ok:
					c.flush()
					continue
				}
				fmt.Sscan(who, &rank)
				prefix := ""
				if k.prefix {
					prefix = fmt.Sprintf("[%d] ", rank)
				}
				c.add(rank, []byte(text), prefix)
			}
			c.flush()
			require.Equal(t, k.want, out.String())
		})
	}
}
