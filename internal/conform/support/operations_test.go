package support

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// memories are the page's tables: one for each place where the operations' memory may be.
var memories = []struct {
	heading    string
	device     bool
	between    bool // hosts
	operations []operation
}{
	{"Host memory", false, false, slices.Concat(collectives, messages, windows, channels)},
	{"Device memory", true, false, slices.Concat(collectives, messages, windows, channels)},
	{"No memory", false, false, others},
	{"Host memory, between hosts", false, true, slices.Concat(collectives, messages, windows, channels)},
	{"Device memory, between hosts", true, true, slices.Concat(collectives, messages, windows, channels)},
	{"No memory, between hosts", false, true, others},
}

// env is a rank's memory: what operations read and write, and a window and a channel over other memory.
type env struct {
	c        *ubcoll.Comm
	gpu      ubcoll.Device
	src, dst *ubcoll.Buffer[int32]
	shared   *ubcoll.Buffer[int32] // the memory of the window and the channel
	reg      *ubcoll.Registration
	w, more  *ubcoll.Window
	ch       *p2p.Channel
	sem      *p2p.Semaphore
	gates    map[ubcoll.Device]*ubcoll.Window // to hold up streams
	held     bool                             // streams are held up
	turns    *turns                           // shared with the other rank
}

// Sizes in bytes and elements.
const (
	word  = 4
	some  = 4        // for an operation
	all   = 8 * some // for a buffer
	there = 4 * some // in the shared memory: where the peer writes
	width = p2p.Packet8
)

func open(ctx context.Context, c *ubcoll.Comm, gpu ubcoll.Device, device bool) (*env, error) {
	e := &env{c: c, gpu: gpu, gates: map[ubcoll.Device]*ubcoll.Window{}}
	for _, dev := range []ubcoll.Device{ubcoll.Host, gpu} {
		b, err := ubcoll.Alloc[int32](c, dev, 1)
		if err != nil {
			return nil, err
		}
		if e.gates[dev], err = c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault); err != nil {
			return nil, err
		}
	}
	dev := ubcoll.Host
	if device {
		dev = gpu
	}
	var err error
	for _, b := range []**ubcoll.Buffer[int32]{&e.src, &e.dst, &e.shared} {
		if *b, err = ubcoll.Alloc[int32](c, dev, all); err != nil {
			return nil, err
		}
	}
	rights := ubcoll.RegisterOptions{Access: ubcoll.AccessLocalWrite | ubcoll.AccessRemoteWrite | ubcoll.AccessRemoteRead |
		ubcoll.AccessRemoteAtomic}
	if e.reg, err = c.RegisterWith(e.shared.Vec(), rights); err != nil {
		return nil, err
	}
	flags := ubcoll.WindowAtomic
	if device {
		flags = ubcoll.WindowDefault
	}
	if e.w, err = c.RegisterWindow(ctx, e.shared.Vec(), flags); err != nil {
		return nil, err
	}
	if e.ch, err = p2p.Connect(ctx, c, e.peer(), e.reg); err != nil {
		return nil, err
	}
	e.sem, err = p2p.NewSemaphore(ctx, c, e.peer(), dev)
	return e, err
}

// close closes what the rank made, except what somebody has captured: the communicator keeps that until it closes.
func (e *env) close() error {
	var errs []error
	if e.ch != nil {
		errs = append(errs, e.ch.Close(), e.sem.Close(), e.w.Close())
	}
	errs = append(errs, e.reg.Close(), e.shared.Free())
	return errors.Join(errs...)
}

func (e *env) peer() int { return 1 - e.c.Rank() }

// value is element i of a rank's source, and of its shared memory.
func value(rank, i int) int32 { return int32(100*(rank+1) + i) }

func values(rank, from, n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = value(rank, from+i)
	}
	return x
}

// fill restores the memory's first contents.
func (e *env) fill(ctx context.Context) error {
	mine := values(e.c.Rank(), 0, all)
	return errors.Join(e.src.CopyFrom(ctx, mine), e.shared.CopyFrom(ctx, mine), e.dst.CopyFrom(ctx, make([]int32, all)))
}

