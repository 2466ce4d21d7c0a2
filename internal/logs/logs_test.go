package logs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLevels(t *testing.T) {
	for _, c := range []struct{ level, want string }{
		{"error", "ERROR"}, {"warn", "ERROR WARN"}, {"", "ERROR WARN"}, {"info", "ERROR WARN INFO"},
		{"debug", "ERROR WARN INFO DEBUG"}, {"nonsense", "ERROR WARN"},
	} {
		t.Run("level "+c.level, func(t *testing.T) {
			t.Setenv("UBCOLL_LOG", c.level)
			var out bytes.Buffer
			old := slog.Default()
			defer slog.SetDefault(old)
			slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
			Error("text", "key", 1)
			Warn("text", "key", 1)
			Info("text", "key", 1)
			Debug("text", "key", 1)
			var got []string
			for line := range strings.Lines(out.String()) {
				require.Contains(t, line, `msg="ubcoll: text" key=1`)
				_, after, _ := strings.Cut(line, "level=")
				level, _, _ := strings.Cut(after, " ")
				got = append(got, level)
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

// A program that sets no logger has the library's own.
func TestLogger(t *testing.T) {
	require.Same(t, own, logger())
	old := slog.Default()
	defer slog.SetDefault(old)
	slog.SetDefault(slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)))
	require.Same(t, slog.Default(), logger())
}
