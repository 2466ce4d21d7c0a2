package ubcoll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// Whatever reads or writes a buffer runs against its end on other goroutines. Each way runs in a process of its own,
// because a fault ends the process.
func TestUseAgainstEnd(t *testing.T) {
	if race.Enabled {
		t.Skip("memory is of the Go heap there and never faults; and these users write and read the same bytes")
	}
	for name := range againstEnd {
		t.Run(name, func(t *testing.T) { testkit.RunChild(t, "end", "TEST_WAY="+name, testkit.NoSleep) })
	}
}

var againstEnd = map[string]func(*against) error{
	"copy, free":          (*against).copyFree,
	"copy, free, adopted": (*against).copyFreeAdopted,
	"copy, close":         (*against).copyClose,
	"copy, abort":         (*against).copyAbort,
	"message, free":       (*against).messageFree,
	"message, close":      (*against).messageClose,
	"put, free":           (*against).putFree,
	"reduce, free":        (*against).reduceFree,
	"stream, free":        (*against).streamFree,
}

func childEnd() error {
	k := newAgainst(ubcoll.Host)
	err := againstEnd[os.Getenv("TEST_WAY")](k)
	if err == nil && (k.used.Load() == 0 || k.made == 0) {
		err = errors.New("no use went well, or nothing was freed")
	}
	fmt.Printf("%d uses went well, of %d buffers\n", k.used.Load(), k.made)
	return err
}

func newAgainst(dev ubcoll.Device) *against {
	k := &against{n: 1 << 20, dev: dev, until: time.Now().Add(300 * time.Millisecond)}
	if testkit.Full() {
		k.until = time.Now().Add(20 * time.Second)
	}
	return k
}

// On a device, copies run against Free, and then against the close of the communicator.
func TestDeviceCopyAgainstEnd(t *testing.T) {
	if race.Enabled {
		t.Skip("these users write and read the same bytes")
	}
	ctx := context.Background()
	k := newAgainst(ubcoll.CUDA(0))
	in, out := k.copies(ctx)
	run := func(times int) {
		gputest.Run(t, 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			k.dev = dev
			for range times {
				if err := k.replace(ctx, c); err != nil {
					return err
				}
			}
			return nil // the close ends the last one
		})
	}
	run(1)
	require.NoError(t, k.use(func() error {
		run(20)
		return nil
	}, in, out))
	require.NotZero(t, k.used.Load())
	t.Logf("%d copies went well, of %d buffers", k.used.Load(), k.made)
}

// against makes buffers, and ends them while other goroutines use them. Each byte of a buffer is the buffer's own.
type against struct {
	n     int
	dev   ubcoll.Device
	until time.Time
	now   atomic.Pointer[target]
	made  int
	used  atomic.Int64
}

type target struct {
	*ubcoll.Buffer[byte]
	is byte
}

// over reports whether it is time to end: some use has gone well, or none can, however busy the machine is.
func (k *against) over() bool {
	late := time.Since(k.until)
	return late > 0 && k.used.Load() > 0 || late > time.Minute
}

// check returns an error unless all of x is b.
func check(what string, x []byte, b byte) error {
	if bytes.Count(x, []byte{b}) == len(x) {
		return nil
	}
	return fmt.Errorf("%s: a byte is not %d", what, b)
}

// renew fills b, which is new, and shows it to the users. It returns the one before.
func (k *against) renew(ctx context.Context, b *ubcoll.Buffer[byte]) (last *target, err error) {
	k.made++
	next := &target{b, byte(k.made%250 + 1)}
	if err := b.CopyFrom(ctx, bytes.Repeat([]byte{next.is}, b.Len())); err != nil {
		return nil, err
	}
	return k.now.Swap(next), nil
}

