package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// letter is a message of a random program, which all ranks know.
type letter struct {
	from, to, n, srcOdd, dstOdd int
	salt                        uint64
}

const letterMost = 200 << 10

func newLetters(r *rand.Rand, ranks int) []letter {
	all := make([]letter, 1+r.IntN(4*ranks))
	one := r.IntN(3) == 0 // all between the same two ranks
	a, b := r.IntN(ranks), r.IntN(ranks)
	for i := range all {
		l := letter{from: r.IntN(ranks), to: r.IntN(ranks), srcOdd: 4 * r.IntN(16), dstOdd: 4 * r.IntN(16), salt: r.Uint64()}
		if one {
			if l.from, l.to = a, b; r.IntN(2) == 0 {
				l.from, l.to = b, a
			}
		}
		switch r.IntN(5) {
		case 0:
			l.n = 4 * r.IntN(5)
		case 1, 2:
			l.n = 4 * r.IntN(500)
		case 3:
			l.n = kernels.EagerBytes + 4*(r.IntN(9)-4)
		case 4:
			l.n = 4 * r.IntN(letterMost/4)
		}
		all[i] = l
	}
	return all
}

// mailbag is a rank's memory for a program: two buffers that all programs share, so that they become registered and
// direct sooner or later, and two fresh ones.
type mailbag struct {
	old, fresh [2]*ubcoll.Buffer[byte]
	s          [2]*ubcoll.Stream
}

const slot = letterMost + 2*guard

// parts are a letter's source and destination.
func (m *mailbag) parts(l letter, i int) (src, dst ubcoll.Vec) {
	b := m.old
	if l.salt&1 != 0 {
		b = m.fresh
	}
	src = b[0].Vec().Slice(i*slot+l.srcOdd, i*slot+l.srcOdd+l.n)
	dst = b[1].Vec().Slice(i*slot+l.dstOdd, i*slot+l.dstOdd+l.n)
	t := []dtype.Type{dtype.Float32, dtype.Uint8, dtype.BFloat16}[l.salt/2%3]
	return src.As(t), dst.As(t)
}

// run does this rank's part of letters, in one of several ways that cannot deadlock.
func (m *mailbag) run(ctx context.Context, c *ubcoll.Comm, letters []letter, r *rand.Rand) (how string, err error) {
	me, streams := c.Rank(), r.IntN(2) == 0
	switch r.IntN(4) {
	case 0: // one group, where order matters only between two ranks
		var g p2p.Exchange
		first := r.IntN(2)
		for k := range 2 { // sends or receives first
			for i, l := range letters {
				src, dst := m.parts(l, i)
				if l.from == me && k == first {
					g.Send(l.to, src)
				}
				if l.to == me && k != first {
					g.Recv(l.from, dst)
				}
			}
		}
		if streams {
			return "group on a stream", testkit.InOrder(
				func() error { return g.Do(ctx, c.On(m.s[0])) },
				func() error { return m.s[0].Sync(ctx) })
		}
		if r.IntN(2) == 0 {
			q, err := g.Start(ctx, c)
			if err != nil {
				return "request", err
			}
			for done := false; !done && err == nil; {
				done, err = q.Test()
			}
			return "request", err
		}
		return "group", g.Do(ctx, c)
	case 1: // one by one, in the same order on all ranks
		for i, l := range letters {
			src, dst := m.parts(l, i)
			var err error
			switch {
			case l.from == me && l.to == me:
				_, err = p2p.SendRecv(ctx, c, me, dst, me, src)
			case l.from == me:
				err = p2p.Send(ctx, c, l.to, src)
			case l.to == me:
				_, err = p2p.Recv(ctx, c, l.from, dst)
			}
			if err != nil {
				return "in order", fmt.Errorf("letter %d: %w", i, err)
			}
		}
		return "in order", nil
	case 2: // sends apart from receives, each in that order
		if !streams {
			var w sync.WaitGroup
			var errs [2]error
			for k := range 2 {
				w.Go(func() { errs[k] = m.half(ctx, c, letters, k == 1) })
			}
			w.Wait()
			return "goroutines", errors.Join(errs[:]...)
		}
		return "two streams", testkit.InOrder(
			func() error { return m.half(ctx, c.On(m.s[0]), letters, false) },
			func() error { return m.half(ctx, c.On(m.s[1]), letters, true) },
			func() error { return m.s[0].Sync(ctx) },
			func() error { return m.s[1].Sync(ctx) })
	}
	// Each call in a goroutine of its own.
	var w sync.WaitGroup
	errs := make([]error, 2*len(letters))
	lanes := map[[2]int]chan struct{}{} // keeps the calls of one lane in order
	for i, l := range letters {
		src, dst := m.parts(l, i)
		for k, mine := range []bool{l.from == me, l.to == me} {
			if !mine {
				continue
			}
			peer := [2]int{l.to, l.from}[k]
			before, after := lanes[[2]int{k, peer}], make(chan struct{})
			lanes[[2]int{k, peer}] = after
			w.Go(func() {
				defer close(after)
				if before != nil {
					<-before
				}
				var g p2p.Exchange
				if k == 0 {
					g.Send(peer, src)
				} else {
					g.Recv(peer, dst)
				}
				errs[2*i+k] = g.Do(ctx, c)
			})
		}
	}
	w.Wait()
	return "apart", errors.Join(errs...)
}

