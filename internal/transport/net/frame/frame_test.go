package frame

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// Heads of every kind travel as they are; what a kind does not allow is an error.
func TestHeader(t *testing.T) {
	for _, k := range []struct {
		name       string
		h          Header
		place, seq bool   // whether the kind has these
		length     uint64 // the most
	}{
		{"put", Header{Kind: Put, Place: 1 << 31, Comm: 1 << 63, Seq: 1, Length: MaxPayload}, true, true, MaxPayload},
		{"part", Header{Kind: Part, Place: 1 << 31, Comm: 1 << 63, Seq: 1, Length: 1}, true, true, MaxPayload},
		{"grant", Header{Kind: Grant, Place: 1 << 31, Comm: 1 << 63, Seq: 1 << 63, Length: 5}, true, true, MaxLength},
		{"revoke", Header{Kind: Revoke, Place: 7, Comm: 1 << 63, Seq: 9}, true, true, 0},
		{"revoked", Header{Kind: Revoked, Place: 7, Comm: 1 << 63, Seq: 9}, true, true, 0},
		{"open", Header{Kind: Open, Place: 7, Comm: 1 << 63}, true, false, 0},
		{"over", Header{Kind: Over, Comm: 1 << 63}, false, false, 0},
		{"refuse", Header{Kind: Refuse, Comm: 1 << 63}, false, false, 0},
		{"write", Header{Kind: Write, Place: 1 << 31, Comm: 1 << 63, Seq: 1 << 63, Length: MaxPayload, Offset: transport.MaxOffset - 1}, true, true, MaxPayload},
		{"call", Header{Kind: Call, Comm: 1 << 63, Length: transport.MaxCall}, false, false, transport.MaxCall},
	} {
		t.Run(k.name, func(t *testing.T) {
			var b [HeaderSize]byte
			k.h.Encode(b[:])
			got, err := Decode(b[:])
			require.NoError(t, err)
			require.Equal(t, k.h, got)
			with := func(at int, v uint64, ok bool) {
				c := b
				if at == 4 {
					binary.LittleEndian.PutUint32(c[at:], uint32(v))
				} else {
					binary.LittleEndian.PutUint64(c[at:], v)
				}
				if _, err := Decode(c[:]); ok {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrFrame, "%d at %d", v, at)
				}
			}
			with(4, 3, k.place)
			with(16, 3, k.seq)
			with(16, 0, !k.seq)
			empty := k.h.Kind == Put || !k.h.Kind.Loaded()
			with(24, 0, empty)
			with(24, min(k.length, 3), true)
			with(24, k.length, empty || k.length > 0)
			with(24, k.length+1, false)
			with(24, 1<<lengthBits|3, k.h.Kind == Write || k.length == MaxLength)
			with(24, 1<<63|3, false)
			for i, v := range map[int]byte{1: b[1] ^ 1, 2: byte(Call) + 1, 3: 1} {
				c := b
				c[i] = v
				_, err := Decode(c[:])
				require.ErrorIs(t, err, ErrFrame)
			}
			b[2] = 0
			_, err = Decode(b[:])
			require.ErrorIs(t, err, ErrFrame)
		})
	}
}
