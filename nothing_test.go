package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// noContext is the nil context of a program that has none.
var noContext context.Context

// trial is a call of fn with an argument or receiver that is nil, zero, closed or freed.
type trial struct {
	fn   string // as in coll.AllReduce, Comm.Close, p2p.Channel.Put
	with string
	want error  // nil: the call has no error, or needs none
	text string // what its error must contain, so that the user knows what to do
	do   func() error
}

// try makes the call and checks that it does not panic and returns the right error.
func (k trial) try() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s with %s: panic: %v", k.fn, k.with, v)
		}
	}()
	var e *ubcoll.Error
	switch got := k.do(); {
	case got != nil && !errors.As(got, &e) && k.fn != "ParseOp" && k.fn != "StreamFrom":
		return fmt.Errorf("%s with %s: %q is no *Error", k.fn, k.with, got)
	case k.want == nil && got != nil:
		return fmt.Errorf("%s with %s: %w", k.fn, k.with, got)
	case !errors.Is(got, k.want):
		return fmt.Errorf("%s with %s: %v, not %v", k.fn, k.with, got, k.want)
	case got != nil && !strings.Contains(got.Error(), k.text):
		return fmt.Errorf("%s with %s: %q says nothing of %q", k.fn, k.with, got, k.text)
	}
	return nil
}

// void wraps a call that returns no error.
func void[T any](v T) error { return nil }

// equal checks the result of a call that returns no error.
func equal[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("%v, not %v", got, want)
	}
	return nil
}

// commTrials are all calls that take a communicator; want and text apply to those that return an error.
func commTrials(ctx context.Context, with string, c *ubcoll.Comm, v ubcoll.Vec, want error, text string) []trial {
	var all []trial
	add := func(fn string, do func() error) { all = append(all, trial{fn, with, want, text, do}) }
	one := []int{1}
	add("coll.AllReduce", func() error { return coll.AllReduce(ctx, c, v, v, ubcoll.Sum) })
	add("coll.ReduceScatter", func() error { return coll.ReduceScatter(ctx, c, v, v, ubcoll.Sum) })
	add("coll.Reduce", func() error { return coll.Reduce(ctx, c, v, v, ubcoll.Sum, 0) })
	add("coll.AllGather", func() error { return coll.AllGather(ctx, c, v, v) })
	add("coll.Broadcast", func() error { return coll.Broadcast(ctx, c, v, 0) })
	add("coll.Gather", func() error { return coll.Gather(ctx, c, v, v, 0) })
	add("coll.Scatter", func() error { return coll.Scatter(ctx, c, v, v, 0) })
	add("coll.AllToAll", func() error { return coll.AllToAll(ctx, c, v, v) })
	add("coll.AllGatherV", func() error { return coll.AllGatherV(ctx, c, v, one, v) })
	add("coll.GatherV", func() error { return coll.GatherV(ctx, c, v, one, v, 0) })
	add("coll.ScatterV", func() error { return coll.ScatterV(ctx, c, v, v, one, 0) })
	add("coll.AllToAllV", func() error { return coll.AllToAllV(ctx, c, v, one, v, one) })
	add("coll.Barrier", func() error { return coll.Barrier(ctx, c) })
	add("Group", func() error {
		return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return coll.AllReduce(ctx, g, v, v, ubcoll.Sum) })
	})
	add("Group", func() error { return ubcoll.Group(ctx, c, nil) })
	add("Comm.Split", func() error { return testkit.ErrOf(c.Split(ctx, 0, 0)) })
	add("Comm.Dup", func() error { return testkit.ErrOf(c.Dup(ctx)) })
	add("Comm.RegisterWindow", func() error { return testkit.ErrOf(c.RegisterWindow(ctx, v, 0)) })
	add("p2p.Send", func() error { return p2p.Send(ctx, c, 0, v) })
	add("p2p.Recv", func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, v)) })
	add("p2p.SendRecv", func() error { return testkit.ErrOf(p2p.SendRecv(ctx, c, 0, v, 0, v)) })
	add("p2p.Exchange.Do", func() error { var g p2p.Exchange; g.Send(0, v); g.Recv(0, v); return g.Do(ctx, c) })
	add("p2p.Exchange.Start", func() error { return testkit.ErrOf(new(p2p.Exchange).Start(ctx, c)) })
	add("p2p.ISend", func() error { return testkit.ErrOf(p2p.ISend(ctx, c, 0, v)) })
	add("p2p.IRecv", func() error { return testkit.ErrOf(p2p.IRecv(ctx, c, 0, v)) })
	add("p2p.Connect", func() error { return testkit.ErrOf(p2p.Connect(ctx, c, 0, nil)) })
	add("graph.Capture", func() error {
		return testkit.ErrOf(graph.Capture(ctx, c, func(g *ubcoll.Comm) error {
			return coll.AllReduce(ctx, g, v, v, ubcoll.Sum)
		}))
	})
	add("graph.Capture", func() error { return testkit.ErrOf(graph.Capture(ctx, c, nil)) })
	return all
}

