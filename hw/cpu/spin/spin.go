//go:build amd64 || arm64

// Package spin has the instruction that belongs between two looks at a word that another core is about to write. It is
// apart from package cpu because Go assembly and cgo do not share a package.
package spin

// Pause tells the core that this is a wait loop (PAUSE, YIELD; nothing on other processors), which leaves its
// resources to a sibling and makes leaving the loop cheaper. It takes some 10 to 50 ns, is local, blocks nobody, and is
// no point at which the runtime can stop the goroutine: a loop needs a real Go call every few hundred rounds.
func Pause()
