package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// run is the job of one rank. Only rank 0 writes: the lines of NCCL's example to out, and nothing else; remarks to notes.
func run(ctx context.Context, c *ubcoll.Comm, e *experiment.Experiment, out, notes io.Writer) error {
	if err := bench.Required(c); err != nil {
		return err
	}
	if n := e.Job.Ranks; n != 0 && n != c.Size() {
		return exitError{fmt.Errorf("the config asks for %d ranks, but the job has %d", n, c.Size()), exitUsage}
	}
	if c.Rank() != 0 {
		out, notes = io.Discard, io.Discard
	}
	p := &printer{w: out, notes: notes}
	switch e.AllReduce.Type {
	case dtype.Int8:
		return allReduce[int8](ctx, c, &e.AllReduce, p)
	case dtype.Uint8:
		return allReduce[uint8](ctx, c, &e.AllReduce, p)
	case dtype.Int16:
		return allReduce[int16](ctx, c, &e.AllReduce, p)
	case dtype.Uint16:
		return allReduce[uint16](ctx, c, &e.AllReduce, p)
	case dtype.Int32:
		return allReduce[int32](ctx, c, &e.AllReduce, p)
	case dtype.Uint32:
		return allReduce[uint32](ctx, c, &e.AllReduce, p)
	case dtype.Int64:
		return allReduce[int64](ctx, c, &e.AllReduce, p)
	case dtype.Uint64:
		return allReduce[uint64](ctx, c, &e.AllReduce, p)
	case dtype.Float16:
		return allReduce[dtype.F16](ctx, c, &e.AllReduce, p)
	case dtype.BFloat16:
		return allReduce[dtype.BF16](ctx, c, &e.AllReduce, p)
	case dtype.Float32:
		return allReduce[float32](ctx, c, &e.AllReduce, p)
	case dtype.Bool:
		return allReduce[bool](ctx, c, &e.AllReduce, p)
	}
	return allReduce[float64](ctx, c, &e.AllReduce, p)
}

// noResult returns the first contents of the receive buffers, so that an all-reduce that does nothing cannot pass for
// one whose result is 0. Numbers are 111, which is no result; bools are the opposite of the result.
func noResult[T dtype.Elem](op string, n int) float64 {
	if dtype.Of[T]() == dtype.Bool {
		want, _ := expected[T](op, n)
		return 1 - want
	}
	return 111
}

