package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/p2p"
)

// Kill reduces without end, from registered and from Go memory in turn, until a peer is lost, and writes what it then
// knows to a file of its own in JOBTEST_DIR: the rank it names and when. The test kills some rank at some moment, and
// looks into the files. A file rank-N.ready says that the rank is inside.
func Kill(ctx context.Context, c *ubcoll.Comm) error {
	return untilLost(c, func(v ubcoll.Vec) error { return coll.AllReduce(ctx, c, v, v, ubcoll.Max) })
}

// KillP2P is Kill with messages around the ring.
func KillP2P(ctx context.Context, c *ubcoll.Comm) error {
	n := c.Size()
	dst := make([]float32, 300000)
	return untilLost(c, func(v ubcoll.Vec) error {
		_, err := p2p.SendRecv(ctx, c, (c.Rank()+1)%n, v, (c.Rank()+n-1)%n, ubcoll.Of(dst))
		return err
	})
}

func untilLost(c *ubcoll.Comm, call func(v ubcoll.Vec) error) error {
	dir := os.Getenv("JOBTEST_DIR")
	if dir == "" {
		return fmt.Errorf("JOBTEST_DIR is not set: %w", ubcoll.ErrArgument)
	}
	ready := filepath.Join(dir, fmt.Sprintf("rank-%d.ready", c.Rank()))
	if err := os.WriteFile(ready, []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 300000)
	if err != nil {
		return err
	}
	x := make([]float32, 50000)
	for k := 0; ; k++ {
		v := b.Vec()
		if k%2 == 1 {
			v = ubcoll.Of(x)
		}
		err := call(v)
		if err == nil {
			continue
		}
		if werr := report(c, dir, err); werr != nil {
			return werr
		}
		if again := call(v); again == nil || c.Err() == nil {
			return fail(c, "a broken communicator worked: %v", again)
		}
		return err
	}
}

