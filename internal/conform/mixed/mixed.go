// Package mixed has random programs of everything that works on host memory, on one host or between several, and the model
// that they are compared with.
package mixed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Mixed runs CONFORM_PROGRAMS random programs of everything that works on host memory: see Programs.
func Mixed(ctx context.Context, c *ubcoll.Comm) error {
	programs, err := conform.Number("CONFORM_PROGRAMS", 30)
	if err != nil {
		return err
	}
	return Programs(conform.Seed(), programs)(ctx, c)
}

// MixedDevice is Mixed on the ranks' devices.
func MixedDevice(ctx context.Context, c *ubcoll.Comm) error {
	programs, err := conform.Number("CONFORM_PROGRAMS", 30)
	if err != nil {
		return err
	}
	return DevicePrograms(conform.Seed(), programs)(ctx, c)
}

// DevicePrograms is Programs, but all memory and streams are the ranks' devices'.
func DevicePrograms(seed uint64, programs int) conform.Suite {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		dev, err := c.GPU()
		if err != nil {
			return err
		}
		return runPrograms(ctx, c, dev, seed, programs)
	}
}

// Programs runs this many random programs, the same on all ranks: collectives, blocking and on streams, in groups and
// in graphs whose counts change between launches; messages, windows, channels; communicators and memory that come and
// go; and misuse whose error is known beforehand. Each rank computes naively what all memory must hold, and compares
// all of its own with that, byte for byte.
func Programs(seed uint64, programs int) conform.Suite {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return runPrograms(ctx, c, ubcoll.Host, seed, programs)
	}
}

func runPrograms(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, seed uint64, programs int) error {
	for k := range programs {
		m := newProgram(ctx, c, dev, seed, uint64(k))
		if err := m.run(); err != nil {
			for _, t := range m.splits { // not the world: whoever opened that closes it
				if t.c != nil && t.c != c {
					t.c.Abort(err)
					t.c.Close()
				}
			}
			return fmt.Errorf("rank %d of %d, seed %d, program %d, after\n\t%s\n%w", c.Rank(), c.Size(), seed, k,
				strings.Join(m.trail, "\n\t"), err)
		}
	}
	return nil
}

const (
	ours     = 2 // slots made by Alloc: graphs, windows and channels can use them
	numSlots = 4 // the other slots are any memory
)

// program is one program as one rank sees it.
type program struct {
	ctx       context.Context
	world     *ubcoll.Comm
	dev       ubcoll.Device // where memory and the stream are
	n, me     int
	all, mine *rand.Rand // the same on all ranks, and this rank's own
	room      int        // bytes in a slot
	want      memories
	slots     [numSlots]slot
	stream    *ubcoll.Stream
	splits    []*siblings
	graphs    []*captured
	trail     []string // the steps, for an error
}

func newProgram(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, seed, k uint64) *program {
	m := &program{ctx: ctx, world: c, dev: dev, n: c.Size(), me: c.Rank(), all: rand.New(rand.NewPCG(seed, k<<16)),
		mine: rand.New(rand.NewPCG(seed, k<<16+uint64(c.Rank())+1))}
	x := m.all.IntN(100)
	if m.severalHosts() { // more often than on one host what does not travel with the hosts' agreement
		x += 15
	}
	switch {
	case x < 70: // mostly eager messages
		m.room = 1 << 10
	case x < 97:
		m.room = 12 << 10
	default: // several chunks, and several rounds through staging memory
		m.room = 300 << 10
	}
	return m
}

func (p *program) run() (err error) {
	if p.stream, err = ubcoll.NewStream(p.dev); err != nil {
		return err
	}
	everybody := make([]int, p.n)
	p.want = make(memories, p.n)
	for r := range p.n {
		everybody[r] = r
		p.want[r] = make([][]byte, numSlots)
		for s := range p.want[r] {
			p.want[r][s] = make([]byte, p.room)
		}
	}
	p.splits = []*siblings{{c: p.world, groups: [][]int{everybody}, rank: p.me}}
	for s := range p.slots {
		if err := p.allocate(s); err != nil {
			return err
		}
		if err := p.fill(s); err != nil {
			return err
		}
	}
	for range 4 + p.all.IntN(8) {
		if err := p.step(); err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return err
		}
		for _, t := range p.splits {
			if t.c != nil && t.c.Err() != nil {
				return fmt.Errorf("a communicator of %v is broken: %w", t.groups, t.c.Err())
			}
		}
	}
	return p.end()
}

// end releases everything.
func (p *program) end() error {
	var errs []error
	for len(p.graphs) > 0 {
		errs = append(errs, p.closeGraph(0))
	}
	for len(p.splits) > 1 {
		errs = append(errs, p.closeSiblings(1))
	}
	// No rank frees memory while a peer may still be in the program's last step.
	errs = append(errs, coll.Barrier(p.ctx, p.world), p.stream.Close())
	for s := range p.slots {
		errs = append(errs, p.release(s))
	}
	return errors.Join(errs...)
}

func (p *program) note(format string, args ...any) {
	p.trail = append(p.trail, fmt.Sprintf(format, args...))
}

func (p *program) step() error {
	steps := []struct {
		weight int
		name   string
		do     func() error
	}{
		{24, "calls", p.calls}, {8, "on a stream", p.queued}, {8, "a group", p.grouped}, {8, "a capture", p.capture},
		{14, "a launch", p.launch}, {3, "a graph's end", func() error { return p.closeGraph(p.all.IntN(max(len(p.graphs), 1))) }},
		{8, "messages", p.messages}, {6, "a window", p.window}, {6, "a channel", p.channel}, {4, "accumulates", p.accumulate}, {4, "atomics", p.atomics},
		{8, "memory", p.churn},
		{5, "a split", p.split}, {2, "a communicator's end", func() error { return p.closeSiblings(1 + p.all.IntN(max(len(p.splits)-1, 1))) }},
		{16, "misuse", p.misuse},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	at := p.all.IntN(total)
	for _, s := range steps {
		if at -= s.weight; at < 0 {
			p.note("%s", s.name)
			return s.do()
		}
	}
	return nil
}

// check compares this rank's memory with the reference.
func (p *program) check() error {
	for s := range p.slots {
		got, err := p.read(s)
		if err != nil {
			return err
		}
		want := p.want[p.me][s]
		if bytes.Equal(got, want) {
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("byte %d of slot %d is %#x, not %#x (%s)", i, s, got[i], want[i], p.world.LastOp().String())
			}
		}
	}
	return nil
}

// expect returns an error unless err wraps want, and c is as usable as before.
func (p *program) expect(what string, c *ubcoll.Comm, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: %v, not %w", what, err, want)
	}
	if c != nil && c.Err() != nil {
		return fmt.Errorf("%s broke the communicator: %w", what, c.Err())
	}
	return nil
}
