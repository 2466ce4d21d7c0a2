package onesided

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Atomics lets all ranks change the same words at once, and adds up what must come out.
func Atomics(ctx context.Context, c *ubcoll.Comm) error {
	return conform.Each(ctx, c, atomicWords, atomicChannel, accumulates, atomicMisuse)
}

// atomicWords adds to words of every rank from two goroutines of every rank, by FetchAdd and by CompareAndSwap.
func atomicWords(ctx context.Context, c *ubcoll.Comm) error {
	rounds, err := conform.Number("CONFORM_ATOMICS", 2000)
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 16)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var seen [2]map[uint64]bool // what this rank's FetchAdds got at rank 0
	errs := make([]error, 2)
	for g := range 2 {
		seen[g] = map[uint64]bool{}
		wg.Go(func() {
			for i := range rounds {
				p := i % c.Size()
				was, err := w.FetchAdd(ctx, p, 8, 3)
				if err == nil {
					err = swapIn(ctx, w, p, 16)
				}
				if err != nil {
					errs[g] = err
					return
				}
				if p == 0 {
					seen[g][was] = true
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	tries := uint64(0) // at this rank
	for i := range rounds {
		if i%c.Size() == c.Rank() {
			tries += 2 * uint64(c.Size())
		}
	}
	for i, want := range []uint64{0, 3 * tries, tries, 0} {
		if got := b.Slice()[i]; got != want {
			return conform.Fail(c, "word %d is %d, not %d", i, got, want)
		}
	}
	// No two calls got the same: what rank 0's word had been is different for each.
	mine := int64(len(seen[0]) + len(seen[1]))
	all := int64(0)
	for i := range rounds {
		if i%c.Size() == 0 {
			all += 2 * int64(c.Size())
		}
	}
	for x := range seen[0] {
		if seen[1][x] || x%3 != 0 {
			return conform.Fail(c, "FetchAdd returned %d twice, or at a wrong time", x)
		}
	}
	if err := conform.SumOf(ctx, c, mine, all); err != nil {
		return err
	}
	return errors.Join(w.Close(), b.Free())
}

// swapIn adds 1 by CompareAndSwap.
func swapIn(ctx context.Context, w *ubcoll.Window, peer, off int) error {
	for old := uint64(0); ; {
		was, err := w.CompareAndSwap(ctx, peer, off, old, old+1)
		if err != nil || was == old {
			return err
		}
		old = was
	}
}

// atomicChannel adds to a word of the partner, which adds to it, too.
func atomicChannel(ctx context.Context, c *ubcoll.Comm) error {
	const rounds = 1000
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 8)
	if err != nil {
		return err
	}
	r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{
		Access: ubcoll.AccessLocalWrite | ubcoll.AccessRemoteAtomic})
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(ctx, c, peer, r)
	if err != nil {
		return err
	}
	sum := uint64(0)
	for i := range uint64(rounds) {
		was, err := ch.FetchAdd(ctx, 8, i)
		if err != nil {
			return err
		}
		if was != sum {
			return conform.Fail(c, "FetchAdd %d returned %d, not %d", i, was, sum)
		}
		if sum += i; i%2 == 0 {
			continue
		}
		if was, err = ch.CompareAndSwap(ctx, 8, sum+1, 0); err != nil || was != sum {
			return conform.Fail(c, "CompareAndSwap of another value returned %d, %w", was, err)
		}
		if was, err = ch.CompareAndSwap(ctx, 8, sum, sum+5); err != nil || was != sum {
			return conform.Fail(c, "CompareAndSwap returned %d, %w", was, err)
		}
		sum += 5
	}
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	if err := errors.Join(conform.Refused(c, "unaligned", testkit.ErrOf(ch.FetchAdd(ctx, 4, 1)), ubcoll.ErrArgument),
		conform.Refused(c, "outside", testkit.ErrOf(ch.FetchAdd(ctx, 60, 1)), ubcoll.ErrArgument),
		conform.Refused(c, "on a stream", testkit.ErrOf(ch.On(s).FetchAdd(ctx, 8, 1)), ubcoll.ErrArgument),
		conform.Refused(c, "in a batch", ch.Batch(ctx, func(b *p2p.Channel) error { return testkit.ErrOf(b.FetchAdd(ctx, 8, 1)) }),
			ubcoll.ErrArgument), s.Close(), p2pBarrier(ctx, ch)); err != nil {
		return err
	}
	if got := b.Slice()[1]; got != sum {
		return conform.Fail(c, "the peer's sum is %d, not %d", got, sum)
	}
	return errors.Join(ch.Close(), r.Close(), b.Free())
}

// accumulates combines from all ranks at once, in every type and with every operation, at places that begin and end
// within words.
func accumulates(ctx context.Context, c *ubcoll.Comm) error {
	const n, most = 333, 9 // elements; values that every type holds
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 8*(n+9))
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(conform.Seed(), 0)) // the same on all ranks
	for _, t := range dtype.All() {
		for _, op := range []ubcoll.Op{ubcoll.Sum, ubcoll.Min, ubcoll.Max, ubcoll.Replace} {
			if t == dtype.Bool && op == ubcoll.Sum {
				continue
			}
			size := t.Size()
			first := 1 + rng.IntN(8)
			limit := most
			if t == dtype.Bool {
				limit = 1
			}
			values := make([][]float64, c.Size()+1) // the last ones are there before
			for r := range values {
				for range n {
					values[r] = append(values[r], float64(rng.IntN(limit+1)))
				}
			}
			if op == ubcoll.Replace { // one rank's values, all or none
				for r := range values {
					for i := range values[r] {
						values[r][i] = float64(r % (limit + 1))
					}
				}
			}
			clear(b.Slice())
			putValues(b.Slice()[first*size:], t, values[c.Size()])
			src := make([]uint64, n+1) // aligned for all types
			bytes := unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 8*n)
			putValues(bytes, t, values[c.Rank()])
			v := ubcoll.Of(bytes).Slice(0, n*size).As(t)
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			for p := range c.Size() {
				on := w
				if p%2 == 1 {
					on = w.On(s)
				}
				if err := on.Accumulate(ctx, (c.Rank()+p)%c.Size(), first*size, v, op); err != nil {
					return err
				}
			}
			if err := testkit.InOrder(func() error { return s.Sync(ctx) }, func() error { return w.Flush(ctx) },
				func() error { return coll.Barrier(ctx, c) }); err != nil {
				return err
			}
			for i := range n {
				got := getValue(b.Slice()[(first+i)*size:], t)
				if !possible(op, got, values, i) {
					return conform.Fail(c, "%v of %v, element %d of %d: %v", op, t, i, n, got)
				}
			}
			for i, x := range b.Slice() {
				if x != 0 && (i < first*size || i >= (first+n)*size) {
					return conform.Fail(c, "%v of %v changed byte %d, outside of the elements", op, t, i)
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
		}
	}
	return errors.Join(s.Close(), w.Close(), b.Free())
}

// possible reports whether got can be element i after all ranks have accumulated.
func possible(op ubcoll.Op, got float64, values [][]float64, i int) bool {
	ranks := len(values) - 1
	want := values[ranks][i]
	for r := range ranks {
		switch x := values[r][i]; op {
		case ubcoll.Sum:
			want += x
		case ubcoll.Min:
			want = math.Min(want, x)
		case ubcoll.Max:
			want = math.Max(want, x)
		case ubcoll.Replace:
			if got == x {
				return true
			}
		}
	}
	return op != ubcoll.Replace && got == want
}

// putValues writes values as elements of t.
func putValues(b []byte, t dtype.Type, values []float64) {
	for i, x := range values {
		var bits uint64
		switch t {
		case dtype.Float16:
			bits = uint64(dtype.ToF16(float32(x)))
		case dtype.BFloat16:
			bits = uint64(dtype.ToBF16(float32(x)))
		case dtype.Float32:
			bits = uint64(math.Float32bits(float32(x)))
		case dtype.Float64:
			bits = math.Float64bits(x)
		default:
			bits = uint64(x)
		}
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], bits)
		copy(b[i*t.Size():], w[:t.Size()])
	}
}

