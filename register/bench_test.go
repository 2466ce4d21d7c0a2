package register

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchMemory is region i of the benchmarks: its own allocation of 4096 bytes at stride 8192.
func benchMemory(i int) Memory {
	return Memory{ID: uint64(i) + 1, Generation: 1, Base: uintptr(1<<32 + i*8192), Bytes: 4096, Kind: "adopted"}
}

func benchCache(b *testing.B, regions int) *Cache {
	b.Helper()
	c := fill(b, regions)
	runtime.GC() // not while measuring
	return c
}

func fill(b *testing.B, regions int) *Cache {
	b.Helper()
	c, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range regions {
		m := benchMemory(i)
		if _, err := c.Register(m, m.Base, m.Bytes); err != nil {
			b.Fatal(err)
		}
	}
	return c
}

func xorshift(x uint64) uint64 {
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	return x
}

var benchSizes = []int{1, 1000, 10000, 100000, 1000000}

// hit looks up rounds random regions among the n from first on.
func hit(b *testing.B, c *Cache, first, n, rounds int, x uint64) {
	for range rounds {
		x = xorshift(x)
		i := first + int(x>>32*uint64(n)>>32)
		cl := c.FindLocal(uintptr(1<<32+i*8192+64), 1024, 0)
		if cl == nil {
			b.Error("a registered region was missed")
			return
		}
		cl.Release()
	}
}

// BenchmarkHit measures one lookup of a random region: find, in-flight acquire, release.
func BenchmarkHit(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c := benchCache(b, n)
			b.ReportAllocs()
			b.ResetTimer()
			hit(b, c, 0, n, b.N, 88172645463325252)
		})
	}
}

// BenchmarkHitTwo is BenchmarkHit on one goroutine and then on two, in turns; the shortest turns count, so that a busy
// machine does not matter. speedup is the ratio of the throughputs. With own buffers each goroutine looks up its half
// of the regions. With shared ones both look up all regions; where these fit into the cores' caches, the in-flight
// counts travel between the cores.
func BenchmarkHitTwo(b *testing.B) {
	for _, n := range benchSizes[1:] {
		for _, buffers := range []string{"own", "shared"} {
			b.Run(fmt.Sprintf("regions=%d/buffers=%s", n, buffers), func(b *testing.B) {
				hitTwo(b, benchCache(b, n), n, buffers == "own")
			})
		}
	}
}

func hitTwo(b *testing.B, c *Cache, n int, own bool) {
	lookups := min(max(5000, 5*n), 50000) // enough to warm the caches, and if possible shorter than a time slice
	one, two := time.Hour, time.Hour
	b.ResetTimer()
	for i := range uint64(b.N) {
		x := 88172645463325252 + i*104729
		begin := time.Now()
		hit(b, c, 0, n, lookups, x)
		one = min(one, time.Since(begin))
		var begins, ends [2]time.Time
		var ready atomic.Int32
		var wg sync.WaitGroup
		for g := range 2 {
			wg.Go(func() {
				first, n := 0, n
				if own {
					first, n = g*(n/2), n/2
				}
				for ready.Add(1); ready.Load() < 2; { // start together
					runtime.Gosched()
				}
				begins[g] = time.Now()
				hit(b, c, first, n, lookups, x+uint64(g)*7919)
				ends[g] = time.Now()
			})
		}
		wg.Wait()
		first, last := begins[0], ends[0]
		if begins[1].Before(first) {
			first = begins[1]
		}
		if ends[1].After(last) {
			last = ends[1]
		}
		two = min(two, last.Sub(first))
	}
	b.ReportMetric(2*float64(one)/float64(two), "speedup")
	b.ReportMetric(float64(one)/float64(lookups), "one-ns")
}

// BenchmarkInsert registers n regions; the time is that of one.
func BenchmarkInsert(b *testing.B) {
	const n = 1000000
	b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += n {
			fill(b, min(n, b.N-i))
		}
	})
}

// BenchmarkMiss measures a lookup between two regions.
func BenchmarkMiss(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c := benchCache(b, n)
			b.ReportAllocs()
			b.ResetTimer()
			x := uint64(88172645463325252)
			for range b.N {
				x = xorshift(x)
				if cl := c.FindLocal(uintptr(1<<32+int(x>>32*uint64(n)>>32)*8192+4000), 1024, 0); cl != nil {
					b.Fatal("hit outside of a claim")
				}
			}
		})
	}
}