// localTrials are the calls on a communicator that take no context.
func localTrials(with string, c *ubcoll.Comm, v ubcoll.Vec, want error, text string) []trial {
	var all []trial
	add := func(fn string, do func() error) { all = append(all, trial{fn, with, want, text, do}) }
	add("Comm.RegisterBuffer", func() error { return testkit.ErrOf(c.RegisterBuffer(v)) })
	add("Comm.Import", func() error { return testkit.ErrOf(c.Import(nil)) })
	add("Comm.Err", func() error { return c.Err() })
	add("Comm.Close", func() error { return c.Close() })
	add("Alloc", func() error { return testkit.ErrOf(ubcoll.Alloc[int8](c, ubcoll.Host, 1)) })
	add("Adopt", func() error { return testkit.ErrOf(ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&all), 1)) })
	return all
}

// TestNoComm makes all calls with a nil communicator, the zero one, and views of them.
func TestNoComm(t *testing.T) {
	ctx := t.Context()
	s, err := ubcoll.NewStream(ubcoll.Host)
	require.NoError(t, err)
	var null *ubcoll.Comm
	for name, c := range map[string]*ubcoll.Comm{"nil": null, "zero": {}, "nil on a stream": null.On(s),
		"zero on a stream": new(ubcoll.Comm).On(s)} {
		const says = "negative color"
		with := "a Comm that is " + name
		all := commTrials(ctx, with, c, ubcoll.Of([]int8{1}), ubcoll.ErrArgument, says)
		all = append(all, commTrials(ctx, with, c, ubcoll.Vec{}, ubcoll.ErrArgument, says)...)
		all = append(all, commTrials(noContext, with, c, ubcoll.Vec{}, ubcoll.ErrArgument, "")...)
		all = append(all, localTrials(with, c, ubcoll.Of([]int8{1}), ubcoll.ErrArgument, says)...)
		all = append(all, []trial{
			{"Comm.GPU", with, ubcoll.ErrArgument, says, func() error { return testkit.ErrOf(c.GPU()) }},
			{"Comm.Rank", with, nil, "", func() error { return equal(c.Rank(), -1) }},
			{"Comm.Size", with, nil, "", func() error { return equal(c.Size(), 0) }},
			{"Comm.LocalRank", with, nil, "", func() error { return equal(c.LocalRank(), -1) }},
			{"Comm.LocalSize", with, nil, "", func() error { return equal(c.LocalSize(), 0) }},
			{"Comm.Hostname", with, nil, "", func() error { return equal(c.Hostname(0), "") }},
			{"Comm.On", with, nil, "", func() error { return equal(c.On(nil).Size(), 0) }},
			{"Comm.LastOp", with, nil, "", func() error { return equal(c.LastOp().String(), "no operation yet") }},
			{"Comm.Stats", with, nil, "", func() error { return equal(c.Stats().Operations, 0) }},
			{"Comm.Explain", with, nil, "", func() error {
				return equal(strings.Contains(c.Explain(ubcoll.Of([]int8{1})), says), true)
			}},
			{"Comm.Abort", with, nil, "", func() error { c.Abort(nil); return nil }},
		}...)
		tryAll(t, all)
	}
	require.NoError(t, s.Close())
}

// TestNoCommOnDevices makes the calls with a nil or zero communicator and memory or a stream of a device.
func TestNoCommOnDevices(t *testing.T) {
	gputest.Run(t, 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := ubcoll.Alloc[int8](c, dev, 1)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		const says = "negative color"
		var null *ubcoll.Comm
		for name, c := range map[string]*ubcoll.Comm{"nil": null, "zero": {}, "nil on a stream": null.On(s),
			"zero on a stream": new(ubcoll.Comm).On(s)} {
			for on, v := range map[string]ubcoll.Vec{"device memory": b.Vec(), "Go memory": ubcoll.Of([]int8{1})} {
				with := fmt.Sprintf("%s and a Comm that is %s", on, name)
				tryAll(t, commTrials(ctx, with, c, v, ubcoll.ErrArgument, says))
				tryAll(t, commTrials(noContext, with, c, v, ubcoll.ErrArgument, ""))
			}
		}
		return errors.Join(b.Free(), s.Close())
	})
}

