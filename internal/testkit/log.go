package testkit

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log holds what a logger has written.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Logs returns a logger for a level and above, and what it will write.
func Logs(level slog.Level) (*slog.Logger, *Log) {
	out := &Log{}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})), out
}

// Write adds to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
