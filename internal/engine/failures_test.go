package engine_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
	"github.com/ubcoll/ubcoll/register"
)

// stubborn is a transport that fails to deregister.
type stubborn struct{ engine.IPC }

var errStubborn = errors.New("a peer has not unmapped it")

func (s stubborn) Deregister(m register.Memory, h any) error {
	return errors.Join(s.IPC.Deregister(m, h), errStubborn)
}

// TestFailures has memory that cannot be given back: a call that still waits returns the error; otherwise it is logged
// and counted.
func TestFailures(t *testing.T) {
	for _, k := range []struct {
		name     string
		do       func(t *testing.T, c *engine.Comm, v team.Vec) error
		returned bool
	}{
		{"free", func(t *testing.T, c *engine.Comm, v team.Vec) error {
			used(t, c, v).Release()
			return c.Free(v.Alloc)
		}, true},
		{"free in use", func(t *testing.T, c *engine.Comm, v team.Vec) error {
			defer used(t, c, v).Release()
			return c.Free(v.Alloc)
		}, false},
		{"registration", func(t *testing.T, c *engine.Comm, v team.Vec) error {
			r, err := c.RegisterBuffer(v)
			require.NoError(t, err)
			return errors.Join(r.Close(), c.Free(v.Alloc))
		}, true},
		{"abort", func(t *testing.T, c *engine.Comm, v team.Vec) error {
			_, err := c.RegisterBuffer(v)
			require.NoError(t, err)
			c.Abort(errors.New("enough"))
			return c.Free(v.Alloc)
		}, false},
		{"communicator", func(t *testing.T, c *engine.Comm, v team.Vec) error {
			_, err := c.RegisterBuffer(v)
			require.NoError(t, err)
			return errors.Join(c.Close(), c.Free(v.Alloc))
		}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			logger, out := testkit.Logs(slog.LevelWarn)
			c, err := engine.Open(background, bootstrap.Local(1)[0], engine.Options{Logger: logger}, nil,
				enginetest.ProvidersWith(func(h *mem.Heap, secret []byte) (engine.IPC, error) {
					ipc, err := ipc.New(h, secret)
					return stubborn{ipc}, err
				}))
			require.NoError(t, err)
			defer c.Close()
			d, err := c.Dup(background)
			require.NoError(t, err)
			defer d.Close()
			a, err := d.Alloc(hw.Host, 4096)
			require.NoError(t, err)
			err = k.do(t, d, team.Vec{Ptr: a.Ptr, Len: 4096, Type: dtype.Uint8, Alloc: a})
			require.False(t, a.Live())
			require.ErrorIs(t, c.Free(a), fault.ErrClosed)
			if k.returned {
				require.ErrorIs(t, err, errStubborn)
				require.Zero(t, c.Stats().Failures)
				require.Empty(t, out.String())
				return
			}
			require.NoError(t, err)
			require.Equal(t, uint64(1), c.Stats().Failures)
			require.Contains(t, out.String(), errStubborn.Error())
			require.Contains(t, out.String(), "rank=0")
		})
	}
}

// used registers v's memory as an operation does by itself, and holds it.
func used(t *testing.T, c *engine.Comm, v team.Vec) *register.Claim {
	claim, err := c.Domain().Cache.RegisterAuto(engine.Memory(v.Alloc), v.Alloc.Base(), v.Alloc.Bytes)
	require.NoError(t, err)
	return claim
}

// A rank whose own arguments are wrong returns that, even if another rank aborts meanwhile.
func TestOwnRefusalFirst(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	comms[1].Abort(errors.New("stop"))
	w := reduce(5)
	w.Err = fmt.Errorf("wrong: %w", fault.ErrArgument)
	err := enginetest.Run(background, comms[0], w)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.NotErrorIs(t, err, fault.ErrAborted)
	require.ErrorIs(t, enginetest.Barrier(comms[0]), fault.ErrAborted)
}
