package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
)

// Hooks are functions that a transport calls before its own.
type Hooks struct {
	Look func()
	Live func()
	Dead func() bool
}

// hooked is a transport that calls a test's hooks before some of its calls.
type hooked struct {
	engine.IPC
	h Hooks
}

type hookedPeer struct {
	team.PeerMemory
	engine.DevicePeer
	h *Hooks
}

func (h *hooked) Look() { h.h.Look(); h.IPC.Look() }

func (h *hooked) Attach(ctx context.Context, card json.RawMessage) (team.PeerMemory, error) {
	p, err := h.IPC.Attach(ctx, card)
	if err != nil {
		return nil, err
	}
	return &hookedPeer{p, p.(engine.DevicePeer), &h.h}, nil
}

func (p *hookedPeer) Live(l mem.Location) bool { p.h.Live(); return p.PeerMemory.Live(l) }
func (p *hookedPeer) Dead() bool               { return p.h.Dead() || p.PeerMemory.Dead() }

// OpenHooked opens a communicator of two ranks. Rank 1's transport has hooks.
func OpenHooked(t *testing.T, o engine.Options, h Hooks) []*engine.Comm {
	t.Helper()
	bs, comms, errs := bootstrap.Local(2), make([]*engine.Comm, 2), make([]error, 2)
	var wg sync.WaitGroup
	for r, b := range bs {
		wg.Go(func() {
			comms[r], errs[r] = engine.Open(context.Background(), b, o, nil,
				ProvidersWith(func(heap *mem.Heap, secret []byte) (engine.IPC, error) {
					tr, err := ipc.New(heap, secret)
					if r == 0 {
						return tr, err
					}
					return &hooked{tr, h}, err
				}))
			if errs[r] == nil {
				t.Cleanup(func() { comms[r].Close() })
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return comms
}
