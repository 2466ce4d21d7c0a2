package team_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/team"
)

func TestCheckRanks(t *testing.T) {
	for _, c := range []struct {
		name                      string
		here, all, free, mappings int
		want                      string
	}{
		{"few", 4, 4, 1 << 30, 65530, ""},
		{"as many as mappings", 127, 127, 8 << 30, 65530, ""},
		{"more than mappings", 200, 200, 8 << 30, 65530, "need about 159700 mappings, and a process may have 65530"},
		{"in several processes", 20, 200, 8 << 30, 65530, ""},
		{"small machine", 64, 64, 200 << 20, 65530, "MiB before they have buffers, and 200 MiB can be had"},
		{"NTHREADS=4096", 4096, 4096, math.MaxInt, math.MaxInt, "4096 ranks, more than 4095"},
		{"as many as there are", 4095, 4095, 64 << 30, math.MaxInt, "and 65536 MiB can be had"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if race.Enabled && c.name == "more than mappings" {
				t.Skip("race builds map nothing")
			}
			err := team.CheckRanksOn(c.here, c.all, mail.AreaBytes(c.all), c.free, c.mappings)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, fault.ErrLimit)
			require.ErrorContains(t, err, c.want)
		})
	}
}
