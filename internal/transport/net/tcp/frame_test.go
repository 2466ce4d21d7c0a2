package tcp

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeader(t *testing.T) {
	h := Header{Place: 1 << 31, Comm: 1 << 63, Seq: 1, Length: MaxLength}
	var b [HeaderSize]byte
	h.Encode(b[:])
	got, err := Decode(b[:])
	require.NoError(t, err)
	require.Equal(t, h, got)
	over := Header{Comm: 1 << 63, Over: true}
	var o [HeaderSize]byte
	over.Encode(o[:])
	got, err = Decode(o[:])
	require.NoError(t, err)
	require.Equal(t, over, got)
	for _, i := range []int{4, 16, 24} {
		bad := o
		bad[i] = 1
		_, err := Decode(bad[:])
		require.ErrorIs(t, err, ErrFrame)
	}
	for name, edit := range map[string]func(b []byte){
		"magic":    func(b []byte) { b[1] ^= 1 },
		"kind":     func(b []byte) { b[2] = 3 },
		"zero":     func(b []byte) { b[3] = 1 },
		"sequence": func(b []byte) { binary.LittleEndian.PutUint64(b[16:], 0) },
		"length":   func(b []byte) { binary.LittleEndian.PutUint64(b[24:], MaxLength+1) },
	} {
		bad := b
		edit(bad[:])
		_, err := Decode(bad[:])
		require.ErrorIs(t, err, ErrFrame, name)
	}
}
