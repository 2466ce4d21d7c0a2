package mail_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// TestCloseWithoutShut closes the messages of a communicator that was never opened: nobody has locked their lanes, and no
// message can be started afterwards.
func TestCloseWithoutShut(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	m := mail.New(c, mail.Of(c)).(*mail.Mail)
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.Box(0).Send.Enter(), fault.ErrClosed)
	require.ErrorIs(t, m.Box(0).Recv.Enter(), fault.ErrClosed)
}
