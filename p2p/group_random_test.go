package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// A random program is a list of steps that all ranks know. A step is a list of calls, made as a group or one by one.
// Each call has memory of its own, with room for its count from each rank, so the program alone determines the result.
type (
	program [][]programCall

	programCall struct {
		kind     int
		from, to int // of a message; from is also the root
		n        int
		salt     uint64
		at       int // where its memory begins, in elements
	}
)

const (
	callMessage = iota
	callAllReduce
	callBroadcast
	callAllGather
	callAllToAll
	callBarrier
	numCalls
)

func newProgram(r *rand.Rand, ranks int) (p program, total int) {
	for range 1 + r.IntN(3) {
		var step []programCall
		only := r.IntN(4) // 0: messages, 1: collectives
		for range 1 + r.IntN(6) {
			k := programCall{kind: r.IntN(numCalls), from: r.IntN(ranks), to: r.IntN(ranks), salt: r.Uint64(), at: total}
			if only == 0 || only != 1 && r.IntN(2) == 0 {
				k.kind = callMessage
			} else if k.kind == callMessage {
				k.kind = callAllReduce
			}
			switch r.IntN(4) {
			case 0:
				k.n = r.IntN(4)
			case 1:
				k.n = r.IntN(600)
			case 2:
				k.n = 1 << 14 / 4
			case 3:
				k.n = r.IntN(40 << 10)
			}
			total += ranks * k.n
			step = append(step, k)
		}
		p = append(p, step)
	}
	return p, total
}

// value is element j of a call's source on a rank.
func (p *programCall) value(rank, j int) int32 {
	return int32(p.salt) + int32(rank)*1000 + int32(j)
}

// apply makes the changes of a call in a rank's memory, as the call should.
func (p *programCall) apply(dst []int32, me, ranks int) {
	switch d := dst[p.at:]; p.kind {
	case callMessage:
		if p.to == me {
			for j := range p.n {
				d[j] = p.value(p.from, j)
			}
		}
	case callAllReduce:
		for j := range p.n {
			d[j] = 0
			for r := range ranks {
				d[j] += p.value(r, j)
			}
		}
	case callBroadcast:
		for j := range p.n {
			d[j] = p.value(p.from, j)
		}
	case callAllGather:
		for r := range ranks {
			for j := range p.n {
				d[r*p.n+j] = p.value(r, j)
			}
		}
	case callAllToAll:
		for r := range ranks {
			for j := range p.n {
				d[r*p.n+j] = p.value(r, me*p.n+j)
			}
		}
	}
}

// machine is a rank that runs programs.
type machine struct {
	c        *ubcoll.Comm
	dev      ubcoll.Device
	streams  [2]*ubcoll.Stream
	src, dst ubcoll.Vec
	r        *rand.Rand // this rank's own
}

// call makes a call on c. In a group a message to this rank itself is two calls.
func (m *machine) call(ctx context.Context, c *ubcoll.Comm, k *programCall, group bool) error {
	me, ranks := c.Rank(), c.Size()
	src, dst := m.src.Slice(k.at, k.at+k.n), m.dst.Slice(k.at, k.at+k.n)
	switch k.kind {
	case callAllReduce:
		return coll.AllReduce(ctx, c, dst, src, ubcoll.Sum)
	case callBroadcast:
		return coll.Broadcast(ctx, c, dst, k.from)
	case callAllGather:
		return coll.AllGather(ctx, c, m.dst.Slice(k.at, k.at+ranks*k.n), src)
	case callAllToAll:
		return coll.AllToAll(ctx, c, m.dst.Slice(k.at, k.at+ranks*k.n), m.src.Slice(k.at, k.at+ranks*k.n))
	case callBarrier:
		if !m.dev.IsHost() { // on a stream it is the device's barrier, but a blocking one is the host's
			return nil
		}
		return coll.Barrier(ctx, c)
	}
	switch {
	case k.from == me && k.to == me && (!group || m.r.IntN(2) == 0):
		_, err := p2p.SendRecv(ctx, c, me, dst, me, src)
		return err
	case k.from == me && k.to == me:
		return testkit.InOrder(
			func() error { return p2p.Send(ctx, c, me, src) },
			func() error { return recv(ctx, c, me, dst) })
	case k.from == me:
		return p2p.Send(ctx, c, k.to, src)
	case k.to == me:
		return recv(ctx, c, k.from, dst)
	}
	return nil
}

// group makes the calls of a step in an order of this rank's own, as far as the order is free: collectives keep their
// order, and so do the messages of two ranks. Some calls are in a nested group.
func (m *machine) group(ctx context.Context, c *ubcoll.Comm, step []programCall) error {
	step = slices.Clone(step)
	rank := map[int]int{}
	key := func(k programCall) int {
		of := -1
		if k.kind == callMessage {
			of = k.from*c.Size() + k.to
		}
		if _, ok := rank[of]; !ok {
			rank[of] = m.r.IntN(4)
		}
		return rank[of]
	}
	slices.SortStableFunc(step, func(a, b programCall) int { return key(a) - key(b) })
	from := m.r.IntN(2 * len(step))
	var call func(g *ubcoll.Comm, step []programCall, nest bool) error
	call = func(g *ubcoll.Comm, step []programCall, nest bool) error {
		for i := range step {
			if nest && i == from {
				return ubcoll.Group(ctx, g, func(h *ubcoll.Comm) error { return call(h, step[i:], false) })
			}
			if err := m.call(ctx, g, &step[i], true); err != nil {
				return err
			}
		}
		return nil
	}
	return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return call(g, step, true) })
}

