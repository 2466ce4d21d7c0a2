package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

func TestSet(t *testing.T) {
	s := New(nil) // no device is used before a module is loaded
	_, err := s.Kernel("threeshot", dtype.Float32, 2)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, `no kernel "threeshot"`)
	_, err = s.Kernel(TwoShot, dtype.Invalid, 2)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Kernel(Barrier, dtype.Invalid, 2)
	require.ErrorIs(t, err, fault.ErrClosed)
}

// A loaded kernel serves fewer ranks than it was made for, but none whose areas differ.
func TestFind(t *testing.T) {
	four, narrow, wide, move, wideMove := new(cuda.Function), new(cuda.Function), new(cuda.Function), new(cuda.Function), new(cuda.Function)
	for _, k := range []struct {
		name   string
		loaded map[string]*cuda.Function
		kernel string
		typ    dtype.Type
		want   map[int]*cuda.Function // by the number of ranks
	}{
		{"for four ranks", map[string]*cuda.Function{"ubc_twoshot_float32_4": four}, TwoShot, dtype.Float32,
			map[int]*cuda.Function{2: four, 3: four, 4: four, 5: nil, 9: nil}},
		{"for more, too", map[string]*cuda.Function{"ubc_twoshot_float32_4": four, "ubc_twoshot_float32_8": narrow}, TwoShot, dtype.Float32,
			map[int]*cuda.Function{2: four, 4: four, 5: narrow, 8: narrow, 9: nil, MaxRanks: nil}},
		{"for many", map[string]*cuda.Function{"ubc_wide_twoshot_float32": wide}, TwoShot, dtype.Float32,
			map[int]*cuda.Function{2: nil, 8: nil, 9: wide, MaxRanks: wide}},
		{"of another type", map[string]*cuda.Function{"ubc_twoshot_float64_4": four}, TwoShot, dtype.Float32, map[int]*cuda.Function{2: nil}},
		{"that moves, for few", map[string]*cuda.Function{"ubc_move": move}, Move, dtype.Invalid,
			map[int]*cuda.Function{1: move, 2: move, 8: move, 9: nil}},
		{"that moves, for many", map[string]*cuda.Function{"ubc_wide_move": wideMove}, Move, dtype.Invalid,
			map[int]*cuda.Function{2: nil, 8: nil, 9: wideMove, MaxRanks: wideMove}},
	} {
		t.Run(k.name, func(t *testing.T) {
			s := New(nil)
			s.functions = k.loaded
			for ranks, want := range k.want {
				got, err := s.find(k.kernel, k.typ, ranks)
				require.NoError(t, err)
				require.True(t, got == want, "%d ranks", ranks)
			}
		})
	}
}
