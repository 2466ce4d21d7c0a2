package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
)

// aligned returns n bytes that begin at a word, with whole words up to their end.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// TestAtomicAlone compares with the naive reference, at every place in a word, and looks at the bytes around.
func TestAtomicAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, ty := range dtype.All() {
		for _, op := range append(opsOf(ty), replace) {
			t.Run(fmt.Sprintf("%v/%d", ty, op), func(t *testing.T) {
				size := ty.Size()
				for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1500} {
					for lead := range 8 / size {
						dst, src := aligned((lead+n+8)*size), aligned(n*size+1)
						for i := range dst {
							dst[i] = byte(rng.Uint32()) & 0x3f // no NaN
						}
						for i := range src {
							src[i] = byte(rng.Uint32()) & 0x3f
						}
						was, from := append([]byte{}, dst...), lead*size
						p := unsafe.Pointer(&dst[from])
						if op == replace {
							AtomicCopy(ty, p, unsafe.Pointer(&src[0]), n)
						} else {
							AtomicReduce(ty, op, p, unsafe.Pointer(&src[0]), n)
						}
						for i := range n {
							want := load(ty, src, i)
							if op != replace {
								want = naive(ty, op, [][]byte{was[from:], src}, i, 1)
							}
							var w [8]byte
							binary.LittleEndian.PutUint64(w[:], want)
							require.Equal(t, w[:size], dst[from+i*size:from+(i+1)*size], "element %d of %d, %d before", i, n, lead)
						}
						end := from + n*size
						require.Equal(t, was[:from], dst[:from])
						require.Equal(t, was[end:], dst[end:])
					}
				}
			})
		}
	}
}

// TestAtomicTogether adds from several goroutines, at places that share words, while another one changes the bytes beside.
func TestAtomicTogether(t *testing.T) {
	const n, rounds, workers = 300, 200, 4
	for _, ty := range []dtype.Type{dtype.Uint8, dtype.Int16, dtype.Float32, dtype.Uint64} {
		t.Run(ty.String(), func(t *testing.T) {
			size := ty.Size()
			dst := aligned((n + 16) * size)
			words := unsafe.Slice((*uint64)(unsafe.Pointer(&dst[0])), len(dst)/8)
			var wg sync.WaitGroup
			for k := range workers {
				src := aligned(n * size)
				for i := range n {
					one := uint64(1)
					if ty == dtype.Float32 {
						one = uint64(math.Float32bits(1))
					}
					store(ty, src, i, one)
				}
				wg.Go(func() {
					for range rounds {
						AtomicReduce(ty, Sum, unsafe.Pointer(&dst[(1+k)*size]), unsafe.Pointer(&src[0]), n)
					}
				})
			}
			// The first element is nobody's; who adds to it changes the first word, too.
			wg.Go(func() {
				for range rounds {
					atomic.AddUint64(&words[0], 1)
				}
			})
			wg.Wait()
			require.EqualValues(t, rounds, load(ty, dst, 0))
			for i := 1; i < n+workers; i++ {
				times := min(i, workers, n+workers-i)
				want := uint64(times * rounds)
				if ty == dtype.Float32 {
					want = uint64(math.Float32bits(float32(times * rounds)))
				}
				want &= ^uint64(0) >> (64 - 8*size)
				require.Equal(t, want, load(ty, dst, i), "element %d", i)
			}
		})
	}
}
