package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who finds the pool taken has less memory, of its own, and the pool is not given back by it.
func TestPool(t *testing.T) {
	n := &Network{}
	a, b := &Stage{Config: Config{Network: n}}, &Stage{Config: Config{Network: n}}
	a.mover.land(a)
	b.mover.land(b)
	require.Len(t, a.mover.landing, poolBytes)
	require.Len(t, b.mover.landing, ownBytes)
	pool, own := &a.mover.landing[0], &b.mover.landing[0]
	b.mover.leave(b)
	b.mover.land(b)
	require.Same(t, own, &b.mover.landing[0], "the same memory again")
	b.mover.leave(b)
	a.mover.leave(a)
	b.mover.land(b)
	require.Same(t, pool, &b.mover.landing[0])
}
