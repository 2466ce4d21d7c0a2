package engine

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// at is memory that exists, of a process that runs.
type at struct{ team.PeerMemory }

func (at) Live(mem.Location) bool { return true }
func (at) Dead() bool             { return false }

// The memory of a closed communicator can be freed once its peers have closed it, too; that on devices only by a caller that
// may wait, until which it is kept.
func TestReclaimable(t *testing.T) {
	var state atomic.Uint64
	peers := []team.Reader{{State: &state, Mem: at{}}}
	host, device, later := &mem.Allocation{}, &mem.Allocation{Dev: hw.CUDA(0)}, &mem.Allocation{Dev: hw.CUDA(0)}
	lifted := 0
	d := &Domain{retired: []retiree{{[]*mem.Allocation{host, device}, peers, func() { lifted++ }}, {[]*mem.Allocation{later}, nil, nil}}}
	allocs := func(all []retiree) (as []*mem.Allocation) {
		for _, r := range all {
			if as = append(as, r.allocs...); r.lift != nil {
				r.lift()
			}
		}
		return as
	}
	require.Empty(t, allocs(d.reclaimable(false)))
	require.Zero(t, lifted)
	state.Store(team.StateClosed)
	require.Equal(t, []*mem.Allocation{host}, allocs(d.reclaimable(false)))
	require.Equal(t, 1, lifted)
	require.Empty(t, allocs(d.reclaimable(false)))
	got := allocs(d.reclaimable(true))
	require.Len(t, got, 2)
	require.Same(t, device, got[0])
	require.Same(t, later, got[1])
	require.Equal(t, 1, lifted)
	require.Empty(t, d.retired)
}
