package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// guard is how many bytes around a buffer must not change.
const guard = 64

// cell is memory on a device with guards around it.
type cell struct {
	all *ubcoll.Buffer[byte]
	vec ubcoll.Vec // of bytes
	n   int
}

// newCell makes n bytes that begin odd bytes off alignment.
func newCell(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, n, odd int, content []byte) (*cell, error) {
	b, err := ubcoll.Alloc[byte](c, dev, n+2*guard)
	if err != nil {
		return nil, err
	}
	all := bytes.Repeat([]byte{0xa5}, n+2*guard)
	copy(all[guard-odd:], content)
	return &cell{b, b.Vec().Slice(guard-odd, guard-odd+n), n}, b.CopyFrom(ctx, all)
}

// is compares the memory and its guards.
func (x *cell) is(ctx context.Context, odd int, want []byte) error {
	got := make([]byte, x.n+2*guard)
	if err := x.all.CopyTo(ctx, got); err != nil {
		return err
	}
	all := bytes.Repeat([]byte{0xa5}, len(got))
	copy(all[guard-odd:], want)
	for i := range all {
		if got[i] != all[i] {
			return fmt.Errorf("byte %d of %d is %#x, not %#x", i-guard+odd, x.n, got[i], all[i])
		}
	}
	return nil
}

// pattern is n bytes that are specific to a seed.
func pattern(n int, seed ...uint64) []byte {
	s := uint64(n)
	for _, x := range seed {
		s = s*0x9e3779b97f4a7c15 + x + 1
	}
	return testkit.Bytes(rand.New(rand.NewPCG(s, 1)), n)
}

// sizes are those around which the transport changes.
var sizes = []int{0, 1, 7, 8, 100, 1 << 10, 4095, 4097, kernels.EagerBytes - 1, kernels.EagerBytes, kernels.EagerBytes + 1,
	8 << 10, 8<<10 + 1, 16<<10 + 1, 32 << 10, 32<<10 + 1, 100003, 256 << 10, 256<<10 + 1, 1<<20 + 5}

// TestMessagesOnDevices sends every size around a ring of ranks, from and to unaligned addresses.
func TestMessagesOnDevices(t *testing.T) {
	ranks := []int{1, 2, 3}
	if race.Enabled || testing.Short() { // the same code runs with fewer ranks
		ranks = []int{2}
	}
	for _, n := range ranks {
		for _, policy := range testkit.Sample(2, []register.Policy{register.Auto, register.Off}) {
			t.Run(fmt.Sprintf("%d ranks/%v", n, policy), func(t *testing.T) {
				gputest.Run(t, n, ubcoll.Options{Register: policy}, messagesAround)
			})
		}
	}
}

// messagesAround sends every size around a ring of ranks.
func messagesAround(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
	n := c.Size()
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	to, from := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	for i, size := range sizes {
		for _, odd := range []int{0, 3, 4} {
			src, err1 := newCell(ctx, c, dev, size, odd, pattern(size, uint64(c.Rank()), uint64(i)))
			dst, err2 := newCell(ctx, c, dev, size, odd%4, nil)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			var got int
			if odd == 0 {
				got, err = p2p.SendRecv(ctx, c, from, dst.vec, to, src.vec)
			} else {
				got, err = p2p.SendRecv(ctx, c.On(s), from, dst.vec, to, src.vec)
				if err == nil {
					err = s.Sync(ctx)
				}
			}
			if err == nil && got != size {
				err = fmt.Errorf("received %d", got)
			}
			if err != nil {
				return fmt.Errorf("rank %d, %d bytes at %d: %w", c.Rank(), size, odd, err)
			}
			err = errors.Join(src.is(ctx, odd, pattern(size, uint64(c.Rank()), uint64(i))),
				dst.is(ctx, odd%4, pattern(size, uint64(from), uint64(i))), src.all.Free(), dst.all.Free())
			if err != nil {
				return fmt.Errorf("rank %d, %d bytes at %d: %w", c.Rank(), size, odd, err)
			}
		}
	}
	return errors.Join(s.Close(), coll.Barrier(ctx, c))
}

// TestMessagesDirect sends until messages go straight to the receiver's buffer, which the sender must import first. The
// receive must not end before all of the message is there.
func TestMessagesDirect(t *testing.T) {
	const n = 3 << 20
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, err1 := ubcoll.Alloc[byte](c, dev, n)
		dst, err2 := ubcoll.Alloc[byte](c, dev, n)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		peer := 1 - c.Rank()
		for round, direct := 0, 0; direct < 5; round++ {
			if err := src.CopyFrom(ctx, pattern(n, uint64(c.Rank()), uint64(round))); err != nil {
				return err
			}
			if _, err := p2p.SendRecv(ctx, c, peer, dst.Vec(), peer, src.Vec()); err != nil {
				return err
			}
			got := make([]byte, n)
			if err := dst.CopyTo(ctx, got); err != nil {
				return err
			}
			if !bytes.Equal(got, pattern(n, uint64(peer), uint64(round))) {
				return fmt.Errorf("round %d is wrong: %v", round, c.LastOp().String())
			}
			o := c.LastOp()
			mine := []int32{0}
			if o.Op != "recv" || o.Algorithm != "push" || o.Bytes != n {
				return errors.New(o.String())
			}
			if o.Dst.Direct {
				mine[0] = 1
			} else if o.Dst.Why == "" {
				return fmt.Errorf("no reason: %v", o.String())
			}
			// Repeat until both ranks have sent that way equally often.
			if err := coll.AllReduce(ctx, c, ubcoll.Of(mine), ubcoll.Of(mine), ubcoll.Min); err != nil {
				return err
			}
			direct += int(mine[0])
		}
		return errors.Join(src.Free(), dst.Free())
	})
}