func tryAll(t *testing.T, all []trial) {
	t.Helper()
	for _, k := range all {
		if err := k.try(); err != nil {
			t.Error(err)
		}
	}
}

// nounTrials are the methods of all other types, on nil and zero values.
func nounTrials(ctx context.Context) []trial {
	var all []trial
	add := func(fn, with string, want error, text string, do func() error) {
		all = append(all, trial{fn, with, want, text, do})
	}
	bad := ubcoll.ErrArgument
	for with, b := range map[string]*ubcoll.Buffer[int8]{"nil": nil, "zero": {}} {
		add("Buffer.Len", with, nil, "", func() error { return equal(b.Len(), 0) })
		add("Buffer.Device", with, nil, "", func() error { return equal(b.Device(), ubcoll.Host) })
		add("Buffer.Vec", with, nil, "", func() error { return equal(b.Vec().Len(), 0) })
		add("Buffer.Slice", with, nil, "", func() error { return equal(len(b.Slice()), 0) })
		add("Buffer.CopyFrom", with, bad, "Alloc and Adopt", func() error { return b.CopyFrom(ctx, nil) })
		add("Buffer.CopyTo", with, bad, "Alloc and Adopt", func() error { return b.CopyTo(ctx, nil) })
		add("Buffer.Register", with, bad, "negative color", func() error { return testkit.ErrOf(b.Register(nil)) })
		add("Buffer.Free", with, bad, "Alloc and Adopt", func() error { return b.Free() })
	}
	for with, r := range map[string]*ubcoll.Registration{"nil": nil, "zero": {}} {
		add("Registration.Close", with, bad, "RegisterBuffer", func() error { return r.Close() })
		add("Registration.MarshalBinary", with, bad, "RegisterBuffer", func() error {
			return testkit.ErrOf(r.MarshalBinary())
		})
	}
	for with, m := range map[string]*ubcoll.Remote{"nil": nil, "zero": {}} {
		add("Remote.Rank", with, nil, "", func() error { return equal(m.Rank(), -1) })
		add("Remote.Len", with, nil, "", func() error { return equal(m.Len(), 0) })
		add("Remote.Close", with, bad, "Import", func() error { return m.Close() })
	}
	for with, s := range map[string]*ubcoll.Stream{"nil": nil, "zero": {}} {
		add("Stream.Sync", with, bad, "NewStream", func() error { return s.Sync(ctx) })
		add("Stream.Close", with, bad, "NewStream", func() error { return s.Close() })
	}
	add("BufferInfo.String", "zero", nil, "", func() error { return equal(ubcoll.BufferInfo{}.String(), "") })
	add("Level.String", "zero", nil, "", func() error { return equal(ubcoll.Level{}.String(), "") })
	add("OpInfo.String", "zero", nil, "", func() error { return equal(ubcoll.OpInfo{}.String(), "no operation yet") })
	add("WindowFlags.String", "zero", nil, "", func() error { return equal(ubcoll.WindowFlags(0).String(), "default") })
	add("StreamFrom", "the host", bad, "on host", func() error { return testkit.ErrOf(ubcoll.StreamFrom(ubcoll.Host, 0)) })
	for with, w := range map[string]*ubcoll.Window{"nil": nil, "zero": {}} {
		const says = "RegisterWindow"
		add("Window.On", with, bad, says, func() error { return w.On(nil).Signal(ctx, 0) })
		add("Window.Put", with, bad, says, func() error { return w.Put(ctx, 0, 0, ubcoll.Vec{}) })
		add("Window.Get", with, bad, says, func() error { return w.Get(ctx, 0, ubcoll.Vec{}, 0) })
		add("Window.Signal", with, bad, says, func() error { return w.Signal(ctx, 0) })
		add("Window.Wait", with, bad, says, func() error { return w.Wait(ctx, 0) })
		add("Window.Flush", with, bad, says, func() error { return w.Flush(ctx) })
		add("Window.Peer", with, bad, says, func() error { return testkit.ErrOf(w.Peer(0)) })
		add("Window.Close", with, bad, says, func() error { return w.Close() })
		add("Window.Flags", with, nil, "", func() error { return equal(w.Flags(), ubcoll.WindowDefault) })
		add("Window.Bytes", with, nil, "", func() error { return equal(w.Bytes(), 0) })
	}
	for with, ch := range map[string]*p2p.Channel{"nil": nil, "zero": {}} {
		const says = "Connect and NewChannel"
		add("p2p.Channel.Peer", with, nil, "", func() error { return equal(ch.Peer(), -1) })
		add("p2p.Channel.On", with, bad, says, func() error { return ch.On(nil).Signal(ctx) })
		add("p2p.Channel.Put", with, bad, says, func() error { return ch.Put(ctx, 0, 0, 0) })
		add("p2p.Channel.PutWithSignal", with, bad, says, func() error { return ch.PutWithSignal(ctx, 0, 0, 0) })
		add("p2p.Channel.Get", with, bad, says, func() error { return ch.Get(ctx, 0, 0, 0) })
		add("p2p.Channel.Signal", with, bad, says, func() error { return ch.Signal(ctx) })
		add("p2p.Channel.RelaxedSignal", with, bad, says, func() error { return ch.RelaxedSignal(ctx) })
		add("p2p.Channel.Wait", with, bad, says, func() error { return ch.Wait(ctx) })
		add("p2p.Channel.Poll", with, bad, says, func() error { return testkit.ErrOf(ch.Poll()) })
		add("p2p.Channel.Flush", with, bad, says, func() error { return ch.Flush(ctx) })
		add("p2p.Channel.PutPackets", with, bad, says, func() error { return ch.PutPackets(ctx, 0, 0, 0, p2p.Packet8) })
		add("p2p.Channel.GetPackets", with, bad, says, func() error { return ch.GetPackets(ctx, 0, 0, 0, p2p.Packet8) })
		add("p2p.Channel.Batch", with, bad, says, func() error { return ch.Batch(ctx, nil) })
		add("p2p.Channel.Close", with, bad, says, func() error { return ch.Close() })
	}
	var noExchange *p2p.Exchange
	add("p2p.Exchange.Send", "nil", nil, "", func() error { noExchange.Send(0, ubcoll.Vec{}); return nil })
	add("p2p.Exchange.Recv", "nil", nil, "", func() error { noExchange.Recv(0, ubcoll.Vec{}); return nil })
	add("p2p.Exchange.Received", "nil", nil, "", func() error { return equal(len(noExchange.Received()), 0) })
	add("p2p.Exchange.Reset", "nil", bad, "new(p2p.Exchange)", func() error { return noExchange.Reset() })
	add("p2p.Exchange.Do", "nil", bad, "new(p2p.Exchange)", func() error { return noExchange.Do(ctx, nil) })
	for with, r := range map[string]*p2p.Request{"nil": nil, "zero": {}} {
		add("p2p.Request.Wait", with, bad, "Exchange.Start", func() error { return r.Wait(ctx) })
		add("p2p.Request.Test", with, bad, "Exchange.Start", func() error { return testkit.ErrOf(r.Test()) })
		add("p2p.Request.Received", with, nil, "", func() error { return equal(r.Received(), 0) })
	}
	for with, g := range map[string]*graph.Graph{"nil": nil, "zero": {}} {
		add("graph.Graph.Len", with, nil, "", func() error { return equal(g.Len(), 0) })
		add("graph.Graph.Launch", with, bad, "Capture makes one", func() error { return g.Launch(ctx) })
		add("graph.Graph.Close", with, bad, "Capture makes one", func() error { return g.Close() })
	}
	var v ubcoll.Vec
	add("Vec.Len", "zero", nil, "", func() error { return equal(v.Len(), 0) })
	add("Vec.Type", "zero", nil, "", func() error { return equal(v.Type(), dtype.Invalid) })
	add("Vec.Slice", "zero", nil, "", func() error { return void(v.Slice(0, 0).Slice(1, 2).Slice(3, 2)) })
	add("Vec.As", "zero", nil, "", func() error { return void(v.As(dtype.Float32).As(dtype.Invalid)) })
	add("Of", "nil", nil, "", func() error { return equal(ubcoll.Of[int8](nil).Len(), 0) })
	var o ubcoll.Op
	add("Op.String", "zero", nil, "", func() error { return equal(o.String(), "none") })
	add("PreMulSum", "zero", nil, "", func() error { return void(ubcoll.PreMulSum(0)) })
	add("ParseOp", "nothing", bad, "one of sum", func() error { return testkit.ErrOf(ubcoll.ParseOp("")) })
	add("Options.Validate", "zero", nil, "", ubcoll.Options{}.Validate)
	add("Open", "a nil bootstrap", bad, "bootstrap.MPI", func() error {
		return testkit.ErrOf(ubcoll.Open(ctx, nil, ubcoll.Options{}))
	})
	add("Open", "a nil context", bad, "context.Background()", func() error {
		b := bootstrap.Local(1)[0]
		defer b.Close()
		return testkit.ErrOf(ubcoll.Open(noContext, b, ubcoll.Options{}))
	})
	add("Run", "a nil function", bad, "nil", func() error { return ubcoll.Run(ctx, ubcoll.Options{}, nil) })
	add("Run", "a nil context", bad, "context.Background()", func() error {
		return ubcoll.Run(noContext, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { return nil })
	})
	add("Local", "a nil function", bad, "nil", func() error { return ubcoll.Local(ctx, 2, ubcoll.Options{}, nil) })
	add("Local", "a nil context", bad, "context.Background()", func() error {
		return ubcoll.Local(noContext, 2, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { return nil })
	})
	return all
}

