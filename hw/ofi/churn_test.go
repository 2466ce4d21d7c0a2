//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"bytes"
	"sync"
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
	rounds := testkit.Often(10_000) / 2
	var mu sync.Mutex
	seen := map[ofi.Key]bool{from.Key(): true, to.Key(): true}
	stop := make(chan struct{})
	var registering sync.WaitGroup
	for g := range goroutines {
		m := memory(t, 256<<10)
		registering.Go(func() {
			for k := range rounds / goroutines {
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
	go func() { registering.Wait(); close(stop) }()
	sent := 0
	for running := true; running; sent++ {
		select {
		case <-stop:
			running = false
		default:
		}
		n := 1 + (sent*977)%room
		pattern(src[:n], byte(sent))
		w := work(ofi.OpWrite, toB, from, 0, to, 0, n)
		w.Flags = ofi.Delivered
		_, err := a.do(b, w)
		require.NoError(t, err)
		require.True(t, bytes.Equal(src[:n], dst[:n]), "write %d of %d bytes", sent, n)
	}
	t.Logf("%d registrations beside %d writes", rounds, sent)
}
