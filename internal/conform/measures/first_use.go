package measures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// FirstUse measures the first all-reduce of a registered 1 MiB buffer in a new, large arena, and how soon ranks see
// rank 0's abort.
func FirstUse(ctx context.Context, c *ubcoll.Comm) error {
	for k := 0; k < 5; k++ {
		big, err := ubcoll.Alloc[byte](c, ubcoll.Host, 48<<20<<(k/2)) // fills the existing arenas
		if err != nil {
			return err
		}
		b, err := conform.Hold[float32](c, conform.Registered, 1<<18)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		start := time.Now()
		if err := coll.AllReduce(ctx, c, b.Vec, b.Vec, ubcoll.Sum); err != nil {
			return err
		}
		first := time.Since(start)
		start = time.Now()
		if err := coll.AllReduce(ctx, c, b.Vec, b.Vec, ubcoll.Sum); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "first-use: rank %d: first %v, second %v\n", c.Rank(), first, time.Since(start))
		if err := errors.Join(b.Free(), big.Free()); err != nil {
			return err
		}
	}
	if c.Size() == 1 {
		return nil
	}
	dir, err := conform.Dir()
	if err != nil {
		return err
	}
	abortFile := filepath.Join(dir, "abort")
	stamp := []int64{0}
	if c.Rank() == 0 {
		time.Sleep(300 * time.Millisecond)
		stamp[0] = time.Now().UnixNano()
		os.WriteFile(abortFile, []byte(fmt.Sprint(stamp[0])), 0o600)
		c.Abort(errors.New("on purpose"))
		return nil
	}
	err = coll.Barrier(ctx, c)
	seen := time.Now().UnixNano()
	if !errors.Is(err, ubcoll.ErrAborted) {
		return conform.Fail(c, "abort gave %v", err)
	}
	b, rerr := os.ReadFile(abortFile)
	if rerr != nil {
		return rerr
	}
	fmt.Sscan(string(b), &stamp[0])
	fmt.Fprintf(os.Stderr, "first-use: rank %d: abort seen after %v\n", c.Rank(), time.Duration(seen-stamp[0]))
	return nil
}