// exchange makes the calls of a step, all of them messages, as one exchange, or as requests if they do not wait for
// each other on a stream.
func (m *machine) exchange(ctx context.Context, c *ubcoll.Comm, step []programCall) error {
	var x p2p.Exchange
	var rs []*p2p.Request
	apart := c == m.c && m.r.IntN(2) == 0
	for _, k := range step {
		src, dst := m.src.Slice(k.at, k.at+k.n), m.dst.Slice(k.at, k.at+k.n)
		if k.from == c.Rank() {
			if x.Send(k.to, src); apart {
				r, err := p2p.ISend(ctx, c, k.to, src)
				if err != nil {
					return err
				}
				rs = append(rs, r)
			}
		}
		if k.to == c.Rank() {
			if x.Recv(k.from, dst); apart {
				r, err := p2p.IRecv(ctx, c, k.from, dst)
				if err != nil {
					return err
				}
				rs = append(rs, r)
			}
		}
	}
	if !apart {
		return x.Do(ctx, c)
	}
	m.r.Shuffle(len(rs), func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
	var errs []error
	for _, r := range rs {
		errs = append(errs, r.Wait(ctx))
	}
	return errors.Join(errs...)
}

// run runs a program. all, the same on all ranks, decides which steps are groups; this rank's own generator decides
// what runs on which stream, and what blocks.
func (m *machine) run(ctx context.Context, p program, all *rand.Rand) error {
	var queued []*ubcoll.Stream
	for i, step := range p {
		messages := !slices.ContainsFunc(step, func(k programCall) bool { return k.kind != callMessage })
		grouped := all.IntN(4) > 0
		c := m.c
		if s := m.r.IntN(3); s < 2 {
			c, queued = c.On(m.streams[s]), append(queued, m.streams[s])
		} else { // not before the queued operations
			for _, s := range queued {
				if err := s.Sync(ctx); err != nil {
					return fmt.Errorf("before step %d: %w", i, err)
				}
			}
		}
		var err error
		switch {
		case grouped && messages && m.r.IntN(2) == 0:
			err = m.exchange(ctx, c, step)
		case grouped:
			err = m.group(ctx, c, step)
		default:
			for j := 0; j < len(step) && err == nil; j++ {
				err = m.call(ctx, c, &step[j], false)
			}
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	var errs []error
	for _, s := range queued {
		errs = append(errs, s.Sync(ctx))
	}
	return errors.Join(errs...)
}

// one runs program number seed and checks all memory.
func (m *machine) one(ctx context.Context, seed uint64) error {
	c, all := m.c, rand.New(rand.NewPCG(seed, 0))
	m.r = rand.New(rand.NewPCG(seed, 1+uint64(c.Rank())))
	p, total := newProgram(all, c.Size())
	src, want := make([]int32, total), slices.Repeat([]int32{-1}, total)
	for _, step := range p {
		for _, k := range step {
			for j := range c.Size() * k.n {
				src[k.at+j] = k.value(c.Rank(), j)
			}
			if k.kind == callBroadcast && k.from == c.Rank() {
				copy(want[k.at:], src[k.at:k.at+k.n])
			}
		}
	}
	a, err1 := ubcoll.Alloc[int32](c, m.dev, total)
	b, err2 := ubcoll.Alloc[int32](c, m.dev, total)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := errors.Join(a.CopyFrom(ctx, src), b.CopyFrom(ctx, want)); err != nil {
		return err
	}
	m.src, m.dst = a.Vec(), b.Vec()
	got := make([]int32, total)
	if m.dev.IsHost() && m.r.IntN(3) == 0 { // Go memory, which is never registered
		m.src, m.dst = ubcoll.Of(src), ubcoll.Of(got)
		copy(got, want)
	}
	if err := m.run(ctx, p, all); err != nil {
		return err
	}
	if m.dst != ubcoll.Of(got) {
		if err := b.CopyTo(ctx, got); err != nil {
			return err
		}
	}
	for _, step := range p {
		for i := range step {
			step[i].apply(want, c.Rank(), c.Size())
		}
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("element %d is %d, not %d, of %+v", i, got[i], want[i], p)
		}
	}
	return errors.Join(a.Free(), b.Free())
}

// TestGroupRandom runs random programs of messages and collectives, in groups and not, blocking and on streams, and
// checks the results. TEST_PROGRAMS says how many.
func TestGroupRandom(t *testing.T) {
	programs := testkit.Often(400)
	if s := os.Getenv("TEST_PROGRAMS"); s != "" {
		var err error
		programs, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	for i, seed := range testkit.Seeds(t) {
		for ranks := 1 + i; ranks <= 4; ranks += 1 + i { // the fresh seed runs on even numbers of ranks
			groupRandom(t, ranks, seed, programs/4)
		}
	}
}

func groupRandom(t *testing.T, ranks int, seed uint64, programs int) {
	run := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		m := &machine{c: c, dev: dev}
		for i := range m.streams {
			var err error
			if m.streams[i], err = ubcoll.NewStream(dev); err != nil {
				return err
			}
		}
		for i := range uint64(programs) {
			if err := m.one(ctx, seed+i); err != nil {
				return fmt.Errorf("rank %d, program %d: %w", c.Rank(), seed+i, err)
			}
		}
		return errors.Join(m.streams[0].Close(), m.streams[1].Close())
	}
	t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) { places(t, ranks, run) })
}