// TestNoNouns calls the methods of nil and zero values.
func TestNoNouns(t *testing.T) { tryAll(t, nounTrials(t.Context())) }

// nouns has one value of each type that can be closed, on a communicator of two ranks.
type nouns struct {
	b  *ubcoll.Buffer[int8]
	r  *ubcoll.Registration
	m  *ubcoll.Remote
	w  *ubcoll.Window
	ch *p2p.Channel
	g  *graph.Graph
	s  *ubcoll.Stream
}

func newNouns(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) (n nouns, err error) {
	if n.b, err = ubcoll.Alloc[int8](c, dev, 100); err != nil {
		return n, err
	}
	if n.r, err = n.b.Register(c); err != nil {
		return n, err
	}
	h, err := n.r.MarshalBinary()
	if err != nil {
		return n, err
	}
	all := make([]byte, c.Size()*len(h))
	if err = coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
		return n, err
	}
	peer := 1 - c.Rank()
	if n.m, err = c.Import(all[peer*len(h):][:len(h)]); err != nil {
		return n, err
	}
	if n.w, err = c.RegisterWindow(ctx, n.b.Vec(), 0); err != nil {
		return n, err
	}
	if n.ch, err = p2p.Connect(ctx, c, peer, n.r); err != nil {
		return n, err
	}
	n.g, err = graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
		return coll.AllReduce(ctx, c, n.b.Vec(), n.b.Vec(), ubcoll.Max)
	})
	if err != nil {
		return n, err
	}
	n.s, err = ubcoll.NewStream(dev)
	return n, err
}

