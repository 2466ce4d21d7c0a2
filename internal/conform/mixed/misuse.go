package mixed

import (
	"context"
	"errors"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/p2p"
)

// misuse makes a mistake whose error is known, on one rank of each group of siblings. All of them get the error, and
// memory does not change, except for destinations on devices or between hosts; the next step shows that the communicator
// works.
func (p *program) misuse() error {
	if err := p.mistake(); err != nil {
		return err
	}
	return p.renew(true)
}

// renew fills the slots that mistakes write to, if there was one: on devices and between hosts, destinations may have
// anything.
func (p *program) renew(mistake bool) error {
	for s := range ours {
		if mistake && (p.dev != ubcoll.Host || p.severalHosts()) {
			if err := p.fill(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *program) mistake() error {
	t := p.drawSiblings()
	odd, what := p.all.IntN(64), p.all.IntN(17)
	k := p.draw(ours, false)
	k.kind, k.inPlace = []string{"all_reduce", "reduce", "gather_v", "all_to_all_v", "scatter", "all_gather"}[p.all.IntN(6)], false
	k.count = max(k.count, 2)
	p.note("mistake %d of rank %d: %v by %v", what, odd, k, t.groups)
	if t.c == nil {
		return nil
	}
	size := len(t.members())
	odd %= size
	mine := t.rank == odd
	own := k.in(t)
	srcAt, dstAt := own.places(size, t.rank)
	dst, src := p.vec(dstAt, k.typ), p.vec(srcAt, k.typ)
	call := func() error { return p.call(t, t.c, own, dst, src, own.root) }
	wrong := func(text string, want error, err error) error { return p.expect(text, t.c, err, want) }
	other := func(text string, want error, f func() error) error { // f on the odd rank, the call on the others
		if size == 1 && errors.Is(want, ubcoll.ErrMismatch) {
			return nil
		}
		if mine {
			return wrong(text, want, f())
		}
		return wrong(text, want, call())
	}
	whole := func(s int) ubcoll.Vec { return p.slots[s].vec }
	switch what {
	case 0:
		return other("another count", ubcoll.ErrMismatch, func() error {
			return coll.AllReduce(p.ctx, t.c, whole(1).Slice(0, 1), whole(0).Slice(0, 1), ubcoll.Sum)
		})
	case 1:
		return other("another operation", ubcoll.ErrMismatch, func() error {
			if p.dev != ubcoll.Host { // a barrier is no call on a device
				return coll.Broadcast(p.ctx, t.c, whole(0), 0)
			}
			return coll.Barrier(p.ctx, t.c)
		})
	case 2:
		return other("a bad root", ubcoll.ErrArgument, func() error {
			return coll.Broadcast(p.ctx, t.c, whole(0), []int{-1, size, 4096 + own.root}[p.mine.IntN(3)])
		})
	case 3:
		return other("an overlap", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(p.ctx, t.c, whole(0).Slice(1, 101), whole(0).Slice(0, 100), ubcoll.Sum)
		})
	case 4:
		return other("a short destination", ubcoll.ErrArgument, func() error {
			return coll.AllGather(p.ctx, t.c, whole(0).Slice(0, size*10-1), whole(1).Slice(0, 10))
		})
	case 5:
		return other("the zero Op", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(p.ctx, t.c, whole(0), whole(1), ubcoll.Op{})
		})
	case 6:
		return other("two types", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(p.ctx, t.c, whole(0).Slice(0, 8).As(dtype.Int8), whole(1).Slice(0, 8), ubcoll.Sum)
		})
	case 15:
		return other("a sum of bools", ubcoll.ErrArgument, func() error {
			op := []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Avg, ubcoll.PreMulSum(1)}[p.mine.IntN(4)]
			return coll.AllReduce(p.ctx, t.c, whole(0).As(dtype.Bool), whole(1).As(dtype.Bool), op)
		})
	case 7:
		return other("freed memory", ubcoll.ErrStale, func() error {
			b, err := ubcoll.Alloc[byte](t.c, p.dev, 100)
			if err != nil {
				return err
			}
			v := b.Vec()
			if err := b.Free(); err != nil {
				return err
			}
			return coll.AllReduce(p.ctx, t.c, v, v, ubcoll.Sum)
		})
	case 8:
		return other("a context that has ended", context.Canceled, func() error {
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			return coll.AllReduce(ctx, t.c, whole(0), whole(1), ubcoll.Sum)
		})
	case 9:
		return other("too few counts", ubcoll.ErrArgument, func() error {
			return coll.AllGatherV(p.ctx, t.c, whole(0).Slice(0, size-1), make([]int, size-1), whole(1).Slice(0, 0))
		})
	case 10: // a pair of counts that differ
		own.kind = "all_to_all_v"
		first := slices.IndexFunc(due(k.counts, size, odd), func(n int) bool { return n > 0 })
		if first < 0 {
			return nil
		}
		srcAt, dstAt = own.places(size, t.rank)
		if mine {
			own.recv[first]--
			dstAt.n -= k.typ.Size()
		}
		return wrong("counts that differ", ubcoll.ErrMismatch, p.call(t, t.c, own, p.vec(dstAt, k.typ), p.vec(srcAt, k.typ), 0))
	case 11: // in a group: the group fails
		return other("a mistake in a group", ubcoll.ErrArgument, func() error {
			return ubcoll.Group(p.ctx, t.c, func(g *ubcoll.Comm) error {
				return coll.AllReduce(p.ctx, g, whole(0), whole(1), ubcoll.Op{})
			})
		})
	case 12:
		_, err := graph.Capture(p.ctx, t.c, func(c *ubcoll.Comm) error {
			v := ubcoll.Of(make([]int32, 10))
			return coll.AllReduce(p.ctx, c, v, v, ubcoll.Sum)
		})
		return wrong("a capture of Go memory", ubcoll.ErrArgument, err)
	case 13: // mistakes of all ranks
		if p.slots[0].reg == nil {
			if err := p.register(0); err != nil {
				return err
			}
		}
		return wrong("free of registered memory", ubcoll.ErrInUse, p.slots[0].buf.Free())
	case 14:
		errs := []error{wrong("a message to nobody", ubcoll.ErrArgument, p2p.Send(p.ctx, t.c, size, whole(0)))}
		if size > 1 && (t.rank == 0 || t.rank == 1) { // of another type: if the message is too large for an eager send, both ranks get the error
			n := []int{8, p.room}[odd&1] &^ 7
			to := p2p.Exchange{}
			if t.rank == 0 {
				to.Send(1, whole(0).Slice(0, n).As(dtype.Int32))
			} else {
				to.Recv(0, whole(1).Slice(0, n))
			}
			err := to.Do(p.ctx, t.c)
			eager := (*inside.Comm)(t.c).View().Mail.CopiedTo(1)
			if p.dev != ubcoll.Host {
				eager = (*inside.Comm)(t.c).View().Team().Tuning().Messages.EagerDevice
			}
			if t.rank == 0 && n <= eager {
				if p.between(t.members()[:2]) && errors.Is(err, ubcoll.ErrMismatch) {
					err = nil // there was no room to copy it
				}
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, wrong("a message of another type", ubcoll.ErrMismatch, err))
		}
		return errors.Join(errs...)
	default:
		return other("a negative count", ubcoll.ErrArgument, func() error {
			counts := make([]int, size)
			counts[p.mine.IntN(size)] = -1 - p.mine.IntN(9)
			return coll.AllToAllV(p.ctx, t.c, whole(0).Slice(0, 0), make([]int, size), whole(1).Slice(0, 0), counts)
		})
	}
}
