package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who finds the large memory taken gets less, which the next one gets again, and does not give the large one back.
func TestPool(t *testing.T) {
	n := &Network{}
	a, b := &Stage{Config: Config{Network: n}}, &Stage{Config: Config{Network: n}}
	land := func(s *Stage) {
		s.mover.size, s.mover.x.Plan.Item = 4, 1000
		s.mover.land(s)
	}
	land(a)
	land(b)
	require.Len(t, a.mover.landing, poolBytes)
	require.Len(t, b.mover.landing, spareBytes)
	pool, spare := &a.mover.landing[0], &b.mover.landing[0]
	c := n.landing.take()
	require.NotSame(t, spare, &c[0], "it is taken")
	b.mover.leave(b)
	land(b)
	require.Same(t, spare, &b.mover.landing[0], "the same memory again")
	b.mover.leave(b)
	n.landing.give(c)
	require.Len(t, n.landing.spares, 2)
	n.landing.give(nil)
	a.mover.leave(a)
	land(b)
	require.Same(t, pool, &b.mover.landing[0])
}

// Landing memory has as many items as fit, within limits; elements are not cut.
func TestLandingItems(t *testing.T) {
	for _, k := range []struct{ item, size, items, bytes, inSpare, spareItem int }{
		{1, 1, 8, 256 << 10, 8, 16 << 10}, {64 << 10, 4, 8, 256 << 10, 4, 32 << 10}, {80 << 10, 4, 6, 349504, 4, 32 << 10},
		{128 << 10, 4, 4, 512 << 10, 4, 32 << 10}, {128 << 10, 8, 4, 512 << 10, 4, 32 << 10},
	} {
		n := &Network{}
		a, b := &Stage{Config: Config{Network: n}}, &Stage{Config: Config{Network: n}}
		for _, s := range []*Stage{a, b} {
			s.mover.size, s.mover.x.Plan.Item = k.size, k.item
			s.mover.land(s)
		}
		require.Equal(t, []int{k.items, k.bytes, k.inSpare, k.spareItem},
			[]int{int(a.mover.items), a.mover.item, int(b.mover.items), b.mover.item}, "items of %d * %d", k.item, k.size)
	}
}
