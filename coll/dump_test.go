package coll_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestDumps: jobs that hang until their waits time out; what the ranks have written names the first difference.
func TestDumps(t *testing.T) {
	type job struct {
		c, d *ubcoll.Comm  // of the same ranks
		over chan struct{} // closed once a rank has given up
	}
	some := make([]float32, 8)
	reduce := func(c *ubcoll.Comm) error {
		return coll.AllReduce(context.Background(), c, ubcoll.Of(make([]float32, 8)), ubcoll.Of(some), ubcoll.Sum)
	}
	for _, k := range []struct {
		name, hosts string
		do          func(j job) error
		kinds       []flight.Kind
		ranks       string
	}{
		{"one rank is missing", "aaaa", func(j job) error {
			if j.c.Rank() == 2 {
				<-j.over
				return nil
			}
			return reduce(j.c)
		}, missing, "rank 2"},
		{"one rank of another host is missing", "aabb", func(j job) error {
			if j.c.Rank() == 3 {
				<-j.over
				return nil
			}
			return reduce(j.c)
		}, missing, "rank 3"},
		{"another order of two communicators", "aa", func(j job) error {
			order := []*ubcoll.Comm{j.c, j.d}
			if j.c.Rank() == 1 {
				slices.Reverse(order)
			}
			return errors.Join(reduce(order[0]), reduce(order[1]))
		}, circle, "ranks 0, 1"},
		{"a circle of messages", "abc", func(j job) error {
			n, me := j.c.Size(), j.c.Rank()
			_, err := p2p.Recv(context.Background(), j.c, (me+1)%n, ubcoll.Of(make([]float32, 8)))
			return errors.Join(err, p2p.Send(context.Background(), j.c, (me+n-1)%n, ubcoll.Of(some)))
		}, circle, "ranks 0-2"},
	} {
		t.Run(k.name, func(t *testing.T) {
			rounds := 1
			if testkit.Full() {
				rounds = 20
			}
			for range rounds {
				folder := t.TempDir()
				t.Setenv(env.Dump.Name, folder)
				over := make(chan struct{})
				gone := make(chan struct{}, len(k.hosts))
				go func() { <-gone; close(over) }()
				failed := make([]error, len(k.hosts))
				onHostsWith(t, k.hosts, inside.Providers.Network, engine.Options{}, func(c *ubcoll.Comm) error {
					d, err := c.Dup(context.Background())
					if err != nil {
						return err
					}
					for range 5 {
						if err := errors.Join(reduce(c), reduce(d)); err != nil {
							return err
						}
					}
					for _, c := range []*ubcoll.Comm{c, d} {
						(*inside.Comm)(c).View().SetTimeout(2 * time.Second)
					}
					failed[c.Rank()] = k.do(job{c, d, over})
					gone <- struct{}{}
					return d.Close()
				})
				require.Error(t, errors.Join(failed...))
				requireFound(t, folder, k.kinds, k.ranks)
			}
		})
	}
}

// missing are the kinds of a rank that has not called: whether it has written a dump depends on whether it has noticed that the
// others have given up.
var (
	missing = []flight.Kind{flight.Lost, flight.Missing}
	circle  = []flight.Kind{flight.Circle}
)

// requireFound checks what the dumps of a job say first: of which kind it is, one of several, and the ranks.
func requireFound(t *testing.T, folder string, kinds []flight.Kind, ranks string) {
	t.Helper()
	jobs, err := flight.Read(folder)
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	found := flight.Join(jobs[0])
	require.NotEmpty(t, found.Findings)
	f := found.Findings[0]
	require.Contains(t, kinds, f.Kind, f.Text)
	require.Equal(t, ranks, f.Ranks.String(), f.Text)
}

// TestDeviceDumps is TestDumps for kernels that wait for a rank that has not called.
func TestDeviceDumps(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(env.Dump.Name, folder)
	over, late := make(chan struct{}, 3), error(nil)
	errs := devicesOnHosts(t, "aaa", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[float32](c, dev, 64)
		if err != nil {
			return err
		}
		for range 3 {
			if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
				return err
			}
		}
		(*inside.Comm)(c).View().SetTimeout(2 * time.Second)
		if c.Rank() == 1 {
			<-over
			return nil
		}
		err = coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum)
		if over <- struct{}{}; c.Rank() == 0 {
			late = err
		}
		return nil
	})
	require.Len(t, errs, 3)
	require.Error(t, late)
	requireFound(t, folder, missing, "rank 1")
}
