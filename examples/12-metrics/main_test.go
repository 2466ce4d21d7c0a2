package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

// What a host's name may not have stands escaped, as Prometheus wants it.
func TestEscaped(t *testing.T) {
	for _, c := range []struct{ name, host, want string }{
		{"plain", "node-1", `node-1`},
		{"quotes", `a"b`, `a\"b`},
		{"backslash", `a\n`, `a\\n`},
		{"line", "a\nb", `a\nb`},
		{"any letter", "nœud", "nœud"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			write(&b, []sample{{Rank: 2, Host: c.host, Stats: ubcoll.Stats{Operations: 1 << 60}}})
			require.Contains(t, b.String(), "\nubcoll_operations_total{rank=\"2\",host=\""+c.want+"\"} 1.152921504606847e+18\n")
		})
	}
}

// Without ranks there are metrics without samples.
func TestNoRanks(t *testing.T) {
	var b strings.Builder
	write(&b, collect())
	require.True(t, strings.HasPrefix(b.String(), "# HELP ubcoll_operations_total Collectives, failed ones included.\n"+
		"# TYPE ubcoll_operations_total counter\n# HELP "), b.String())
}
