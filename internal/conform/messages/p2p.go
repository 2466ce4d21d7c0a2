// Package messages has the suites for messages between ranks: all sizes, random programs, wrong calls, a circle.
package messages

import (
	"context"
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/p2p"
)

// P2P sends messages of all sizes between all kinds of memory, in order, to itself, and from several goroutines. It
// makes wrong calls, and frees memory and closes communicators while messages are under way.
func P2P(ctx context.Context, c *ubcoll.Comm) error {
	return conform.Each(ctx, c, sizes, order, self, goroutines, requests,
		bad, verdicts, free, abandoned)
}

func value(salt, from, i int) byte { return byte(i ^ i>>8 ^ i>>16 + 31*salt + 7*from) }

// sizes passes messages around the ring. Each rank has its own kinds of memory.
func sizes(ctx context.Context, c *ubcoll.Comm) error {
	sizes := []int{0, 1, 7, 48, 49, 111, 112, 113, 1000, 2048, 2049, 4095, 4096, 4097, 16383, 16384, 16385, 70000, 131072,
		131073, 500001, 1 << 20, 8 << 20}
	if race.Enabled || c.Size() > 4 {
		sizes = sizes[:len(sizes)-2]
	}
	if race.Enabled && c.Size() > 4 {
		sizes = sizes[:len(sizes)-4]
	}
	right, left := conform.Ring(c)
	for k := 0; k < int(conform.NumWhere*conform.NumWhere); k++ {
		ws := conform.Where(k+c.Rank()) % conform.NumWhere
		wd := conform.Where(k/int(conform.NumWhere)+2*c.Rank()) % conform.NumWhere
		for _, size := range sizes {
			if size > 1<<20 && k%5 != 0 { // once for each kind of memory on either side
				continue
			}
			src, err := conform.Hold[byte](c, ws, size)
			if err != nil {
				return err
			}
			dst, err := conform.Hold[byte](c, wd, size+5)
			if err != nil {
				return err
			}
			for i := range src.Slice {
				src.Slice[i] = value(k, c.Rank(), i)
			}
			for i := range dst.Slice {
				dst.Slice[i] = 0xee
			}
			got, err := p2p.SendRecv(ctx, c, left, dst.Vec, right, src.Vec)
			if err != nil || got != size {
				return conform.Fail(c, "%d bytes from %v to %v: got %d, %w", size, ws, wd, got, err)
			}
			for i, x := range dst.Slice {
				want := byte(0xee)
				if i < size {
					want = value(k, left, i)
				}
				if x != want {
					return conform.Fail(c, "%d bytes from %v to %v: element %d is %#x, not %#x", size, ws, wd, i, x, want)
				}
			}
			if err := errors.Join(src.Free(), dst.Free()); err != nil {
				return conform.Fail(c, "%d bytes from %v to %v: %w", size, ws, wd, err)
			}
		}
	}
	return nil
}

// order sends many messages in a row, of one element and of many, in groups and alone, and checks their order.
func order(ctx context.Context, c *ubcoll.Comm) error {
	const messages = 100
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	length := func(i int) int { return 1 + i%3*i%2*1500 + i%7/6*9000 }
	src, dst := make([][]int32, messages), make([][]int32, messages)
	for i := range src {
		src[i], dst[i] = make([]int32, length(i)), make([]int32, length(i))
		src[i][0], src[i][length(i)-1] = int32(i), int32(i)
	}
	var g p2p.Exchange
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
				return conform.Fail(c, "round %d, message %d: %d, %d elements", round, i, dst[i][0], g.Received()[i])
			}
			dst[i][0] = -1
		}
	}
	if err := g.Reset(); err != nil {
		return err
	}
	// Only one side sends, so that the slots run full.
	for i := range src {
		if c.Rank() < peer {
			if err := p2p.Send(ctx, c, peer, ubcoll.Of(src[i])); err != nil {
				return err
			}
			continue
		}
		n, err := p2p.Recv(ctx, c, peer, ubcoll.Of(dst[i]))
		if err != nil || n != length(i) || dst[i][0] != int32(i) {
			return conform.Fail(c, "message %d: %d elements, %d, %w", i, n, dst[i][0], err)
		}
	}
	return nil
}

