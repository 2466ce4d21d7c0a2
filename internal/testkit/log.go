package testkit

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Log is what the program has logged.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Logs is what the program logs from now on, in a logger of its own, until the test ends. UBCOLL_LOG says what the
// library adds.
func Logs(t testing.TB) *Log {
	out, old := &Log{}, slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return out
}

// Write adds to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String is all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
