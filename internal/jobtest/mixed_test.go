package jobtest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/register"
)

// TestRandomPrograms runs 2000 random programs on goroutine ranks, or JOBTEST_PROGRAMS. TEST_SEED repeats a run.
func TestRandomPrograms(t *testing.T) {
	programs := 2000
	if race.Enabled || testing.Short() {
		programs = 60
	}
	if s, err := strconv.Atoi(os.Getenv("JOBTEST_PROGRAMS")); err == nil {
		programs = s
	}
	seed := Seed()
	if os.Getenv("TEST_SEED") == "" {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("TEST_SEED=%d", seed)
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Register: register.Off},
		{Algorithm: "two-shot"}, {Algorithm: "one-shot"}, {Algorithm: "push"}}
	jobs := 4 * len(options) // of 2 to 5 ranks
	for k := range jobs {
		o, n := options[k%len(options)], 2+k/len(options)
		t.Run(fmt.Sprintf("ranks=%d/%v/%s", n, o.Register, o.Algorithm), func(t *testing.T) {
			defer await.NoLeaks(t)()
			o.Timeout = await.Limit
			require.NoError(t, ubcoll.Local(t.Context(), n, o, RandomPrograms(seed+uint64(k), (programs+jobs-1)/jobs)))
		})
	}
}
