package verbs

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/transport/net/conntest"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// TestDouble runs the other tests over the double.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{
		"InfiniBand":       {},
		"Ethernet":         {"LINK": "Ethernet"},
		"in order":         {"IN_ORDER": "1"},
		"little is inline": {"MAX_INLINE": "64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := verbstest.Again(t, knobs, "-test.run=^Test", "-test.skip=^TestDouble")
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestPuts")
		})
	}
}

func TestPuts(t *testing.T) {
	h := newHost(t)
	a, b, _ := connect(t, h, h)
	conntest.Puts(t, a, b, h.arena)
}

// A transfer between registered memory takes one work request for each chunk, and no byte is copied.
func TestWorkRequests(t *testing.T) {
	h := newHost(t)
	a, b, conn := connect(t, h, h)
	for _, chunks := range []int{1, 3, 10} {
		n := chunks*frame.MaxPayload - 5
		for i := range n {
			h.arena[i] = byte(rand.Uint32())
		}
		before := conn.qp.Posted()
		conntest.Transfer(t, a, b, uint64(chunks), h.arena[:n], h.arena[4<<20:][:n])
		require.EqualValues(t, chunks, conn.qp.Posted().Work-before.Work)
		require.True(t, bytes.Equal(h.arena[:n], h.arena[4<<20:][:n]))
	}
}

func TestCredits(t *testing.T) {
	h := newHost(t)
	conntest.Credits(t, func(t *testing.T) (a, b *conntest.End) {
		a, b, _ = connect(t, h, h)
		return a, b
	}, h.arena)
}
