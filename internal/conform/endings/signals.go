package endings

import (
	"context"
	"errors"
	"os"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Ways to end. The first four report that they are ready, and go on until a signal comes.

// EndsWait makes calls that use the context.
func EndsWait(ctx context.Context, c *ubcoll.Comm) error { return barriers(ctx, c) }

// EndsSwallow takes the signal as a good end.
func EndsSwallow(ctx context.Context, c *ubcoll.Comm) error {
	return wait(ctx, c, nil)
}

// EndsPlain returns an error of its own that does not mention the signal.
func EndsPlain(ctx context.Context, c *ubcoll.Comm) error {
	return wait(ctx, c, errors.New("something went wrong"))
}

// EndsIgnore makes calls that do not use the context, until the test makes a file "enough".
func EndsIgnore(ctx context.Context, c *ubcoll.Comm) error {
	return barriers(context.Background(), c)
}

// EndsPanic panics on rank 1.
func EndsPanic(ctx context.Context, c *ubcoll.Comm) error {
	if c.Rank() == 1 {
		panic("on purpose\nand with a second line")
	}
	return barriers(ctx, c)
}

// EndsError fails on rank 1.
func EndsError(ctx context.Context, c *ubcoll.Comm) error {
	if c.Rank() == 1 {
		return errors.New("no luck")
	}
	return barriers(ctx, c)
}

// EndsFirst fails on rank 1. The others go on until that rank's process has reported what Run has returned.
func EndsFirst(ctx context.Context, c *ubcoll.Comm) error {
	if c.Rank() == 1 {
		return errors.New("no luck")
	}
	dir, err := conform.Dir()
	if err != nil {
		return err
	}
	err = barriers(ctx, c)
	if !testkit.Until(func() bool { return len(RunFiles(dir)) > 0 }) {
		return conform.Fail(c, "rank 1 waits for the others before its Run returns")
	}
	return err
}

// Held makes rank 0 late, until the test says that it is enough: rank 1 waits for a message of it, the others in a
// barrier. Meanwhile the test stops all ranks for longer than their limit.
func Held(ctx context.Context, c *ubcoll.Comm) error {
	dir, err := ready(c)
	if err != nil {
		return err
	}
	x := ubcoll.Of(make([]int32, 100000))
	switch c.Rank() {
	case 0:
		if !testkit.Until(func() bool { _, err := os.Stat(EnoughFile(dir)); return err == nil }) {
			return conform.Fail(c, "the test does not say that it is enough")
		}
		err = p2p.Send(ctx, c, 1, x)
	case 1:
		_, err = p2p.Recv(ctx, c, 0, x)
	}
	return errors.Join(err, coll.Barrier(ctx, c))
}

// wait waits for the signal, and returns err.
func wait(ctx context.Context, c *ubcoll.Comm, err error) error {
	if _, err := ready(c); err != nil {
		return err
	}
	<-ctx.Done()
	return err
}

// barriers calls collectives until some rank is told that it is enough.
func barriers(ctx context.Context, c *ubcoll.Comm) error {
	dir, err := ready(c)
	if err != nil {
		return err
	}
	enough := []uint8{0}
	for enough[0] == 0 {
		if _, err := os.Stat(EnoughFile(dir)); err == nil {
			enough[0] = 1
		}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(enough), ubcoll.Of(enough), ubcoll.Max); err != nil {
			return err
		}
	}
	return nil
}
