package team

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/ubcoll/ubcoll/dtype"
)

func carrying(n int) Work {
	return Work{Kind: KindAllReduce, Type: dtype.Uint8, Count: n,
		Path: &Path{Carries: func(_ *Team, w *Work) int { return w.Count }}}
}

func TestFusable(t *testing.T) {
	other := Work{Kind: KindAllReduce, Path: &Path{}}
	wrong, onDevice := carrying(8), carrying(8)
	wrong.Err, onDevice.Kernel.Name = errors.New("wrong"), "kernel"
	many := make([]Work, MaxFused+1)
	for i := range many {
		many[i] = carrying(8)
	}
	for name, k := range map[string]struct {
		works []Work
		want  int
		at    []int
	}{
		"none":                           {nil, 0, nil},
		"one":                            {[]Work{carrying(8)}, 1, []int{0}},
		"each in cache lines of its own": {[]Work{carrying(8), carrying(0), carrying(64), carrying(65), carrying(1)}, 5, []int{0, 64, 64, 128, 256}},
		"exactly full":                   {[]Work{carrying(EagerBytes - 64), carrying(64)}, 2, []int{0, EagerBytes - 64}},
		"more than the slot":             {[]Work{carrying(EagerBytes - 64), carrying(65)}, 1, []int{0}},
		"up to another path":             {[]Work{carrying(8), other, carrying(8)}, 1, []int{0}},
		"up to a wrong call":             {[]Work{carrying(8), wrong, carrying(8)}, 1, []int{0}},
		"up to one on a device":          {[]Work{carrying(8), onDevice}, 1, []int{0}},
		"messages":                       {[]Work{{Kind: KindMessages}}, 0, nil},
		"most":                           {many, MaxFused, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, k.want, new(Team).Fusable(k.works))
			for i, at := range k.at {
				require.Equal(t, at, k.works[i].Eager.At, "call %d", i)
			}
		})
	}
}

func TestFirstConflict(t *testing.T) {
	mem := make([]byte, 100)
	call := func(src, n, dst, m int) Work {
		v := func(at, n int) Vec { return Vec{Ptr: unsafe.Pointer(&mem[at]), Len: n, Type: dtype.Uint8} }
		return Work{Src: v(src, n), Dst: v(dst, m)}
	}
	for name, k := range map[string]struct {
		works []Work
		want  int
	}{
		"none":                            {nil, 0},
		"in place, other memory":          {[]Work{call(0, 10, 0, 10), call(10, 10, 10, 10)}, 2},
		"in place, the same":              {[]Work{call(0, 10, 0, 10), call(0, 10, 0, 10)}, 1},
		"reads the last byte":             {[]Work{call(0, 10, 50, 10), call(10, 10, 60, 10), call(59, 1, 90, 1)}, 2},
		"reads the byte behind":           {[]Work{call(0, 10, 50, 10), call(60, 1, 90, 1)}, 2},
		"reads the byte before":           {[]Work{call(0, 10, 50, 10), call(40, 10, 90, 1)}, 2},
		"between two destinations":        {[]Work{call(0, 1, 10, 10), call(0, 1, 30, 10), call(20, 10, 90, 1)}, 3},
		"reads around":                    {[]Work{call(0, 1, 20, 1), call(10, 20, 50, 20)}, 1},
		"two write the same":              {[]Work{call(0, 1, 20, 5), call(1, 1, 20, 5)}, 2},
		"writes what one has read":        {[]Work{call(0, 10, 20, 10), call(40, 10, 0, 10)}, 2},
		"reads nothing":                   {[]Work{call(0, 10, 20, 10), call(20, 0, 40, 10)}, 2},
		"reads where nothing was written": {[]Work{call(0, 10, 20, 0), call(20, 10, 40, 10)}, 2},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, k.want, FirstConflict(k.works)) })
	}
}