// expect returns an error unless b holds want, from element from on.
func expect(ctx context.Context, b *ubcoll.Buffer[int32], from int, want []int32) error {
	got := make([]int32, all)
	if err := b.CopyTo(ctx, got); err != nil {
		return err
	}
	if !slices.Equal(got[from:from+len(want)], want) {
		return fmt.Errorf("%v, not %v", got[from:from+len(want)], want)
	}
	return nil
}

const root = 1

// collective makes an operation with src source elements, dst destination elements, and the destination's expected
// contents.
func collective(name string, src, dst int, call func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error,
	want func(rank int) []int32) operation {
	return operation{false, name, func(ctx context.Context, e *env, at on) error {
		return call(ctx, at.c, e.dst.Vec().Slice(0, dst), e.src.Vec().Slice(0, src))
	}, func(ctx context.Context, e *env) error {
		return expect(ctx, e.dst, 0, want(e.c.Rank()))
	}}
}

// sum returns the sum of all ranks' sources, from element from on.
func sum(from, n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = value(0, from+i) + value(1, from+i)
	}
	return x
}

// both returns n elements of each rank's source, from element from on.
func both(from, n int) []int32 { return append(values(0, from, n), values(1, from, n)...) }

// onRoot returns x on the root, and nothing elsewhere.
func onRoot(rank int, x []int32) []int32 {
	if rank == root {
		return x
	}
	return make([]int32, len(x))
}

// In operations with counts, rank r has r+1 elements.
var counts = []int{1, 2}

var collectives = []operation{
	collective("AllReduce", some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllReduce(ctx, c, dst, src, ubcoll.Sum)
	}, func(int) []int32 { return sum(0, some) }),
	collective("ReduceScatter", ranks*some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.ReduceScatter(ctx, c, dst, src, ubcoll.Sum)
	}, func(rank int) []int32 { return sum(rank*some, some) }),
	collective("Reduce", some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.Reduce(ctx, c, dst, src, ubcoll.Sum, root)
	}, func(rank int) []int32 { return onRoot(rank, sum(0, some)) }),
	collective("AllGather", some, ranks*some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllGather(ctx, c, dst, src)
	}, func(int) []int32 { return both(0, some) }),
	collective("Broadcast", some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		if c.Rank() == root {
			dst = src
		}
		return coll.Broadcast(ctx, c, dst, root)
	}, func(rank int) []int32 {
		if rank == root {
			return nil
		}
		return values(root, 0, some)
	}),
	collective("Gather", some, ranks*some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.Gather(ctx, c, dst, src, root)
	}, func(rank int) []int32 { return onRoot(rank, both(0, some)) }),
	collective("Scatter", ranks*some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.Scatter(ctx, c, dst, src, root)
	}, func(rank int) []int32 { return values(root, rank*some, some) }),
	collective("AllToAll", ranks*some, ranks*some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllToAll(ctx, c, dst, src)
	}, func(rank int) []int32 { return both(rank*some, some) }),
	collective("AllGatherV", some, 3, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllGatherV(ctx, c, dst, counts, src.Slice(0, counts[c.Rank()]))
	}, func(int) []int32 { return append(values(0, 0, 1), values(1, 0, 2)...) }),
	collective("GatherV", some, 3, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.GatherV(ctx, c, dst, counts, src.Slice(0, counts[c.Rank()]), root)
	}, func(rank int) []int32 { return onRoot(rank, append(values(0, 0, 1), values(1, 0, 2)...)) }),
	collective("ScatterV", 3, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.ScatterV(ctx, c, dst.Slice(0, counts[c.Rank()]), src, counts, root)
	}, func(rank int) []int32 { return values(root, rank, counts[rank]) }),
	collective("AllToAllV", some, some, func(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		n := counts[c.Rank()] // rank 1 sends two elements to itself; all else is one element
		return coll.AllToAllV(ctx, c, dst.Slice(0, 1+n), []int{1, n}, src.Slice(0, 1+n), []int{1, n})
	}, func(rank int) []int32 { return append(values(0, rank, 1), values(1, rank, counts[rank])...) }),
}

