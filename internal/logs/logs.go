// Package logs is where the library logs what no call can return as an error, and, at the levels info and debug, what
// helps to find a fault. It logs to the logger that a communicator was given, or else to the library's own.
package logs

import (
	"log/slog"
	"os"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Or returns l, whose handler decides what is written, or if l is nil the library's own logger: text on standard error,
// from UBCOLL_LOG's level on. The own logger reads the environment at every call: callers that log often should
// remember whether a level is enabled.
func Or(l *slog.Logger) *slog.Logger {
	if l == nil {
		return own
	}
	return l
}

var own = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: fromEnvironment{}}))

type fromEnvironment struct{}

// Level implements slog.Leveler.
func (fromEnvironment) Level() slog.Level {
	least := slog.LevelWarn
	if name, err := env.Log.Get(); err == nil { // Open refuses other values
		_ = least.UnmarshalText([]byte(name))
	}
	return least
}