// replace makes a buffer and shows it to the users in the place of the last one, which it frees.
func (k *against) replace(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[byte](c, k.dev, k.n)
	if err != nil {
		return err
	}
	if err := check("a new buffer", b.Slice(), 0); err != nil {
		return err
	}
	last, err := k.renew(ctx, b)
	if err != nil || last == nil {
		return err
	}
	if err := last.Free(); err != nil && !errors.Is(err, ubcoll.ErrClosed) { // its communicator may have closed
		return err
	}
	return check("the next buffer", b.Slice(), k.now.Load().is)
}

// use calls use on several goroutines until the time is over, while f runs again and again. ErrStale says that the
// buffer has been freed.
func (k *against) use(f func() error, use ...func(*target) error) error {
	var over atomic.Bool
	errs := make([]error, len(use)+1)
	var all sync.WaitGroup
	for i := range use {
		all.Go(func() {
			for errs[i] == nil && !over.Load() {
				errs[i] = k.well(use[i](k.now.Load()))
			}
		})
	}
	for errs[len(use)] == nil && !k.over() {
		errs[len(use)] = f()
	}
	over.Store(true)
	all.Wait()
	return errors.Join(errs...)
}

func (k *against) well(err error) error {
	if err == nil {
		k.used.Add(1)
	}
	if errors.Is(err, ubcoll.ErrStale) {
		return nil
	}
	return err
}

// copies are the uses of a copy in and of a copy out.
func (k *against) copies(ctx context.Context) (in, out func(*target) error) {
	to, from := make([]byte, k.n), make([]byte, k.n)
	in = func(b *target) error {
		for i := range from {
			from[i] = b.is
		}
		return b.CopyFrom(ctx, from)
	}
	out = func(b *target) error {
		if err := b.CopyTo(ctx, to); err != nil {
			return err
		}
		return check("a copy", to, b.is)
	}
	return in, out
}

func local(n int, f func(ctx context.Context, c *ubcoll.Comm) error) error {
	return ubcoll.Local(context.Background(), n, ubcoll.Options{}, f)
}

func (k *against) copyFree() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := k.replace(ctx, c); err != nil {
			return err
		}
		in, out := k.copies(ctx)
		return k.use(func() error { return k.replace(ctx, c) }, in, out)
	})
}

// The owner of adopted memory unmaps it once Free has returned nil, and then has other memory there.
func (k *against) copyFreeAdopted() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		spare, err := unix.MmapPtr(-1, 0, nil, uintptr(k.n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		replace := func() error {
			b, err := ubcoll.Adopt(c, ubcoll.Host, spare, k.n)
			if err != nil {
				return err
			}
			if err := check("new memory", b.Slice(), 0); err != nil {
				return err
			}
			last, err := k.renew(ctx, b)
			if err != nil {
				return err
			}
			spare = nil
			if last != nil {
				spare = unsafe.Pointer(unsafe.SliceData(last.Slice()))
				for err = last.Free(); errors.Is(err, ubcoll.ErrInUse); err = last.Free() {
				}
				if err == nil {
					err = unix.MunmapPtr(spare, uintptr(k.n))
				}
				if err != nil {
					return err
				}
			}
			spare, err = unix.MmapPtr(-1, 0, spare, uintptr(k.n), unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		}
		if err := replace(); err != nil {
			return err
		}
		in, out := k.copies(ctx)
		return k.use(replace, in, out)
	})
}

// replaceComm makes a communicator with a buffer, shows it to the users, and ends the last one.
func (k *against) replaceComm(ctx context.Context, end func(*ubcoll.Comm) error) func() error {
	var last *ubcoll.Comm
	return func() error {
		c, err := ubcoll.Open(ctx, bootstrap.Local(1)[0], ubcoll.Options{})
		if err != nil {
			return err
		}
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, k.n)
		if err != nil {
			return err
		}
		if _, err = k.renew(ctx, b); err != nil {
			return err
		}
		if last != nil {
			err = end(last)
		}
		last = c
		return err
	}
}

func (k *against) copyClose() error { return k.copyEnd((*ubcoll.Comm).Close) }

func (k *against) copyAbort() error {
	return k.copyEnd(func(c *ubcoll.Comm) error {
		c.Abort(nil)
		return c.Close()
	})
}

