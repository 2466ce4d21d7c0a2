package team

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	direct := BufferInfo{Used: true, Direct: true}
	for _, c := range []struct {
		name string
		op   string
		info OpInfo
		want string
	}{
		{"nothing yet", "", OpInfo{}, "no operation yet"},
		{"both direct", "all_reduce", OpInfo{Seq: 7, Algorithm: "ring", Bytes: 4096, Src: direct, Dst: direct},
			"all_reduce #7: ring, 4096 bytes; source: direct; destination: direct"},
		{"staged", "all_reduce", OpInfo{Seq: 1, Algorithm: "ring", Bytes: 8,
			Src: BufferInfo{Used: true, Why: "Go memory"}, Dst: direct},
			"all_reduce #1: ring, 8 bytes; source: staged: Go memory; destination: direct"},
		{"one buffer", "broadcast", OpInfo{Seq: 2, Algorithm: "flat", Bytes: 8, Dst: direct},
			"broadcast #2: flat, 8 bytes; destination: direct"},
		{"no buffer", "barrier", OpInfo{Seq: 3, Algorithm: "barrier"}, "barrier #3: barrier, 0 bytes"},
		{"measured", "broadcast", OpInfo{Seq: 4, Algorithm: "flat", Bytes: 8, Dst: direct, Took: 1500, Waited: 200},
			"broadcast #4: flat, 8 bytes; destination: direct; took 1.5µs, 200ns of it until all ranks had come"},
		{"measured by the host", "broadcast", OpInfo{Seq: 4, Algorithm: "flat", Bytes: 8, Dst: direct, Took: 1500},
			"broadcast #4: flat, 8 bytes; destination: direct; took 1.5µs"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.info.Text(c.op)) })
	}
}