// message makes an operation by which every rank receives from its peer.
func message(name string, call func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error) operation {
	return operation{false, name, func(ctx context.Context, e *env, at on) error {
		return call(ctx, at.c, e.peer(), e.dst.Vec().Slice(0, some), e.src.Vec().Slice(0, some))
	}, func(ctx context.Context, e *env) error {
		return expect(ctx, e.dst, 0, values(e.peer(), 0, some))
	}}
}

var messages = []operation{
	message("Send, Recv", func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error {
		if err := p2p.Send(ctx, c, peer, src); err != nil {
			return err
		}
		_, err := p2p.Recv(ctx, c, peer, dst)
		return err
	}),
	message("SendRecv", func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error {
		_, err := p2p.SendRecv(ctx, c, peer, dst, peer, src)
		return err
	}),
	message("ISend, IRecv", func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error {
		s, err1 := p2p.ISend(ctx, c, peer, src)
		r, err2 := p2p.IRecv(ctx, c, peer, dst)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return errors.Join(s.Wait(ctx), r.Wait(ctx))
	}),
	message("Exchange.Do", func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error {
		return exchange(peer, dst, src).Do(ctx, c)
	}),
	message("Exchange.Start", func(ctx context.Context, c *ubcoll.Comm, peer int, dst, src ubcoll.Vec) error {
		r, err := exchange(peer, dst, src).Start(ctx, c)
		if err != nil {
			return err
		}
		return r.Wait(ctx)
	}),
	{false, "Group of SendRecv", inGroup(false), func(ctx context.Context, e *env) error {
		return expect(ctx, e.dst, 0, values(e.peer(), 0, some))
	}},
	{false, "Group of SendRecv, AllReduce", inGroup(true), func(ctx context.Context, e *env) error {
		return expect(ctx, e.dst, 0, append(values(e.peer(), 0, some), sum(0, some)...))
	}},
}

func exchange(peer int, dst, src ubcoll.Vec) *p2p.Exchange {
	x := new(p2p.Exchange)
	x.Send(peer, src)
	x.Recv(peer, dst)
	return x
}

// inGroup makes a group of a message and, behind it, a collective.
func inGroup(reduces bool) func(ctx context.Context, e *env, at on) error {
	return func(ctx context.Context, e *env, at on) error {
		src, dst := e.src.Vec().Slice(0, some), e.dst.Vec()
		return ubcoll.Group(ctx, at.c, func(g *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, g, e.peer(), dst.Slice(0, some), e.peer(), src)
			if err != nil || !reduces {
				return err
			}
			return coll.AllReduce(ctx, g, dst.Slice(some, 2*some), src, ubcoll.Sum)
		})
	}
}

// signalled checks what the peer has put and announced by a signal.
func signalled(from int, want func(e *env) []int32) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		if err := testkit.InOrder(
			func() error { return e.w.Signal(ctx, e.peer()) },
			func() error { return e.w.Wait(ctx, e.peer()) }); err != nil {
			return err
		}
		return expect(ctx, e.shared, from, want(e))
	}
}

func ofPeer(e *env) []int32 { return values(e.peer(), 0, some) }

