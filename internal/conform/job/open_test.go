package main

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
)

// TestOpenDisagrees opens jobs whose ranks cannot work together. Every rank says why, and exits with the same code.
func TestOpenDisagrees(t *testing.T) {
	odd := func(v string) func(int) []string {
		return func(r int) []string {
			if r == 2 {
				return []string{v}
			}
			return nil
		}
	}
	for _, k := range []struct {
		name  string
		extra func(int) []string
		want  []string
		code  int
	}{
		{"variable", odd("UBCOLL_REGISTER=off"), []string{"UBCOLL_REGISTER", `"auto"`, `"off"`, "rank 2"}, 3},
		{"bad variable", odd("UBCOLL_REGISTER=maybe"), []string{"UBCOLL_REGISTER", "maybe", "rank 2"}, 6},
		{"no network on one of two hosts", func(r int) []string {
			return append(odd("UBCOLL_NET=nothing0")(r), fmt.Sprintf("UBCOLL_HOSTID=%d", r/2))
		}, []string{"UBCOLL_NET", "no interface nothing0"}, 6},
	} {
		t.Run(k.name, func(t *testing.T) {
			j := startEach(t, 3, k.extra, "order")
			for r, err := range j.wait() {
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit, "rank %d: %s", r, j.output[r])
				require.Equal(t, k.code, exit.ExitCode(), "rank %d: %s", r, j.output[r])
				for _, w := range k.want {
					require.Contains(t, j.output[r].String(), w, "rank %d", r)
				}
			}
		})
	}
}

// TestOpenLimits opens jobs in which a limit keeps one rank from what it needs.
func TestOpenLimits(t *testing.T) {
	bin := program(t)
	for _, k := range []struct {
		name, limit string
		want        []string
	}{
		{"file size", "ulimit -f 100", []string{"ulimit -f", "limit reached"}},
		{"descriptors", "ulimit -n 10", []string{"ulimit -n", "limit reached"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			if race.Enabled {
				t.Skip("race builds need descriptors of their own")
			}
			limited := script(t, "[ $UBCOLL_RANK = 1 ] && %s\nexec %s \"$@\"", k.limit, bin)
			j := startProgram(t, limited, 2, each(), "order")
			for r, err := range j.wait() {
				require.Error(t, err, "rank %d: %s", r, j.output[r])
				for _, w := range k.want {
					require.Contains(t, j.output[r].String(), w, "rank %d", r)
				}
			}
		})
	}
}