func (n nouns) close() error {
	return errors.Join(n.g.Close(), n.ch.Close(), n.w.Close(), n.m.Close(), n.r.Close(), n.b.Free(), n.s.Close())
}

// closeTrials close values that are closed already, views of them included.
func (n nouns) closeTrials(with string) []trial {
	closed := ubcoll.ErrClosed
	return []trial{
		{"graph.Graph.Close", with, closed, "the graph has been closed", n.g.Close},
		{"p2p.Channel.Close", with, closed, "the channel between ranks", n.ch.Close},
		{"p2p.Channel.Close", "On of " + with, closed, "the channel between ranks", n.ch.On(n.s).Close},
		{"Window.Close", with, closed, "the window", n.w.Close},
		{"Window.Close", "On of " + with, closed, "the window", n.w.On(n.s).Close},
		{"Remote.Close", with, closed, "remote memory", n.m.Close},
		{"Registration.Close", with, closed, "registration of", n.r.Close},
		{"Buffer.Free", with, closed, "free", n.b.Free},
		{"Stream.Close", with, closed, "NewStream makes another", n.s.Close},
	}
}

// TestNoArguments makes calls on a working communicator with nil or zero arguments, on all ranks: all get the error,
// and the communicator stays usable.
func TestNoArguments(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		bad := ubcoll.ErrArgument
		var all []trial
		for _, k := range commTrials(noContext, "a nil context", c, ubcoll.Of([]int8{1, 2}), bad, "context.Background()") {
			switch k.fn {
			case "p2p.Connect":
				continue // would connect the rank to itself
			case "coll.ReduceScatter", "coll.AllGather", "coll.Gather", "coll.Scatter", "coll.AllToAll", "coll.AllGatherV",
				"coll.GatherV", "coll.ScatterV", "coll.AllToAllV", "Group", "graph.Capture":
				k.text = "" // the error may be about another argument
			}
			all = append(all, k)
		}
		for _, k := range commTrials(ctx, "the zero Vec", c, ubcoll.Vec{}, bad, "Of and Buffer.Vec make one") {
			if strings.HasPrefix(k.fn, "coll.") && k.fn != "coll.Barrier" && !strings.HasSuffix(k.fn, "V") ||
				strings.HasPrefix(k.fn, "p2p.Send") || k.fn == "p2p.Recv" || k.fn == "p2p.ISend" || k.fn == "p2p.IRecv" || k.fn == "p2p.Exchange.Do" ||
				k.fn == "Comm.RegisterWindow" {
				all = append(all, k)
			}
		}
		null := (*ubcoll.Buffer[int8])(nil).Vec()
		all = append(all, commTrials(ctx, "a nil Buffer's Vec", c, null, bad, "Alloc and Adopt make one")[0])
		n, err := newNouns(ctx, c, ubcoll.Host)
		if err != nil {
			return err
		}
		var empty p2p.Exchange
		q, err := empty.Start(ctx, c)
		if err != nil {
			return err
		}
		var zero ubcoll.Vec
		says := "context.Background()"
		add := func(fn, with string, text string, do func(ctx context.Context) error) {
			all = append(all, trial{fn, with, bad, text, func() error { return do(noContext) }})
		}
		nilCtx := "a nil context"
		add("Buffer.CopyFrom", nilCtx, says, func(ctx context.Context) error { return n.b.CopyFrom(ctx, nil) })
		add("Buffer.CopyTo", nilCtx, says, func(ctx context.Context) error { return n.b.CopyTo(ctx, nil) })
		add("Window.Put", nilCtx, says, func(ctx context.Context) error { return n.w.Put(ctx, 0, 0, zero) })
		add("Window.Get", nilCtx, says, func(ctx context.Context) error { return n.w.Get(ctx, 0, zero, 0) })
		add("Window.Signal", nilCtx, says, func(ctx context.Context) error { return n.w.Signal(ctx, 0) })
		add("Window.Wait", nilCtx, says, func(ctx context.Context) error { return n.w.Wait(ctx, 0) })
		add("Window.Flush", nilCtx, says, func(ctx context.Context) error { return n.w.Flush(ctx) })
		add("p2p.Channel.Put", nilCtx, says, func(ctx context.Context) error { return n.ch.Put(ctx, 0, 0, 0) })
		add("p2p.Channel.Signal", nilCtx, says, func(ctx context.Context) error { return n.ch.Signal(ctx) })
		add("p2p.Channel.Wait", nilCtx, says, func(ctx context.Context) error { return n.ch.Wait(ctx) })
		add("p2p.Channel.Flush", nilCtx, says, func(ctx context.Context) error { return n.ch.Flush(ctx) })
		add("p2p.Channel.PutPackets", nilCtx, says, func(ctx context.Context) error {
			return n.ch.PutPackets(ctx, 0, 0, 8, 8)
		})
		add("p2p.Channel.GetPackets", nilCtx, says, func(ctx context.Context) error {
			return n.ch.GetPackets(ctx, 0, 0, 8, 8)
		})
		add("p2p.Channel.Batch", nilCtx, says, func(ctx context.Context) error {
			return n.ch.Batch(ctx, func(b *p2p.Channel) error { return b.Signal(ctx) })
		})
		add("graph.Graph.Launch", nilCtx, says, func(ctx context.Context) error { return n.g.Launch(ctx) })
		add("Window.Put", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return n.w.Put(ctx, 0, 0, zero)
		})
		add("Window.Get", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return n.w.Get(ctx, 0, zero, 0)
		})
		add("p2p.Channel.Batch", "a nil function", "nil", func(context.Context) error { return n.ch.Batch(ctx, nil) })
		add("p2p.NewChannel", "a nil Remote", "Import", func(context.Context) error {
			return testkit.ErrOf(p2p.NewChannel(ctx, c, n.r, nil))
		})
		add("p2p.NewChannel", "a zero Remote", "Import", func(context.Context) error {
			return testkit.ErrOf(p2p.NewChannel(ctx, c, n.r, &ubcoll.Remote{}))
		})
		add("p2p.Connect", "a nil Registration", "nil registration", func(context.Context) error {
			return testkit.ErrOf(p2p.Connect(ctx, c, 1-c.Rank(), nil))
		})
		add("p2p.Connect", "a zero Registration", "nil registration", func(context.Context) error {
			return testkit.ErrOf(p2p.Connect(ctx, c, 1-c.Rank(), &ubcoll.Registration{}))
		})
		add("Comm.RegisterBuffer", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return testkit.ErrOf(c.RegisterBuffer(zero))
		})
		add("Buffer.Register", "a nil Buffer", "Alloc and Adopt", func(context.Context) error {
			return testkit.ErrOf((*ubcoll.Buffer[int8])(nil).Register(c))
		})
		add("Comm.Import", "no handle", "too few", func(context.Context) error { return testkit.ErrOf(c.Import(nil)) })
		add("Adopt", "nil memory", "0x0", func(context.Context) error { return testkit.ErrOf(ubcoll.Adopt(c, ubcoll.Host, nil, 8)) })
		add("Alloc", "a negative length", "-1", func(context.Context) error {
			return testkit.ErrOf(ubcoll.Alloc[int8](c, ubcoll.Host, -1))
		})
		add("Group", "a nil function", "nil", func(context.Context) error { return ubcoll.Group(ctx, c, nil) })
		add("graph.Capture", "a nil function", "nil", func(context.Context) error {
			return testkit.ErrOf(graph.Capture(ctx, c, nil))
		})
		add("Comm.On", "a zero Stream", "NewStream", func(context.Context) error {
			return coll.Barrier(ctx, c.On(&ubcoll.Stream{}))
		})
		add("Window.On", "a zero Stream", "NewStream", func(context.Context) error {
			return n.w.On(&ubcoll.Stream{}).Signal(ctx, 0)
		})
		add("p2p.Channel.On", "a zero Stream", "NewStream", func(context.Context) error {
			return n.ch.On(&ubcoll.Stream{}).Signal(ctx)
		})
		add("Stream.Sync", nilCtx, says, func(ctx context.Context) error { return n.s.Sync(ctx) })
		add("p2p.Request.Wait", nilCtx, says, func(ctx context.Context) error {
			if done, err := q.Test(); done { // there is nothing to wait for
				return errors.Join(err, &ubcoll.Error{Err: fmt.Errorf("%s: %w", says, bad)})
			}
			return q.Wait(ctx)
		})
		all = append(all, trial{"Comm.Explain", "the zero Vec", nil, "", func() error {
			return equal(strings.Contains(c.Explain(zero), "Of and Buffer.Vec"), true)
		}})
		var errs []error
		for _, k := range all {
			errs = append(errs, k.try())
		}
		return errors.Join(errors.Join(errs...), coll.Barrier(ctx, c), c.Err(), n.close())
	}))
}

