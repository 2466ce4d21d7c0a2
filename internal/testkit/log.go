package testkit

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log is what a logger has written.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Logs is a logger from a level on, and what it will have written.
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

// String is all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
