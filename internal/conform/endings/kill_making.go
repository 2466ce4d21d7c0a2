package endings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// KillMaking opens, splits, duplicates and closes communicators of all ranks again and again, until the test kills a
// rank or a host or cuts a link, or has seen enough. The survivors report the first error. They close nothing after it,
// so that nobody blames them.
func KillMaking(ctx context.Context, b bootstrap.Bootstrap, o ubcoll.Options) error {
	dir, err := conform.Dir()
	if err != nil {
		return err
	}
	if err := write(ReadyFile(dir, b.Rank()), fmt.Sprint(os.Getpid())); err != nil {
		return err
	}
	enough := func() bool { _, err := os.Stat(EnoughFile(dir)); return err == nil }
	for k := 0; err == nil; k++ {
		if b.Rank() == 0 {
			err = write(RoundsFile(dir), fmt.Sprint(k))
		}
		err = errors.Join(err, makeSome(ctx, b, o, enough))
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	if werr := writeReport(b.Rank(), dir, err, time.Now()); werr != nil {
		return werr
	}
	testkit.Until(enough)
	return err
}

var errEnough = errors.New("the test has seen enough")

// makeSome makes communicators and closes them. Their ranks have the same numbers in all.
func makeSome(ctx context.Context, b bootstrap.Bootstrap, o ubcoll.Options, enough func() bool) error {
	c, err := ubcoll.Open(ctx, b, o)
	if err != nil {
		return err
	}
	all, x := []*ubcoll.Comm{c}, []int32{0}
	if c.Rank() == 0 && enough() {
		x[0] = 1
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
		return err
	}
	for _, more := range []func(c *ubcoll.Comm) (*ubcoll.Comm, error){
		func(c *ubcoll.Comm) (*ubcoll.Comm, error) { return c.Split(ctx, 0, c.Rank()) },
		func(c *ubcoll.Comm) (*ubcoll.Comm, error) { return c.Dup(ctx) },
	} {
		child, err := more(all[len(all)-1])
		if err != nil {
			return err
		}
		all = append(all, child)
		if err := coll.Barrier(ctx, child); err != nil {
			return err
		}
	}
	for i := range all {
		err := all[len(all)-1-i].Close()
		if err != nil && !(os.Getenv("CONFORM_STOPS") != "" && errors.Is(err, ubcoll.ErrTimeout)) { // Close does not wait for stopped ranks
			return err
		}
	}
	if x[0] > 0 {
		return errEnough
	}
	return nil
}
