package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// mute is a rank that notes what it tells first, and then fails.
type mute struct {
	rank, size int
	host       string
	told       []byte
}

var errMute = errors.New("it goes no further")

func (m *mute) Rank() int    { return m.rank }
func (m *mute) Size() int    { return m.size }
func (m *mute) Host() string { return m.host }
func (m *mute) Key() []byte  { return []byte("secret") }
func (m *mute) Abort(int)    {}
func (m *mute) Close() error { return nil }

func (m *mute) AllGather(_ context.Context, mine []byte) ([][]byte, error) {
	m.told = mine
	return nil, errMute
}

func (m *mute) Exchange(context.Context, int, []byte) ([]byte, error) { return nil, errMute }

// What leaves rank 0 in the first exchange of the largest job is less than a copy of everything for each host would be.
func TestEnvBytes(t *testing.T) {
	testkit.LongOrRace(t)
	const size, hosts, most = 4095, 512, 250e6
	for _, c := range []struct {
		name string
		host func(rank int) int
	}{
		{"block", func(rank int) int { return rank * hosts / size }},
		{"cyclic", func(rank int) int { return rank % hosts }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var parts [][]byte
			all := 0
			for rank := range size {
				h := c.host(rank)
				m := &mute{rank: rank, size: size, host: fmt.Sprintf("node-%04d.rack-%02d.cluster.example.org", h, h/16)}
				_, err := roster.Gather(t.Context(), m, []roster.Setting{{What: "UBCOLL_TIMEOUT", Value: "10m0s"}}, nil, nil)
				require.ErrorIs(t, err, errMute)
				parts = append(parts, m.told)
				all += len(m.told)
			}
			sent := bootstrap.ResultBytes(parts)
			t.Logf("%d ranks on %d hosts tell %d bytes; rank 0 sends %d to each, %.0f MB in all, not %.0f MB", size, hosts, all,
				sent, float64(sent)*(size-1)/1e6, float64(all)*(size-1)/1e6)
			require.Less(t, float64(sent)*(size-1), most)
		})
	}
}
