package nearest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWord(t *testing.T) {
	words := []string{"UBCOLL_ALGO", "UBCOLL_TIMEOUT", "all_reduce", "sum"}
	for _, c := range []struct{ s, want string }{
		{"UBCOLL_ALGORITHM", "UBCOLL_ALGO"}, {"ubcoll_timeout", "UBCOLL_TIMEOUT"}, {"UBCOLL_TIMEOUTS", "UBCOLL_TIMEOUT"},
		{"allreduce", "all_reduce"}, {"summ", "sum"}, {"quite_another_thing", ""}, {"", ""},
		{strings.Repeat("sum", 100), ""},
	} {
		require.Equal(t, c.want, Word(c.s, words), c.s)
	}
	require.Equal(t, "avg", Word("mean", []string{"sum", "min", "avg"}))
	require.Equal(t, "min", Word("mean", []string{"sum", "min"}))
	require.Equal(t, ": did you mean sum?", Hint("sun", words))
	require.Empty(t, Hint("quite_another_thing", words))
}
