//go:build !amd64 && !arm64

// Package spin has the instruction that belongs between two looks at a word that another core is about to write.
package spin

// Pause does nothing on this processor.
func Pause() {}
