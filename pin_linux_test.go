package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

const (
	pinLimit = 1 << 20
	pinSmall = 64 << 10
	pinLarge = 4 << 20
)

// pinned runs f on two ranks that may lock pinLimit bytes together, unless f raises the limit.
func pinned(t *testing.T, o ubcoll.Options, f func(context.Context, *ubcoll.Comm) error) {
	t.Helper()
	if race.Enabled {
		t.Skip("goroutine ranks have no memory files under the race detector")
	}
	limitLocks(t, pinLimit)
	before := testkit.Status("VmLck")
	require.NoError(t, ubcoll.Local(t.Context(), 2, o, func(ctx context.Context, c *ubcoll.Comm) error {
		runtime.LockOSThread() // never unlocked: the thread ends with the rank
		if err := unprivileged(); err != nil {
			return err
		}
		return f(ctx, c)
	}))
	require.Equal(t, before, testkit.Status("VmLck"), "something stays locked")
}

// wantLimit requires ErrLimit of RLIMIT_MEMLOCK, with its value and the cure.
func wantLimit(what string, c *ubcoll.Comm, err error) error {
	if !errors.Is(err, ubcoll.ErrLimit) || c.Err() != nil {
		return fmt.Errorf("%s: %v, and the communicator: %v", what, err, c.Err())
	}
	for _, s := range []string{"it cannot be locked in memory, and Options.Pin is required: ", "mlock of 4194304 bytes: ",
		"RLIMIT_MEMLOCK is 1048576 bytes for all of the process, of which ", "raise it to ", "`ulimit -l`"} {
		if !strings.Contains(err.Error(), s) {
			return fmt.Errorf("%s: no %q in %w", what, s, err)
		}
	}
	return nil
}

// wantPinned requires that this rank has registered and locked so many bytes.
func wantPinned(c *ubcoll.Comm, bytes int64) error {
	if s := c.Stats().Cache; s.PinnedBytes != bytes || s.RegisteredBytes != bytes {
		return fmt.Errorf("%d bytes are locked and %d registered, not %d", s.PinnedBytes, s.RegisteredBytes, bytes)
	}
	return nil
}

// Where pinning is required, what cannot be locked is not registered: calls that register it fail, on all ranks if they
// are collective, and operations copy it.
func TestPinRequired(t *testing.T) {
	for name, o := range map[string]ubcoll.Options{"option": {Pin: ubcoll.PinRequired}, "variable": {}} {
		t.Run(name, func(t *testing.T) {
			if name == "variable" {
				t.Setenv(env.Pin.Name, "required")
			}
			pinned(t, o, func(ctx context.Context, c *ubcoll.Comm) error {
				small, err := ubcoll.Alloc[byte](c, ubcoll.Host, pinSmall)
				if err != nil {
					return err
				}
				large, err := ubcoll.Alloc[byte](c, ubcoll.Host, pinLarge)
				if err != nil {
					return err
				}
				if err := refusedLarge(ctx, c, large); err != nil {
					return err
				}
				if err := refusedTogether(ctx, c, small, large); err != nil {
					return err
				}
				if err := copiedLarge(ctx, c, large); err != nil {
					return err
				}
				r, err := small.Register(c)
				if err != nil {
					return err
				}
				if err := errors.Join(wantPinned(c, pinSmall), r.Close(), wantPinned(c, 0)); err != nil {
					return err
				}
				if err := raised(ctx, c, large); err != nil {
					return err
				}
				return errors.Join(small.Free(), large.Free(), wantPinned(c, 0))
			})
		})
	}
}

// refusedLarge registers what cannot be locked, with c and with a communicator of the same rank.
func refusedLarge(ctx context.Context, c *ubcoll.Comm, large *ubcoll.Buffer[byte]) error {
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	for _, c := range []*ubcoll.Comm{c, d} {
		_, err := c.RegisterBuffer(large.Vec().Slice(100, 200)) // registers the whole allocation
		if err := errors.Join(wantLimit("register", c, err), wantPinned(c, 0)); err != nil {
			return err
		}
	}
	if text := c.Explain(large.Vec()); !strings.Contains(text, "not registered: it cannot be locked in memory") {
		return errors.New(text)
	}
	return d.Close()
}

// refusedTogether makes a window and captures a graph; only rank 1 cannot lock its memory.
func refusedTogether(ctx context.Context, c *ubcoll.Comm, small, large *ubcoll.Buffer[byte]) error {
	v := small.Vec()
	if c.Rank() == 1 {
		v = large.Vec().Slice(0, pinSmall)
	}
	_, window := c.RegisterWindow(ctx, v, ubcoll.WindowDefault)
	_, capture := graph.Capture(ctx, c, func(c *ubcoll.Comm) error { return coll.AllReduce(ctx, c, v, v, ubcoll.Max) })
	for what, err := range map[string]error{"window": window, "capture": capture} {
		var e *ubcoll.Error
		if !errors.Is(err, ubcoll.ErrLimit) || !errors.As(err, &e) || c.Err() != nil {
			return fmt.Errorf("%s: %v", what, err)
		}
		if c.Rank() == 0 && (e.Peer != 1 || !strings.Contains(err.Error(), "rank 1")) {
			return fmt.Errorf("%s: the error is about rank %d: %w", what, e.Peer, err)
		}
		if !strings.Contains(err.Error(), "Options.Pin is required") {
			return fmt.Errorf("%s: the error does not say why: %w", what, err)
		}
	}
	return wantPinned(c, 0)
}

