package p2p_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// handler calls f for each record.
type handler struct {
	slog.Handler
	f func(slog.Record)
}

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.f(r)
	return nil
}

// TestSendWhileClosing makes the program's log handler send on the communicator that is closing, and free memory: Close
// no longer holds a lock that these need.
func TestSendWhileClosing(t *testing.T) {
	told := func(slog.Record) {}
	o := ubcoll.Options{Logger: slog.New(handler{slog.DiscardHandler, func(r slog.Record) { told(r) }})}
	require.NoError(t, ubcoll.Local(t.Context(), 1, o, func(ctx context.Context, c *ubcoll.Comm) error {
		d, err1 := c.Dup(ctx)
		b, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, 8)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		said := errors.New("nothing was said")
		told = func(r slog.Record) {
			if r.Message == "ubcoll: communicator closed" {
				said = errors.Join(testkit.Wants(p2p.Send(ctx, d, 0, b.Vec()), ubcoll.ErrClosed), b.Free())
			}
		}
		err := d.Close()
		told = func(slog.Record) {}
		return errors.Join(err, said)
	}))
}
