package ubcoll_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// serve is rank 0. It adds each update to params and answers with the sum, until every worker has sent an empty message.
func serve(ctx context.Context, c *ubcoll.Comm, params []float64) error {
	next := make([]*p2p.Request, c.Size()) // the next message of each worker that is still there
	updates := make([][]float64, c.Size())
	listen := func(r int) (err error) {
		next[r], err = p2p.IRecv(ctx, c, r, ubcoll.Of(updates[r]))
		return err
	}
	for r := 1; r < c.Size(); r++ {
		updates[r] = make([]float64, len(params))
		if err := listen(r); err != nil {
			return err
		}
	}
	for workers := c.Size() - 1; workers > 0; {
		idle := true
		for r, request := range next { // one message of each: a fast worker cannot keep the others waiting
			if request == nil {
				continue
			}
			done, err := request.Test()
			n := request.Received()
			switch {
			case err != nil: // the worker died, for example
				return err
			case !done:
				continue
			case n == 0:
				next[r] = nil
				workers--
				continue
			}
			idle = false
			for i, x := range updates[r][:n] {
				params[i] += x
			}
			if err := p2p.Send(ctx, c, r, ubcoll.Of(params)); err != nil { // the worker waits for it
				return err
			}
			if err := listen(r); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if idle {
			time.Sleep(20 * time.Microsecond) // leaves the processor to others; not needed if this rank has its own
		}
	}
	return nil
}

// work is each other rank: it sends some updates, and then says that it is done.
func work(ctx context.Context, c *ubcoll.Comm, params []float64, steps int) error {
	update := make([]float64, len(params))
	for range steps {
		for i := range update {
			update[i] = 1 // in a real program, computed from params
		}
		if err := p2p.Send(ctx, c, 0, ubcoll.Of(update)); err != nil {
			return err
		}
		if _, err := p2p.Recv(ctx, c, 0, ubcoll.Of(params)); err != nil {
			return err
		}
	}
	return p2p.Send(ctx, c, 0, ubcoll.Of(update[:0]))
}

// A parameter server without MPI_ANY_SOURCE: one receive for each worker.
func Example_parameterServer() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		params := make([]float64, 3)
		if c.Rank() > 0 {
			return work(ctx, c, params, 10*c.Rank())
		}
		err := serve(ctx, c, params)
		fmt.Println(params)
		return err
	})
	fmt.Println(err)
	// Output:
	// [60 60 60]
	// <nil>
}
