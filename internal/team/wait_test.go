package team

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/logs"
)

// looked is a communicator that counts checks of the processes.
type looked struct{ n int }

func (*looked) Broken() *fault.Error           { return nil }
func (*looked) Fail(e *fault.Error) error      { return e }
func (*looked) Acquire(*Vec, *Buf, bool) error { return nil }
func (*looked) Advance()                       {}
func (l *looked) Look()                        { l.n++ }
func (*looked) Log() *slog.Logger              { return logs.Or(nil) }
func (*looked) Arrived(int, time.Duration)     {}
func (*looked) Hostname(int) string            { return "here" }

func (*looked) RunPart(context.Context, *Work, bool) error    { return nil }
func (*looked) Carry(context.Context, *Work) (Carrier, error) { return nil, nil }

// TestFirstLook: a wait checks the peers' processes only after a while, but a caller that only tests, and may not come
// back for long, checks them at its first call.
func TestFirstLook(t *testing.T) {
	for name, k := range map[string]struct {
		poll func(*Team, *WaitState) *fault.Error
		want int
	}{
		"waits": {func(x *Team, s *WaitState) *fault.Error {
			for range 2 * PollsPerClock {
				if err := x.Poll(s); err != nil {
					return err
				}
			}
			return nil
		}, 0},
		"tests": {(*Team).PollClock, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for {
				c, x := &looked{}, &Team{}
				x.Init(c, allOf(0, 1))
				x.Me = &Area{}
				x.Peers[0].Area = x.Me
				x.Timeout.Store(int64(time.Hour))
				start := time.Now()
				if err := k.poll(x, &WaitState{Op: "test", Ctx: context.Background()}); err != nil {
					t.Fatal(err)
				}
				if time.Since(start) < healthEvery { // later, a check of the processes may have been due
					require.Equal(t, k.want, c.n)
					return
				}
			}
		})
	}
}

// A process that ends after its rank has closed the communicator is no lost peer: ranks that are done with that rank go on.
// What the rank has published before counts all the same.
func TestEndedAfterClose(t *testing.T) {
	x := newHosts(new(strings.Builder))
	s := &WaitState{Ctx: context.Background(), Peer: before, Step: "test"}
	x.Peers[behind].Area.State.Store(StateClosed)
	x.Peers[behind].Mem.(*memory).dead = true
	require.Nil(t, x.PollHealth(s))
	x.Peers[behind].Area.Lost.Store(lostAborted<<32 | 7)
	require.ErrorIs(t, x.PollHealth(s), fault.ErrAborted)
}
