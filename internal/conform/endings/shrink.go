package endings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// LeftFile is where a test writes how many ranks will be left at the end.
func LeftFile(dir string) string { return filepath.Join(dir, "left") }

// ShrunkFile is where a survivor writes how many ranks each of its communicators had, and then those of the last; or, if the others
// go on without it, why: "lost: " or "aborted: ", and the error.
func ShrunkFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.shrunk", rank))
}

// TookFile is where a survivor writes how long each Shrink took it.
func TookFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.took", rank))
}

// Shrink lives with the deaths of others. Each time it goes on with a communicator of those that are left, and checks what
// that computes from Go's memory, and from memory that was registered with the first one, until as few are left as the test
// says.
func Shrink(ctx context.Context, c *ubcoll.Comm) error {
	dir, err := ready(c)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(LeftFile(dir))
	if err != nil {
		return err
	}
	var left int
	if _, err := fmt.Sscan(string(b), &left); err != nil {
		return err
	}
	buf, err1 := ubcoll.Alloc[float32](c, ubcoll.Host, 300000)
	if err1 != nil {
		return err1
	}
	if _, err := c.RegisterBuffer(buf.Vec()); err != nil {
		return err
	}
	me, first, sizes := c.Rank(), c, []int{c.Size()}
	own := make([]float32, 5000)
	var took []string
	for {
		var ids []int32
		calls := 0
		for ; err == nil && !(len(ids) == left && calls > 5); calls++ {
			if ids, err = idsOf(ctx, c, me); len(ids) < left && err == nil {
				return conform.Fail(c, "%d ranks are left, not %d: %v", len(ids), left, ids)
			}
			if err == nil {
				err = errors.Join(sums(ctx, c, buf.Slice(), buf.Vec(), me, ids), sums(ctx, c, own, ubcoll.Of(own), me, ids))
			}
		}
		if err == nil {
			if err = coll.Barrier(ctx, c); err == nil {
				text := strings.Trim(fmt.Sprint(sizes), "[]") + " | " + strings.Trim(fmt.Sprint(ids), "[]")
				return errors.Join(write(TookFile(dir, me), strings.Join(took, " ")), write(ShrunkFile(dir, me), text), c.Close(), closeAll(first, c))
			}
		}
		if c.Err() == nil || !errors.Is(err, ubcoll.ErrPeerLost) && !errors.Is(err, ubcoll.ErrAborted) {
			return err
		}
		start := time.Now()
		child, serr := c.Shrink(ctx)
		took = append(took, time.Since(start).String())
		if errors.Is(serr, ubcoll.ErrPeerLost) || errors.Is(serr, ubcoll.ErrAborted) { // the others go on without this one
			is := map[bool]string{true: "lost", false: "aborted"}[errors.Is(serr, ubcoll.ErrPeerLost)]
			return errors.Join(write(ShrunkFile(dir, me), fmt.Sprintf("%s: %v", is, serr)), c.Close(), closeAll(first, c))
		}
		if serr != nil {
			return serr
		}
		if c != first { // which has the registration
			if err := c.Close(); err != nil {
				return err
			}
		}
		c, err = child, nil
		sizes = append(sizes, c.Size())
	}
}

func closeAll(first, last *ubcoll.Comm) error {
	if first == last {
		return nil
	}
	return first.Close()
}

// idsOf gathers the ranks that the members had in the first communicator.
func idsOf(ctx context.Context, c *ubcoll.Comm, me int) ([]int32, error) {
	ids := make([]int32, c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(ids), ubcoll.Of([]int32{int32(me)})); err != nil {
		return nil, err
	}
	for i, id := range ids {
		if i > 0 && id <= ids[i-1] {
			return nil, conform.Fail(c, "members %v are not in order", ids)
		}
	}
	return ids, nil
}

// sums adds up v, which data is, and checks the result.
func sums(ctx context.Context, c *ubcoll.Comm, data []float32, v ubcoll.Vec, me int, ids []int32) error {
	var want float32
	for _, id := range ids {
		want += float32(id + 1)
	}
	for i := range data {
		data[i] = float32(me + 1)
	}
	if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil {
		return err
	}
	for i, x := range data {
		if x != want {
			return conform.Fail(c, "element %d of %d is %v, not %v, of ranks %v", i, len(data), x, want, ids)
		}
	}
	return nil
}
