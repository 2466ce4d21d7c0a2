//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"bytes"
	"os/exec"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs"
)

// TestChurn registers and deregisters 1000 times while other regions of the same device carry traffic: no byte is wrong, and
// the kernel counts as many regions, queue pairs and descriptors as before.
func TestChurn(t *testing.T) {
	d := device(t)
	before, files := resources(t, d.Name()), openFiles(t)
	t.Run("traffic", func(t *testing.T) {
		a, b := newEnd(t, d, config{}), newEnd(t, d, config{})
		connect(t, a, b)
		src, dst := memory(t, 64<<10), memory(t, 64<<10)
		mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
		stop := make(chan struct{})
		var churn sync.WaitGroup
		const goroutines, rounds = 2, 1000
		for g := range goroutines {
			m := memory(t, 256<<10)
			churn.Go(func() {
				for i := range rounds / goroutines {
					n := 4096 * (1 + (i*7+g)%64)
					r, err := a.pd.Register(address(m)+uintptr(i%100), n-100, verbs.LocalWrite|verbs.Remote)
					if err != nil {
						t.Error(err)
						return
					}
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() { churn.Wait(); close(stop) }()
		sent := 0
		for running := true; running; sent++ {
			select {
			case <-stop:
				running = false
			default:
			}
			n := 1 + (sent*977)%len(src)
			pattern(src[:n], byte(sent))
			require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, n)))
			require.True(t, bytes.Equal(src[:n], dst[:n]), "write %d of %d bytes", sent, n)
		}
		t.Logf("%d registrations beside %d writes", rounds, sent)
	})
	require.Equal(t, files, openFiles(t))
	require.Equal(t, before, resources(t, d.Name()))
}

// resources is what the kernel counts of a device, empty over the double, whose own counts TestDouble looks at.
func resources(t *testing.T, device string) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", device).CombinedOutput()
	if err != nil {
		if overDouble() {
			return ""
		}
		t.Fatalf("rdma resource show %s: %v: %s", device, err, out)
	}
	// The kernel's own queue pairs and regions are among them, which stay.
	return regexp.MustCompile(`\s+`).ReplaceAllString(string(out), " ")
}
