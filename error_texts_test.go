package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/dlpack"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// bad is a job whose calls fail: do is what each rank does.
type bad struct {
	name string
	on   conform.Layout
	o    ubcoll.Options // a Timeout counts from Open on
	do   func(ctx context.Context, c *ubcoll.Comm) error
}

// errs returns the errors of the ranks.
func (k bad) errs(t *testing.T) []error {
	bs := enginetest.Hosts(bootstrap.Local(len(k.on)), func(rank int) string { return fmt.Sprintf("host%c", 'a'+k.on[rank]) })
	limit := k.o.Timeout
	if limit >= 0 {
		k.o.Timeout = testkit.Limit
	}
	var open sync.WaitGroup // no rank closes before all have their errors
	open.Add(len(bs))
	return testkit.Each(bs, func(b bootstrap.Bootstrap) error {
		c, err := ubcoll.Open(t.Context(), b, k.o)
		if err == nil {
			if limit > 0 {
				(*inside.Comm)(c).View().SetTimeout(limit)
			}
			err = k.do(t.Context(), c)
		}
		open.Done()
		open.Wait()
		if c != nil {
			c.Close()
		}
		b.Close()
		return err
	})
}

// varying are the errors that differ from run to run, by what comes first.
var varying = []string{"sends in a circle", "receives in a circle", "different orders", "window: wait in vain",
	"channel: wait in vain", "channel: peer never connects", "window: wait for one that leaves", "hosts: aborted",
	"hosts: timeout", "hosts: timeout of the first", "timeout", "timeout of a reduction", "cancelled meanwhile",
	"receive cancelled"}

// odd makes the last rank call one thing, and the others another.
func odd(one, others func(ctx context.Context, c *ubcoll.Comm) error) func(ctx context.Context, c *ubcoll.Comm) error {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == c.Size()-1 {
			return one(ctx, c)
		}
		return others(ctx, c)
	}
}

type step = func(ctx context.Context, c *ubcoll.Comm) error

func nothing(context.Context, *ubcoll.Comm) error { return nil }

func reduce(n int) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		v := ubcoll.Of(make([]float32, n))
		return coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
	}
}

func reduceOf(dst, src ubcoll.Vec, op ubcoll.Op) step {
	return func(ctx context.Context, c *ubcoll.Comm) error { return coll.AllReduce(ctx, c, dst, src, op) }
}

func bar(ctx context.Context, c *ubcoll.Comm) error { return coll.Barrier(ctx, c) }

func bcast(root int) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return coll.Broadcast(ctx, c, ubcoll.Of(make([]float32, 100)), root)
	}
}

func send(to, n int) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return p2p.Send(ctx, c, to, ubcoll.Of(make([]float32, n)))
	}
}

func recv(from, n int) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return testkit.ErrOf(p2p.Recv(ctx, c, from, ubcoll.Of(make([]float32, n))))
	}
}

func recvInts(from, n int) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return testkit.ErrOf(p2p.Recv(ctx, c, from, ubcoll.Of(make([]int32, n))))
	}
}

// by takes a step for each rank.
func by(steps ...step) step {
	return func(ctx context.Context, c *ubcoll.Comm) error { return steps[c.Rank()](ctx, c) }
}

func in(wrap func(ctx context.Context, c *ubcoll.Comm, do func(g *ubcoll.Comm) error) error, do step) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		return wrap(ctx, c, func(g *ubcoll.Comm) error { return do(ctx, g) })
	}
}

func captured(ctx context.Context, c *ubcoll.Comm, do func(g *ubcoll.Comm) error) error {
	g, err := graph.Capture(ctx, c, do)
	if err != nil {
		return err
	}
	return errors.Join(g.Launch(ctx), g.Close())
}

func then(steps ...step) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		for _, s := range steps {
			if err := s(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
}

func cancelled(do step) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		return do(gone, c)
	}
}

func abort(ctx context.Context, c *ubcoll.Comm) error {
	c.Abort(errors.New("out of paper"))
	return coll.Barrier(ctx, c)
}

