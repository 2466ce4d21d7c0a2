package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"runtime"
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

// call is a function, or a method of a value.
type call struct {
	name string
	fn   reflect.Value
	of   reflect.Type // the method's
}

// functionCall is named as the function.
func functionCall(fn any) call {
	v := reflect.ValueOf(fn)
	return call{name: strings.TrimPrefix(path.Base(runtime.FuncForPC(v.Pointer()).Name()), "ubcoll."), fn: v}
}

// methodCalls are all methods that x's type has: a new one needs no line here.
func methodCalls(x any) (all []call) {
	v := reflect.ValueOf(x)
	of, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(v.Type().String(), "*"), "ubcoll."), "[")
	for i := range v.NumMethod() {
		all = append(all, call{of + "." + v.Type().Method(i).Name, v.Method(i), v.Type()})
	}
	return all
}

// takesContext reports whether the first parameter is a context.
func (k call) takesContext() bool {
	t := k.fn.Type()
	return t.NumIn() > 0 && t.In(0) == reflect.TypeFor[context.Context]()
}

// returnsError reports whether the last result is an error.
func (k call) returnsError() bool {
	t := k.fn.Type()
	return t.NumOut() > 0 && t.Out(t.NumOut()-1) == reflect.TypeFor[error]()
}

// answers are what calls on nil and zero values print of what they return, if that is something.
var answers = map[string]string{"Buffer.Device": "host", "Comm.LastOp": "no operation yet", "Comm.LocalRank": "-1",
	"Comm.Rank": "-1", "Op.String": "none", "OpInfo.String": "no operation yet", "Remote.Rank": "-1", "Vec.Type": "invalid",
	"Access.String": "none", "Transports.String": "none", "Registration.Access": "none", "Registration.Transports": "none",
	"Remote.Access": "none", "Remote.String": "no remote memory", "Window.Flags": "default", "WindowFlags.String": "default", "p2p.Channel.Peer": "-1",
	"p2p.Semaphore.Peer": "-1",
	"Comm.Explain": "communicator: it is nil or the zero value: it comes from Open, Main, Run, Local, Dup or Split, and is " +
		"nil where Split was given a negative color: invalid argument"}

// trial makes the call with those of given that have the types of its parameters, and with nil or zero for the others. A
// call without an error must return nothing, or what answers has, or a view of the value: something of the same type.
func (k call) trial(with string, want error, text string, given ...any) trial {
	if !k.returnsError() {
		want = nil
	}
	return trial{k.name, with, want, text, func() error {
		arguments := make([]reflect.Value, k.fn.Type().NumIn())
		for i := range arguments {
			t := k.fn.Type().In(i)
			arguments[i] = reflect.Zero(t)
			for _, g := range given {
				if g != nil && reflect.TypeOf(g).AssignableTo(t) {
					arguments[i] = reflect.ValueOf(g)
				}
			}
		}
		results := k.fn.Call(arguments)
		if k.returnsError() {
			err, _ := results[len(results)-1].Interface().(error)
			return err
		}
		for _, r := range results {
			list, ok := r.Interface().(interface{ Len() int })
			if r.IsZero() || r.Kind() == reflect.Slice && r.Len() == 0 || ok && list.Len() == 0 || r.Type() == k.of {
				continue
			}
			if err := equal(fmt.Sprint(r), answers[k.name]); err != nil {
				return err
			}
		}
		return nil
	}}
}

// noComm is what the error about a nil or zero communicator says.
const noComm = "negative color"

// equal checks the result of a call that returns no error.
func equal[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("%v, not %v", got, want)
	}
	return nil
}

// commTrials are all calls that take a communicator and a context; want and text apply to all.
func commTrials(ctx context.Context, with string, c *ubcoll.Comm, v ubcoll.Vec, want error, text string) []trial {
	var all []trial
	body := func(g *ubcoll.Comm) error { return coll.AllReduce(ctx, g, v, v, ubcoll.Sum) }
	for _, fn := range []any{coll.AllReduce, coll.ReduceScatter, coll.Reduce, coll.AllGather, coll.Broadcast, coll.Gather,
		coll.Scatter, coll.AllToAll, coll.AllGatherV, coll.GatherV, coll.ScatterV, coll.AllToAllV, coll.Barrier, ubcoll.Group,
		p2p.Send, p2p.Recv, p2p.SendRecv, p2p.ISend, p2p.IRecv, p2p.Connect, p2p.NewSemaphore, graph.Capture} {
		all = append(all, functionCall(fn).trial(with, want, text, ctx, c, v, []int{1}, ubcoll.Sum, body))
	}
	for _, fn := range []any{ubcoll.Group, graph.Capture} { // with a nil function
		all = append(all, functionCall(fn).trial(with, want, text, ctx, c))
	}
	for _, k := range methodCalls(c) {
		if k.takesContext() {
			all = append(all, k.trial(with, want, text, ctx, v))
		}
	}
	return append(all,
		trial{"p2p.Exchange.Do", with, want, text, func() error {
			var g p2p.Exchange
			g.Send(0, v)
			g.Recv(0, v)
			return g.Do(ctx, c)
		}},
		trial{"p2p.Exchange.Start", with, want, text, func() error { return testkit.ErrOf(new(p2p.Exchange).Start(ctx, c)) }})
}

