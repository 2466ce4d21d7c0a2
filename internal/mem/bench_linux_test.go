package mem

import (
	"fmt"
	"testing"
)

// BenchmarkCycle measures an allocation and its free.
func BenchmarkCycle(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			domains++
			h, err := New(domains, false)
			if err != nil {
				b.Fatal(err)
			}
			defer h.Close()
			for b.Loop() {
				a, err := h.Alloc(n)
				if err == nil {
					err = h.Retire(a)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