func leave(_ context.Context, c *ubcoll.Comm) error { return c.Close() }

// with gives do a registered buffer of each rank.
func with(do func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error) step {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100)
		if err != nil {
			return err
		}
		r, err := b.Register(c)
		if err != nil {
			return err
		}
		return do(ctx, c, b, r)
	}
}

func window(do func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error) step {
	return windowWith(0, do)
}

func windowWith(flags ubcoll.WindowFlags, do func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error) step {
	return with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
		w, err := c.RegisterWindow(ctx, b.Vec(), flags)
		if err != nil {
			return err
		}
		if err := bar(ctx, c); err != nil { // both have it before one ends it
			return err
		}
		return do(ctx, c, w)
	})
}

// of2 is what rank 0 does with a window whose part of rank 2 is on another host.
func of2(do func(w *ubcoll.Window) error) step {
	return window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) (err error) {
		if c.Rank() == 0 {
			err = do(w)
		}
		return errors.Join(err, bar(ctx, c))
	})
}

func channel(do func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error) step {
	return with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
		ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
		if err != nil {
			return err
		}
		if err := bar(ctx, c); err != nil { // both have it before one ends it
			return err
		}
		return do(ctx, c, ch)
	})
}

func freed(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100)
	if err != nil {
		return err
	}
	if err := b.Free(); err != nil {
		return err
	}
	return coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum)
}