// TestTooLate makes all calls on closed values.
func TestTooLate(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, parent *ubcoll.Comm) error {
		c, err := parent.Dup(ctx)
		if err != nil {
			return err
		}
		n, err := newNouns(ctx, c, ubcoll.Host)
		if err != nil {
			return err
		}
		if err := errors.Join(coll.Barrier(ctx, c), n.close()); err != nil {
			return err
		}
		closed := ubcoll.ErrClosed
		all := []trial{
			{"graph.Graph.Launch", "a closed graph", closed, "the graph has been closed", func() error {
				return n.g.Launch(ctx)
			}},
			{"p2p.Channel.Put", "a closed channel", closed, "the channel between ranks", func() error {
				return n.ch.Put(ctx, 0, 0, 0)
			}},
			{"p2p.Channel.Wait", "a closed channel", closed, "the channel between ranks", func() error {
				return n.ch.Wait(ctx)
			}},
			{"Window.Signal", "a closed window", closed, "the window", func() error { return n.w.Signal(ctx, 0) }},
			{"Registration.MarshalBinary", "a closed registration", ubcoll.ErrStale, "has been closed", func() error {
				return testkit.ErrOf(n.r.MarshalBinary())
			}},
			{"Buffer.Register", "a freed buffer", ubcoll.ErrStale, "freed", func() error {
				return testkit.ErrOf(n.b.Register(parent))
			}},
			{"Buffer.CopyFrom", "a freed buffer", ubcoll.ErrStale, "freed buffer", func() error {
				return n.b.CopyFrom(ctx, nil)
			}},
			{"coll.AllReduce", "a freed buffer", ubcoll.ErrStale, "has been freed", func() error {
				return coll.AllReduce(ctx, parent, n.b.Vec(), n.b.Vec(), ubcoll.Sum)
			}},
			{"Comm.On", "a closed stream", closed, "NewStream makes another", func() error {
				return coll.Barrier(ctx, parent.On(n.s))
			}},
			{"Comm.Close", "open", nil, "", c.Close},
		}
		v := ubcoll.Of([]int8{1, 2})
		const says = "the communicator has been closed"
		all = append(all, commTrials(ctx, "a closed Comm", c, v, closed, says)...)
		all = append(all, localTrials("a closed Comm", c, v, closed, says)...)
		var errs []error
		for _, k := range all {
			errs = append(errs, k.try())
		}
		return errors.Join(append(errs, coll.Barrier(ctx, parent))...)
	}))
}

