// Package enginetest makes communicators of goroutine ranks for tests of the packages below the root.
package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// ProvidersWith is inside.Providers with a test's own transport.
func ProvidersWith(newIPC engine.NewIPC) engine.Providers {
	r := inside.Providers
	r.IPC = newIPC
	return r
}

// Open opens a communicator of n goroutine ranks. The end of the test closes it if the test has not.
func Open(t *testing.T, n int, o engine.Options) []*engine.Comm {
	t.Helper()
	comms, errs := OpenOver(bootstrap.Local(n), o)
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() {
		for _, c := range comms {
			if err := c.Close(); !errors.Is(err, fault.ErrClosed) && err != nil {
				t.Error(err)
			}
		}
	})
	return comms
}

// OpenOver opens a communicator over bs, which it closes. Both results are by rank.
func OpenOver(bs []bootstrap.Bootstrap, o engine.Options) ([]*engine.Comm, []error) {
	comms := make([]*engine.Comm, len(bs))
	errs := testkit.Each(bs, func(b bootstrap.Bootstrap) (err error) {
		comms[b.Rank()], err = engine.Open(context.Background(), b, o, nil, inside.Providers)
		return err
	})
	testkit.Each(bs, bootstrap.Bootstrap.Close)
	return comms, errs
}

// Submit starts w on v, as package coll does.
func Submit(ctx context.Context, v *engine.View, w team.Work) error {
	p, err := v.Begin()
	if err != nil {
		return err
	}
	*p = w
	return v.End(ctx, p)
}

// Run runs w on c and waits for it.
func Run(ctx context.Context, c *engine.Comm, w team.Work) error {
	return Submit(ctx, &engine.View{Comm: c}, w)
}

// Barrier is a barrier.
func Barrier(c *engine.Comm) error {
	return Run(context.Background(), c, team.Work{Kind: team.KindBarrier, Path: &team.Path{Name: "descriptors"}})
}

// RequireWaiting waits until all ranks but one have reached their n-th operation, and group leaders have reported it
// for their groups: then all wait for the rank that is missing.
func RequireWaiting(t *testing.T, comms []*engine.Comm, n uint64, missing int) {
	t.Helper()
	there := func(c *engine.Comm) bool {
		m := c.Team()
		leads := m.Groups() > 0 && m.Members()[0] == c.Rank() && m.Group() != comms[missing].Team().Group()
		return c.Rank() == missing || team.Reached(m.Me.Desc[n&1].Seq.Load(), n) &&
			(!leads || team.Reached(m.Me.Group[n&1].Seq.Load(), n))
	}
	testkit.Eventually(t, func() bool {
		return !slices.ContainsFunc(comms, func(c *engine.Comm) bool { return !there(c) })
	})
}

// Registered allocates n bytes of c's memory and registers them.
func Registered(t *testing.T, c *engine.Comm, n int) (team.Vec, *engine.Registration) {
	t.Helper()
	a, err := c.Alloc(hw.Host, n)
	require.NoError(t, err)
	v := team.Vec{Ptr: a.Ptr, Len: n, Type: dtype.Uint8, Alloc: a}
	r, err := c.RegisterBuffer(v)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() }) // runs before the communicator is closed
	return v, r
}

// Recorder records up to Room operations.
type Recorder struct {
	Room int

	mu    sync.Mutex
	works []team.Work
}

// ErrFull is Record's error if there is no room.
var ErrFull = errors.New("full")

// Begin implements engine.Recorder.
func (r *Recorder) Begin() *team.Work { return new(team.Work) }

// Record implements engine.Recorder.
func (r *Recorder) Record(_ *engine.Comm, w *team.Work) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.works) == r.Room {
		return ErrFull
	}
	r.works = append(r.works, *w)
	return nil
}

// Works returns the recorded operations.
func (r *Recorder) Works() []team.Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.works
}
