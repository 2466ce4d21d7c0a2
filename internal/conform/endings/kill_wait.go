package endings

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// KillWait signals around a ring of ranks without end, over channels and a window in turn, until a peer is lost, and
// writes what it then knows as Kill does.
func KillWait(ctx context.Context, c *ubcoll.Comm) error {
	dir := os.Getenv("CONFORM_DIR")
	if dir == "" {
		return fmt.Errorf("CONFORM_DIR is not set: %w", ubcoll.ErrArgument)
	}
	r, err := conform.NewRegion(c, 1<<20)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, r.Buf.Vec(), 0)
	if err != nil {
		return err
	}
	next, last := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	to := make([]*p2p.Channel, c.Size())
	for p := range c.Size() {
		if p == c.Rank() {
			continue
		}
		if to[p], err = p2p.Connect(ctx, c, p, r.Reg); err != nil {
			return err
		}
	}
	name := func(kind string) string { return filepath.Join(dir, fmt.Sprintf("rank-%d.%s", c.Rank(), kind)) }
	if err := os.WriteFile(name("ready"), []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		return err
	}
	for k := 0; ; k++ {
		if k%2 == 0 {
			if err = to[next].PutWithSignal(ctx, 1<<19, 0, 1<<18); err == nil {
				err = to[last].Wait(ctx)
			}
		} else if err = w.Signal(ctx, next); err == nil {
			err = w.Wait(ctx, last)
		}
		if err == nil {
			continue
		}
		if werr := report(c, dir, err); werr != nil {
			return werr
		}
		if c.Err() == nil {
			return conform.Fail(c, "the communicator is not broken after %v", err)
		}
		return err
	}
}
