package cpu

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

func BenchmarkReduce(b *testing.B) {
	was := current
	defer func() { current = was }()
	for _, op := range allOps {
		for _, t := range dtype.All() {
			for l := levelAVX512; l >= levelGo; l-- {
				if !l.available() {
					continue
				}
				for _, bytes := range []int{16, 64, 256, 512, 1024, 4096, 65536, 1 << 20, 64 << 20} {
					name := fmt.Sprintf("op=%v/dtype=%v/level=%v/bytes=%d", op, t, l, bytes)
					b.Run(name, func(b *testing.B) {
						current = l
						x, y := make([]byte, bytes), make([]byte, bytes)
						b.SetBytes(int64(bytes))
						for b.Loop() {
							Reduce(t, op, at(x), at(x), at(y), bytes/t.Size(), bytes > 32<<20)
						}
					})
				}
			}
		}
	}
}

func BenchmarkReduceN(b *testing.B) {
	for _, n := range []int{2, 4, 8, 16, 17} {
		for _, bytes := range []int{16, 128, 4096, 1 << 20} {
			for _, stream := range []bool{false, true} {
				b.Run(fmt.Sprintf("sources=%d/bytes=%d/stream=%v", n, bytes, stream), func(b *testing.B) {
					var srcs []unsafe.Pointer
					for range n {
						srcs = append(srcs, at(make([]byte, bytes)))
					}
					dst := at(make([]byte, bytes))
					b.SetBytes(int64(bytes))
					for b.Loop() {
						ReduceN(dtype.Float32, Sum, dst, srcs, bytes/4, 0, stream)
					}
				})
			}
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, bytes := range []int{64, 4096, 1 << 20, 64 << 20} {
		for _, stream := range []bool{false, true} {
			b.Run(fmt.Sprintf("bytes=%d/stream=%v", bytes, stream), func(b *testing.B) {
				x, y := make([]byte, bytes), make([]byte, bytes)
				b.SetBytes(int64(bytes))
				for b.Loop() {
					Copy(at(x), at(y), bytes, stream)
				}
			})
		}
	}
}