// self sends to this rank itself.
func self(ctx context.Context, c *ubcoll.Comm) error {
	me := c.Rank()
	for _, n := range []int{0, 3, 500, 5000, 300000} {
		x, y := make([]int32, n), make([]int32, n)
		for i := range x {
			x[i] = int32(i + me)
		}
		if k, err := p2p.SendRecv(ctx, c, me, ubcoll.Of(y), me, ubcoll.Of(x)); err != nil || k != n {
			return conform.Fail(c, "%d elements to itself: %d, %w", n, k, err)
		}
		for i := range y {
			if y[i] != x[i] {
				return conform.Fail(c, "%d elements to itself: element %d", n, i)
			}
		}
	}
	one := []int32{5}
	for i := range 8 {
		if err := p2p.Send(ctx, c, me, ubcoll.Of(one)); err != nil {
			return conform.Fail(c, "small message %d to itself: %w", i, err)
		}
	}
	if err := p2p.Send(ctx, c, me, ubcoll.Of(one)); !errors.Is(err, ubcoll.ErrLimit) {
		return conform.Fail(c, "one message too many to itself: %v", err)
	}
	for range 8 {
		if n, err := p2p.Recv(ctx, c, me, ubcoll.Of(make([]int32, 2))); n != 1 || err != nil {
			return conform.Fail(c, "small message from itself: %d, %w", n, err)
		}
	}
	if err := p2p.Send(ctx, c, me, ubcoll.Of(make([]int32, 100000))); !errors.Is(err, ubcoll.ErrArgument) {
		return conform.Fail(c, "large message to itself without a Recv: %v", err)
	}
	return nil
}

// goroutines sends and receives from several goroutines at once, during collectives.
func goroutines(ctx context.Context, c *ubcoll.Comm) error {
	const each, workers = 60, 3
	n := c.Size()
	if n == 1 {
		return nil
	}
	right, left := conform.Ring(c)
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
					errs[2*w+1] = conform.Fail(c, "a message of %d elements holds %d and %d", k, y[0], y[k-1])
					return
				}
				sums[w] += int(y[0])
			}
		}()
	}
	var err error
	for k := 0; k < 20 && err == nil; k++ {
		err = coll.Barrier(ctx, c)
	}
	wg.Wait()
	got, all := 0, workers*each
	for _, s := range sums {
		got += s
	}
	if err = errors.Join(append(errs, err)...); err != nil || got != all*(all-1)/2 {
		return conform.Fail(c, "goroutines: sum %d, not %d: %w", got, all*(all-1)/2, err)
	}
	return nil
}

// requests starts groups and tests their requests.
func requests(ctx context.Context, c *ubcoll.Comm) error {
	right, left := conform.Ring(c)
	x, y := make([]float64, 30000), make([]float64, 30000)
	x[29999] = float64(c.Rank())
	var s, r p2p.Exchange
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
		return conform.Fail(c, "requests: %v, %w", y[29999], err)
	}
	return busy(ctx, c)
}

// busy has a request that cannot complete before this rank sends.
func busy(ctx context.Context, c *ubcoll.Comm) error {
	var g p2p.Exchange
	g.Recv(c.Rank(), ubcoll.Of(make([]byte, 3)))
	r, err := g.Start(ctx, c)
	if err != nil {
		return err
	}
	if done, err := r.Test(); done || err != nil {
		return conform.Fail(c, "a receive of nothing is done: %v, %w", done, err)
	}
	if err := g.Reset(); !errors.Is(err, ubcoll.ErrBusy) {
		return conform.Fail(c, "reset of a running group: %v", err)
	}
	if err := g.Do(ctx, c); !errors.Is(err, ubcoll.ErrBusy) {
		return conform.Fail(c, "a running group is done again: %v", err)
	}
	if err := c.Close(); !errors.Is(err, ubcoll.ErrBusy) {
		return conform.Fail(c, "close while a request is open: %v", err)
	}
	if err := p2p.Send(ctx, c, c.Rank(), ubcoll.Of(make([]byte, 2))); err != nil {
		return err
	}
	if err := r.Wait(ctx); err != nil || g.Received()[0] != 2 {
		return conform.Fail(c, "received %v: %w", g.Received(), err)
	}
	return g.Reset()
}