// TestCloseTwice closes one value of each type twice, on host and device, and then the values that have ended with
// their communicator.
func TestCloseTwice(t *testing.T) {
	f := func(ctx context.Context, parent *ubcoll.Comm, dev ubcoll.Device) error {
		c, err := parent.Dup(ctx)
		if err != nil {
			return err
		}
		n, err1 := newNouns(ctx, c, dev)
		left, err2 := newNouns(ctx, c, dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := errors.Join(coll.Barrier(ctx, c), n.close(), left.g.Close(), left.m.Close(), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		all := n.closeTrials("something closed")
		all = append(all, trial{"Comm.Close", "an open one", nil, "", c.Close})
		const with, says = "a closed Comm", "the communicator has been closed"
		all = append(all, trial{"Comm.Close", with, ubcoll.ErrClosed, says, c.Close},
			trial{"Comm.Close", "On of " + with, ubcoll.ErrClosed, says, c.On(left.s).Close})
		for _, k := range left.closeTrials(with) {
			switch k.fn {
			case "Window.Close", "p2p.Channel.Close", "Registration.Close": // these end with their communicator
				all = append(all, k)
			}
		}
		var errs []error
		for _, k := range all {
			errs = append(errs, k.try())
		}
		return errors.Join(append(errs, left.b.Free(), left.s.Close(), coll.Barrier(ctx, parent))...)
	}
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, 2, ubcoll.Options{}, f) })
}

