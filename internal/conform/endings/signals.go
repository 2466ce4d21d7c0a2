package endings

import (
	"context"
	"errors"
	"os"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Ways to end. The first four say that they are ready, and go on until a signal comes.

// EndsWait is in calls that know the context.
func EndsWait(ctx context.Context, c *ubcoll.Comm) error { return barriers(ctx, c) }

// EndsSwallow takes the signal for a good end.
func EndsSwallow(ctx context.Context, c *ubcoll.Comm) error {
	return wait(ctx, c, nil)
}

// EndsPlain has an error of its own that says nothing of the signal.
func EndsPlain(ctx context.Context, c *ubcoll.Comm) error {
	return wait(ctx, c, errors.New("something went wrong"))
}

// EndsIgnore is in calls that do not know the context, until the test has a file "enough" for it.
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

// EndsFirst fails on rank 1, after which the others go on until that rank's process has reported what Run has given it.
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

// wait waits for the signal, and ends with err.
func wait(ctx context.Context, c *ubcoll.Comm, err error) error {
	if _, err := ready(c); err != nil {
		return err
	}
	<-ctx.Done()
	return err
}

// barriers is in collectives until some rank is told that it is enough.
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