var windows = []operation{
	{true, "Comm.RegisterWindow", func(ctx context.Context, e *env, at on) (err error) {
		e.more, err = at.c.RegisterWindow(ctx, e.src.Vec(), ubcoll.WindowDefault)
		return err
	}, func(ctx context.Context, e *env) error {
		return errors.Join(testkit.InOrder(
			func() error { return e.more.Signal(ctx, e.peer()) },
			func() error { return e.more.Wait(ctx, e.peer()) }), e.more.Close())
	}},
	{false, "Window.Put", func(ctx context.Context, e *env, at on) error {
		return e.w.On(at.s).Put(ctx, e.peer(), there*word, e.src.Vec().Slice(0, some))
	}, signalled(there, ofPeer)},
	{false, "Window.Get", func(ctx context.Context, e *env, at on) error {
		return e.w.On(at.s).Get(ctx, e.peer(), e.dst.Vec().Slice(0, some), 0)
	}, func(ctx context.Context, e *env) error { return expect(ctx, e.dst, 0, ofPeer(e)) }},
	{false, "Window.Signal, Window.Wait", func(ctx context.Context, e *env, at on) error {
		w := e.w.On(at.s)
		if err := w.Signal(ctx, e.peer()); err != nil {
			return err
		}
		return w.Wait(ctx, e.peer())
	}, nil},
	{false, "Window.Put, Window.Flush", func(ctx context.Context, e *env, at on) error {
		w := e.w.On(at.s)
		if err := w.Put(ctx, e.peer(), there*word, e.src.Vec().Slice(0, some)); err != nil {
			return err
		}
		return w.Flush(ctx)
	}, signalled(there, ofPeer)},
	{false, "Window.Accumulate", func(ctx context.Context, e *env, at on) error {
		return e.w.On(at.s).Accumulate(ctx, e.peer(), there*word, e.src.Vec().Slice(0, some), ubcoll.Sum)
	}, signalled(there, func(e *env) []int32 {
		x := values(e.c.Rank(), there, some)
		for i := range x {
			x[i] += value(e.peer(), i)
		}
		return x
	})},
	{false, "Window.FetchAdd", func(ctx context.Context, e *env, at on) error {
		return testkit.ErrOf(e.w.On(at.s).FetchAdd(ctx, e.peer(), there*word, 1))
	}, signalled(there, oneMore)},
	{false, "Window.CompareAndSwap", func(ctx context.Context, e *env, at on) error {
		return testkit.ErrOf(e.w.On(at.s).CompareAndSwap(ctx, e.peer(), there*word, pair(e.peer(), there), pair(e.peer(), there)+1))
	}, signalled(there, oneMore)},
}

// pair is elements i and i+1 of a rank's shared memory as one word.
func pair(rank, i int) uint64 { return uint64(value(rank, i)) | uint64(value(rank, i+1))<<32 }

// oneMore is what the peer leaves that adds 1 to a word.
func oneMore(e *env) []int32 {
	x := values(e.c.Rank(), there, some)
	x[0]++
	return x
}

// called makes an operation of one channel call that returns only an error.
func called(name string, call func(ctx context.Context, ch *p2p.Channel) error,
	check func(context.Context, *env) error) operation {
	return operation{false, name, func(ctx context.Context, e *env, at on) error { return call(ctx, e.ch.On(at.s)) }, check}
}

var newSemaphore = operation{true, "NewSemaphore", func(ctx context.Context, e *env, at on) error {
	s, err := p2p.NewSemaphore(ctx, at.c, e.peer(), e.shared.Device())
	if err != nil {
		return err
	}
	return errors.Join(testkit.InOrder(
		func() error { return s.Signal(ctx) },
		func() error { return s.Wait(ctx) }), s.Close())
}, nil}

