package mail_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A message that starts and finishes under its lane's lock may register memory that is being freed. The registration
// must end with the memory.
func TestFreeForgetsWhatMessagesRegister(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	a, err := c.Alloc(hw.Host, 4096)
	require.NoError(t, err)
	lane := &mail.Of(c).Box(0).Send
	require.NoError(t, lane.Enter())
	freed := make(chan error, 1)
	go func() { freed <- c.Free(a) }()
	testkit.Eventually(t, func() bool { return !a.Live() })
	claim, err := c.Domain().Cache.RegisterAuto(engine.Memory(a), a.Base(), a.Bytes)
	require.NoError(t, err)
	claim.Release()
	require.Equal(t, 1, c.Stats().Cache.Regions)
	lane.Unlock()
	require.NoError(t, <-freed)
	require.Zero(t, c.Stats().Cache.Regions)
}
