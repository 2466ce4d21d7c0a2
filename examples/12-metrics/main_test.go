package main

import (
	"strings"
	"testing"
	"time"

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

// Each other host of a rank has its line, and ranks that have none have no lines.
func TestHosts(t *testing.T) {
	var b strings.Builder
	others := []ubcoll.HostStats{
		{Host: "b", SentBytes: 1, ReceivedBytes: 2, SentMessages: 3, ReceivedMessages: 4, Retries: 5},
		{Host: `c"`, SentBytes: 1 << 60, Retries: 6},
	}
	write(&b, []sample{{Rank: 0, Host: "a", Stats: ubcoll.Stats{Hosts: others}}, {Rank: 1, Host: "a"}})
	_, hosts, _ := strings.Cut(b.String(), "# HELP ubcoll_host_sent_bytes_total Bytes sent to another host.\n")
	require.Equal(t, `# TYPE ubcoll_host_sent_bytes_total counter
ubcoll_host_sent_bytes_total{rank="0",host="a",peer="b"} 1
ubcoll_host_sent_bytes_total{rank="0",host="a",peer="c\""} 1152921504606846976
# HELP ubcoll_host_received_bytes_total Bytes received from another host.
# TYPE ubcoll_host_received_bytes_total counter
ubcoll_host_received_bytes_total{rank="0",host="a",peer="b"} 2
ubcoll_host_received_bytes_total{rank="0",host="a",peer="c\""} 0
# HELP ubcoll_host_sent_messages_total Messages sent to another host.
# TYPE ubcoll_host_sent_messages_total counter
ubcoll_host_sent_messages_total{rank="0",host="a",peer="b"} 3
ubcoll_host_sent_messages_total{rank="0",host="a",peer="c\""} 0
# HELP ubcoll_host_received_messages_total Messages received from another host.
# TYPE ubcoll_host_received_messages_total counter
ubcoll_host_received_messages_total{rank="0",host="a",peer="b"} 4
ubcoll_host_received_messages_total{rank="0",host="a",peer="c\""} 0
# HELP ubcoll_host_retries_total Segments that were sent to another host again, as when they get lost.
# TYPE ubcoll_host_retries_total counter
ubcoll_host_retries_total{rank="0",host="a",peer="b"} 5
ubcoll_host_retries_total{rank="0",host="a",peer="c\""} 6
`, hosts)
}

// Each rank that arrives last has its line.
func TestLate(t *testing.T) {
	var b strings.Builder
	late := []ubcoll.LastArrival{{Rank: 7, Calls: 92, Median: 1300 * time.Microsecond}, {Rank: 1, Calls: 1}}
	write(&b, []sample{{Rank: 0, Host: "a", Stats: ubcoll.Stats{LastArrivals: late}}, {Rank: 1, Host: "a"}})
	_, lines, _ := strings.Cut(b.String(), "# TYPE ubcoll_last_arrivals_total counter\n")
	lines, _, _ = strings.Cut(lines, "# HELP ubcoll_host_sent")
	require.Equal(t, `ubcoll_last_arrivals_total{rank="0",host="a",last="7"} 92
ubcoll_last_arrivals_total{rank="0",host="a",last="1"} 1
# HELP ubcoll_last_arrival_seconds Median of those waits.
# TYPE ubcoll_last_arrival_seconds gauge
ubcoll_last_arrival_seconds{rank="0",host="a",last="7"} 0.0013
ubcoll_last_arrival_seconds{rank="0",host="a",last="1"} 0
`, lines)
}

// Without ranks there are metrics without samples.
func TestNoRanks(t *testing.T) {
	var b strings.Builder
	write(&b, collect())
	require.True(t, strings.HasPrefix(b.String(), "# HELP ubcoll_operations_total Collectives, failed ones included.\n"+
		"# TYPE ubcoll_operations_total counter\n# HELP "), b.String())
}