// report writes to a file which rank a lost peer's survivor names, and when, and stays until the other survivors have
// done so: what follows, in Main, may end them.
func report(c *ubcoll.Comm, dir string, err error) error {
	e, at := &ubcoll.Error{Peer: -1}, time.Now()
	errors.As(err, &e)
	path := func(r int) string { return filepath.Join(dir, fmt.Sprintf("rank-%d.report", r)) }
	text := fmt.Sprintf("%d %d lost=%v %v", e.Peer, at.UnixNano(), errors.Is(err, ubcoll.ErrPeerLost), err)
	mine := path(c.Rank())
	if err := errors.Join(os.WriteFile(mine+".tmp", []byte(text), 0o600), os.Rename(mine+".tmp", mine)); err != nil {
		return err
	}
	for r := range c.Size() {
		for r != e.Peer && time.Since(at) < await.Limit {
			if _, err := os.Stat(path(r)); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// ExitEarly has the last rank return before a collective that the others call.
func ExitEarly(ctx context.Context, c *ubcoll.Comm) error {
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Size() == 1 || c.Rank() == c.Size()-1 {
		return nil
	}
	err := coll.Barrier(ctx, c)
	var e *ubcoll.Error
	if !errors.Is(err, ubcoll.ErrPeerLost) || !errors.As(err, &e) || e.Peer != c.Size()-1 {
		return fail(c, "a rank that left gave %v, not ErrPeerLost about rank %d", err, c.Size()-1)
	}
	return nil
}

// foot is what this process has: descriptors, mappings, goroutines and resident memory.
type foot struct{ fds, maps, routines, kib int }

func footprint() (f foot, err error) {
	debug.FreeOSMemory()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return f, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return f, err
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return f, err
	}
	var size, rss int
	_, err = fmt.Sscan(string(b), &size, &rss)
	return foot{len(es), bytes.Count(maps, []byte("\n")), runtime.NumGoroutine(), rss * os.Getpagesize() / 1024}, err
}

// Churn registers and deregisters, allocates and frees 100,000 times, and checks that descriptors, mappings,
// goroutines and resident memory have not grown.
func Churn(ctx context.Context, c *ubcoll.Comm) error {
	round := func(k int) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096*(1+k%3))
		if err != nil {
			return err
		}
		b.Slice()[k%4096] = 1
		for i := 0; i < 10; i++ {
			r, err := c.RegisterBuffer(b.Vec().Slice(i, 1000+i))
			if err != nil {
				return err
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
		return b.Free()
	}
	// First as many rounds as it takes for the Go heap to find its size, on all ranks, which may share the process.
	for k := 0; k < 1000; k++ {
		if err := round(k); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before, err := footprint()
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	for k := 0; k < 10000; k++ {
		if err := round(k); err != nil {
			return fail(c, "round %d: %w", k, err)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before.maps, before.kib = before.maps+8, before.kib+8<<10 // the Go heap adds to the mappings now and then
	return settled(ctx, c, before)
}

// Descriptors makes many communicators of the ranks that one has already reached: each rank holds one descriptor of each
// peer's process, whatever their number.
func Descriptors(ctx context.Context, c *ubcoll.Comm) error {
	comms := []*ubcoll.Comm{c}
	for k := range 16 {
		from := comms[k/2]
		child, err := from.Dup(ctx)
		if k%2 == 1 && err == nil {
			comms = append(comms, child)
			child, err = from.Split(ctx, 0, -from.Rank())
		}
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, child); err != nil {
			return err
		}
		comms = append(comms, child)
	}
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range es {
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(link, "pidfd") {
			n++
		}
	}
	if n > c.Size() { // the Go runtime may have one
		return fail(c, "%d descriptors of processes with %d communicators of %d ranks", n, len(comms), c.Size())
	}
	for _, k := range comms[1:] {
		if err := k.Close(); err != nil {
			return err
		}
	}
	return coll.Barrier(ctx, c)
}

// Imports allocates more and more, so that new arenas come between calls, and reduces from each at once.
func Imports(ctx context.Context, c *ubcoll.Comm) error {
	for k := 0; k < 9; k++ {
		n := 1 << (12 + k)
		if err := one[float32](ctx, c, ubcoll.Sum, n, k%2 == 0, alloced, registered, uint64(k)); err != nil {
			return err
		}
	}
	return nil
}

// Steady makes calls for somebody who counts system calls: first some to warm up, then, between two writes to standard
// error that mark the place, 100 more.
func Steady(ctx context.Context, c *ubcoll.Comm) error {
	src, err := hold[float32](c, registered, 1<<20)
	if err != nil {
		return err
	}
	dst, err := hold[float32](c, registered, 1<<20)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, dst.vec, src.vec, ubcoll.Sum); err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(1); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: begin")
	if err := call(100); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: end")
	return errors.Join(src.free(), dst.free())
}

// Pauses measures how long ReadMemStats, which stops the world, takes during a wait and during a 64 MiB all-reduce.
func Pauses(ctx context.Context, c *ubcoll.Comm) error {
	src, err := hold[float32](c, registered, 16<<20)
	if err != nil {
		return err
	}
	measure := func(what string, during func() error) error {
		done := make(chan error, 1)
		go func() { done <- during() }()
		var took []time.Duration
		var m runtime.MemStats
		for {
			select {
			case err := <-done:
				slices.Sort(took)
				if len(took) == 0 {
					return err
				}
				p99 := took[len(took)*99/100]
				fmt.Fprintf(os.Stderr, "pauses: rank %d: %s: %d stops, median %v, p99 %v, max %v\n", c.Rank(), what,
					len(took), took[len(took)/2], p99, took[len(took)-1])
				return err
			default:
				start := time.Now()
				runtime.ReadMemStats(&m)
				took = append(took, time.Since(start))
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	if c.Rank() == 0 { // the others wait for it
		time.Sleep(500 * time.Millisecond)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	} else if err := measure("wait", func() error { return coll.Barrier(ctx, c) }); err != nil {
		return err
	}
	for i := 0; i < 2; i++ { // the first one faults pages in
		err := measure("64 MiB", func() error {
			for k := 0; k < 150; k++ {
				if err := coll.AllReduce(ctx, c, src.vec, src.vec, ubcoll.Max); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return src.free()
}

// FirstUse measures the first all-reduce of a registered 1 MiB buffer that lies in a new, large arena, and how soon
// rank 0's abort is seen.
func FirstUse(ctx context.Context, c *ubcoll.Comm) error {
	for k := 0; k < 5; k++ {
		big, err := ubcoll.Alloc[byte](c, ubcoll.Host, 48<<20<<(k/2)) // takes up the arenas there are
		if err != nil {
			return err
		}
		b, err := hold[float32](c, registered, 1<<18)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		start := time.Now()
		if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Sum); err != nil {
			return err
		}
		first := time.Since(start)
		start = time.Now()
		if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Sum); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "first-use: rank %d: first %v, second %v\n", c.Rank(), first, time.Since(start))
		if err := errors.Join(b.free(), big.Free()); err != nil {
			return err
		}
	}
	if c.Size() == 1 {
		return nil
	}
	stamp := []int64{0}
	if c.Rank() == 0 {
		time.Sleep(300 * time.Millisecond)
		stamp[0] = time.Now().UnixNano()
		os.WriteFile(abortFile(), []byte(fmt.Sprint(stamp[0])), 0o600)
		c.Abort(errors.New("on purpose"))
		return nil
	}
	err := coll.Barrier(ctx, c)
	seen := time.Now().UnixNano()
	if !errors.Is(err, ubcoll.ErrAborted) {
		return fail(c, "abort gave %v", err)
	}
	b, rerr := os.ReadFile(abortFile())
	if rerr != nil {
		return rerr
	}
	fmt.Sscan(string(b), &stamp[0])
	fmt.Fprintf(os.Stderr, "first-use: rank %d: abort seen after %v\n", c.Rank(), time.Duration(seen-stamp[0]))
	return nil
}

func abortFile() string { return filepath.Join(os.Getenv("JOBTEST_DIR"), "abort") }

// SmallCalls is how many calls SteadySmall makes.
const SmallCalls = 20000

// SteadySmall is as Steady for calls of 32 KiB.
func SteadySmall(ctx context.Context, c *ubcoll.Comm) error {
	b, err := hold[float32](c, registered, 8<<10)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Max); err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(1000); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: begin")
	if err := call(SmallCalls); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: end")
	return b.free()
}
