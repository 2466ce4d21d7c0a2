package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"all levels": func() error { return allLevels(Or(nil)) }})
	os.Exit(m.Run())
}

func allLevels(l *slog.Logger) error {
	l.Error("text", "key", 1)
	l.Warn("text", "key", 1)
	l.Info("text", "key", 1)
	l.Debug("text", "key", 1)
	return nil
}

// levels returns the levels of the lines that allLevels wrote.
func levels(t *testing.T, out string) string {
	var got []string
	for line := range strings.Lines(out) {
		require.Contains(t, line, "msg=text key=1")
		_, after, _ := strings.Cut(line, "level=")
		level, _, _ := strings.Cut(after, " ")
		got = append(got, level)
	}
	return strings.Join(got, " ")
}

// The library's own logger writes to standard error, from UBCOLL_LOG's level on.
func TestLevels(t *testing.T) {
	for _, c := range []struct{ level, want string }{
		{"error", "ERROR"}, {"warn", "ERROR WARN"}, {"", "ERROR WARN"}, {"info", "ERROR WARN INFO"},
		{"debug", "ERROR WARN INFO DEBUG"}, {"nonsense", "ERROR WARN"},
	} {
		t.Run("level "+c.level, func(t *testing.T) {
			var out, err bytes.Buffer
			child := testkit.Child("all levels", "UBCOLL_LOG="+c.level, testkit.NoSleep)
			child.Stdout, child.Stderr = &out, &err
			require.NoError(t, child.Run())
			require.Empty(t, out.String())
			require.Equal(t, c.want, levels(t, err.String()))
			t.Setenv("UBCOLL_LOG", c.level)
			for _, level := range []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug} {
				want := strings.Contains(c.want, level.String())
				require.Equal(t, want, Or(nil).Enabled(t.Context(), level), fmt.Sprint(level))
			}
		})
	}
}

// A logger of the program decides by itself what is written.
func TestOr(t *testing.T) {
	t.Setenv("UBCOLL_LOG", "error")
	l, out := testkit.Logs(slog.LevelInfo)
	require.Same(t, l, Or(l))
	require.NoError(t, allLevels(Or(l)))
	require.Equal(t, "ERROR WARN INFO", levels(t, out.String()))
}