func (k *against) copyEnd(end func(*ubcoll.Comm) error) error {
	ctx := context.Background()
	replace := k.replaceComm(ctx, end)
	if err := replace(); err != nil {
		return err
	}
	in, out := k.copies(ctx)
	return k.use(replace, in, out)
}

// messages is a use by a send, and then by a receive, of c's only rank to itself.
func (k *against) messages(ctx context.Context, c *ubcoll.Comm) func(*target) error {
	got := make([]byte, k.n)
	return func(b *target) error {
		if _, err := p2p.SendRecv(ctx, c, 0, ubcoll.Of(got), 0, b.Vec()); err != nil {
			return err
		}
		if err := check("a message", got, b.is); err != nil {
			return err
		}
		_, err := p2p.SendRecv(ctx, c, 0, b.Vec(), 0, ubcoll.Of(got))
		return err
	}
}

func (k *against) messageFree() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := k.replace(ctx, c); err != nil {
			return err
		}
		return k.use(func() error { return k.replace(ctx, c) }, k.messages(ctx, c))
	})
}

// The messages are another communicator's than the buffers.
func (k *against) messageClose() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		replace := k.replaceComm(ctx, (*ubcoll.Comm).Close)
		if err := replace(); err != nil {
			return err
		}
		return k.use(replace, k.messages(ctx, c))
	})
}

func (k *against) putFree() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := k.replace(ctx, c); err != nil {
			return err
		}
		part, err := ubcoll.Alloc[byte](c, ubcoll.Host, k.n)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, part.Vec(), ubcoll.WindowDefault)
		if err != nil {
			return err
		}
		return k.use(func() error { return k.replace(ctx, c) }, func(b *target) error {
			if err := w.Put(ctx, 0, 0, b.Vec()); err != nil {
				return err
			}
			if err := w.Get(ctx, 0, b.Vec(), 0); err != nil {
				return err
			}
			return check("a put", part.Slice(), b.is)
		})
	})
}

func (k *against) reduceFree() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := k.replace(ctx, c); err != nil {
			return err
		}
		got := make([]byte, k.n)
		return k.use(func() error { return k.replace(ctx, c) }, func(b *target) error {
			if err := coll.AllReduce(ctx, c, ubcoll.Of(got), b.Vec(), ubcoll.Max); err != nil {
				return err
			}
			if err := check("a result", got, b.is); err != nil {
				return err
			}
			return coll.AllReduce(ctx, c, b.Vec(), ubcoll.Of(got), ubcoll.Max)
		})
	})
}

func (k *against) streamFree() error {
	return local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := k.replace(ctx, c); err != nil {
			return err
		}
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		got := make([]byte, k.n)
		err = k.use(func() error { return k.replace(ctx, c) }, func(b *target) error {
			if err := coll.AllReduce(ctx, c.On(s), ubcoll.Of(got), b.Vec(), ubcoll.Max); err != nil {
				return err
			}
			if err := coll.AllReduce(ctx, c.On(s), b.Vec(), ubcoll.Of(got), ubcoll.Max); err != nil {
				return err
			}
			if err := s.Sync(ctx); err != nil {
				return err
			}
			return check("a result", got, b.is)
		})
		return errors.Join(err, s.Close())
	})
}

// A small copy allocates nothing, though it holds the buffer.
func TestCopyAllocatesNothing(t *testing.T) {
	alone(t, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
		require.NoError(t, err)
		s := make([]byte, 64)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if b.CopyFrom(ctx, s) != nil || b.CopyTo(ctx, s) != nil {
				t.Error("a copy failed")
			}
		}))
		return b.Free()
	})
}

func BenchmarkCopy(b *testing.B) {
	require.NoError(b, local(1, func(ctx context.Context, c *ubcoll.Comm) error {
		x, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
		require.NoError(b, err)
		s := make([]byte, 64)
		for b.Loop() {
			if err := x.CopyTo(ctx, s); err != nil {
				return err
			}
		}
		return x.Free()
	}))
}
