package measures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Beside measures how long an all-reduce of 8 bytes takes while another communicator of the same ranks makes all-reduces
// of 64 MiB, one after the other. Between hosts both share the ranks' connections.
func Beside(ctx context.Context, c *ubcoll.Comm) (err error) {
	other, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Close()) }()
	large, err := conform.Hold[float32](c, conform.Registered, 16<<20)
	if err != nil {
		return err
	}
	small, err := conform.Hold[int64](other, conform.Registered, 1)
	if err != nil {
		return err
	}
	const rounds = 16
	begin := time.Now()
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		for i := 0; i < rounds && failed == nil; i++ {
			failed = coll.AllReduce(ctx, c, large.Vec, large.Vec, ubcoll.Max)
		}
	}()
	var took []time.Duration
	// The element says whether a rank's large ones go on, so that all ranks end with the same call.
	for goes := int64(1); goes == 1; {
		select {
		case <-ended:
			goes = 0
		default:
		}
		small.Slice[0] = goes
		start := time.Now()
		if err := coll.AllReduce(ctx, other, small.Vec, small.Vec, ubcoll.Min); err != nil {
			return err
		}
		took = append(took, time.Since(start))
		goes = small.Slice[0]
		time.Sleep(time.Millisecond - time.Since(start)) // else most calls are from moments between large ones
	}
	<-ended
	if c.Rank() == 0 {
		slices.Sort(took)
		fmt.Printf("beside: %d all-reduces of 64 MiB in %v, %d of 8 bytes: median %v, p99 %v, max %v\n", rounds,
			time.Since(begin).Round(time.Millisecond), len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	}
	return errors.Join(failed, large.Free(), small.Free())
}
