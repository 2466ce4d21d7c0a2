package gpumail_test

import (
	"context"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestCloseWithoutShut closes the messages of a communicator that was never opened but has a device: nobody has locked
// their lanes, and no message can be started afterwards.
func TestCloseWithoutShut(t *testing.T) {
	gputest.Run(t, 1, ubcoll.Options{}, func(_ context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
		e := (*inside.Comm)(c).View().Comm
		m := gpumail.New(e, gpumail.Of(e)).(*gpumail.Mail)
		m.OnDevice(gpu.DeviceOf(e))
		if err := m.Close(); err != nil {
			return err
		}
		return testkit.Wants(m.Shut(false), ubcoll.ErrClosed)
	})
}
