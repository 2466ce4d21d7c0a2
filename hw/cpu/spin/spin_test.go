package spin_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

func ExamplePause() {
	var ready atomic.Bool
	go ready.Store(true)
	for i := 0; !ready.Load(); i++ {
		if i%256 == 255 {
			runtime.Gosched()
		}
		spin.Pause()
	}
	fmt.Println("ready")
	// Output: ready
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		spin.Pause()
	}
}
