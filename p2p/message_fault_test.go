package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// works sends a message each way, which proves that the lanes' counts still agree.
func works(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[byte]) error {
	peer, n := 1-c.Rank(), b.Len()
	if err := b.CopyFrom(ctx, bytes.Repeat([]byte{byte(c.Rank() + 1)}, n)); err != nil {
		return err
	}
	if _, err := p2p.SendRecv(ctx, c, peer, b.Vec().Slice(n-n/2, n), peer, b.Vec().Slice(0, n/2)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	got := make([]byte, n)
	if err := b.CopyTo(ctx, got); err != nil || got[0] != byte(c.Rank()+1) || got[n-1] != byte(peer+1) {
		return fmt.Errorf("afterwards: wrong data: %w", err)
	}
	return nil
}

// TestMessagesDisagree sends messages that do not match their receives: the receiver returns an error, and so does the
// sender unless the message is small; the next messages arrive.
func TestMessagesDisagree(t *testing.T) {
	const small, large, larger = 1000, 200 << 10, 300 << 10
	for _, k := range testkit.Sample(2, []struct {
		name       string
		sent, want int // bytes
		typ        dtype.Type
		told       bool // the sender returns the error too
	}{
		{"longer", small, small - 4, dtype.Uint8, false},
		{"shorter", small - 4, small, dtype.Uint8, false},
		{"another type", small, small, dtype.Float32, false},
		{"nothing", 0, 4, dtype.Uint8, false},
		{"for nothing", 4, 0, dtype.Uint8, false},
		{"large for small", large, small, dtype.Uint8, true},
		{"large for nothing", large, 0, dtype.Uint8, true},
		{"small for large", small, large, dtype.Uint8, false},
		{"longer and large", larger, large, dtype.Uint8, true},
		{"shorter and large", large, larger, dtype.Uint8, true},
		{"another type and large", large, large, dtype.Int16, true},
	}) {
		for _, queued := range testkit.Sample(2, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/queued=%v", k.name, queued), func(t *testing.T) {
				gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err := ubcoll.Alloc[byte](c, dev, larger)
					if err != nil {
						return err
					}
					if err := b.CopyFrom(ctx, make([]byte, larger)); err != nil {
						return err
					}
					view, sync, end, err := gputest.View(ctx, c, dev, queued)
					if err != nil {
						return err
					}
					for round := range 3 { // both parities of the lane's count
						if c.Rank() == 0 {
							err := errors.Join(p2p.Send(ctx, view, 1, b.Vec().Slice(0, k.sent)), sync())
							if k.told != errors.Is(err, ubcoll.ErrMismatch) || !k.told && err != nil {
								return fmt.Errorf("send: %w", err)
							}
						} else {
							_, err := p2p.Recv(ctx, view, 0, b.Vec().Slice(0, k.want).As(k.typ))
							err = errors.Join(err, sync())
							var e *ubcoll.Error
							if !errors.Is(err, ubcoll.ErrMismatch) || !errors.As(err, &e) || e.Peer != 0 || e.Op != "recv" ||
								!strings.Contains(err.Error(), fmt.Sprintf("it sent %d elements", k.sent)) {
								return fmt.Errorf("recv: %w", err)
							}
						}
						if round == 1 {
							continue // here the next message follows at once
						}
						if err := works(ctx, c, b); err != nil {
							return err
						}
					}
					return errors.Join(end(), c.Err(), coll.Barrier(ctx, c), b.Free())
				})
			})
		}
	}
}

// TestMessagesDisagreeBehindEachOther queues several messages that do not match: the error of the first one gives the
// number of the others, and the next Sync returns errors that come meanwhile.
func TestMessagesDisagreeBehindEachOther(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 1000
		b, err := ubcoll.Alloc[byte](c, dev, n)
		if err != nil {
			return err
		}
		view, sync, end, err := gputest.View(ctx, c, dev, true)
		if err != nil {
			return err
		}
		for bad := 1; bad < 5; bad++ {
			for range bad {
				if c.Rank() == 0 {
					err = p2p.Send(ctx, view, 1, b.Vec().Slice(0, n))
				} else {
					_, err = p2p.Recv(ctx, view, 0, b.Vec().Slice(0, n-4))
				}
				if err != nil {
					return err
				}
			}
			err := sync()
			switch more := fmt.Sprintf("and %d more messages", bad-1); {
			case c.Rank() == 0 && err != nil: // the sender of small messages does not learn it
				return err
			case c.Rank() == 1 && (!errors.Is(err, ubcoll.ErrMismatch) || strings.Contains(err.Error(), more) != (bad > 1)):
				return fmt.Errorf("%d messages: %w", bad, err)
			}
			if err := sync(); err != nil {
				return fmt.Errorf("told twice: %w", err)
			}
			if err := works(ctx, c, b); err != nil {
				return err
			}
		}
		return errors.Join(end(), c.Err(), coll.Barrier(ctx, c), b.Free())
	})
}

