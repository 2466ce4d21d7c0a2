package sweep

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// world returns a communicator of all ranks over a network, which it opens at the first use. Collective.
func (r *run) world(ctx context.Context, net string) (c *ubcoll.Comm, err error) {
	if net == "" {
		return r.c, nil
	}
	if c = r.worlds[net]; c != nil {
		return c, nil
	}
	o := r.Options
	o.Net = ubcoll.Net(net)
	if c, err = ubcoll.Open(ctx, job{r.c}, o); err == nil {
		if r.worlds == nil {
			r.worlds = map[string]*ubcoll.Comm{}
		}
		r.worlds[net] = c
	}
	return c, err
}

// closeWorlds closes what world has opened.
func (r *run) closeWorlds() error {
	var errs []error
	for _, net := range slices.Sorted(maps.Keys(r.worlds)) {
		errs = append(errs, r.worlds[net].Close())
	}
	r.worlds = nil
	return errors.Join(errs...)
}

// job lets the ranks of a communicator open another one. It implements bootstrap.Bootstrap, Hoster and Keyed.
type job struct{ c *ubcoll.Comm }

// Rank implements bootstrap.Bootstrap.
func (j job) Rank() int { return j.c.Rank() }

// Size implements bootstrap.Bootstrap.
func (j job) Size() int { return j.c.Size() }

// AllGather implements bootstrap.Bootstrap.
func (j job) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	lengths := make([]int64, j.Size())
	if err := coll.AllGather(ctx, j.c, ubcoll.Of(lengths), ubcoll.Of([]int64{int64(len(mine))})); err != nil {
		return nil, err
	}
	n := int(slices.Max(lengths))
	all := make([]byte, n*len(lengths))
	if err := coll.AllGather(ctx, j.c, ubcoll.Of(all), ubcoll.Of(append(slices.Clip(mine), make([]byte, n-len(mine))...))); err != nil {
		return nil, err
	}
	parts := make([][]byte, len(lengths))
	for i, length := range lengths {
		parts[i] = all[i*n:][:length]
	}
	return parts, nil
}

// Abort implements bootstrap.Bootstrap.
func (j job) Abort(int) { j.c.Abort(errors.New("a rank has ended the job")) }

// Close implements bootstrap.Bootstrap.
func (j job) Close() error { return nil }

// Host implements bootstrap.Hoster.
func (j job) Host() string { return j.c.Hostname(j.c.Rank()) }

// Key implements bootstrap.Keyed: the secret of another communicator must not travel.
func (j job) Key() []byte { return (*inside.Comm)(j.c).View().Key("another communicator") }
