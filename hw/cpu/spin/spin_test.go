package spin_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

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

// Hints change no memory, even if the n bytes do not begin or end with a cache line.
func TestHints(t *testing.T) {
	b := make([]byte, 1000)
	for i := range b {
		b[i] = byte(i)
	}
	for _, k := range [][2]int{{0, 0}, {0, 1}, {7, 64}, {63, 66}, {1, 999}} {
		p := unsafe.Pointer(&b[k[0]])
		spin.Claim(p)
		spin.ClaimAll(p, k[1])
		spin.Demote(p, k[1])
	}
	for i := range b {
		if b[i] != byte(i) {
			t.Fatalf("byte %d is %d", i, b[i])
		}
	}
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		spin.Pause()
	}
}