// TestMessagesDisagreeInGroup has one bad message among good ones of the same two ranks.
func TestMessagesDisagreeInGroup(t *testing.T) {
	sizes := []int{100, 150 << 10, 90 << 10, 5, 120 << 10, 70}
	for bad := range sizes {
		if testkit.Daily() && bad%4 != 1 { // a large one, and a small one behind it
			continue
		}
		gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			peer, total := 1-c.Rank(), 1<<20
			src, err1 := ubcoll.Alloc[byte](c, dev, total)
			dst, err2 := ubcoll.Alloc[byte](c, dev, total)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			mine, theirs := pattern(total, uint64(c.Rank())), pattern(total, uint64(peer))
			if err := errors.Join(src.CopyFrom(ctx, mine), dst.CopyFrom(ctx, make([]byte, total))); err != nil {
				return err
			}
			var g p2p.Exchange
			at := 0
			for i, n := range sizes {
				more := 0
				if i == bad {
					more = 1
				}
				g.Send(peer, src.Vec().Slice(at, at+n))
				g.Recv(peer, dst.Vec().Slice(at, at+n+more))
				at += n + 1
			}
			if err := g.Do(ctx, c); !errors.Is(err, ubcoll.ErrMismatch) {
				return fmt.Errorf("group: %w", err)
			}
			got := make([]byte, total)
			if err := dst.CopyTo(ctx, got); err != nil {
				return err
			}
			at = 0
			for i, n := range sizes {
				if i != bad && !bytes.Equal(got[at:at+n], theirs[at:at+n]) {
					return fmt.Errorf("message %d is wrong, and %d was bad", i, bad)
				}
				at += n + 1
			}
			return errors.Join(testkit.InOrder(
				func() error { return works(ctx, c, dst) },
				func() error { return coll.Barrier(ctx, c) }), src.Free(), dst.Free())
		})
	}
}

// TestMessagesRefused makes calls that fail before anything is sent.
func TestMessagesRefused(t *testing.T) {
	gputest.Enough(t, 2)
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		b, err1 := ubcoll.Alloc[byte](c, dev, 200<<10)
		h, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, 100)
		gone, err3 := ubcoll.Alloc[byte](c, dev, 100)
		s, err4 := ubcoll.NewStream(dev)
		onHost, err5 := ubcoll.NewStream(ubcoll.Host)
		other, err6 := ubcoll.NewStream(hw.CUDA(1 - dev.Index()))
		if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
			return err
		}
		v, freed := b.Vec(), gone.Vec()
		if err := gone.Free(); err != nil {
			return err
		}
		recv := func(c *ubcoll.Comm, peer int, v ubcoll.Vec) error {
			_, err := p2p.Recv(ctx, c, peer, v)
			return err
		}
		both := func(c *ubcoll.Comm, src, dst ubcoll.Vec) error {
			_, err := p2p.SendRecv(ctx, c, peer, dst, peer, src)
			return err
		}
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		var mixed p2p.Exchange
		mixed.Send(peer, v)
		mixed.Recv(peer, h.Vec())
		mixed.Recv(9, v)
		inGroup := ubcoll.Group(ctx, c, func(c *ubcoll.Comm) error { return testkit.ErrOf(p2p.ISend(ctx, c, peer, v)) })
		for i, err := range []error{
			testkit.Wants(p2p.Send(ctx, c, 2, v), ubcoll.ErrArgument), testkit.Wants(recv(c, -1, v), ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(ctx, c, peer, freed), ubcoll.ErrStale), testkit.Wants(recv(c, peer, freed), ubcoll.ErrStale),
			testkit.Wants(p2p.Send(ctx, c.On(onHost), peer, v), ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(ctx, c.On(s), peer, h.Vec()), ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(ctx, c.On(other), peer, v), ubcoll.ErrArgument),
			testkit.Wants(both(c, v.Slice(0, 100), h.Vec()), ubcoll.ErrArgument), testkit.Wants(both(c, h.Vec(), v), ubcoll.ErrArgument),
			testkit.Wants(mixed.Do(ctx, c), ubcoll.ErrArgument), testkit.Wants(inGroup, ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(cancelled, c, peer, v), context.Canceled),
			testkit.Wants(p2p.Send(ctx, c, c.Rank(), v), ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(ctx, c.On(s), c.Rank(), v), ubcoll.ErrArgument),
			testkit.Wants(p2p.Send(ctx, c, peer, v.Slice(1, 9).As(dtype.Float64)), ubcoll.ErrArgument),
		} {
			if err != nil {
				return fmt.Errorf("%d: %w", i, err)
			}
		}
		if err := p2p.Send(ctx, c.On(other), peer, v); !strings.Contains(err.Error(), "cuda:0") ||
			!strings.Contains(err.Error(), "cuda:1") {
			return fmt.Errorf("it does not name both: %w", err)
		}
		// None of it was sent.
		err := testkit.InOrder(
			func() error { return works(ctx, c, b) },
			c.Err,
			func() error { return s.Sync(ctx) },
			func() error { return coll.Barrier(ctx, c) })
		return errors.Join(err, s.Close(), onHost.Close(), other.Close(), b.Free(), h.Free())
	})
}