// TestBusy makes calls while other calls run.
func TestBusy(t *testing.T) {
	gate := make(chan struct{})
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 1 { // rank 0's calls last until the gate opens
			<-gate
			return errors.Join(coll.Barrier(ctx, c), coll.Barrier(ctx, c))
		}
		defer close(gate)
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c.On(s)); err != nil {
			return err
		}
		errs := []error{
			trial{"Comm.Close", "something queued", ubcoll.ErrBusy, "Stream.Sync waits", c.Close}.try(),
			trial{"Stream.Close", "something queued", ubcoll.ErrBusy, "Sync waits", s.Close}.try(),
		}
		second := make(chan error, 2)
		for range 2 { // one of them runs, behind the queued operations
			go func() { second <- coll.Barrier(ctx, c) }()
		}
		refused := <-second
		errs = append(errs, trial{"coll.Barrier", "another one", ubcoll.ErrBusy, "a Dup for calls side by side",
			func() error { return refused }}.try())
		gate <- struct{}{}
		return errors.Join(append(errs, <-second, s.Sync(ctx), s.Close())...)
	}))
}

// TestEveryCall compares the tables with the exports of the public packages: no call may be missing.
func TestEveryCall(t *testing.T) {
	tried := map[string]bool{}
	for _, list := range [][]trial{commTrials(noContext, "", nil, ubcoll.Vec{}, nil, ""),
		localTrials("", nil, ubcoll.Vec{}, nil, ""), nounTrials(t.Context())} {
		for _, k := range list {
			tried[k.fn] = true
		}
	}
	for _, fn := range []string{
		"Comm.GPU", "Comm.Rank", "Comm.Size", "Comm.LocalRank", "Comm.LocalSize", "Comm.Hostname", "Comm.On", "Comm.LastOp",
		"Comm.Stats", "Comm.Explain", "Comm.Abort", // in TestNoComm
		"p2p.NewChannel",                                                                // in TestNoArguments
		"DevicePolicy.String", "DevicePolicy.MarshalText", "DevicePolicy.UnmarshalText", // in TestDevicePolicyText
		"Main", "NewStream", "CUDA", "Algorithms", "ExitCode", // they take nothing that can be nil or zero
	} {
		tried[fn] = true
	}
	for dir, prefix := range map[string]string{".": "", "coll": "coll.", "p2p": "p2p.", "graph": "graph."} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || !f.Name.IsExported() {
					continue
				}
				fn := f.Name.Name
				if f.Recv != nil {
					of := receiver(f.Recv.List[0].Type)
					if !ast.IsExported(of) {
						continue
					}
					fn = of + "." + fn
				}
				require.True(t, tried[prefix+fn], "%s%s is in no table", prefix, fn)
			}
		}
	}
}

func receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
