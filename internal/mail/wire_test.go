package mail

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/team"
)

// TestPieces: pieces cover a message exactly, and fit into their memory.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1<<24).Draw(t, "bytes")
		direct := rapid.Bool().Draw(t, "direct")
		size, number := pieces(n, direct)
		require.Greater(t, size, 0)
		require.GreaterOrEqual(t, size*number, n)
		require.Less(t, size*(number-1), n)
		if !direct {
			require.LessOrEqual(t, size, windowPiece)
		}
	})
	_, number := pieces(maxBytes, false)
	require.Less(t, number, 1<<24, "the number of pieces fits into its word")
}

// TestWords: a count left by another message reads as 0, also where the numbers wrap around.
func TestWords(t *testing.T) {
	for _, k := range []struct {
		name       string
		seq, other uint64
	}{{"first", 1, 0}, {"next", 5, 6}, {"wrapped", 1 << 40, 1<<40 - 1}, {"largest", 1<<64 - 1, 1<<64 - 2}} {
		t.Run(k.name, func(t *testing.T) {
			w := word(k.seq, 77)
			require.Equal(t, 77, count(w, k.seq))
			require.True(t, of(w, k.seq))
			require.Zero(t, count(w, k.other))
			require.False(t, of(w, k.other))
		})
	}
}

// The sender writes to the receiver's memory only what fits there, before the receiver has seen what is coming.
func TestAnswerFits(t *testing.T) {
	for _, k := range []struct {
		name    string
		typ     dtype.Type
		bytes   uint64
		exactly bool
		want    bool
	}{
		{"as long", dtype.Int32, 40, false, true},
		{"longer than the message", dtype.Int32, 44, false, true},
		{"shorter", dtype.Int32, 36, false, false},
		{"nothing", dtype.Int32, 0, false, false},
		{"of another type", dtype.Float32, 40, false, false},
		{"exactly as long", dtype.Int32, 40, true, true},
		{"longer, where it must be exact", dtype.Int32, 44, true, false},
		{"shorter, where it must be exact", dtype.Int32, 36, true, false},
		{"of another type, where it must be exact", dtype.Float32, 40, true, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			a := answer{Type: uint64(k.typ), Bytes: k.bytes}
			if k.exactly {
				a.Type |= exactly
			}
			v := team.Vec{Type: dtype.Int32, Len: 10}
			require.Equal(t, k.want, a.fits(&Message{Vec: v, Bytes: v.Bytes()}))
		})
	}
}