var channels = []operation{
	{true, "Connect", func(ctx context.Context, e *env, at on) error {
		ch, err := p2p.Connect(ctx, at.c, e.peer(), e.reg)
		if err != nil {
			return err
		}
		return errors.Join(testkit.InOrder(
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) }), ch.Close())
	}, nil},
	called("Channel.Put", func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Put(ctx, there*word, 0, some*word)
	}, signalled(there, ofPeer)),
	called("Channel.PutWithSignal, Channel.Wait", func(ctx context.Context, ch *p2p.Channel) error {
		if err := ch.PutWithSignal(ctx, there*word, 0, some*word); err != nil {
			return err
		}
		return ch.Wait(ctx)
	}, func(ctx context.Context, e *env) error { return expect(ctx, e.shared, there, ofPeer(e)) }),
	called("Channel.Get", func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Get(ctx, there*word, 0, some*word)
	}, func(ctx context.Context, e *env) error { return expect(ctx, e.shared, there, ofPeer(e)) }),
	called("Channel.Signal, Channel.Wait", func(ctx context.Context, ch *p2p.Channel) error {
		if err := ch.Signal(ctx); err != nil {
			return err
		}
		return ch.Wait(ctx)
	}, nil),
	called("Channel.RelaxedSignal, Channel.Wait", func(ctx context.Context, ch *p2p.Channel) error {
		if err := ch.RelaxedSignal(ctx); err != nil {
			return err
		}
		return ch.Wait(ctx)
	}, nil),
	{false, "Channel.Poll", func(ctx context.Context, e *env, at on) error {
		if err := e.ch.Signal(ctx); err != nil {
			return err
		}
		for start := time.Now(); ; {
			got, err := e.ch.On(at.s).Poll()
			if err != nil {
				return errors.Join(err, e.ch.Wait(ctx))
			}
			if got {
				return nil
			}
			if time.Since(start) > soon {
				return errors.New("no signal")
			}
		}
	}, nil},
	called("Channel.PutPackets, Channel.GetPackets", func(ctx context.Context, ch *p2p.Channel) error {
		if err := ch.PutPackets(ctx, there*word, 0, some*word, width); err != nil {
			return err
		}
		return ch.GetPackets(ctx, 2*some*word, there*word, some*word, width)
	}, func(ctx context.Context, e *env) error { return expect(ctx, e.shared, 2*some, ofPeer(e)) }),
	called("Channel.Batch", func(ctx context.Context, ch *p2p.Channel) error {
		return ch.Batch(ctx, func(b *p2p.Channel) error {
			return errors.Join(b.Put(ctx, there*word, 0, some*word), b.Signal(ctx), b.Wait(ctx))
		})
	}, func(ctx context.Context, e *env) error { return expect(ctx, e.shared, there, ofPeer(e)) }),
	called("Channel.FetchAdd", func(ctx context.Context, ch *p2p.Channel) error {
		return testkit.ErrOf(ch.FetchAdd(ctx, there*word, 1))
	}, signalled(there, oneMore)),
	called("Channel.CompareAndSwap", func(ctx context.Context, ch *p2p.Channel) error {
		return testkit.ErrOf(ch.CompareAndSwap(ctx, there*word, pair(ch.Peer(), there), pair(ch.Peer(), there)+1))
	}, signalled(there, oneMore)),
	called("Channel.Put, Channel.Flush", func(ctx context.Context, ch *p2p.Channel) error {
		if err := ch.Put(ctx, there*word, 0, some*word); err != nil {
			return err
		}
		return ch.Flush(ctx)
	}, signalled(there, ofPeer)),
	newSemaphore,
	{false, "Semaphore.Signal, Semaphore.Wait", func(ctx context.Context, e *env, at on) error {
		s := e.sem.On(at.s)
		if err := s.Signal(ctx); err != nil {
			return err
		}
		return s.Wait(ctx)
	}, nil},
}

var others = []operation{
	{false, "Barrier", func(ctx context.Context, _ *env, at on) error { return coll.Barrier(ctx, at.c) }, nil},
	{false, "Group", func(ctx context.Context, _ *env, at on) error {
		return ubcoll.Group(ctx, at.c, func(g *ubcoll.Comm) error { return coll.Barrier(ctx, g) })
	}, nil},
	{true, "Capture", func(ctx context.Context, _ *env, at on) error {
		g, err := graph.Capture(ctx, at.c, func(view *ubcoll.Comm) error { return coll.Barrier(ctx, view) })
		if err != nil {
			return err
		}
		return g.Close()
	}, nil},
	{true, "Comm.Split", func(ctx context.Context, _ *env, at on) error {
		c, err := at.c.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		return errors.Join(coll.Barrier(ctx, c), c.Close())
	}, nil},
	{true, "Comm.Dup", func(ctx context.Context, _ *env, at on) error {
		c, err := at.c.Dup(ctx)
		if err != nil {
			return err
		}
		return errors.Join(coll.Barrier(ctx, c), c.Close())
	}, nil},
}
