package collectives

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Bad makes calls that are wrong on one rank. It checks that every rank gets an error that names that rank, and that
// the communicator works afterwards.
func Bad(ctx context.Context, c *ubcoll.Comm) error {
	n := c.Size()
	bad := n - 1 // the rank that makes the mistake
	mine := c.Rank() == bad
	x, y := make([]float32, 64), make([]float32, 64)
	call := func(dst, src ubcoll.Vec, op ubcoll.Op) error { return coll.AllReduce(ctx, c, dst, src, op) }
	freed, err := ubcoll.Alloc[float32](c, ubcoll.Host, 64)
	if err != nil {
		return err
	}
	stale := freed.Vec()
	if err := freed.Free(); err != nil {
		return err
	}
	shifted := ubcoll.Of(make([]byte, 256)).Slice(1, 241).As(dtype.Float32) // at an odd address
	block := 5                                                              // elements
	if mine {
		block = 6
	}
	long := make([]float32, 6*n)
	counts := make([]int, n)
	for r := range counts {
		counts[r] = 5
	}
	if mine {
		counts[0] = 6
	}
	all := ubcoll.Of(make([]float32, total(counts)))
	expects := fmt.Sprintf("rank %d expects 6 elements from rank 0, which sends 5", bad)

	cases := []wrongCall{
		{"count differs", func() error {
			if mine {
				return call(ubcoll.Of(y[:63]), ubcoll.Of(x[:63]), ubcoll.Sum)
			}
			return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum)
		}, ubcoll.ErrMismatch, "count 63"},
		{"type differs", func() error {
			if mine {
				return call(ubcoll.Of(y).As(dtype.Int32), ubcoll.Of(x).As(dtype.Int32), ubcoll.Sum)
			}
			return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum)
		}, ubcoll.ErrMismatch, "int32"},
		{"reduction differs", func() error {
			if mine {
				return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Max)
			}
			return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum)
		}, ubcoll.ErrMismatch, "max"},
		{"operation differs", func() error {
			if mine {
				return coll.Barrier(ctx, c)
			}
			return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum)
		}, ubcoll.ErrMismatch, "barrier"},
		{"short destination", refuse(mine, func() error { return call(ubcoll.Of(y[:10]), ubcoll.Of(x), ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrArgument, "the destination has 10 elements"},
		{"nil destination", refuse(mine, func() error { return call(ubcoll.Of[float32](nil), ubcoll.Of(x), ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrArgument, "0 elements"},
		{"zero Vec", refuse(mine, func() error { return call(ubcoll.Vec{}, ubcoll.Of(x), ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrArgument, "invalid"},
		{"zero Op", refuse(mine, func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Op{}) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrArgument, "zero Op"},
		{"misaligned", refuse(mine, func() error { return call(shifted, shifted, ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y[:60]), ubcoll.Of(x[:60]), ubcoll.Sum) }), ubcoll.ErrArgument, "not aligned"},
		{"overlap", refuse(mine, func() error { return call(ubcoll.Of(x[1:]), ubcoll.Of(x[:63]), ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y[:63]), ubcoll.Of(x[:63]), ubcoll.Sum) }), ubcoll.ErrArgument, "overlap"},
		{"out of range", refuse(mine, func() error { return call(ubcoll.Of(y).Slice(60, 70), ubcoll.Of(x), ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrArgument, "[60:70] of 64"},
		{"freed buffer", refuse(mine, func() error { return call(stale, stale, ubcoll.Sum) },
			func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), ubcoll.ErrStale, "freed"},
		{"cancelled before the call", refuse(mine, func() error {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			return coll.AllReduce(gone, c, ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum)
		}, func() error { return call(ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum) }), context.Canceled, "canceled"},
	}
	of := func(x []float32, blocks int) ubcoll.Vec { return ubcoll.Of(x[:blocks*block]) }
	few := ubcoll.Of(y[:5])
	cases = append(cases, []wrongCall{
		{"count of a reduce-scatter differs", func() error {
			return coll.ReduceScatter(ctx, c, of(y, 1), of(long, n), ubcoll.Sum)
		}, ubcoll.ErrMismatch, "count 6"},
		{"operation of a reduce-scatter differs", func() error {
			return coll.ReduceScatter(ctx, c, few, ubcoll.Of(long[:5*n]), []ubcoll.Op{ubcoll.Min, ubcoll.Max}[block-5])
		}, ubcoll.ErrMismatch, "max"},
		{"count of a reduce differs", func() error { return coll.Reduce(ctx, c, of(long, 1), of(y, 1), ubcoll.Sum, 0) }, ubcoll.ErrMismatch,
			"count 6"},
		{"root of a reduce differs", func() error { return coll.Reduce(ctx, c, ubcoll.Of(long[:5]), few, ubcoll.Sum, block-5) },
			ubcoll.ErrMismatch, "root 1"},
		{"count of an all-gather differs", func() error { return coll.AllGather(ctx, c, of(long, n), of(y, 1)) }, ubcoll.ErrMismatch,
			"count 6"},
		{"count of a gather differs", func() error { return coll.Gather(ctx, c, of(long, n), of(y, 1), 0) }, ubcoll.ErrMismatch, "count 6"},
		{"root of a gather differs", func() error { return coll.Gather(ctx, c, ubcoll.Of(long[:5*n]), few, block-5) }, ubcoll.ErrMismatch, "root 1"},
		{"count of a scatter differs", func() error { return coll.Scatter(ctx, c, of(y, 1), of(long, n), 0) }, ubcoll.ErrMismatch, "count 6"},
		{"root of a scatter differs", func() error { return coll.Scatter(ctx, c, few, ubcoll.Of(long[:5*n]), block-5) }, ubcoll.ErrMismatch,
			"root 1"},
		{"count of an all-to-all differs", func() error {
			return coll.AllToAll(ctx, c, of(long, n), of(make([]float32, 6*n), n))
		}, ubcoll.ErrMismatch, "count 6"},
		{"an all-to-all against an all-gather", func() error {
			if mine {
				return coll.AllToAll(ctx, c, ubcoll.Of(long[:n]), ubcoll.Of(make([]float32, n)))
			}
			return coll.AllGather(ctx, c, ubcoll.Of(long[:n]), ubcoll.Of(y[:1]))
		}, ubcoll.ErrMismatch, "all_to_all"},
		{"root of a gather-v differs", func() error {
			return coll.GatherV(ctx, c, all, counts, ubcoll.Of(y[:counts[c.Rank()]]), block-5)
		}, ubcoll.ErrMismatch, "root 1"},
		{"root of a scatter-v differs", func() error {
			return coll.ScatterV(ctx, c, ubcoll.Of(y[:counts[c.Rank()]]), all, counts, block-5)
		}, ubcoll.ErrMismatch, "root 1"},
		{"a gather-v against an all-gather-v", func() error {
			if mine {
				return coll.GatherV(ctx, c, ubcoll.Vec{}, nil, few, 0)
			}
			return coll.AllGatherV(ctx, c, all, counts, few)
		}, ubcoll.ErrMismatch, "gather_v"},
		{"counts of an all-gather-v differ", func() error {
			return coll.AllGatherV(ctx, c, all, counts, ubcoll.Of(y[:counts[c.Rank()]]))
		}, ubcoll.ErrMismatch, expects},
		{"counts of an all-to-all-v differ", func() error {
			even := make([]int, n)
			for r := range even {
				even[r] = 5
			}
			return coll.AllToAllV(ctx, c, all, counts, ubcoll.Of(long[:5*n]), even)
		}, ubcoll.ErrMismatch, expects},
		{"counts of a gather-v differ", func() error { return coll.GatherV(ctx, c, all, counts, few, bad) }, ubcoll.ErrMismatch, expects},
		{"counts of a scatter-v differ", func() error { return coll.ScatterV(ctx, c, few, all, counts, bad) }, ubcoll.ErrMismatch,
			fmt.Sprintf("rank 0 expects 5 elements from rank %d, which sends 6", bad)},
		{"short destination of an all-gather", func() error {
			return coll.AllGather(ctx, c, ubcoll.Of(long[:5*n-(block-5)]), few)
		}, ubcoll.ErrArgument, "the destination has"},
		{"overlap of an all-to-all", func() error {
			if mine {
				return coll.AllToAll(ctx, c, ubcoll.Of(long[:5*n]), ubcoll.Of(long[:5*n]))
			}
			return coll.AllToAll(ctx, c, ubcoll.Of(long[:5*n]), ubcoll.Of(make([]float32, 5*n)))
		}, ubcoll.ErrArgument, "overlap"},
		{"counts below zero", func() error {
			own := slices.Repeat([]int{1}, n)
			if mine {
				own[0] = -1
			}
			return coll.AllToAllV(ctx, c, ubcoll.Of(long[:n]), own, ubcoll.Of(make([]float32, n)), slices.Repeat([]int{1}, n))
		}, ubcoll.ErrArgument, "recvCounts[0] is -1"},
		{"freed buffer of a reduce-scatter", func() error {
			if mine {
				return coll.ReduceScatter(ctx, c, stale.Slice(0, 5), ubcoll.Of(long[:5*n]), ubcoll.Sum)
			}
			return coll.ReduceScatter(ctx, c, few, ubcoll.Of(long[:5*n]), ubcoll.Sum)
		}, ubcoll.ErrStale, "freed"},
		{"cancelled before a scatter-v", func() error {
			on, cancel := context.WithCancel(ctx)
			if cancel(); !mine {
				on = ctx
			}
			return coll.ScatterV(on, c, ubcoll.Of(y[:5]), ubcoll.Of(long[:5*n]), slices.Repeat([]int{5}, n), 0)
		}, context.Canceled, "canceled"},
	}...)
	for _, k := range cases {
		if n == 1 && errors.Is(k.want, ubcoll.ErrMismatch) {
			continue
		}
		err := k.call()
		if !errors.Is(err, k.want) {
			return conform.Fail(c, "%s: error %v, not %v", k.name, err, k.want)
		}
		var e *ubcoll.Error
		if !errors.As(err, &e) || e.Rank != c.Rank() || e.Seq == 0 {
			return conform.Fail(c, "%s: error %#v does not say rank and sequence", k.name, err)
		}
		if !mine && (!strings.Contains(err.Error(), fmt.Sprintf("rank %d", bad)) || !strings.Contains(err.Error(), k.text)) && n > 2 {
			return conform.Fail(c, "%s: error %q names neither rank %d nor %q", k.name, err, bad, k.text)
		}
		if !mine && n == 2 && !strings.Contains(err.Error(), k.text) {
			return conform.Fail(c, "%s: error %q does not have %q", k.name, err, k.text)
		}
		if err := c.Err(); err != nil {
			return conform.Fail(c, "%s: the communicator is broken: %v", k.name, err)
		}
		// It works as before.
		z := []int32{1}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(z), ubcoll.Of(z), ubcoll.Sum); err != nil || z[0] != int32(n) {
			return conform.Fail(c, "%s: after it: %v %v", k.name, z, err)
		}
	}
	var dup *ubcoll.Comm
	if c.LocalSize() < c.Size() {
		if dup, err = c.Dup(ctx); err != nil {
			return err
		}
		defer dup.Close()
	}
	return testkit.InOrder(
		func() error { return badLocal(ctx, c) },
		func() error { return badConcurrent(ctx, c, dup) },
		func() error { return badGroup(ctx, c) },
		func() error { return badFree(ctx, c, dup) })
}

// wrongCall is a call that is wrong on one rank.
type wrongCall struct {
	name string
	call func() error
	want error
	text string // must be in the error of the other ranks
}

func refuse(mine bool, wrong, right func() error) func() error {
	if mine {
		return wrong
	}
	return right
}

// badLocal makes wrong local calls.
func badLocal(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[float64](c, ubcoll.Host, 1000)
	if err != nil {
		return err
	}
	want := func(name string, err, is error) error {
		if !errors.Is(err, is) {
			return conform.Fail(c, "%s: error %v, not %v", name, err, is)
		}
		return nil
	}
	r, err := c.RegisterBuffer(b.Vec().Slice(10, 20))
	if err != nil {
		return err
	}
	errs := []error{want("free while registered", b.Free(), ubcoll.ErrInUse), r.Close(),
		want("second close of a registration", r.Close(), ubcoll.ErrClosed)}
	_, err = c.RegisterBuffer(ubcoll.Of(make([]float32, 10)))
	errs = append(errs, want("registering Go memory", err, ubcoll.ErrArgument))
	_, err = c.RegisterBuffer(b.Vec().Slice(990, 1001))
	errs = append(errs, want("registering out of range", err, ubcoll.ErrArgument))
	_, err = c.RegisterBuffer(b.Vec().Slice(5, 5))
	errs = append(errs, want("registering nothing", err, ubcoll.ErrArgument))
	_, err = ubcoll.Alloc[float64](c, ubcoll.Host, -1)
	errs = append(errs, want("allocating -1", err, ubcoll.ErrArgument))
	if _, none := c.GPU(); none != nil {
		_, err = ubcoll.Alloc[float64](c, ubcoll.CUDA(0), 1)
		errs = append(errs, want("allocating on a device", err, fault.ErrNotSupported))
	}
	_, err = ubcoll.Adopt(c, ubcoll.Host, nil, 10)
	errs = append(errs, want("adopting nil", err, ubcoll.ErrArgument))
	errs = append(errs, want("copying too much", b.CopyFrom(ctx, make([]float64, 1001)), ubcoll.ErrArgument))
	v := b.Vec()
	errs = append(errs, b.Free(), want("second free", b.Free(), ubcoll.ErrClosed),
		want("copying from a freed buffer", b.CopyTo(ctx, make([]float64, 1)), ubcoll.ErrStale))
	_, err = c.RegisterBuffer(v)
	errs = append(errs, want("registering a freed buffer", err, ubcoll.ErrStale))
	if b.Slice() != nil {
		errs = append(errs, conform.Fail(c, "Slice of a freed buffer is not nil"))
	}
	return errors.Join(errs...)
}

// badConcurrent calls from two goroutines at once. One call waits inside for rank 0, which comes only after all other
// ranks have seen that the second call, whichever it is, and Close are refused.
func badConcurrent(ctx context.Context, c, beside *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	x := []int64{1}
	if c.Rank() == 0 {
		if err := hear(ctx, c, beside); err != nil {
			return err
		}
		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
	}
	done := make(chan error, 2)
	for range 2 {
		go func() {
			y := []int64{1}
			done <- coll.AllReduce(ctx, c, ubcoll.Of(y), ubcoll.Of(y), ubcoll.Sum)
		}()
	}
	if second := <-done; !errors.Is(second, ubcoll.ErrBusy) {
		return conform.Fail(c, "a second call gave %v, not ErrBusy", second)
	}
	if err := c.Close(); !errors.Is(err, ubcoll.ErrBusy) {
		return conform.Fail(c, "Close gave %v, not ErrBusy", err)
	}
	if err := tell(ctx, c, beside); err != nil {
		return err
	}
	return <-done
}

// tell and hear let rank 0 learn that all others have reached a point while their collectives wait for it. They use
// messages; between hosts, where there are none, collectives of beside, a Dup.
func tell(ctx context.Context, c, beside *ubcoll.Comm) error {
	if beside != nil {
		return coll.Barrier(ctx, beside)
	}
	return p2p.Send(ctx, c, 0, ubcoll.Of([]byte{1}))
}

func hear(ctx context.Context, c, beside *ubcoll.Comm) error {
	if beside != nil {
		return coll.Barrier(ctx, beside)
	}
	for r := 1; r < c.Size(); r++ {
		if _, err := p2p.Recv(ctx, c, r, ubcoll.Of(make([]byte, 1))); err != nil {
			return err
		}
	}
	return nil
}

// badGroup makes one rank fail while it collects a group: its peers learn of it at once.
func badGroup(ctx context.Context, c *ubcoll.Comm) error {
	x := []int64{1}
	v := ubcoll.Of(x)
	own := errors.New("on purpose")
	var kept *ubcoll.Comm
	err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
		kept = g
		if err := coll.AllReduce(ctx, g, v, v, ubcoll.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			return own
		}
		return coll.Barrier(ctx, g)
	})
	switch {
	case err == nil, c.Rank() == 0 && !errors.Is(err, own), !strings.Contains(err.Error(), "on purpose"):
		return conform.Fail(c, "a group that rank 0 could not collect gave %v", err)
	}
	if err := coll.Barrier(ctx, kept); !errors.Is(err, ubcoll.ErrClosed) {
		return conform.Fail(c, "a call on a group that has ended gave %v", err)
	}
	if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil || x[0] != int64(c.Size()) {
		return conform.Fail(c, "after it: %v %v", x, err)
	}
	return nil
}

// badFree frees buffers while operations of every size use them: Free returns at once, and the memory goes when the
// operation is over. If a Free comes before its rank's call holds the buffer, the operation is refused on all ranks;
// then they try again, with more time for the call.
func badFree(ctx context.Context, c, beside *ubcoll.Comm) error {
	for _, n := range []int{1, 300, 100000} {
		err := ubcoll.ErrStale
		for head := 10 * time.Millisecond; errors.Is(err, ubcoll.ErrStale) && head < 5*time.Second; head *= 2 {
			err = freeDuring(ctx, c, beside, n, head)
		}
		if err != nil {
			return conform.Fail(c, "operation on a buffer of %d that was freed meanwhile: %w", n, err)
		}
	}
	return nil
}

// freeDuring makes all ranks but 0 start an operation on a buffer, which waits for rank 0, and free the buffer some
// time later.
func freeDuring(ctx context.Context, c, beside *ubcoll.Comm, n int, head time.Duration) error {
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	v := b.Vec()
	for i := range b.Slice() {
		b.Slice()[i] = 1
	}
	if c.Rank() == 0 {
		if err := hear(ctx, c, beside); err != nil {
			return err
		}
		err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
		if x := b.Slice()[0]; err == nil && x != float32(c.Size()) {
			err = fmt.Errorf("%v, not %d", x, c.Size())
		}
		return errors.Join(err, b.Free())
	}
	done := make(chan error, 1)
	go func() { done <- coll.AllReduce(ctx, c, v, v, ubcoll.Sum) }()
	time.Sleep(head)
	return errors.Join(b.Free(), testkit.InOrder(
		func() error { return tell(ctx, c, beside) },
		func() error { return <-done }))
}
