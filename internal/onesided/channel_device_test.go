package onesided

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
)

// TestStepRights checks what steps of a channel over device memory need, with all rights but those missing.
func TestStepRights(t *testing.T) {
	const all = engine.LocalWrite | engine.RemoteWrite | engine.RemoteRead | engine.RemoteAtomic
	for _, k := range []struct {
		kind          gpuend.StepKind
		local, remote engine.Access // needed
	}{
		{gpuend.StepPut, 0, engine.RemoteWrite},
		{gpuend.StepPutPackets, 0, engine.RemoteWrite},
		{gpuend.StepGet, engine.LocalWrite, engine.RemoteRead},
		{gpuend.StepGetPackets, engine.LocalWrite, 0},
		{gpuend.StepSignal, 0, 0},
		{gpuend.StepRelaxedSignal, 0, 0},
		{gpuend.StepWait, 0, 0},
		{gpuend.StepFlush, 0, 0},
	} {
		t.Run(k.kind.String(), func(t *testing.T) {
			allows := func(local, remote engine.Access) error {
				ch := &Channel{local: local, remote: &Remote{Import: engine.Import{Export: engine.Export{Access: remote}}}}
				return ch.allows(&gpuend.Step{Kind: k.kind})
			}
			require.NoError(t, allows(k.local, k.remote))
			if k.local != 0 {
				require.ErrorIs(t, allows(all&^k.local, all), fault.ErrArgument)
			}
			if k.remote != 0 {
				require.ErrorIs(t, allows(all, all&^k.remote), fault.ErrArgument)
			}
		})
	}
}