// TestMessagesAlone waits for a peer that does nothing, or something else.
func TestMessagesAlone(t *testing.T) {
	testkit.LongOrRace(t)
	const large = 200 << 10
	call := func(send bool, n int) func(context.Context, *ubcoll.Comm, *ubcoll.Buffer[byte]) error {
		return func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[byte]) (err error) {
			if send {
				return p2p.Send(ctx, c, 1, b.Vec().Slice(0, n))
			}
			_, err = p2p.Recv(ctx, c, 1, b.Vec().Slice(0, n))
			return err
		}
	}
	for _, k := range []struct {
		name string
		want error
		text string
		call func(context.Context, *ubcoll.Comm, *ubcoll.Buffer[byte]) error
		peer func(context.Context, *ubcoll.Comm, *ubcoll.Buffer[byte]) error
	}{
		{"small receive", ubcoll.ErrTimeout, "nothing from rank 1", call(false, 100), nil},
		{"large receive", ubcoll.ErrTimeout, "nothing from rank 1", call(false, large), nil},
		{"large send", ubcoll.ErrTimeout, "nothing from rank 1", call(true, large), nil},
		{"many small sends", ubcoll.ErrTimeout, "nothing from rank 1", func(ctx context.Context, c *ubcoll.Comm,
			b *ubcoll.Buffer[byte]) error {
			for range 2 { // there is room for these
				if err := call(true, 100)(ctx, c, b); err != nil {
					return fmt.Errorf("it waits: %v", err)
				}
			}
			return call(true, 100)(ctx, c, b)
		}, nil},
		{"host memory", ubcoll.ErrTimeout, "but a message of host memory", call(false, 100),
			func(ctx context.Context, c *ubcoll.Comm, _ *ubcoll.Buffer[byte]) error {
				return p2p.Send(ctx, c, 0, ubcoll.Of(make([]byte, 100)))
			}},
		{"context", context.DeadlineExceeded, "", func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[byte]) error {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			return call(false, large)(ctx, c, b)
		}, nil},
		{"on a stream", ubcoll.ErrTimeout, "nothing from rank 1", func(ctx context.Context, c *ubcoll.Comm,
			b *ubcoll.Buffer[byte]) error {
			s, err := ubcoll.NewStream(b.Device())
			if err != nil {
				return err
			}
			defer s.Close()
			if err := call(false, 100)(ctx, c.On(s), b); err != nil {
				return fmt.Errorf("it waits: %v", err)
			}
			return s.Sync(ctx)
		}, nil},
		{"abort", ubcoll.ErrAborted, "enough", call(false, 100),
			func(ctx context.Context, c *ubcoll.Comm, _ *ubcoll.Buffer[byte]) error {
				c.Abort(errors.New("enough"))
				return nil
			}},
	} {
		t.Run(k.name, func(t *testing.T) {
			over := make(chan struct{})
			do := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				b, err := ubcoll.Alloc[byte](c, dev, large)
				if err != nil {
					return err
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 1 {
					if k.peer != nil {
						if err := k.peer(ctx, c, b); err != nil {
							return err
						}
					}
					<-over // otherwise this rank's own calls time out as well
					return nil
				}
				defer close(over)
				if errors.Is(k.want, ubcoll.ErrTimeout) {
					(*inside.Comm)(c).View().SetTimeout(time.Second)
				}
				err = k.call(ctx, c, b)
				if err := testkit.Wants(err, k.want); err != nil {
					return err
				}
				if !strings.Contains(err.Error(), k.text) {
					return fmt.Errorf("it does not say %q: %w", k.text, err)
				}
				var e *ubcoll.Error
				if errors.Is(err, ubcoll.ErrTimeout) && (!errors.As(err, &e) || e.Peer != 1) {
					return fmt.Errorf("it does not name rank 1: %w", err)
				}
				// The error stays, for all calls.
				return errors.Join(testkit.Wants(call(true, 1)(ctx, c, b), k.want), testkit.Wants(c.Err(), k.want))
			}
			gputest.Run(t, 2, ubcoll.Options{}, do)
			if over = make(chan struct{}); k.name != "many small sends" { // there is room for more of them between hosts
				gputest.Across(t, "ab", ubcoll.Options{}, do)
			}
		})
	}
}

