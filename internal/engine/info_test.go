package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name string
		op   OpInfo
		want string
	}{
		{"nothing yet", OpInfo{}, "no operation yet"},
		{"both direct", OpInfo{Op: "all_reduce", Seq: 7, Algorithm: "ring", Bytes: 4096,
			Src: BufferInfo{Used: true, Direct: true}, Dst: BufferInfo{Used: true, Direct: true}},
			"all_reduce #7: ring, 4096 bytes; source: direct; destination: direct"},
		{"staged", OpInfo{Op: "all_reduce", Seq: 1, Algorithm: "ring", Bytes: 8,
			Src: BufferInfo{Used: true, Why: "Go memory"}, Dst: BufferInfo{Used: true, Direct: true}},
			"all_reduce #1: ring, 8 bytes; source: staged: Go memory; destination: direct"},
		{"one buffer", OpInfo{Op: "broadcast", Seq: 2, Algorithm: "flat", Bytes: 8, Dst: BufferInfo{Used: true, Direct: true}},
			"broadcast #2: flat, 8 bytes; destination: direct"},
		{"no buffer", OpInfo{Op: "barrier", Seq: 3, Algorithm: "barrier"}, "barrier #3: barrier, 0 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.op.String()) })
	}
}
