//go:build !linux || !cgo || !(amd64 || arm64)

package emulated

import "testing"

// Library skips the test: there is no emulated driver here.
func Library(t testing.TB) string {
	t.Helper()
	t.Skip("no emulated GPU: it needs 64-bit Linux and cgo")
	return ""
}

// Environ is empty: there is no emulated driver here.
func Environ(string) []string { return nil }

func restart() error { return nil }