// allReduce is the job on elements of type T. What rank 0 prints about a rank came from that rank.
func allReduce[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, a *experiment.AllReduce, p *printer) error {
	op, err := ubcoll.ParseOp(a.Op)
	if err != nil {
		return err
	}
	device, err := bench.Place(ctx, c, a.Device, true)
	if err != nil {
		return err
	}
	copies := 3 // the input, the first contents of the result, and what is announced
	if device.IsHost() {
		copies += 2 // the buffers
	}
	what := fmt.Sprintf("buffers of %d %v", a.Count(), a.Type)
	if err := bench.CheckMemory(ctx, c, what, copies*a.Count()*a.Type.Size()); err != nil {
		return err
	}
	p.printf("Starting AllReduce example with %d ranks\n", c.Size())
	index := device.Index()
	if device.IsHost() {
		index = c.LocalRank()
	}
	devices, err := gather(ctx, c, uint64(index))
	if err != nil {
		return err
	}
	for r, d := range devices {
		p.printf("  Rank %d communicator initialized using device %d\n", r, d)
	}
	if device.IsHost() {
		fmt.Fprintln(p.notes, onHost)
	}

	send, err := ubcoll.Alloc[T](c, device, a.Count())
	if err != nil {
		return err
	}
	recv := send
	if !a.InPlace {
		if recv, err = ubcoll.Alloc[T](c, device, a.Count()); err != nil {
			return err
		}
	}
	bytes := uint64(send.Vec().Len() * send.Vec().Type().Size())
	allocated, err := gather(ctx, c, bytes)
	if err != nil {
		return err
	}
	p.printf("User Buffer allocation:\n")
	for r, n := range allocated {
		p.printf("  Rank %d allocating %s per buffer\n", r, size("%.2f", n))
	}
	var registered []*ubcoll.Registration
	if a.Registration == ubcoll.RegisterExplicit {
		vecs := []ubcoll.Vec{send.Vec(), recv.Vec()}
		if a.InPlace {
			vecs = vecs[:1]
		}
		for _, v := range vecs {
			r, err := c.RegisterBuffer(v)
			if err != nil {
				return err
			}
			registered = append(registered, r)
		}
	}

	mine := fill(make([]T, a.Count()), float64(c.Rank()))
	got := fill(make([]T, a.Count()), noResult[T](a.Op, c.Size()))
	if err := recv.CopyFrom(ctx, got); err != nil {
		return err
	}
	us := make([]float64, 0, a.Iterations)
	for i := range a.Iterations {
		if i == 0 || a.InPlace { // in place, the last result has overwritten it
			if err := send.CopyFrom(ctx, mine); err != nil {
				return err
			}
		}
		if i == 0 {
			if err := announce(ctx, c, send, bytes, p); err != nil {
				return err
			}
		}
		if a.Iterations > 1 {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
		}
		start := time.Now()
		if err := coll.AllReduce(ctx, c, recv.Vec(), send.Vec(), op); err != nil {
			return err
		}
		us = append(us, float64(time.Since(start))/1e3)
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	p.printf("AllReduce completed successfully\n")
	if err := timed(ctx, c, us, int(bytes), p); err != nil {
		return err
	}

	if err := recv.CopyTo(ctx, got); err != nil {
		return err
	}
	if err := corrupt(c.Rank(), got); err != nil {
		return err
	}
	if err := report(ctx, c, check(got, a.Op, c.Size()), p); err != nil {
		return err
	}

	for _, r := range registered {
		if err := r.Close(); err != nil {
			return err
		}
	}
	closed, err := gather(ctx, c, uint64(len(registered)))
	if err != nil {
		return err
	}
	for r, n := range closed {
		if n > 0 {
			p.printf("  Rank %d buffers deregistered\n", r)
		}
	}
	if err := send.Free(); err != nil {
		return err
	}
	if !a.InPlace {
		if err := recv.Free(); err != nil {
			return err
		}
	}
	return p.err
}

// timed prints how long the all-reduces took on the slower rank, except the first, which sets up what the others use:
// the median, and the bandwidths as in nccl-tests.
func timed(ctx context.Context, c *ubcoll.Comm, us []float64, bytes int, p *printer) error {
	if len(us) < 2 {
		return nil
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(us), ubcoll.Of(us), ubcoll.Max); err != nil {
		return err
	}
	t := stats.Median(us[1:])
	alg, bus := bench.Bandwidth("all_reduce", c.Size(), bytes, t)
	p.printf("  %d iterations: the first took %.2f us, the others %.2f us (median), algbw %.3f GB/s, busbw %.3f GB/s\n", len(us),
		us[0], t, alg, bus)
	return p.err
}

// announce prints the contents of all ranks' send buffers.
func announce[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, send *ubcoll.Buffer[T], bytes uint64, p *printer) error {
	first := make([]T, send.Vec().Len())
	if err := send.CopyTo(ctx, first); err != nil {
		return err
	}
	values, err := gather(ctx, c, uint64(value(first[0])))
	if err != nil {
		return err
	}
	for r, v := range values {
		p.printf("  Rank %d data initialized (value: %d)\n", r, v)
	}
	p.printf("Starting AllReduce with %d elements (%s)\n", len(first), size("%.4g", bytes))
	return p.err
}

// report prints what the ranks have found in their results, and fails if any found a wrong element.
func report(ctx context.Context, c *ubcoll.Comm, mine finding, p *printer) error {
	found, err := gather(ctx, c, mine.words()...)
	if err != nil {
		return err
	}
	failed := 0
	p.printf("Verification - Expected: %.1f, Got: %.1f\n", mine.expected, mine.got)
	for r := range c.Size() {
		f := findingOf(found[r*findingWords:])
		if f.wrong == 0 {
			continue
		}
		if failed++; failed == 1 {
			p.printf("Results verification failed\n")
		}
		p.printf("  Rank %d has %d wrong elements, the first at index %d: expected %v, got %v\n", r, f.wrong, f.index,
			f.expected, f.got)
	}
	if failed == 0 {
		p.printf("Results verified correctly\n")
		return p.err
	}
	// No rank may end the job before rank 0 has printed what is wrong.
	err = errors.Join(p.err, coll.Barrier(ctx, c))
	return exitError{errors.Join(fmt.Errorf("wrong results on %d of %d ranks", failed, c.Size()), err), exitWrong}
}

// onHost is the remark where no GPU takes part.
const onHost = "allreduce_ub: all ranks run on host memory: a rank's device is its number on its host"

// gather returns the words of every rank, in rank order: each rank fills its own slots of a vector, and an all-reduce
// adds the vectors.
func gather(ctx context.Context, c *ubcoll.Comm, words ...uint64) ([]uint64, error) {
	all := make([]uint64, c.Size()*len(words))
	copy(all[c.Rank()*len(words):], words)
	return all, coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(all), ubcoll.Sum)
}

// printer writes the job's lines as they come, and keeps the first error.
type printer struct {
	w     io.Writer
	notes io.Writer
	err   error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// size formats n bytes in the largest unit that they fill.
func size(format string, n uint64) string {
	unit, v := "bytes", float64(n)
	for _, u := range []string{"KB", "MB"} {
		if v < 1024 {
			break
		}
		unit, v = u, v/1024
	}
	if unit == "bytes" {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf(format+" "+unit, v)
}
