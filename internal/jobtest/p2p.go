package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/p2p"
)

// P2P sends messages of all sizes between all kinds of memory, in order, to itself, from several goroutines, makes wrong
// calls, and frees memory and closes communicators under messages.
func P2P(ctx context.Context, c *ubcoll.Comm) error {
	for _, f := range []func(context.Context, *ubcoll.Comm) error{p2pSizes, p2pOrder, p2pSelf, p2pGoroutines, p2pRequests,
		p2pBad, p2pVerdicts, p2pFree, p2pAbandoned} {
		if err := f(ctx, c); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func p2pValue(salt, from, i int) byte { return byte(i ^ i>>8 ^ i>>16 + 31*salt + 7*from) }

// p2pSizes passes messages around the ring, each rank with its own kinds of memory.
func p2pSizes(ctx context.Context, c *ubcoll.Comm) error {
	sizes := []int{0, 1, 7, 48, 49, 111, 112, 113, 1000, 2048, 2049, 4095, 4096, 4097, 16383, 16384, 16385, 70000, 131072,
		131073, 500001, 1 << 20, 8 << 20}
	if race.Enabled || c.Size() > 4 {
		sizes = sizes[:len(sizes)-2]
	}
	n := c.Size()
	right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	for k := 0; k < int(numWhere*numWhere); k++ {
		ws := where(k+c.Rank()) % numWhere
		wd := where(k/int(numWhere)+2*c.Rank()) % numWhere
		for _, size := range sizes {
			src, err := hold[byte](c, ws, size)
			if err != nil {
				return err
			}
			dst, err := hold[byte](c, wd, size+5)
			if err != nil {
				return err
			}
			for i := range src.slice {
				src.slice[i] = p2pValue(k, c.Rank(), i)
			}
			for i := range dst.slice {
				dst.slice[i] = 0xee
			}
			got, err := p2p.SendRecv(ctx, c, right, src.vec, left, dst.vec)
			if err != nil || got != size {
				return fail(c, "%d bytes from %v to %v: got %d, %w", size, ws, wd, got, err)
			}
			for i, x := range dst.slice {
				want := byte(0xee)
				if i < size {
					want = p2pValue(k, left, i)
				}
				if x != want {
					return fail(c, "%d bytes from %v to %v: element %d is %#x, not %#x", size, ws, wd, i, x, want)
				}
			}
			if err := errors.Join(src.free(), dst.free()); err != nil {
				return fail(c, "%d bytes from %v to %v: %w", size, ws, wd, err)
			}
		}
	}
	return nil
}

// p2pOrder sends many messages of one and many elements in a row, in groups and alone, and looks at their order.
func p2pOrder(ctx context.Context, c *ubcoll.Comm) error {
	const messages = 100
	peer := c.Rank() ^ 1
	if peer >= c.Size() {
		return nil
	}
	length := func(i int) int { return 1 + i%3*i%2*1500 + i%7/6*9000 }
	src, dst := make([][]int32, messages), make([][]int32, messages)
	for i := range src {
		src[i], dst[i] = make([]int32, length(i)), make([]int32, length(i))
		src[i][0], src[i][length(i)-1] = int32(i), int32(i)
	}
	var g p2p.Group
	for i := range src {
		g.Send(peer, ubcoll.Of(src[i]))
	}
	for i := range dst {
		g.Recv(peer, ubcoll.Of(dst[i]))
	}
	for round := range 3 {
		if err := g.Do(ctx, c); err != nil {
			return err
		}
		for i := range dst {
			if dst[i][0] != int32(i) || dst[i][length(i)-1] != int32(i) || g.Received()[i] != length(i) {
				return fail(c, "round %d, message %d: %d, %d elements", round, i, dst[i][0], g.Received()[i])
			}
			dst[i][0] = -1
		}
	}
	if err := g.Reset(); err != nil {
		return err
	}
	// One side alone, so that the slots run full.
	for i := range src {
		if c.Rank() < peer {
			if err := p2p.Send(ctx, c, peer, ubcoll.Of(src[i])); err != nil {
				return err
			}
			continue
		}
		n, err := p2p.Recv(ctx, c, peer, ubcoll.Of(dst[i]))
		if err != nil || n != length(i) || dst[i][0] != int32(i) {
			return fail(c, "message %d: %d elements, %d, %w", i, n, dst[i][0], err)
		}
	}
	return nil
}

// p2pSelf sends to this rank itself.
func p2pSelf(ctx context.Context, c *ubcoll.Comm) error {
	me := c.Rank()
	for _, n := range []int{0, 3, 500, 5000, 300000} {
		x, y := make([]int32, n), make([]int32, n)
		for i := range x {
			x[i] = int32(i + me)
		}
		if k, err := p2p.SendRecv(ctx, c, me, ubcoll.Of(x), me, ubcoll.Of(y)); err != nil || k != n {
			return fail(c, "%d elements to itself: %d, %w", n, k, err)
		}
		for i := range y {
			if y[i] != x[i] {
				return fail(c, "%d elements to itself: element %d", n, i)
			}
		}
	}
	one := []int32{5}
	for i := range 8 {
		if err := p2p.Send(ctx, c, me, ubcoll.Of(one)); err != nil {
			return fail(c, "small message %d to itself: %w", i, err)
		}
	}
	if err := p2p.Send(ctx, c, me, ubcoll.Of(one)); !errors.Is(err, ubcoll.ErrLimit) {
		return fail(c, "one message too many to itself: %v", err)
	}
	for range 8 {
		if n, err := p2p.Recv(ctx, c, me, ubcoll.Of(make([]int32, 2))); n != 1 || err != nil {
			return fail(c, "small message from itself: %d, %w", n, err)
		}
	}
	if err := p2p.Send(ctx, c, me, ubcoll.Of(make([]int32, 100000))); !errors.Is(err, ubcoll.ErrArgument) {
		return fail(c, "large message to itself without a Recv: %v", err)
	}
	return nil
}

// p2pGoroutines sends and receives from several goroutines at once, beside collectives.
func p2pGoroutines(ctx context.Context, c *ubcoll.Comm) error {
	const each, workers = 60, 3
	n := c.Size()
	if n == 1 {
		return nil
	}
	right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	var wg sync.WaitGroup
	errs := make([]error, 2*workers)
	sums := make([]int, workers)
	for w := range workers {
		wg.Add(2)
		go func() {
			defer wg.Done()
			for i := range each {
				x := make([]int64, 1+i%4*2000)
				for j := range x {
					x[j] = int64(w*each + i)
				}
				if err := p2p.Send(ctx, c, right, ubcoll.Of(x)); err != nil {
					errs[2*w] = err
					return
				}
			}
		}()
		go func() {
			defer wg.Done()
			y := make([]int64, 6001)
			for range each {
				k, err := p2p.Recv(ctx, c, left, ubcoll.Of(y))
				if err != nil {
					errs[2*w+1] = err
					return
				}
				if y[0] != y[k-1] {
					errs[2*w+1] = fail(c, "a message of %d elements holds %d and %d", k, y[0], y[k-1])
					return
				}
				sums[w] += int(y[0])
			}
		}()
	}
	var err error
	for range 20 {
		err = errors.Join(err, coll.Barrier(ctx, c))
	}
	wg.Wait()
	got, all := 0, workers*each
	for _, s := range sums {
		got += s
	}
	if err = errors.Join(append(errs, err)...); err != nil || got != all*(all-1)/2 {
		return fail(c, "goroutines: sum %d, not %d: %w", got, all*(all-1)/2, err)
	}
	return nil
}

// p2pRequests starts groups and asks for them.
func p2pRequests(ctx context.Context, c *ubcoll.Comm) error {
	n := c.Size()
	right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	x, y := make([]float64, 30000), make([]float64, 30000)
	x[29999] = float64(c.Rank())
	var s, r p2p.Group
	s.Send(right, ubcoll.Of(x))
	r.Recv(left, ubcoll.Of(y))
	sends, err := s.Start(ctx, c)
	if err != nil {
		return err
	}
	recvs, err := r.Start(ctx, c)
	if err != nil {
		return err
	}
	for {
		done, err := recvs.Test()
		if err != nil {
			return err
		}
		if done {
			break
		}
		if _, err := sends.Test(); err != nil {
			return err
		}
	}
	if err := errors.Join(sends.Wait(ctx), sends.Wait(ctx), recvs.Wait(ctx)); err != nil || y[29999] != float64(left) {
		return fail(c, "requests: %v, %w", y[29999], err)
	}
	return p2pBusy(ctx, c)
}

// p2pBusy has a request that cannot be done before this rank sends.
func p2pBusy(ctx context.Context, c *ubcoll.Comm) error {
	var g p2p.Group
	g.Recv(c.Rank(), ubcoll.Of(make([]byte, 3)))
	r, err := g.Start(ctx, c)
	if err != nil {
		return err
	}
	if done, err := r.Test(); done || err != nil {
		return fail(c, "a receive of nothing is done: %v, %w", done, err)
	}
	if err := g.Reset(); !errors.Is(err, ubcoll.ErrBusy) {
		return fail(c, "reset of a running group: %v", err)
	}
	if err := g.Do(ctx, c); !errors.Is(err, ubcoll.ErrBusy) {
		return fail(c, "a running group is done again: %v", err)
	}
	if err := c.Close(); !errors.Is(err, ubcoll.ErrBusy) {
		return fail(c, "close while a request is open: %v", err)
	}
	if err := p2p.Send(ctx, c, c.Rank(), ubcoll.Of(make([]byte, 2))); err != nil {
		return err
	}
	if err := r.Wait(ctx); err != nil || g.Received()[0] != 2 {
		return fail(c, "received %v: %w", g.Received(), err)
	}
	return g.Reset()
}

// p2pBad makes wrong calls, and right ones after each.
func p2pBad(ctx context.Context, c *ubcoll.Comm) error {
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	x := ubcoll.Of(make([]int32, 10))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, k := range []struct {
		name string
		err  error
		want error
	}{
		{"no such rank", p2p.Send(ctx, c, c.Size(), x), ubcoll.ErrArgument},
		{"negative rank", p2p.Send(ctx, c, -1, x), ubcoll.ErrArgument},
		{"bad Vec", p2p.Send(ctx, c, 0, x.Slice(3, 20)), ubcoll.ErrArgument},
		{"on a stream", p2p.Send(ctx, c.On(s), 0, x), hw.ErrNotSupported},
		{"ended context", p2p.Send(ended, c, 0, x), context.Canceled},
		{"in a group of collectives", ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return p2p.Send(ctx, g, 0, x) }),
			ubcoll.ErrArgument},
	} {
		if !errors.Is(k.err, k.want) {
			return fail(c, "%s: %v, not %v", k.name, k.err, k.want)
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	peer := c.Rank() ^ 1
	if peer >= c.Size() {
		return nil
	}
	eager := c.Engine().EagerLimit() // less for many ranks
	for _, n := range []int{5, eager / 4, eager/4 + 1, 50000} {
		src := make([]int32, n)
		for i := range src {
			src[i] = int32(i)
		}
		dst := make([]int32, n-1)
		large := n*4 > eager // then the sender hears of it
		for _, into := range []ubcoll.Vec{ubcoll.Of(dst), ubcoll.Of(make([]float32, n))} {
			if c.Rank() < peer {
				if err := p2p.Send(ctx, c, peer, ubcoll.Of(src)); errors.Is(err, ubcoll.ErrMismatch) != large {
					return fail(c, "send of %d to a wrong receive: %v", n, err)
				}
				continue
			}
			k, err := p2p.Recv(ctx, c, peer, into)
			var e *ubcoll.Error
			if !errors.Is(err, ubcoll.ErrMismatch) || !errors.As(err, &e) || e.Peer != peer || k != 0 {
				return fail(c, "wrong receive of %d: %d, %v", n, k, err)
			}
		}
		if dst[0] != 0 || n > 2 && dst[1] != 0 {
			return fail(c, "a message that was refused has been written")
		}
		back := make([]int32, n)
		k, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(src), peer, ubcoll.Of(back))
		if err != nil || k != n || back[n-1] != src[n-1] {
			return fail(c, "after a wrong receive: %d, %w", k, err)
		}
	}
	if err := c.Err(); err != nil {
		return fail(c, "after wrong calls: %w", err)
	}
	return nil
}

// p2pVerdicts has large messages that fit and such that do not, with many small ones behind them.
func p2pVerdicts(ctx context.Context, c *ubcoll.Comm) error {
	const behind = 40
	peer := c.Rank() ^ 1
	if peer >= c.Size() {
		return nil
	}
	r := rand.New(rand.NewPCG(Seed(), uint64(c.Rank()&peer)))
	x := ubcoll.Of(make([]byte, 4000))
	var g p2p.Group
	g.Send(peer, x)
	for range behind {
		g.Send(peer, x.Slice(0, 8))
	}
	for round := range 300 {
		bad := r.IntN(2)
		if c.Rank() < peer {
			if err := g.Do(ctx, c); errors.Is(err, ubcoll.ErrMismatch) != (bad == 1) || bad == 0 && err != nil {
				return fail(c, "round %d, bad %d: the sender gets %v", round, bad, err)
			}
			continue
		}
		if _, err := p2p.Recv(ctx, c, peer, x.Slice(0, 4000-bad)); errors.Is(err, ubcoll.ErrMismatch) != (bad == 1) {
			return fail(c, "round %d, bad %d: the receiver gets %v", round, bad, err)
		}
		for range behind {
			if _, err := p2p.Recv(ctx, c, peer, x); err != nil {
				return fail(c, "round %d: %w", round, err)
			}
		}
	}
	return nil
}

// p2pFree frees the memory of messages that are posted: they arrive all the same.
func p2pFree(ctx context.Context, c *ubcoll.Comm) error {
	n := c.Size()
	right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	for _, size := range []int{8, 1500, 4000, 70000, 1 << 20} {
		src, err1 := ubcoll.Alloc[byte](c, ubcoll.Host, size)
		dst, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, size)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		var g p2p.Group
		g.Recv(left, dst.Vec())
		r, err := g.Start(ctx, c)
		if err = errors.Join(err, dst.Free(), coll.Barrier(ctx, c)); err != nil {
			return fail(c, "%d bytes: %w", size, err)
		}
		var s p2p.Group
		s.Send(right, src.Vec())
		q, err := s.Start(ctx, c)
		if err = errors.Join(err, src.Free()); err != nil {
			return fail(c, "%d bytes: %w", size, err)
		}
		if err := errors.Join(r.Wait(ctx), q.Wait(ctx)); err != nil || g.Received()[0] != size {
			return fail(c, "%d bytes: received %v: %w", size, g.Received(), err)
		}
	}
	return nil
}

