//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestChurn registers and deregisters 10,000 times beside traffic of the same domains: no byte is wrong, no key comes twice
// where keys are ours, and afterwards as many descriptors are open as before.
func TestChurn(t *testing.T) {
	each(t, func(t *testing.T, i *ofi.Info) {
		before := 0
		for round := range 2 { // what the library keeps it has after the first
			ok := t.Run([]string{"first", "then"}[round], func(t *testing.T) { churn(t, i) })
			if round == 0 && i.Provider == "tcp;ofi_rxm" {
				t.Run("one call at a time", func(t *testing.T) { churn(t, i.Serialized()) })
			}
			if files := openFiles(t); round == 0 {
				before = files
			} else if ok {
				require.LessOrEqual(t, files, before, "descriptors")
			}
		}
	})
}

func churn(t *testing.T, i *ofi.Info) {
	a, b, toB, _ := pair(t, i)
	const room = 64 << 10
	src, from := a.registered(t, room)
	dst, to := b.registered(t, room)
	const goroutines = 2
	rounds := testkit.Often(10_000)
	var mu sync.Mutex
	seen := map[ofi.Key]bool{from.Key(): true, to.Key(): true}
	var sent atomic.Int64
	var registering sync.WaitGroup
	defer registering.Wait()
	defer sent.Add(1 << 40) // whatever ends this lets the others go on
	for g := range goroutines {
		m := memory(t, 256<<10)
		registering.Go(func() {
			for k := range rounds / goroutines {
				for int64(k*goroutines) > 10*(sent.Load()+4) { // 10 for each write
					runtime.Gosched()
				}
				n := 4096 * (1 + (k*7+g)%64)
				x := []*end{a, b}[k%2]
				r, err := x.domain.Register(address(m)+uintptr(k%100), n-100, ofi.Read|ofi.Write|ofi.Peers, hw.Host, x.Endpoint)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[r.Key()] && !i.MRMode.Has(ofi.MRKey) {
					t.Errorf("%v comes twice", r.Key())
				}
				seen[r.Key()] = true
				mu.Unlock()
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { registering.Wait(); close(ended) }()
	for k, running := 0, true; running; k++ {
		select {
		case <-ended:
			running = false
		default:
		}
		n := 1 + (k*977)%room
		pattern(src[:n], byte(k))
		w := work(ofi.OpWrite, toB, from, 0, to, 0, n)
		w.Flags = ofi.Delivered
		_, err := a.do(b, w)
		require.NoError(t, err)
		require.True(t, bytes.Equal(src[:n], dst[:n]), "write %d of %d bytes", k, n)
		sent.Add(1)
	}
	t.Logf("%d registrations beside %d writes", rounds, sent.Load())
}