// TestMessagesFail makes driver calls fail while messages are queued: the communicator soon breaks on both ranks.
func TestMessagesFail(t *testing.T) {
	emulated.Only(t)
	for _, call := range []string{"cuLaunchKernelEx", "cuEventQuery", "cuEventRecord", "cuStreamWaitEvent", "cuStreamCreate"} {
		t.Run(call, func(t *testing.T) {
			t.Setenv("UBCOLL_EMULATE_FAIL", "")
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				b, err1 := ubcoll.Alloc[byte](c, dev, 200<<10)
				s, err2 := ubcoll.NewStream(dev)
				if err := errors.Join(err1, err2, coll.Barrier(ctx, c)); err != nil {
					return err
				}
				var dups []*ubcoll.Comm // whose messages take all streams that were made ahead
				for call == "cuStreamCreate" && len(dups) < 20 {
					d, err := c.Dup(ctx)
					if err != nil {
						return err
					}
					defer d.Close()
					dups = append(dups, d)
				}
				for _, d := range dups {
					if _, err := p2p.SendRecv(ctx, d, 1-c.Rank(), b.Vec().Slice(0, 1), 1-c.Rank(), b.Vec().Slice(1, 2)); err != nil {
						return err
					}
				}
				if c.Rank() == 0 {
					os.Setenv("UBCOLL_EMULATE_FAIL", call+":1")
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				begin, peer := time.Now(), 1-c.Rank()
				src, dst := b.Vec().Slice(0, 100<<10), b.Vec().Slice(100<<10, 200<<10)
				var err error
				for k := 0; err == nil && k < 10; k++ { // on the streams in turn, so that they wait for each other
					_, err = p2p.SendRecv(ctx, []*ubcoll.Comm{c, c.On(s)}[k%2], peer, dst, peer, src)
				}
				err = errors.Join(err, s.Sync(ctx))
				switch {
				case err == nil || time.Since(begin) > 10*time.Second:
					return fmt.Errorf("rank %d: %v after %v", c.Rank(), err, time.Since(begin))
				case c.Err() == nil:
					return fmt.Errorf("rank %d: usable after %w", c.Rank(), err)
				}
				return nil
			})
		})
	}
}

// TestMessagesClosed has a peer that closes its communicator: what it had sent arrives, and nothing else.
func TestMessagesClosed(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		b, err := ubcoll.Alloc[byte](c, dev, 100)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			return errors.Join(p2p.Send(ctx, d, 0, b.Vec()), d.Close(), coll.Barrier(ctx, c))
		}
		if _, err := p2p.Recv(ctx, d, 1, b.Vec()); err != nil {
			return err
		}
		if err := testkit.Wants(testkit.ErrOf(p2p.Recv(ctx, d, 1, b.Vec())), ubcoll.ErrPeerLost); err != nil {
			return err
		}
		return errors.Join(coll.Barrier(ctx, c), d.Close(), b.Free())
	})
}

// TestMessagesBusy closes a communicator while a message is on its way.
func TestMessagesBusy(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := ubcoll.Alloc[byte](c, dev, 100)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if c.Rank() == 1 {
			return errors.Join(testkit.InOrder(
				func() error { return coll.Barrier(ctx, c) },
				func() error { return p2p.Send(ctx, c, 0, b.Vec()) },
				func() error { return coll.Barrier(ctx, c) }), s.Close())
		}
		if _, err := p2p.Recv(ctx, c.On(s), 1, b.Vec()); err != nil {
			return err
		}
		busy := testkit.Wants(c.Close(), ubcoll.ErrBusy)
		return errors.Join(busy, testkit.InOrder(
			func() error { return coll.Barrier(ctx, c) },
			func() error { return s.Sync(ctx) },
			func() error { return coll.Barrier(ctx, c) }), s.Close())
	})
}
