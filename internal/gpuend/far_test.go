package gpuend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpuend"
)

// putter is a Host of which only puts are used. It notes where their data are.
type putter struct {
	gpuend.Host
	from unsafe.Pointer
}

func (p *putter) Live() error { return nil }

func (p *putter) PutDevice(context.Context, int, unsafe.Pointer, int) (bool, error) {
	return false, nil
}

func (p *putter) Put(_ context.Context, _ int, from unsafe.Pointer, _ int) error {
	p.from = from
	return nil
}

// TestFarStage closes a far end: what it had of page-locked memory is free for others, but not if its communicator is broken,
// since a kernel may still copy there. It counts as locked in both cases.
func TestFarStage(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprint("broken=", broken), func(t *testing.T) {
			sides := open(t)
			s, host := sides[0], &putter{}
			e, err := s.owner.table.OpenFar(gpuend.FarConfig{Owner: s.owner, Op: "test", Name: "the end", Rank: 1, Host: host},
				s.memory(sides[1]))
			require.NoError(t, err)
			on, err := gpu.OpenStream(s.vec.Dev)
			require.NoError(t, err)
			require.NoError(t, e.Launch(t.Context(), on, []gpuend.Step{{Kind: gpuend.StepPut, N: 8}}))
			require.NoError(t, errors.Join(on.Sync(t.Context()), on.Close()))
			locked := s.c.Stats().Cache.PinnedBytes
			if broken {
				s.c.Abort(errors.New("enough"))
			}
			require.NoError(t, e.Close(false))
			require.Equal(t, locked, s.c.Stats().Cache.PinnedBytes)
			next, err := gpu.DeviceOf(s.c).Domain.TakePinned(8)
			require.NoError(t, err)
			require.Equal(t, broken, next.Ptr() != host.from)
		})
	}
}
