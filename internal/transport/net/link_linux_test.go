package net

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPut(t *testing.T) {
	p := newPair(t, 4)
	for seq, n := range []int{0, 1, 8, 4095, 4096, 4097, 1 << 20, 20 << 20} {
		seq := uint64(seq + 1)
		from, to := make([]byte, n+1), make([]byte, n+1)
		for i := range n {
			from[i] = byte(i*31 + int(seq))
		}
		p.lb.Grant(2, seq, at(to), n)
		var both sync.WaitGroup
		both.Go(func() {
			p.la.Put(2, seq, at(from), n)
			for p.la.Sent() < p.la.Queued() {
				p.la.Poll()
			}
		})
		both.Go(func() { p.lb.until(t, 2, seq) })
		both.Wait()
		require.Equal(t, n, p.lb.Landed(2))
		require.Equal(t, from, to)
	}
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}
