// Package logs is where the library's messages go that no call can return as an error, and at the levels info and debug
// what people want to see who look for a fault: to the logger that a communicator was given, else to the library's own.
package logs

import (
	"log/slog"
	"os"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Or is l, whose handler says what is written, or if l is nil the library's own logger: text on standard error, from
// UBCOLL_LOG's level on. That reads the environment each time it is asked: who asks often keeps the answer.
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
	if name, err := env.Log.Get(); err == nil { // Open refuses another
		_ = least.UnmarshalText([]byte(name))
	}
	return least
}
