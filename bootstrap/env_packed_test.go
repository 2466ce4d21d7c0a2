package bootstrap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// samePacked checks that parts come out of a packed frame as they are.
func samePacked(t *testing.T, parts [][]byte) {
	t.Helper()
	again, err := frame{kindPacked, 0, deflate(packParts(distinctParts(parts)))}.result(len(parts))
	require.NoError(t, err)
	require.Len(t, again, len(parts))
	for rank := range parts {
		require.True(t, bytes.Equal(parts[rank], again[rank]), "rank %d", rank)
	}
}

// Every result comes out as it was, and is packed where that makes it smaller.
func TestResultFrame(t *testing.T) {
	testkit.SkipRace(t)
	random := testkit.Random(t)
	many := func(n int, part func(rank int) []byte) (parts [][]byte) {
		for rank := range n {
			parts = append(parts, part(rank))
		}
		return parts
	}
	for _, c := range []struct {
		name  string
		parts [][]byte
		kind  byte
	}{
		{"one empty", [][]byte{nil}, kindResult},
		{"small and alike", many(100, func(int) []byte { return make([]byte, 100) }), kindResult},
		{"alike", many(1000, func(int) []byte { return make([]byte, 100) }), kindPacked},
		{"empty", many(5000, func(int) []byte { return nil }), kindPacked},
		{"some alike", many(1000, func(rank int) []byte { return fmt.Appendf(nil, "host %d of all hosts", rank%31) }), kindPacked},
		{"random", many(4, func(int) []byte { return testkit.Bytes(random, packLeast) }), kindResult},
		{"random and alike", many(4, func(rank int) []byte { return bytes.Repeat([]byte("0123456789"), 1000*rank) }), kindPacked},
		{"much", [][]byte{make([]byte, packMost)}, kindResult},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := resultFrame(3, c.parts)
			require.Equal(t, c.kind, f.kind)
			require.Equal(t, uint32(3), f.seq)
			got, err := readFrame(bytes.NewReader(f.append(nil)))
			require.NoError(t, err)
			all, err := got.result(len(c.parts))
			require.NoError(t, err)
			require.Len(t, all, len(c.parts))
			for rank, p := range all {
				require.True(t, bytes.Equal(c.parts[rank], p), "rank %d", rank)
			}
			samePacked(t, c.parts)
			_, err = f.result(len(c.parts) + 1)
			require.ErrorIs(t, err, fault.ErrMismatch)
		})
	}
}

// What is no result of 3 parts is refused, however much it claims to be.
func TestPackedRefused(t *testing.T) {
	indices := func(is ...uint32) (b []byte) {
		for _, i := range is {
			b = binary.BigEndian.AppendUint32(b, i)
		}
		return b
	}
	good := packParts([][]byte{[]byte("a"), []byte("b"), indices(0, 1, 0)})
	for _, c := range []struct {
		name string
		body func() []byte
		want error
	}{
		{"good", func() []byte { return deflate(good) }, nil},
		{"nothing", func() []byte { return nil }, fault.ErrMismatch},
		{"nothing compressed", func() []byte { return deflate(nil) }, fault.ErrMismatch},
		{"not compressed", func() []byte { return good }, fault.ErrMismatch},
		{"cut", func() []byte { b := deflate(good); return b[:len(b)-1] }, io.ErrUnexpectedEOF},
		{"bytes after it", func() []byte { return append(deflate(good), 0) }, fault.ErrMismatch},
		{"bytes after the parts", func() []byte { return deflate(append(good[:len(good):len(good)], 0)) }, fault.ErrMismatch},
		{"no parts", func() []byte { return deflate(packParts(nil)) }, fault.ErrMismatch},
		{"too many parts", func() []byte { return deflate(packParts(make([][]byte, 5))) }, fault.ErrMismatch},
		{"claims many parts", func() []byte { return deflate(indices(1 << 31)) }, fault.ErrMismatch},
		{"too few indices", func() []byte { return deflate(packParts([][]byte{nil, indices(0, 0)})) }, fault.ErrMismatch},
		{"index too high", func() []byte { return deflate(packParts([][]byte{nil, indices(0, 1, 0)})) }, fault.ErrMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := frame{kind: kindPacked, body: c.body()}.result(3)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// Little that arrives cannot become more than the limit, neither by compression nor by equal parts.
func TestPackedLimit(t *testing.T) {
	b := deflate(make([]byte, 1000))
	got, err := inflate(b, 1000)
	require.NoError(t, err)
	require.Len(t, got, 1000)
	_, err = inflate(b, 999)
	require.ErrorIs(t, err, fault.ErrLimit)

	const ranks = 2048
	large := deflate(packParts([][]byte{make([]byte, maxResult/ranks), make([]byte, 4*ranks)}))
	_, err = frame{kind: kindPacked, body: large}.result(ranks)
	require.ErrorIs(t, err, fault.ErrLimit)
}

// FuzzPacked checks that any packed result is either refused or comes out the same when it is packed again.
func FuzzPacked(f *testing.F) {
	f.Add(deflate(packParts(distinctParts([][]byte{[]byte("a"), nil, []byte("a")}))))
	f.Add(deflate([]byte{0, 0, 0, 4}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		if parts, err := (frame{kind: kindPacked, body: b}).result(3); err == nil {
			samePacked(t, parts)
		}
	})
}
