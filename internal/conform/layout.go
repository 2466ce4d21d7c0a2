package conform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Layout says on which host each rank of a job is.
type Layout []int

// Block places sizes[h] ranks on host h, one host after the other.
func Block(sizes ...int) (l Layout) {
	for h, n := range sizes {
		for range n {
			l = append(l, h)
		}
	}
	return l
}

// Cyclic places sizes[h] ranks on host h, cycling over the hosts that have room.
func Cyclic(sizes ...int) (l Layout) {
	for i := 0; ; i++ {
		full := true
		for h, n := range sizes {
			if i < n {
				l, full = append(l, h), false
			}
		}
		if full {
			return l
		}
	}
}

// Layouts are the layouts for suites across hosts: even and uneven, with ranks in both orders.
func Layouts() (all []Layout) {
	for _, sizes := range [][]int{{2, 2}, {3, 1}, {1, 1, 1}, {2, 2, 1}} {
		all = append(all, Block(sizes...))
		if cyclic := Cyclic(sizes...); cyclic.String() != all[len(all)-1].String() {
			all = append(all, cyclic)
		}
	}
	return all
}

// Most is the number of ranks on the host with the most.
func (l Layout) Most() int {
	counts := map[int]int{}
	for _, h := range l {
		counts[h]++
	}
	return slices.Max(slices.Collect(maps.Values(counts)))
}

// String has a letter for each rank's host: "aabb".
func (l Layout) String() string {
	var b strings.Builder
	for _, h := range l {
		b.WriteByte('a' + byte(h))
	}
	return b.String()
}

// Run runs s on goroutine ranks that claim to be on the hosts of l.
func (l Layout) Run(ctx context.Context, o ubcoll.Options, s Suite) error {
	return l.run(ctx, func(b bootstrap.Bootstrap) (*ubcoll.Comm, error) { return ubcoll.Open(ctx, b, o) }, s)
}

// RunOver is Run over a network of the test's own.
func (l Layout) RunOver(ctx context.Context, network engine.NewNode, s Suite) error {
	providers := inside.Providers
	providers.Network = network
	return l.run(ctx, func(b bootstrap.Bootstrap) (*ubcoll.Comm, error) {
		c, err := inside.OpenOn(ctx, b, engine.Options{Timeout: testkit.Limit}, nil, providers)
		return (*ubcoll.Comm)(c), err
	}, s)
}

func (l Layout) run(ctx context.Context, open func(b bootstrap.Bootstrap) (*ubcoll.Comm, error), s Suite) error {
	bs := enginetest.Hosts(bootstrap.Local(len(l)), func(rank int) string { return fmt.Sprintf("host%c", 'a'+l[rank]) })
	errs := testkit.Each(bs, func(b bootstrap.Bootstrap) error {
		c, err := open(b)
		if err != nil {
			return errors.Join(err, b.Close())
		}
		if err = s(ctx, c); err != nil {
			c.Abort(err)
		}
		return errors.Join(err, c.Close(), b.Close())
	})
	var others []error
	for r, err := range errs {
		switch {
		case err != nil && !errors.Is(err, ubcoll.ErrAborted): // this rank's error has ended the others
			return fmt.Errorf("%v: rank %d: %w", l, r, err)
		case err != nil:
			others = append(others, err)
		}
	}
	return errors.Join(others...)
}
