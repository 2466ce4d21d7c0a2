// Package endings has the suites of how jobs end: ranks that are killed, leave early, fail, panic, or get a signal.
package endings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// Kill reduces without end, from registered and from Go memory in turn, until a peer is lost, and writes what it then
// knows to a file of its own in CONFORM_DIR: the rank it names and when. The test kills some rank at some moment, and
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
	dir := os.Getenv("CONFORM_DIR")
	if dir == "" {
		return fmt.Errorf("CONFORM_DIR is not set: %w", ubcoll.ErrArgument)
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
			return conform.Fail(c, "a broken communicator worked: %v", again)
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
