package doctor

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSharedFabrics(t *testing.T) {
	const x, y = "1a2b, clique 0", "1a2b, clique 1"
	const unused = " share it; ubcoll does not use it between hosts"
	var many []OnHost
	for i := range 6 {
		name := fmt.Sprint("h", i)
		many = append(many, OnHost{name, name, []string{x}})
	}
	for _, k := range []struct {
		name string
		all  []OnHost
		want []string
	}{
		{"nobody", nil, nil},
		{"no fabrics", []OnHost{{"1", "a", nil}, {"2", "b", nil}}, nil},
		{"one host", []OnHost{{"1", "a", []string{x}}, {"1", "a", []string{x, x}}}, nil},
		{"two cliques", []OnHost{{"1", "a", []string{x}}, {"2", "b", []string{y}}}, nil},
		{"two hosts", []OnHost{{"1", "a", []string{x, x}}, {"2", "b", []string{x}}, {"3", "c", nil}, {"2", "b", []string{x}}},
			[]string{"NVLink fabric 1a2b, clique 0: GPUs of hosts a and b" + unused}},
		{"two fabrics", []OnHost{{"1", "a", []string{y, x}}, {"2", "b", []string{x}}, {"3", "c", []string{y}}, {"4", "d", []string{x}}},
			[]string{"NVLink fabric 1a2b, clique 1: GPUs of hosts a and c" + unused,
				"NVLink fabric 1a2b, clique 0: GPUs of hosts a, b and d" + unused}},
		{"many hosts", many, []string{"NVLink fabric 1a2b, clique 0: GPUs of hosts h0, h1, h2 and 3 others" + unused}},
	} {
		t.Run(k.name, func(t *testing.T) {
			texts := SharedFabrics(k.all)
			require.Equal(t, k.want, texts)
			found := NVLink(texts)
			require.Len(t, found, len(texts))
			for i, f := range found {
				require.Equal(t, Finding{Check: "nvlink", Status: Pass, Reason: texts[i]}, f)
			}
			require.Equal(t, Verdict(Examine(healthy())), Verdict(append(Examine(healthy()), found...)))
		})
	}
}
