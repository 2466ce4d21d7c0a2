package dtype

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesRoundTrip(t *testing.T) {
	for _, ty := range All() {
		got, err := Parse(ty.String())
		require.NoError(t, err)
		require.Equal(t, ty, got)
		require.True(t, ty.Size() > 0 && ty.Valid())
	}
	_, err := Parse("float31")
	require.ErrorContains(t, err, `"float31"`)
	require.False(t, Invalid.Valid())
	require.Equal(t, 0, Type(99).Size())
}

func TestOf(t *testing.T) {
	require.Equal(t, Int8, Of[int8]())
	require.Equal(t, Uint16, Of[uint16]())
	require.Equal(t, Float16, Of[F16]())
	require.Equal(t, BFloat16, Of[BF16]())
	require.Equal(t, Float64, Of[float64]())
}

// nearestF16 is the naive reference: the binary16 value closest to f, found among all of them.
func nearestF16(f float32) F16 {
	best, dist := F16(0), math.Inf(1)
	for b := 0; b < 0x7c01; b++ {
		v := float64(F16(b).Float32())
		if b == 0x7c00 {
			v = 65536 // infinity rounds as if it were the next power of two
		}
		d := math.Abs(math.Abs(float64(f)) - v)
		if d < dist || d == dist && b&1 == 0 {
			best, dist = F16(b), d
		}
	}
	if math.Signbit(float64(f)) {
		best |= 0x8000
	}
	return best
}

func TestF16Exhaustive(t *testing.T) {
	for b := 0; b < 1<<16; b++ {
		h := F16(b)
		f := h.Float32()
		if f != f {
			require.True(t, ToF16(f).Float32() != ToF16(f).Float32(), "NaN %04x", b)
			continue
		}
		require.Equal(t, h, ToF16(f), "%04x", b)
		if up := math.Nextafter32(f, float32(math.Inf(1))); !math.IsInf(float64(f), 0) && b%97 == 0 {
			for _, x := range []float32{up, f * 1.0004, f * 1.0005, f * 1.00048828125} {
				if !math.IsInf(float64(x), 0) {
					require.Equal(t, nearestF16(x), ToF16(x), "%g", x)
				}
			}
		}
	}
	require.Equal(t, F16(0x7c00), ToF16(65520))
	require.Equal(t, F16(0x7bff), ToF16(65519.996))
	require.Equal(t, F16(0), ToF16(1.0/(1<<25)))
	require.Equal(t, F16(1), ToF16(math.Nextafter32(1.0/(1<<25), 1)))
}

func TestBF16Exhaustive(t *testing.T) {
	for b := 0; b < 1<<16; b++ {
		h := BF16(b)
		f := h.Float32()
		if f != f {
			require.True(t, ToBF16(f).Float32() != ToBF16(f).Float32())
			continue
		}
		require.Equal(t, h, ToBF16(f))
	}
	require.Equal(t, BF16(0x3f80), ToBF16(math.Float32frombits(0x3f808000)), "a tie goes to even")
	require.Equal(t, BF16(0x3f82), ToBF16(math.Float32frombits(0x3f818000)), "a tie goes to even")
	require.Equal(t, BF16(0x3f81), ToBF16(math.Float32frombits(0x3f808001)))
	require.Equal(t, BF16(0x7f80), ToBF16(math.MaxFloat32), "overflow gives infinity")
}