// copiedLarge lets operations find large without a registration.
func copiedLarge(ctx context.Context, c *ubcoll.Comm, large *ubcoll.Buffer[byte]) error {
	s := large.Slice()
	s[0], s[len(s)-1] = byte(1+c.Rank()), byte(1+c.Rank())
	if err := coll.AllReduce(ctx, c, large.Vec(), large.Vec(), ubcoll.Sum); err != nil {
		return err
	}
	if s[0] != 3 || s[len(s)-1] != 3 {
		return fmt.Errorf("%d and %d, not 3", s[0], s[len(s)-1])
	}
	reduced := c.LastOp().String()
	var err error
	if c.Rank() == 0 {
		s[0] = 7
		err = p2p.Send(ctx, c, 1, large.Vec())
	} else if _, err = p2p.Recv(ctx, c, 0, large.Vec()); err == nil && (s[0] != 7 || s[len(s)-1] != 3) {
		err = fmt.Errorf("%d and %d, not 7 and 3", s[0], s[len(s)-1])
	}
	for _, text := range []string{reduced, c.LastOp().String()} {
		if !strings.Contains(text, "staged: register ") || !strings.Contains(text, "RLIMIT_MEMLOCK is 1048576 bytes") {
			err = errors.Join(err, fmt.Errorf("no reason in %q", text))
		}
	}
	return errors.Join(err, wantPinned(c, 0))
}

// raised raises the limit, and registers large on both ranks; then operations do so by themselves.
func raised(ctx context.Context, c *ubcoll.Comm, large *ubcoll.Buffer[byte]) error {
	var is unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &is); err != nil || is.Max < 4*pinLarge {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 4 * pinLarge, Max: is.Max}); err != nil {
		return err
	}
	r, err := large.Register(c)
	if err := errors.Join(err, wantPinned(c, pinLarge)); err != nil {
		return err
	}
	if err := r.Close(); err != nil {
		return err
	}
	for range 2 {
		if err := coll.AllReduce(ctx, c, large.Vec(), large.Vec(), ubcoll.Max); err != nil {
			return err
		}
		if o := c.LastOp(); !o.Src.Direct {
			return fmt.Errorf("not direct: %v", o)
		}
	}
	return wantPinned(c, pinLarge)
}

// Adopted host memory is its owner's to lock, and the limit does not bind the privileged.
func TestPinRequiredRegisters(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, pinLarge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	limitLocks(t, pinLimit)
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{Pin: ubcoll.PinRequired}, func(_ context.Context, c *ubcoll.Comm) error {
		owned, err := ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&memory[0]), len(memory))
		if err != nil {
			return err
		}
		r, err := owned.Register(c)
		if err != nil {
			return err
		}
		if err := errors.Join(r.Close(), owned.Free()); err != nil || !privileged() || race.Enabled {
			return err
		}
		large, err := ubcoll.Alloc[byte](c, ubcoll.Host, pinLarge)
		if err != nil {
			return err
		}
		if r, err = large.Register(c); err != nil {
			return err
		}
		return errors.Join(wantPinned(c, pinLarge), r.Close(), wantPinned(c, 0), large.Free())
	}))
}

// privileged reports whether RLIMIT_MEMLOCK does not bind this thread.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&header, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}

// The library's own limit names itself, whatever is pinned.
func TestMaxPinned(t *testing.T) {
	t.Setenv(env.MaxPinned.Name, "1048576")
	for _, pin := range []ubcoll.Pin{ubcoll.PinAuto, ubcoll.PinRequired} {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Pin: pin}, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, pinSmall<<(6*c.Rank())) // rank 1's is large
			if err != nil {
				return err
			}
			_, err = c.RegisterWindow(ctx, b.Vec().Slice(0, pinSmall), ubcoll.WindowDefault)
			if !errors.Is(err, ubcoll.ErrLimit) || !strings.Contains(err.Error(), "4194304 more bytes, 0 of 1048576 are registered and "+
				"nothing is idle and automatic: close registrations or raise UBCOLL_MAX_PINNED") {
				return fmt.Errorf("window: %v", err)
			}
			return errors.Join(c.Err(), b.Free(), coll.Barrier(ctx, c))
		}))
	}
}

// All ranks must want the same.
func TestPinDiffers(t *testing.T) {
	for _, err := range opened(t, ubcoll.Options{}, ubcoll.Options{Pin: ubcoll.PinRequired}) {
		requireAbout(t, err, ubcoll.ErrMismatch, 1, "Options.Pin is auto on rank 0 and required on rank 1")
	}
	t.Setenv(env.Pin.Name, "required") // turns auto into required
	for _, err := range opened(t, ubcoll.Options{}, ubcoll.Options{Pin: ubcoll.PinRequired}) {
		require.NoError(t, err)
	}
	for _, err := range opened(t, ubcoll.Options{Pin: 2}, ubcoll.Options{Pin: 2}) {
		require.ErrorIs(t, err, ubcoll.ErrArgument)
		require.ErrorContains(t, err, "pinning 2 is unknown")
	}
}

// Device memory is pinned whatever the limit is.
func TestPinRequiredOfDevices(t *testing.T) {
	limitLocks(t, pinSmall)
	gputest.Run(t, 1, ubcoll.Options{Pin: ubcoll.PinRequired}, func(_ context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		runtime.LockOSThread() // never unlocked: the thread ends with the rank
		if err := unprivileged(); err != nil {
			return err
		}
		b, err := ubcoll.Alloc[byte](c, dev, pinLarge)
		if err != nil {
			return err
		}
		r, err := b.Register(c)
		if err != nil {
			return err
		}
		if text := c.Explain(b.Vec()); !strings.Contains(text, "IPC complete") {
			return errors.New(text)
		}
		return errors.Join(r.Close(), b.Free())
	})
}