// localTrials are the calls on a communicator that take no context and return an error.
func localTrials(with string, c *ubcoll.Comm, v ubcoll.Vec, want error, text string) []trial {
	var x int8
	all := []trial{
		{"Alloc", with, want, text, func() error { return testkit.ErrOf(ubcoll.Alloc[int8](c, ubcoll.Host, 1)) }},
		{"Adopt", with, want, text, func() error {
			return testkit.ErrOf(ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&x), 1))
		}},
		{"AdoptDLPack", with, want, text, func() error {
			_, _, err := ubcoll.AdoptDLPack(c, nil)
			return err
		}},
	}
	for _, k := range methodCalls(c) {
		if k.returnsError() && !k.takesContext() {
			all = append(all, k.trial(with, want, text, v))
		}
	}
	return all
}

// noComms are communicators that are none.
func noComms(s *ubcoll.Stream) map[string]*ubcoll.Comm {
	var null *ubcoll.Comm
	return map[string]*ubcoll.Comm{"nil": null, "zero": {}, "nil on no stream": null.On(nil), "nil on a stream": null.On(s),
		"zero on a stream": new(ubcoll.Comm).On(s)}
}

// TestNoComm makes all calls with a nil communicator, the zero one, and views of them.
func TestNoComm(t *testing.T) {
	ctx := t.Context()
	s, err := ubcoll.NewStream(ubcoll.Host)
	require.NoError(t, err)
	for name, c := range noComms(s) {
		with, some := "a Comm that is "+name, ubcoll.Of([]int8{1})
		tryAll(t, commTrials(ctx, with, c, some, ubcoll.ErrArgument, noComm))
		tryAll(t, commTrials(ctx, with, c, ubcoll.Vec{}, ubcoll.ErrArgument, noComm))
		tryAll(t, commTrials(noContext, with, c, ubcoll.Vec{}, ubcoll.ErrArgument, ""))
		tryAll(t, localTrials(with, c, some, ubcoll.ErrArgument, noComm))
		for _, k := range methodCalls(c) {
			tryAll(t, []trial{k.trial(with, ubcoll.ErrArgument, noComm, ctx, some)})
		}
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
		for name, c := range noComms(s) {
			for on, v := range map[string]ubcoll.Vec{"device memory": b.Vec(), "Go memory": ubcoll.Of([]int8{1})} {
				with := fmt.Sprintf("%s and a Comm that is %s", on, name)
				tryAll(t, commTrials(ctx, with, c, v, ubcoll.ErrArgument, noComm))
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

// nounTypes are the types with methods, but Comm: a nil pointer, or a zero value, and what errors of nil pointers say.
var nounTypes = []struct {
	none any
	says string
}{
	{(*ubcoll.Buffer[int8])(nil), "Alloc and Adopt"},
	{(*ubcoll.Registration)(nil), "RegisterBuffer"},
	{(*ubcoll.Remote)(nil), "Import"},
	{(*ubcoll.Stream)(nil), "NewStream"},
	{(*ubcoll.Window)(nil), "RegisterWindow"},
	{(*p2p.Channel)(nil), "Connect and NewChannel"}, {(*p2p.Semaphore)(nil), "NewSemaphore makes one"},
	{(*p2p.Exchange)(nil), "new(p2p.Exchange)"},
	{(*p2p.Request)(nil), "Exchange.Start"},
	{(*graph.Graph)(nil), "Capture makes one"},
	{ubcoll.BufferInfo{}, ""}, {ubcoll.Level{}, ""}, {ubcoll.Op{}, ""}, {ubcoll.OpInfo{}, ""}, {ubcoll.Options{}, ""},
	{ubcoll.Vec{}, ""}, {ubcoll.WindowFlags(0), ""}, {ubcoll.Access(0), ""}, {ubcoll.Transports(0), ""},
}

// methodTrials are the methods of all these types on nil and zero values, and on views of them.
func methodTrials(ctx context.Context, s *ubcoll.Stream) (all []trial) {
	for _, n := range nounTypes {
		t := reflect.TypeOf(n.none)
		values, want := map[string]any{"zero": n.none}, error(nil)
		if t.Kind() == reflect.Pointer {
			values, want = map[string]any{"nil": n.none, "zero": reflect.New(t.Elem()).Interface()}, ubcoll.ErrArgument
		}
		for with, x := range maps.Clone(values) {
			switch x := x.(type) {
			case *p2p.Exchange:
				delete(values, "zero") // it can be used
			case *ubcoll.Window:
				values[with+" on a stream"], values[with+" on no stream"] = x.On(s), x.On(nil)
			case *p2p.Channel:
				values[with+" on a stream"], values[with+" on no stream"] = x.On(s), x.On(nil)
			case *p2p.Semaphore:
				values[with+" on a stream"], values[with+" on no stream"] = x.On(s), x.On(nil)
			}
		}
		for with, x := range values {
			for _, k := range methodCalls(x) {
				says := n.says
				if k.name == "Buffer.Register" { // a nil communicator is refused first
					says = noComm
				}
				all = append(all, k.trial(with, want, says, ctx, p2p.Packet8))
			}
		}
	}
	return all
}

// otherTrials are calls of functions that take no communicator, with nil and zero arguments.
func otherTrials(ctx context.Context) []trial {
	var all []trial
	add := func(fn, with string, want error, text string, do func() error) {
		all = append(all, trial{fn, with, want, text, do})
	}
	bad := ubcoll.ErrArgument
	add("StreamFrom", "the host", bad, "on host", func() error { return testkit.ErrOf(ubcoll.StreamFrom(ubcoll.Host, 0)) })
	add("Of", "nil", nil, "", func() error { return equal(ubcoll.Of[int8](nil).Len(), 0) })
	var v ubcoll.Vec
	add("Vec.Slice", "zero", nil, "", func() error { return equal(v.Slice(0, 0).Slice(1, 2).Slice(3, 2).Len(), 0) })
	add("Vec.As", "zero", nil, "", func() error { return equal(v.As(dtype.Float32).As(dtype.Invalid).Len(), 0) })
	add("PreMulSum", "zero", nil, "", func() error { return equal(ubcoll.PreMulSum(0).String(), "premulsum(0)") })
	add("ParseOp", "nothing", bad, "one of sum", func() error { return testkit.ErrOf(ubcoll.ParseOp("")) })
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

// TestNoNouns calls the methods of nil and zero values, and functions with such arguments.
func TestNoNouns(t *testing.T) {
	s, err := ubcoll.NewStream(ubcoll.Host)
	require.NoError(t, err)
	tryAll(t, methodTrials(t.Context(), s))
	tryAll(t, otherTrials(t.Context()))
	require.NoError(t, s.Close())
}

// nouns has one value of each type that can be closed, on a communicator of two ranks.
type nouns struct {
	b  *ubcoll.Buffer[int8]
	r  *ubcoll.Registration
	m  *ubcoll.Remote
	w  *ubcoll.Window
	ch *p2p.Channel
	p  *p2p.Semaphore
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
	if n.p, err = p2p.NewSemaphore(ctx, c, peer, dev); err != nil {
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
	return errors.Join(n.g.Close(), n.ch.Close(), n.p.Close(), n.w.Close(), n.m.Close(), n.r.Close(), n.b.Free(), n.s.Close())
}

// closeTrials close values that are closed already, views of them included.
func (n nouns) closeTrials(with string) []trial {
	closed := ubcoll.ErrClosed
	return []trial{
		{"graph.Graph.Close", with, closed, "the graph has been closed", n.g.Close},
		{"p2p.Channel.Close", with, closed, "the channel between ranks", n.ch.Close},
		{"p2p.Channel.Close", "On of " + with, closed, "the channel between ranks", n.ch.On(n.s).Close},
		{"p2p.Semaphore.Close", with, closed, "the semaphore between ranks", n.p.Close},
		{"p2p.Semaphore.Close", "On of " + with, closed, "the semaphore between ranks", n.p.On(n.s).Close},
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
			case "p2p.Connect", "p2p.NewSemaphore":
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
		signal := func(b *p2p.Channel) error { return b.Signal(noContext) }
		for _, x := range []any{n.b, n.w, n.ch, n.p, n.g, n.s} {
			for _, k := range methodCalls(x) {
				if k.takesContext() {
					all = append(all, k.trial(nilCtx, bad, says, noContext, p2p.Packet8, signal))
				}
			}
		}
		add("Window.Put", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return n.w.Put(ctx, 0, 0, zero)
		})
		add("Window.Get", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return n.w.Get(ctx, 0, zero, 0)
		})
		add("Window.Accumulate", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return n.w.Accumulate(ctx, 0, 0, zero, ubcoll.Sum)
		})
		add("Comm.RegisterWith", "the zero Vec", "Of and Buffer.Vec", func(context.Context) error {
			return testkit.ErrOf(c.RegisterWith(zero, ubcoll.RegisterOptions{}))
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
		add("AdoptDLPack", "a nil tensor", "nil tensor", func(context.Context) error {
			_, _, err := ubcoll.AdoptDLPack(c, nil)
			return err
		})
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
		add("p2p.Semaphore.On", "a zero Stream", "NewStream", func(context.Context) error {
			return n.p.On(&ubcoll.Stream{}).Signal(ctx)
		})
		add("p2p.Semaphore.Channel", "a nil Registration", "nil registration", func(context.Context) error {
			return testkit.ErrOf(n.p.Channel(nil, n.m))
		})
		add("p2p.Semaphore.Channel", "a nil Remote", "Import", func(context.Context) error {
			return testkit.ErrOf(n.p.Channel(n.r, nil))
		})
		add("p2p.Channel.On", "a zero Stream", "NewStream", func(context.Context) error {
			return n.ch.On(&ubcoll.Stream{}).Signal(ctx)
		})
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
		for _, x := range []struct {
			noun any
			says string
		}{{n.g, "the graph has been closed"}, {n.ch, "the channel between ranks"}, {n.p, "the semaphore between ranks"},
			{n.w, "the window"}} {
			for _, k := range methodCalls(x.noun) {
				if k.returnsError() {
					all = append(all, k.trial("something closed", closed, x.says, ctx, ubcoll.Of([]int8{1}), p2p.Packet8,
						func(b *p2p.Channel) error { return b.Signal(ctx) }))
				}
			}
		}
		v := ubcoll.Of([]int8{1, 2})
		const says = "the communicator has been closed"
		all = append(all, commTrials(ctx, "a closed Comm", c, v, closed, says)...)
		all = append(all, localTrials("a closed Comm", c, v, closed, says)...)
		var errs []error
		for _, k := range all {
			if k.fn != "Comm.GPU" { // which is the same after Close
				errs = append(errs, k.try())
			}
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
			case "Window.Close", "p2p.Channel.Close", "p2p.Semaphore.Close", "Registration.Close": // these end with their communicator
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

// called matches a line of the list of the API that has a function or a method.
var called = regexp.MustCompile(`(?m)^(\w+): (?:func |method \(\*?(\w+)\) )(\w+)`)

// TestEveryCall compares the tables with the API: no call of the public packages may be missing.
func TestEveryCall(t *testing.T) {
	tried := map[string]bool{}
	for _, list := range [][]trial{commTrials(noContext, "", nil, ubcoll.Vec{}, nil, ""),
		localTrials("", nil, ubcoll.Vec{}, nil, ""), methodTrials(t.Context(), nil), otherTrials(t.Context())} {
		for _, k := range list {
			tried[k.fn] = true
		}
	}
	for _, k := range methodCalls((*ubcoll.Comm)(nil)) { // in TestNoComm
		tried[k.name] = true
	}
	for _, fn := range []string{
		"p2p.NewChannel",                                                              // in TestNoArguments
		"Main", "DumpAtSignal", "NewStream", "CUDA", "Algorithms", "Nets", "ExitCode", // they take nothing that can be nil or zero
	} {
		tried[fn] = true
	}
	api, err := os.ReadFile("internal/lint/testdata/api.txt")
	require.NoError(t, err)
	n := 0
	for _, m := range called.FindAllStringSubmatch(string(api), -1) {
		room, of, fn := m[1], m[2], m[3]
		switch room {
		case "coll", "p2p", "graph", "ubcoll":
		default:
			continue
		}
		switch of {
		case "DevicePolicy": // in TestDevicePolicyText
			continue
		case "Device", "Error", "Pin", "Policy": // types of other packages
			continue
		}
		name := strings.TrimPrefix(strings.ReplaceAll(room+"."+of+"."+fn, "..", "."), "ubcoll.")
		require.True(t, tried[name], "%s is in no table", name)
		n++
	}
	require.Greater(t, n, 100)
}
