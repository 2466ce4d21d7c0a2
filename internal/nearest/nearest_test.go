package nearest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWord(t *testing.T) {
	words := []string{"UBCOLL_ALGO", "UBCOLL_TIMEOUT", "all_reduce", "sum"}
	for _, c := range []struct{ s, want string }{
		{"UBCOLL_ALGORITHM", "UBCOLL_ALGO"}, {"ubcoll_timeout", "UBCOLL_TIMEOUT"}, {"UBCOLL_TIMEOUTS", "UBCOLL_TIMEOUT"},
		{"allreduce", "all_reduce"}, {"summ", "sum"}, {"all", "all_reduce"}, {"UBCOLL_", ""},
		{"quite_another_thing", ""}, {"", ""},
		{strings.Repeat("sum", 100), ""},
	} {
		require.Equal(t, c.want, Word(c.s, words), c.s)
	}
	require.Equal(t, "avg", Word("mean", []string{"sum", "min", "avg"}))
	require.Equal(t, "min", Word("mean", []string{"sum", "min"}))
	require.Equal(t, "dry-run", Word("dry", []string{"wry", "dry-run"}))
	require.Empty(t, Word("iterations", []string{"it"}))
	require.Equal(t, ": did you mean sum?", Hint("sun", words))
	require.Empty(t, Hint("quite_another_thing", words))
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "smoke.toml"), nil, 0o644))
	require.Equal(t, ": did you mean "+filepath.Join(dir, "smoke.toml")+"?", File(filepath.Join(dir, "smok.toml")))
	require.Empty(t, File(filepath.Join(dir, "other.csv")))
	require.Empty(t, File(filepath.Join(dir, "none", "smoke.toml")))
	t.Chdir(dir)
	require.Equal(t, ": did you mean smoke.toml?", File("smoke"))
}