func callErrors() []bad {
	four, two, hosts := conform.Block(4), conform.Block(2), conform.Block(2, 1)
	one := conform.Block(1)
	short := ubcoll.Options{Timeout: 100 * time.Millisecond}
	f := ubcoll.Of(make([]float32, 100))
	shifted := ubcoll.Of(make([]byte, 500)).Slice(1, 401).As(dtype.Float32)
	var no ubcoll.Options
	return []bad{
		{"count", four, no, odd(reduce(99), reduce(100))},
		{"type", four, no, odd(reduceOf(f.As(dtype.Int32), f.As(dtype.Int32), ubcoll.Sum), reduce(100))},
		{"reduction", four, no, odd(reduceOf(f, f, ubcoll.Max), reduce(100))},
		{"operation", four, no, odd(bar, reduce(100))},
		{"operation of the others", four, no, odd(reduce(100), bar)},
		{"root", four, no, odd(bcast(1), bcast(0))},
		{"two against two", four, no, func(ctx context.Context, c *ubcoll.Comm) error { return reduce(100+c.Rank()%2)(ctx, c) }},
		{"two ranks", two, no, odd(reduce(99), reduce(100))},
		{"window against barrier", two, no, by(bar, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error { return nil }))},
		{"split against dup", two, no, by(
			func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.Split(ctx, 0, 0)) },
			func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.Dup(ctx)) })},
		{"counts of all_gather_v", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return coll.AllGatherV(ctx, c, f.Slice(0, 20), []int{10, 10}, f.Slice(0, 10+c.Rank()))
		}},
		{"counts that differ", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return coll.AllGatherV(ctx, c, f.Slice(0, 20+c.Rank()), []int{10, 10 + c.Rank()}, f.Slice(50, 60+c.Rank()))
		}},
		{"counts of all_to_all_v", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			n := 10 + c.Rank()
			return coll.AllToAllV(ctx, c, f.Slice(0, 20), []int{10, 10}, f.Slice(50, 60+n), []int{n, 10})
		}},
		{"hosts: count", hosts, no, odd(reduce(99), reduce(100))},
		{"hosts: count on one host", hosts, no, by(reduce(100), reduce(99), reduce(100))},
		{"hosts: operation", hosts, no, odd(bar, reduce(100))},
		{"hosts: refused", hosts, no, odd(reduceOf(f.Slice(0, 10), f, ubcoll.Sum), reduce(100))},
		{"hosts: counts", hosts, no, func(ctx context.Context, c *ubcoll.Comm) error {
			n := 10
			if c.Rank() == 2 {
				n = 9
			}
			return coll.AllGatherV(ctx, c, f.Slice(0, 20+n), []int{10, n, 10}, f.Slice(50, 60))
		}},
		{"hosts: message of another type", hosts, no, by(send(2, 100), nothing, recvInts(0, 100))},
		{"hosts: large message of another type", hosts, no, by(send(2, 100000), nothing, recvInts(0, 100000))},
		{"hosts: message from one that leaves", hosts, no, by(leave, nothing, recvInts(0, 100))},
		{"hosts: large message to one that leaves", hosts, no, by(leave, nothing, send(0, 100000))},
		{"hosts: window of another size", hosts, no, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100)
			if err != nil {
				return err
			}
			return testkit.ErrOf(c.RegisterWindow(ctx, b.Vec().Slice(0, 100-c.Rank()/2), 0))
		}},
		{"hosts: window: peer", hosts, no, of2(func(w *ubcoll.Window) error { return testkit.ErrOf(w.Peer(2)) })},
		{"hosts: window: outside", hosts, no, of2(func(w *ubcoll.Window) error { return w.Put(context.Background(), 2, 396, f.Slice(0, 2)) })},
		{"hosts: window: no atomics", hosts, no, of2(func(w *ubcoll.Window) error { return testkit.ErrOf(w.FetchAdd(context.Background(), 2, 0, 1)) })},
		{"hosts: window: closed by the peer", hosts, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			if c.Rank() == 2 {
				if err := w.Close(); err != nil {
					return err
				}
			}
			if err := bar(ctx, c); err != nil || c.Rank() != 0 {
				return err
			}
			return w.Put(ctx, 2, 0, f.Slice(0, 2))
		})},
		{"hosts: aborted", hosts, no, odd(abort, bar)},
		{"hosts: closed", hosts, no, odd(leave, bar)},
		{"hosts: closed on the first", hosts, no, by(leave, bar, bar)},
		{"hosts: timeout", hosts, short, odd(nothing, bar)},
		{"hosts: timeout of the first", hosts, short, by(nothing, bar, bar)},
		{"short destination", four, no, odd(reduceOf(f.Slice(0, 10), f, ubcoll.Sum), reduce(100))},
		{"zero Vec", four, no, odd(reduceOf(ubcoll.Vec{}, f, ubcoll.Sum), reduce(100))},
		{"zero Op", four, no, odd(reduceOf(f, f, ubcoll.Op{}), reduce(100))},
		{"misaligned", four, no, odd(reduceOf(shifted, shifted, ubcoll.Sum), reduce(100))},
		{"overlap", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			v := ubcoll.Of(make([]float32, 200))
			if c.Rank() == 1 {
				return coll.AllReduce(ctx, c, v.Slice(1, 101), v.Slice(0, 100), ubcoll.Sum)
			}
			return reduce(100)(ctx, c)
		}},
		{"out of range", four, no, odd(reduceOf(f.Slice(60, 170), f, ubcoll.Sum), reduce(100))},
		{"root out of range", four, no, bcast(4)},
		{"freed buffer", four, no, odd(freed, reduce(100))},
		{"cancelled before", four, no, odd(cancelled(reduce(100)), reduce(100))},
		{"cancelled meanwhile", four, no, odd(nothing, by(func(ctx context.Context, c *ubcoll.Comm) error {
			ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Millisecond, errors.New("no patience"))
			defer cancel()
			return bar(ctx, c)
		}, bar, bar))},
		{"nil context", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return bar(noContext, c) }},
		{"bool sum", two, no, reduceOf(ubcoll.Of(make([]bool, 4)), ubcoll.Of(make([]bool, 4)), ubcoll.Sum)},
		{"uneven", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return coll.ReduceScatter(ctx, c, f.Slice(0, 10), f.Slice(0, 21), ubcoll.Sum)
		}},
		{"aborted", four, no, odd(abort, bar)},
		{"aborted twice", four, no, then(odd(abort, bar), bar)},
		{"aborted by an error of a call", four, no, odd(func(ctx context.Context, c *ubcoll.Comm) error {
			err := send(7, 1)(ctx, c)
			c.Abort(err)
			return err
		}, bar)},
		{"closed by a peer", four, no, odd(leave, bar)},
		{"closed by itself", two, no, then(leave, bar)},
		{"closed twice", two, no, then(leave, leave)},
		{"timeout", four, short, odd(nothing, bar)},
		{"timeout of a reduction", four, short, odd(nothing, reduce(100000))},
		{"sends in a circle", two, short, by(send(1, 100000), send(0, 100000))},
		{"receives in a circle", two, short, by(recv(1, 100), recv(0, 100))},
		{"different orders", two, short, by(bar, recv(0, 100))},
		{"message too long", two, no, by(send(1, 100), recv(0, 50))},
		{"large message too long", two, no, by(send(1, 100000), recv(0, 50000))},
		{"message of another type", two, no, by(send(1, 100), recvInts(0, 100))},
		{"large message of another type", two, no, by(send(1, 100000), recvInts(0, 100000))},
		{"no such rank", two, no, send(7, 1)},
		{"send to itself", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return send(c.Rank(), 100000)(ctx, c) }},
		{"receive from a rank that closes", two, no, by(leave, recv(0, 100))},
		{"receive from a rank that aborts", two, no, by(func(ctx context.Context, c *ubcoll.Comm) error {
			c.Abort(errors.New("out of paper"))
			return nil
		}, recv(0, 100))},
		{"receive cancelled", two, no, by(nothing, func(ctx context.Context, c *ubcoll.Comm) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			return recv(0, 100)(ctx, c)
		})},
		{"exchange", two, no, by(func(ctx context.Context, c *ubcoll.Comm) error {
			return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return then(send(1, 100), send(1, 200))(ctx, g) })
		}, func(ctx context.Context, c *ubcoll.Comm) error {
			return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return then(recv(0, 50), recv(0, 50))(ctx, g) })
		})},
		{"group: messages to nobody", two, no, in(ubcoll.Group, func(ctx context.Context, g *ubcoll.Comm) error {
			return errors.Join(send(7, 1)(ctx, g), send(8, 1)(ctx, g))
		})},
		{"group: messages to a rank that closes", two, no, by(leave, in(ubcoll.Group, then(recv(0, 100), recv(0, 100))))},
		{"group: count", two, no, by(in(ubcoll.Group, then(reduce(100), reduce(10))), in(ubcoll.Group, then(reduce(100), reduce(11))))},
		{"group: refused", two, no, by(in(ubcoll.Group, then(reduce(100), reduceOf(f, f, ubcoll.Op{}))), in(ubcoll.Group, then(reduce(100), reduce(100))))},
		{"group: fails", two, no, by(in(ubcoll.Group, then(reduce(100), func(context.Context, *ubcoll.Comm) error { return errors.New("no more") })), in(ubcoll.Group, then(reduce(100), bar)))},
		{"group: wrong communicator", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return bar(ctx, c) })
		}},
		{"group: ended", one, no, func(ctx context.Context, c *ubcoll.Comm) error {
			var kept *ubcoll.Comm
			if err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { kept = g; return nil }); err != nil {
				return err
			}
			return bar(ctx, kept)
		}},
		{"capture: slice", two, no, in(captured, reduce(100))},
		{"capture: empty", two, no, in(captured, nothing)},
		{"capture: different", two, no, by(in(captured, bar), in(captured, then(bar, bar)))},
		{"capture: closed", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			g, err := graph.Capture(ctx, c, func(g *ubcoll.Comm) error { return bar(ctx, g) })
			if err != nil {
				return err
			}
			if err := g.Close(); err != nil {
				return err
			}
			return g.Launch(ctx)
		}},
		{"split: cancelled", two, no, by(cancelled(func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.Split(ctx, 0, 0)) }),
			func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.Split(ctx, 0, 0)) })},
		{"split: no color", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			d, err := c.Split(ctx, ubcoll.NoColor, 0)
			if err != nil {
				return err
			}
			return bar(ctx, d)
		}},
		{"child: count", four, no, func(ctx context.Context, c *ubcoll.Comm) error {
			d, err := c.Split(ctx, c.Rank()/2, 0)
			if err != nil {
				return err
			}
			defer d.Close()
			return reduce(100+d.Rank())(ctx, d)
		}},
		{"alloc: too much", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return testkit.ErrOf(ubcoll.Alloc[float64](c, ubcoll.Host, 1<<50))
		}},
		{"alloc: negative", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return testkit.ErrOf(ubcoll.Alloc[float64](c, ubcoll.Host, -1))
		}},
		{"alloc: device", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return testkit.ErrOf(ubcoll.Alloc[float64](c, ubcoll.CUDA(0), 1))
		}},
		{"adopt: nil", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return testkit.ErrOf(ubcoll.Adopt(c, ubcoll.Host, nil, 1))
		}},
		{"adopt: nil tensor", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			_, _, err := ubcoll.AdoptDLPack(c, nil)
			return err
		}},
		{"adopt: tensor of complex numbers", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			_, _, err := ubcoll.AdoptDLPack(c, unsafe.Pointer(&dlpack.Managed{DeviceType: dlpack.CPU, Code: 5, Bits: 64, Lanes: 1}))
			return err
		}},
		{"adopt: transposed tensor", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			_, _, err := ubcoll.AdoptDLPack(c, unsafe.Pointer(&dlpack.Managed{DeviceType: dlpack.CPU, Code: 2, Bits: 32, Lanes: 1,
				Dims: 2, Shape: uintptr(unsafe.Pointer(&transposed[0])), Strides: uintptr(unsafe.Pointer(&transposed[2]))}))
			return err
		}},
		{"register: slice", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.RegisterBuffer(f)) }},
		{"free: registered", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return b.Free()
		})},
		{"free: twice", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return errors.Join(r.Close(), b.Free(), b.Free())
		})},
		{"registration: closed twice", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return errors.Join(r.Close(), r.Close())
		})},
		{"copy: too much", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return b.CopyFrom(ctx, make([]float32, 101))
		})},
		{"copy: freed", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return errors.Join(r.Close(), b.Free(), b.CopyFrom(ctx, make([]float32, 1)))
		})},
		{"import: garbage", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.Import([]byte("garbage"))) }},
		{"import: stale", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			h, err := r.MarshalBinary()
			if err != nil {
				return err
			}
			all := make([]byte, 2*len(h))
			if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
				return err
			}
			if err := errors.Join(r.Close(), b.Free(), bar(ctx, c)); err != nil {
				return err
			}
			return testkit.ErrOf(c.Import(all[(1-c.Rank())*len(h):][:len(h)]))
		})},
		{"window: slice", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.RegisterWindow(ctx, f, 0)) }},
		{"window: slice of one", two, no, by(func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.RegisterWindow(ctx, f, 0)) },
			window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error { return nil }))},
		{"window: out of range", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return w.Put(ctx, 1-c.Rank(), 300, f)
		})},
		{"window: no such rank", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error { return w.Signal(ctx, 2) })},
		{"window: wait in vain", two, short, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error { return w.Wait(ctx, 1-c.Rank()) })},
		{"window: wait for one that closes", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			if c.Rank() == 0 {
				return w.Close()
			}
			return w.Wait(ctx, 0)
		})},
		{"window: wait for one that leaves", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			if c.Rank() == 0 {
				return errors.Join(w.Close(), c.Close())
			}
			return w.Wait(ctx, 0)
		})},
		{"window: closed", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return errors.Join(w.Close(), w.Signal(ctx, 0))
		})},
		{"window: put to a read-only one", two, no, windowWith(ubcoll.WindowReadOnly, func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return w.Put(ctx, 1-c.Rank(), 0, f)
		})},
		{"window: collective into a read-only part", two, no, windowWith(ubcoll.WindowReadOnly, func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			v, err := w.Peer(0)
			if err != nil {
				return err
			}
			return reduceOf(v.Slice(0, f.Len()), f, ubcoll.Sum)(ctx, c)
		})},
		{"window: fetch-and-add without the right", two, no, window(func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return testkit.ErrOf(w.FetchAdd(ctx, 1-c.Rank(), 0, 1))
		})},
		{"window: unaligned", two, no, windowWith(ubcoll.WindowAtomic, func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return w.Accumulate(ctx, 1-c.Rank(), 2, f.Slice(0, 10), ubcoll.Sum)
		})},
		{"window: product", two, no, windowWith(ubcoll.WindowAtomic, func(ctx context.Context, c *ubcoll.Comm, w *ubcoll.Window) error {
			return w.Accumulate(ctx, 1-c.Rank(), 0, f, ubcoll.Prod)
		})},
		{"window: flags that exclude each other", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			return testkit.ErrOf(c.RegisterWindow(ctx, f, ubcoll.WindowReadOnly|ubcoll.WindowAtomic))
		}},
		{"channel: put without the right", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			local, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: ubcoll.AccessRemoteRead})
			if err != nil {
				return err
			}
			ch, err := p2p.Connect(ctx, c, 1-c.Rank(), local)
			if err != nil {
				return err
			}
			return errors.Join(ch.Put(ctx, 0, 0, 8), ch.Get(ctx, 0, 0, 8))
		})},
		{"registration: contradictory rights", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return testkit.ErrOf(c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: ubcoll.AccessRemoteWrite}))
		})},
		{"registration: transport of other memory", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return testkit.ErrOf(c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Transports: ubcoll.TransportCUDAIPC}))
		})},
		{"registration: handle of a local one", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			local, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: ubcoll.AccessLocalOnly})
			if err != nil {
				return err
			}
			return testkit.ErrOf(local.MarshalBinary())
		})},
		{"channel: to itself", two, no, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			return testkit.ErrOf(p2p.Connect(ctx, c, 2, r))
		})},
		{"channel: out of range", two, no, channel(func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error { return ch.Put(ctx, 300, 0, 200) })},
		{"channel: wait in vain", two, short, channel(func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error { return ch.Wait(ctx) })},
		{"channel: peer closes", two, no, channel(func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error {
			if c.Rank() == 0 {
				return ch.Close()
			}
			return ch.Wait(ctx)
		})},
		{"channel: peer aborts", two, no, channel(func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error {
			if c.Rank() == 0 {
				c.Abort(errors.New("out of paper"))
				return nil
			}
			return ch.Wait(ctx)
		})},
		{"channel: peer never connects", two, short, with(func(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], r *ubcoll.Registration) error {
			if c.Rank() == 0 {
				return nil
			}
			return testkit.ErrOf(p2p.Connect(ctx, c, 0, r))
		})},
		{"channel: closed", two, no, channel(func(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel) error {
			return errors.Join(ch.Close(), ch.Signal(ctx))
		})},
		{"stream: closed", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			return errors.Join(s.Close(), bar(ctx, c.On(s)))
		}},
		{"stream: count", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			return errors.Join(reduce(100+c.Rank())(ctx, c.On(s)), s.Sync(ctx), s.Close())
		}},
		{"no device", two, no, func(ctx context.Context, c *ubcoll.Comm) error { return testkit.ErrOf(c.GPU()) }},
		{"open: devices required", two, ubcoll.Options{Devices: ubcoll.DevicesRequired}, nothing},
		{"open: bad algorithm", two, ubcoll.Options{Algorithm: "rign"}, nothing},
		{"open: negative timeout", two, ubcoll.Options{Timeout: -1}, nothing},
		{"adopted: window", two, no, func(ctx context.Context, c *ubcoll.Comm) error {
			x := make([]byte, 4096)
			b, err := ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&x[0]), len(x))
			if err != nil {
				return err
			}
			defer b.Free()
			return testkit.ErrOf(c.RegisterWindow(ctx, b.Vec(), 0))
		}},
	}
}

// transposed is a shape, and strides that are not row-major.
var transposed = [4]int64{2, 3, 1, 2}
