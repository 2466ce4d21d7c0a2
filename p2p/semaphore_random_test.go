package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// The model of TestSemaphoreRandom: each rank has several memories, of four parts. The first is what is put and got; the
// peer puts to the second; gets and packets go to the third; packets arrive in the fourth.
const (
	modelMemories = 3
	modelPart     = 4096
	modelChannels = 5
)

type model struct {
	*rand.Rand
	mem [2][modelMemories][4 * modelPart]byte
	chs [modelChannels][2]int // by the channel's number: rank 0's memory, and rank 1's
}

// fill changes the first parts.
func (m *model) fill() {
	for r := range m.mem {
		for k := range m.mem[r] {
			copy(m.mem[r][k][:modelPart], testkit.Bytes(m.Rand, modelPart))
		}
	}
}

// span is a random range of a part, and its place in another part.
func (m *model) span() (from, to, n int) {
	n = m.IntN(modelPart / 8)
	return m.IntN(modelPart - n), m.IntN(modelPart - n), n
}

// copies does random puts of rank r, or gets, in the model, and returns them as calls.
func (m *model) copies(r int, put bool) (calls []func(ctx context.Context, chs []*p2p.Channel) error) {
	for range m.IntN(4) {
		i := m.IntN(modelChannels)
		mine, theirs := &m.mem[r][m.chs[i][r]], &m.mem[1-r][m.chs[i][1-r]]
		from, to, n := m.span()
		if put {
			copy(theirs[modelPart+to:][:n], mine[from:])
			calls = append(calls, func(ctx context.Context, chs []*p2p.Channel) error {
				return chs[i].Put(ctx, modelPart+to, from, n)
			})
			continue
		}
		copy(mine[2*modelPart+to:][:n], theirs[from:])
		calls = append(calls, func(ctx context.Context, chs []*p2p.Channel) error {
			return chs[i].Get(ctx, 2*modelPart+to, from, n)
		})
	}
	return calls
}

// random is one rank's side of TestSemaphoreRandom.
type random struct {
	me      int
	device  bool
	packets bool       // there are packets
	own     *rand.Rand // for what the peer need not know
	s       *p2p.Semaphore
	regions [modelMemories]*region
	chs     []*p2p.Channel
}

// signals sends n signals, each on the semaphore or any channel.
func (x *random) signals(ctx context.Context, n int) error {
	for range n {
		var err error
		if i := x.own.IntN(modelChannels + 1); i < modelChannels {
			err = x.chs[i].Signal(ctx)
		} else {
			err = x.s.Signal(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waits takes n signals, in the same way.
func (x *random) waits(ctx context.Context, n int) error {
	for range n {
		wait, poll := x.s.Wait, x.s.Poll
		if i := x.own.IntN(modelChannels + 1); i < modelChannels {
			wait, poll = x.chs[i].Wait, x.chs[i].Poll
		}
		if !x.device && x.own.IntN(3) == 0 {
			ok, err := poll()
			for ; !ok && err == nil; ok, err = poll() {
				runtime.Gosched()
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open makes channel i between the memories that the model says.
func (x *random) open(m *model, i int) (err error) {
	g := x.regions[m.chs[i][x.me]]
	x.chs[i], err = x.s.Channel(g.reg, x.regions[m.chs[i][1-x.me]].remote)
	return err
}

// TestSemaphoreRandom runs random programs on both ranks, over channels that share a semaphore, and compares the memory
// with that of a model.
func TestSemaphoreRandom(t *testing.T) {
	seed := testkit.Seed(t)
	rounds := 60
	if race.Enabled || testing.Short() {
		rounds = 15
	}
	onPlaces(t, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		m := &model{Rand: rand.New(rand.NewPCG(seed, 0))}
		x := &random{me: c.Rank(), device: dev != ubcoll.Host, packets: dev == ubcoll.Host || c.LocalSize() == 2, own: rand.New(rand.NewPCG(seed, uint64(1+c.Rank())))}
		var err error
		if x.s, err = p2p.NewSemaphore(ctx, c, 1-c.Rank(), dev); err != nil {
			return err
		}
		for k := range x.regions {
			if x.regions[k], err = openRegion(ctx, c, dev, 1-c.Rank(), 4*modelPart); err != nil {
				return err
			}
		}
		x.chs = make([]*p2p.Channel, modelChannels)
		for i := range x.chs {
			m.chs[i] = [2]int{m.IntN(modelMemories), m.IntN(modelMemories)}
			if err := x.open(m, i); err != nil {
				return err
			}
		}
		for round := range rounds {
			if err := x.round(ctx, m); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		errs := []error{x.s.Close()}
		for _, g := range x.regions {
			errs = append(errs, g.close())
		}
		return errors.Join(errs...)
	})
}

func (x *random) round(ctx context.Context, m *model) error {
	both := func(n [2]int) error {
		return testkit.InOrder(
			func() error { return x.signals(ctx, n[x.me]) },
			func() error { return x.waits(ctx, n[1-x.me]) })
	}
	// New data.
	m.fill()
	for k, g := range x.regions {
		if err := g.buf.CopyFrom(ctx, m.mem[x.me][k][:]); err != nil {
			return err
		}
	}
	if err := both([2]int{1, 1}); err != nil {
		return err
	}
	// Puts and gets, which do not meet each other's bytes; then signals.
	var mine []func(context.Context, []*p2p.Channel) error
	for r := range 2 {
		calls := append(m.copies(r, true), m.copies(r, false)...)
		if r == x.me {
			mine = calls
		}
	}
	for _, call := range mine {
		if err := call(ctx, x.chs); err != nil {
			return err
		}
	}
	if err := both([2]int{1 + m.IntN(5), 1 + m.IntN(5)}); err != nil {
		return err
	}
	// Packets both ways on some channels, which the ranks choose alike.
	for range m.IntN(3) {
		i, w, n := m.IntN(modelChannels), []p2p.PacketWidth{p2p.Packet8, p2p.Packet16}[m.IntN(2)], 1+m.IntN(modelPart/4)
		for r := range 2 {
			copy(m.mem[r][m.chs[i][r]][2*modelPart:][:n], m.mem[1-r][m.chs[i][1-r]][:n])
		}
		packets := func() error {
			return testkit.InOrder(
				func() error { return x.chs[i].PutPackets(ctx, 3*modelPart, 0, n, w) },
				func() error { return x.chs[i].GetPackets(ctx, 2*modelPart, 3*modelPart, n, w) })
		}
		if !x.packets {
			packets = func() error { return x.chs[i].Get(ctx, 2*modelPart, 0, n) }
		}
		if err := testkit.InOrder(packets, func() error { return both([2]int{1, 1}) }); err != nil {
			return err
		}
	}
	for k, g := range x.regions {
		got := make([]byte, 4*modelPart)
		if err := g.buf.CopyTo(ctx, got); err != nil {
			return err
		}
		if i := differ(got[:3*modelPart], m.mem[x.me][k][:3*modelPart]); i >= 0 {
			return fmt.Errorf("memory %d differs from byte %d on", k, i)
		}
	}
	// Some channels are made anew. The peer may use its own end meanwhile.
	for range m.IntN(3) {
		i := m.IntN(modelChannels)
		m.chs[i] = [2]int{m.IntN(modelMemories), m.IntN(modelMemories)}
		if err := testkit.InOrder(x.chs[i].Close, func() error { return x.open(m, i) }); err != nil {
			return err
		}
	}
	return both([2]int{1, 1})
}

// differ returns where a and b differ, or -1.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
