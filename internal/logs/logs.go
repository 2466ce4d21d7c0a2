// Package logs is the library's own logger: what no call can return as an error, and at the levels info and debug what
// people want to see who look for a fault. UBCOLL_LOG says from which level on. All functions are local and safe for
// concurrent use.
package logs

import (
	"context"
	"log/slog"
	"os"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Enabled reports whether messages of a level are written. It reads the environment: what is asked often keeps the
// answer.
func Enabled(l slog.Level) bool {
	name, err := env.Log.Get()
	least := slog.LevelWarn
	if err == nil { // Open refuses another
		least.UnmarshalText([]byte(name))
	}
	return l >= least
}

// Error says that something has failed for good, where no call can return it.
func Error(msg string, args ...any) { write(slog.LevelError, msg, args) }

// Warn says that something is not as it should be, and goes on.
func Warn(msg string, args ...any) { write(slog.LevelWarn, msg, args) }

// Info says what a rank has begun and ended, and what it found.
func Info(msg string, args ...any) { write(slog.LevelInfo, msg, args) }

// Debug says what each operation did.
func Debug(msg string, args ...any) { write(slog.LevelDebug, msg, args) }

func write(l slog.Level, msg string, args []any) {
	if Enabled(l) {
		logger().Log(context.Background(), l, "ubcoll: "+msg, args...)
	}
}

// logger is the program's, if it has set one of its own, whose level counts then as well; else lines of text on standard
// error.
func logger() *slog.Logger {
	if l := slog.Default(); l != first {
		return l
	}
	return own
}

var (
	first = slog.Default()
	own   = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
)
