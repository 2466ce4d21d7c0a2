package bootstrap_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// What scontrol show hostnames of Slurm 22.05 prints, except that it takes no text behind brackets but more brackets.
func TestHostlist(t *testing.T) {
	for s, want := range map[string]string{
		"n1":                                 "n1",
		"a,b,c":                              "a b c",
		"a,,b":                               "a b",
		"n[1-10]":                            "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10",
		"n[09-11]":                           "n09 n10 n11",
		"n[008-10]":                          "n008 n009 n010",
		"n[98-101]":                          "n98 n99 n100 n101",
		"r[0-1]n[0-2]":                       "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2",
		"[1-3]":                              "1 2 3",
		"127.0.0.[1-2]":                      "127.0.0.1 127.0.0.2",
		"node[01-03,7],gpu-a[1-2]-ib":        "node01 node02 node03 node7 gpu-a1-ib gpu-a2-ib",
		"n[1-2]x[3]-y,z":                     "n1x3-y n2x3-y z",
		"n[4294967294-4294967295]":           "n4294967294 n4294967295",
		"":                                   "! want at least one host",
		",":                                  "! want at least one host",
		"n[1-3":                              "! a bracket is not closed",
		"n1-3]":                              "! a bracket too many at byte 4",
		"n[[1]]":                             "! a bracket too many at byte 2",
		"n[3-1]":                             `! "3-1" is no range of numbers`,
		"n[]":                                `! "" is no range of numbers`,
		"n[1,]":                              `! "" is no range of numbers`,
		"n[a-c]":                             `! "a-c" is no range of numbers`,
		"n[1-1000000]":                       "! more than 65536 hosts",
		"a[0-999]b[0-999]":                   "! more than 65536 hosts",
		"a[0-40000],b[0-40000]":              "! more than 65536 hosts",
		"n[" + strings.Repeat("0", 33) + "]": "! is no range of numbers",
	} {
		hosts, err := bootstrap.Hostlist(s)
		if message, bad := strings.CutPrefix(want, "! "); bad {
			require.ErrorContains(t, err, message, "%q", s)
			continue
		}
		require.NoError(t, err, "%q", s)
		require.Equal(t, want, strings.Join(hosts, " "), "%q", s)
	}
}

func FuzzHostlist(f *testing.F) {
	for _, s := range []string{"", "n1", "a,b", "node[01-03,7],gpu-a[1-2]-ib", "r[0-1]n[0-2]", "n[1-3", "n[3-1]", "[1-2]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hosts, err := bootstrap.Hostlist(s)
		if err != nil {
			require.Empty(t, hosts)
			return
		}
		require.NotEmpty(t, hosts)
		require.LessOrEqual(t, len(hosts), 1<<16)
		for _, h := range hosts {
			require.NotEmpty(t, h)
			require.False(t, strings.ContainsAny(h, "[,]"), "%q has the host %q", s, h)
		}
		again, err := bootstrap.Hostlist(strings.Join(hosts, ","))
		require.NoError(t, err)
		require.True(t, slices.Equal(hosts, again), "the list of its hosts is the same list")
	})
}
