package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/dlpack/dlpacktest"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
	"github.com/ubcoll/ubcoll/register"
)

// registrar registers all memory, and fails to deregister, as the transport does where a peer has not unmapped it.
type registrar struct {
	engine.IPC
	heap *mem.Heap
}

func (registrar) Register(register.Memory) (any, error) { return nil, nil }

func (r registrar) Deregister(m register.Memory, _ any) error {
	r.heap.Keep(m.Base, m.Bytes, m.Generation)
	return errStubborn
}

// A tensor whose memory a peer may still have mapped is not deleted by Free, but when the domain closes.
func TestStubbornTensor(t *testing.T) {
	if !dlpacktest.Deletes {
		t.Skip("this build has no cgo")
	}
	c, err := engine.Open(background, bootstrap.Local(1)[0], engine.Options{}, nil,
		enginetest.ProvidersWith(func(h *mem.Heap, secret []byte) (engine.IPC, error) {
			ipc, err := ipc.New(h, secret)
			return registrar{ipc, h}, err
		}))
	require.NoError(t, err)
	adopt := func(x *dlpacktest.Tensor) *mem.Allocation {
		a, ty, err := c.AdoptDLPack(x.Pointer())
		require.NoError(t, err)
		require.Equal(t, dtype.Float32, ty)
		return a
	}
	closed, freed, other := dlpacktest.New(t, 100), dlpacktest.New(t, 100), dlpacktest.New(t, 100)

	a := adopt(closed) // the close of a registration fails
	r, err := c.RegisterBuffer(team.Vec{Ptr: a.Ptr, Len: 400, Type: dtype.Uint8, Alloc: a})
	require.NoError(t, err)
	require.ErrorIs(t, r.Close(), errStubborn)
	require.NoError(t, c.Free(a))

	a = adopt(freed) // Free fails
	used(t, c, team.Vec{Ptr: a.Ptr, Len: 400, Type: dtype.Uint8, Alloc: a}).Release()
	require.ErrorIs(t, c.Free(a), errStubborn)
	require.False(t, a.Live())

	require.NoError(t, c.Free(adopt(other)))
	require.Equal(t, [3]int{0, 0, 1}, [3]int{closed.Deleted(), freed.Deleted(), other.Deleted()})
	require.NoError(t, c.Close())
	require.Equal(t, [3]int{1, 1, 1}, [3]int{closed.Deleted(), freed.Deleted(), other.Deleted()})
}
