package testkit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckErrorText(t *testing.T) {
	for line, want := range map[string]string{
		"barrier #1: rank 0 (host a): rank 1 closed its communicator: peer lost":                          "",
		"barrier #1: rank 0 (host a): agree: rank 1 died":                                                 "inner word",
		"rank 1 called barrier(count 0, invalid, none, root 0)":                                           "inner word",
		"barrier #1: rank 0 (host a): peer rank 0: no":                                                    "once more",
		"abort: rank 0 (host a): rank 0: no":                                                              "once more",
		"barrier #1: rank 0 (host a): barrier between hosts: no":                                          "the call",
		"free: rank 0 (host a): free: closed":                                                             "twice",
		"ubcoll: rank 0 on host a: barrier #1: rank 0 (host a): no":                                       "which rank",
		"ubcoll: open: rank 0 (host a): one two three four five six, and one two three four five six: no": "twice",
	} {
		if got := CheckErrorText(line); want == "" {
			require.Empty(t, got, "%s", line)
		} else {
			require.Contains(t, got, want, "%s", line)
		}
	}
}
