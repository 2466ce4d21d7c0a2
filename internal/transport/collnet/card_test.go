package collnet

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

func TestCard(t *testing.T) {
	good := Card{Name: "switch", Bytes: 1<<40 - 1, Speed: 400_000, Window: [3]uint64{1, 2, 3}}
	good.Handle[0], good.Handle[127], good.Reduces[15] = 1, 2, 15
	for _, k := range []struct {
		name     string
		in, want Card
	}{
		{"good", good, good},
		{"empty", Card{}, Card{}},
		{"a long name", Card{Name: strings.Repeat("x", 100)}, Card{Name: strings.Repeat("x", cardName)}},
		{"none", Card{Why: "no plugin", Bytes: 5}, Card{Why: "no plugin"}},
		{"a long reason", Card{Why: strings.Repeat("x", 1000)}, Card{Why: strings.Repeat("x", cardText)}},
	} {
		t.Run(k.name, func(t *testing.T) {
			b := k.in.Append([]byte("before"))[len("before"):]
			require.Len(t, b, CardBytes)
			got, err := ParseCard(b)
			require.NoError(t, err)
			require.Equal(t, k.want, got)
		})
	}
	b := good.Append(nil)
	for name, bad := range map[string][]byte{
		"short": b[1:], "long": append(b, 0), "nothing": nil, "of another kind": append([]byte{2}, b[1:]...),
		"no reason": make([]byte, CardBytes), "a reason beyond the end": append([]byte{cardNone, cardText + 1}, b[2:]...),
		"a name beyond its place": append([]byte{cardGood, cardName + 1}, b[2:]...),
	} {
		_, err := ParseCard(bad)
		require.ErrorIs(t, err, fault.ErrMismatch, name)
	}
}

func FuzzCard(f *testing.F) {
	f.Add((&Card{Name: "switch", Bytes: 4096}).Append(nil))
	f.Add((&Card{Why: "it is none"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCard(b)
		if err != nil {
			return
		}
		again, err := ParseCard(c.Append(nil))
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