func (m *mailbag) half(ctx context.Context, c *ubcoll.Comm, letters []letter, recv bool) error {
	for i, l := range letters {
		src, dst := m.parts(l, i)
		var err error
		var g p2p.Exchange // an exchange, because this rank may send to itself
		switch {
		case recv && l.to == c.Rank():
			_, err = p2p.Recv(ctx, c, l.from, dst)
		case !recv && l.from == c.Rank() && l.to == c.Rank():
			g.Send(l.to, src)
			err = g.Do(ctx, c)
		case !recv && l.from == c.Rank():
			err = p2p.Send(ctx, c, l.to, src)
		}
		if err != nil {
			return fmt.Errorf("letter %d: %w", i, err)
		}
	}
	return nil
}

// TestMessagesRandom runs programs of messages, each rank in ways of its own, and checks what arrives.
func TestMessagesRandom(t *testing.T) {
	seed := testkit.Seed(t)
	ranks, rounds := []int{1, 2, 3, 4, 8}, 40
	if race.Enabled || testing.Short() { // the same code runs with fewer ranks
		ranks, rounds = []int{1, 2, 3}, 12
	}
	if testkit.Daily() {
		ranks = ranks[2:]
	}
	for _, n := range ranks {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			gputest.Run(t, n, ubcoll.Options{}, randomMessages(seed, rounds/(n+1)))
		})
	}
}

// randomMessages returns what a rank does in so many programs.
func randomMessages(seed uint64, rounds int) func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
	return func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		m, n := &mailbag{}, c.Size()
		var err error
		for i := range m.old {
			if m.old[i], err = ubcoll.Alloc[byte](c, dev, 4*n*slot); err != nil {
				return err
			}
			if m.s[i], err = ubcoll.NewStream(dev); err != nil {
				return err
			}
		}
		all := rand.New(rand.NewPCG(seed, uint64(n)))
		mine := rand.New(rand.NewPCG(seed, uint64(100*n+c.Rank())))
		for round := range rounds {
			letters := newLetters(all, n)
			if err := m.round(ctx, c, dev, letters, mine); err != nil {
				return fmt.Errorf("rank %d, round %d of %+v: %w", c.Rank(), round, letters, err)
			}
		}
		return errors.Join(m.s[0].Close(), m.s[1].Close(), m.old[0].Free(), m.old[1].Free())
	}
}

func (m *mailbag) round(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, letters []letter, r *rand.Rand) error {
	n := len(letters) * slot
	for i := range m.fresh {
		b, err := ubcoll.Alloc[byte](c, dev, n)
		if err != nil {
			return err
		}
		m.fresh[i] = b
	}
	host := [4][]byte{make([]byte, n), make([]byte, n), make([]byte, n), make([]byte, n)} // sources and destinations
	for i, l := range letters {
		b := host[2*(l.salt&1)]
		if l.from == c.Rank() {
			copy(b[i*slot+l.srcOdd:], pattern(l.n, l.salt))
		}
	}
	for i, b := range []*ubcoll.Buffer[byte]{m.old[0], m.old[1], m.fresh[0], m.fresh[1]} {
		if err := b.CopyFrom(ctx, append([]byte{}, host[i]...)); err != nil {
			return err
		}
	}
	how, err := m.run(ctx, c, letters, r)
	if err != nil {
		return fmt.Errorf("%s: %w", how, err)
	}
	for i, l := range letters {
		if l.to == c.Rank() {
			copy(host[2*(l.salt&1)+1][i*slot+l.dstOdd:], pattern(l.n, l.salt))
		}
	}
	for i, b := range []*ubcoll.Buffer[byte]{m.old[0], m.old[1], m.fresh[0], m.fresh[1]} {
		got := make([]byte, b.Len())
		if err := b.CopyTo(ctx, got); err != nil {
			return err
		}
		for j, x := range host[i] {
			if got[j] != x {
				return fmt.Errorf("%s: buffer %d, letter %d, byte %d is %#x, not %#x", how, i, j/slot, j%slot, got[j], x)
			}
		}
	}
	return errors.Join(m.fresh[0].Free(), m.fresh[1].Free(), coll.Barrier(ctx, c))
}
