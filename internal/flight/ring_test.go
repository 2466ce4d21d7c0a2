package flight

import "testing"

// BenchmarkCall is what a call pays for its entry.
func BenchmarkCall(b *testing.B) {
	var r Recorder
	r.Init(new(Ring))
	name := "eager"
	for i := range b.N {
		r.Way(name)
		r.Begin(Entered, 1<<59, uint64(i), 8)
		r.End()
	}
}