// p2pAbandoned aborts and closes communicators under receives that wait and requests that nobody waits for.
func p2pAbandoned(ctx context.Context, c *ubcoll.Comm) error {
	for round := range 5 {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 20000)
		if err != nil {
			return err
		}
		peer := (c.Rank() + 1) % c.Size()
		var g p2p.Group
		g.Recv(peer, b.Vec())
		r, err := g.Start(ctx, d)
		if err != nil {
			return err
		}
		waited := make(chan error)
		go func() {
			_, err := p2p.Recv(ctx, d, peer, ubcoll.Of(make([]byte, 8)))
			waited <- err
		}()
		time.Sleep(time.Duration(round) * time.Millisecond)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		d.Abort(errors.New("on purpose"))
		if err := errors.Join(d.Close(), b.Free()); err != nil {
			return fail(c, "round %d: %w", round, err)
		}
		if err := <-waited; !errors.Is(err, ubcoll.ErrAborted) && !errors.Is(err, ubcoll.ErrClosed) {
			return fail(c, "round %d: a receive under Close gets %v", round, err)
		}
		if err := r.Wait(ctx); !errors.Is(err, ubcoll.ErrAborted) {
			return fail(c, "round %d: a request after Close gets %v", round, err)
		}
	}
	return nil
}

// Programs runs random programs of sends and receives: messages between random ranks, of random sizes, types and kinds
// of memory, done as groups, as several requests, or in another order across peers, with delays.
func Programs(ctx context.Context, c *ubcoll.Comm) error {
	programs := 300
	if s, err := strconv.Atoi(os.Getenv("JOBTEST_PROGRAMS")); err == nil {
		programs = s
	}
	all := rand.New(rand.NewPCG(Seed(), 77))
	mine := rand.New(rand.NewPCG(Seed(), 7700+uint64(c.Rank())))
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 1<<20)
	if err != nil {
		return err
	}
	pools := []pool{{bytes: b.Slice(), vec: b.Vec()}, {bytes: make([]byte, 1<<20)}}
	pools[1].vec = ubcoll.Of(pools[1].bytes)
	for k := range programs {
		if err := runProgram(ctx, c, k, all, mine, pools); err != nil {
			return fail(c, "program %d: %w", k, err)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return b.Free()
}

// pool is memory that messages take pieces of.
type pool struct {
	bytes []byte
	vec   ubcoll.Vec
	used  int
}

func (p *pool) take(n int) ([]byte, ubcoll.Vec, bool) {
	at := (p.used + 7) &^ 7
	if at+n > len(p.bytes) {
		return nil, ubcoll.Vec{}, false
	}
	p.used = at + n
	return p.bytes[at : at+n], p.vec.Slice(at, at+n), true
}

type message struct {
	from, to, bytes, id int
	typ                 dtype.Type
	mem                 []byte
	vec                 ubcoll.Vec
	recv                bool
}

func runProgram(ctx context.Context, c *ubcoll.Comm, k int, all, mine *rand.Rand, pools []pool) error {
	for i := range pools {
		pools[i].used = 0
	}
	types := []dtype.Type{dtype.Uint8, dtype.Int16, dtype.Float32, dtype.Float64}
	var lanes [][]message // of this rank, by peer and direction
	at := map[[2]int]int{}
	for id := range all.IntN(3 * c.Size()) {
		m := message{from: all.IntN(c.Size()), to: all.IntN(c.Size()), typ: types[all.IntN(len(types))], id: 100*k + id}
		m.bytes = all.IntN([]int{113, 113, 4097, 20000, 200000}[all.IntN(5)]) &^ 7
		for _, recv := range []bool{false, true} {
			peer := m.from
			if !recv {
				peer = m.to
			}
			if c.Rank() != m.from && !recv || c.Rank() != m.to && recv {
				continue
			}
			m.recv = recv
			var ok bool
			p := mine.IntN(2)
			if m.mem, m.vec, ok = pools[p].take(m.bytes); !ok {
				m.mem = make([]byte, m.bytes)
				m.vec = ubcoll.Of(m.mem)
			}
			for i := range m.mem {
				m.mem[i] = 0
				if !recv {
					m.mem[i] = p2pValue(m.id, m.from, i)
				}
			}
			key := [2]int{peer, 0}
			if recv {
				key[1] = 1
			}
			if _, ok := at[key]; !ok {
				at[key] = len(lanes)
				lanes = append(lanes, nil)
			}
			lanes[at[key]] = append(lanes[at[key]], m)
		}
	}
	return perform(ctx, c, lanes, mine)
}

// perform mixes the lanes at random, each in its order, cuts the whole into requests, and waits for them in some order.
func perform(ctx context.Context, c *ubcoll.Comm, lanes [][]message, mine *rand.Rand) error {
	var order []message
	left := append([][]message(nil), lanes...)
	for len(left) > 0 {
		i := mine.IntN(len(left))
		order = append(order, left[i][0])
		if left[i] = left[i][1:]; len(left[i]) == 0 {
			left = append(left[:i], left[i+1:]...)
		}
	}
	delay := func() {
		if mine.IntN(20) == 0 {
			time.Sleep(time.Duration(mine.IntN(100)) * time.Microsecond)
		}
	}
	groups := make([]p2p.Group, 1+mine.IntN(3))
	var requests []*p2p.Request
	for i := range groups {
		from, to := len(order)*i/len(groups), len(order)*(i+1)/len(groups)
		for _, m := range order[from:to] {
			if v := m.vec.As(m.typ); m.recv {
				groups[i].Recv(m.from, v)
			} else {
				groups[i].Send(m.to, v)
			}
		}
		delay()
		r, err := groups[i].Start(ctx, c)
		if err != nil {
			return err
		}
		requests = append(requests, r)
	}
	mine.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	for _, r := range requests {
		delay()
		if mine.IntN(2) == 0 {
			if _, err := r.Test(); err != nil {
				return err
			}
		}
		if err := r.Wait(ctx); err != nil { // which moves the others too
			return err
		}
	}
	for _, m := range order {
		for i := range m.mem {
			if want := p2pValue(m.id, m.from, i); m.mem[i] != want {
				return fmt.Errorf("message %d of %d bytes from %d to %d (receive %v): byte %d is %#x, not %#x", m.id, m.bytes,
					m.from, m.to, m.recv, i, m.mem[i], want)
			}
		}
	}
	return nil
}