// getValue reads an element of t.
func getValue(b []byte, t dtype.Type) float64 {
	var w [8]byte
	copy(w[:], b[:t.Size()])
	bits := binary.LittleEndian.Uint64(w[:])
	switch t {
	case dtype.Float16:
		return float64(dtype.F16(bits).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16(bits).Float32())
	case dtype.Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case dtype.Float64:
		return math.Float64frombits(bits)
	}
	return float64(bits)
}

func atomicMisuse(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	plain, err1 := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
	w, err2 := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	s, err3 := ubcoll.NewStream(ubcoll.Host)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	x := ubcoll.Of(make([]float32, 10))
	bools := ubcoll.Of(make([]bool, 10))
	for p := range c.Size() {
		for name, err := range map[string]error{
			"no right to add":        testkit.ErrOf(plain.FetchAdd(ctx, p, 0, 1)),
			"no right to swap":       testkit.ErrOf(plain.CompareAndSwap(ctx, p, 0, 0, 1)),
			"no right to accumulate": plain.Accumulate(ctx, p, 0, x, ubcoll.Sum),
			"unaligned word":         testkit.ErrOf(w.FetchAdd(ctx, p, 12, 1)),
			"unaligned swap":         testkit.ErrOf(w.CompareAndSwap(ctx, p, 1, 0, 1)),
			"unaligned elements":     w.Accumulate(ctx, p, 2, x, ubcoll.Sum),
			"word outside":           testkit.ErrOf(w.FetchAdd(ctx, p, 4090, 1)),
			"word before":            testkit.ErrOf(w.FetchAdd(ctx, p, -8, 1)),
			"elements outside":       w.Accumulate(ctx, p, 4080, x, ubcoll.Sum),
			"a product":              w.Accumulate(ctx, p, 0, x, ubcoll.Prod),
			"an average":             w.Accumulate(ctx, p, 0, x, ubcoll.Avg),
			"the zero Op":            w.Accumulate(ctx, p, 0, x, ubcoll.Op{}),
			"a sum of bools":         w.Accumulate(ctx, p, 0, bools, ubcoll.Sum),
			"the zero Vec":           w.Accumulate(ctx, p, 0, ubcoll.Vec{}, ubcoll.Sum),
			"a value from a stream":  testkit.ErrOf(w.On(s).FetchAdd(ctx, p, 0, 1)),
			"no rank":                testkit.ErrOf(w.FetchAdd(ctx, c.Size()+p, 0, 1)),
		} {
			if err := conform.Refused(c, name, err, ubcoll.ErrArgument); err != nil {
				return err
			}
		}
	}
	y := ubcoll.Of(make([]float32, 10))
	if err := conform.Refused(c, "a collective that replaces", coll.AllReduce(ctx, c, y, x, ubcoll.Replace),
		ubcoll.ErrArgument); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	for i, v := range b.Slice() {
		if v != 0 {
			return conform.Fail(c, "a refused call changed byte %d", i)
		}
	}
	if c.Rank() == 0 {
		if err := w.Close(); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() != 0 {
		if err := testkit.InOrder(
			func() error {
				return conform.Refused(c, "fetch_add", testkit.ErrOf(w.FetchAdd(ctx, 0, 0, 1)), ubcoll.ErrStale)
			},
			func() error {
				return conform.Refused(c, "accumulate", w.Accumulate(ctx, 0, 0, x, ubcoll.Sum), ubcoll.ErrStale)
			},
			w.Close); err != nil {
			return err
		}
	}
	if err := conform.Refused(c, "fetch_add", testkit.ErrOf(w.FetchAdd(ctx, 0, 0, 1)), ubcoll.ErrClosed); err != nil {
		return fmt.Errorf("after Close: %w", err)
	}
	return errors.Join(s.Close(), plain.Close(), b.Free())
}
