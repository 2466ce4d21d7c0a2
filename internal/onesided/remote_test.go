package onesided_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestImportOfAnotherOpen imports a handle in a communicator of another job, and in one whose ranks do not include the
// handle's maker.
func TestImportOfAnotherOpen(t *testing.T) {
	comms, others := enginetest.Open(t, 3, engine.Options{}), enginetest.Open(t, 2, engine.Options{})
	_, r := enginetest.Registered(t, comms[0], 100)
	defer r.Close()
	h, err := onesided.MarshalHandle(r)
	require.NoError(t, err)
	_, err = onesided.SpaceOf(others[1]).Import(h)
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "another job")

	subs := make([]*engine.Comm, 3)
	for i, err := range testkit.Each(comms, func(c *engine.Comm) (err error) {
		subs[c.Rank()], err = c.Split(background, min(c.Rank(), 1), 0, c.Options())
		return err
	}) {
		require.NoError(t, err)
		defer subs[i].Close()
	}
	m, err := onesided.SpaceOf(comms[1]).Import(h)
	require.NoError(t, err)
	require.Equal(t, 0, m.Rank)
	_, err = onesided.SpaceOf(subs[1]).Import(h) // it has ranks 1 and 2
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "not among the ranks")
}

// TestCloseWaitsForImport closes the rank's last communicator while another goroutine looks at a peer's export, which
// must stay mapped until the look is done.
func TestCloseWaitsForImport(t *testing.T) {
	for _, k := range []struct {
		name string
		do   func(c *engine.Comm, r *engine.Registration, m *onesided.Remote, h []byte) error
	}{
		{"import", func(c *engine.Comm, _ *engine.Registration, _ *onesided.Remote, h []byte) error {
			_, err := onesided.SpaceOf(c).Import(h)
			return err
		}},
		{"connect", func(c *engine.Comm, r *engine.Registration, m *onesided.Remote, _ []byte) error {
			_, err := onesided.SpaceOf(c).Connect(background, 0, r, m)
			return err
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var hold atomic.Bool
			looks, goOn := make(chan struct{}), make(chan struct{})
			comms := enginetest.OpenHooked(t, engine.Options{}, enginetest.Hooks{Look: func() {}, Dead: func() bool { return false }, Live: func() {
				if hold.CompareAndSwap(true, false) {
					looks <- struct{}{}
					<-goOn
				}
			}})
			_, theirs := enginetest.Registered(t, comms[0], 100)
			_, mine := enginetest.Registered(t, comms[1], 100)
			h, err := onesided.MarshalHandle(theirs)
			require.NoError(t, err)
			m, err := onesided.SpaceOf(comms[1]).Import(h)
			require.NoError(t, err)
			hold.Store(true)
			did, closed := make(chan error, 1), make(chan error, 1)
			go func() { did <- k.do(comms[1], mine, m, h) }()
			<-looks
			go func() { closed <- comms[1].Close() }()
			testkit.Eventually(t, func() bool { return comms[1].Err() != nil })
			time.Sleep(20 * time.Millisecond) // longer than Close takes if it does not wait
			require.Empty(t, closed)
			close(goOn)
			if err := <-did; err != nil {
				require.ErrorIs(t, err, fault.ErrClosed)
			}
			require.NoError(t, <-closed)
			require.ErrorIs(t, k.do(comms[1], mine, m, h), fault.ErrClosed)
		})
	}
}

// TestRegistrationsEnd closes or aborts the communicator that made registrations.
func TestRegistrationsEnd(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(c *engine.Comm) error
		want error // of later calls
	}{
		{"close", (*engine.Comm).Close, fault.ErrClosed},
		{"abort", func(c *engine.Comm) error { c.Abort(errors.New("enough")); return nil }, fault.ErrAborted},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			dups := make([]*engine.Comm, 2)
			require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
				dups[c.Rank()], err = c.Dup(background)
				return err
			})...))
			defer dups[0].Close()
			defer dups[1].Close()
			d := dups[1]
			a, err := d.Alloc(hw.Host, 4096)
			require.NoError(t, err)
			v := team.Vec{Ptr: a.Ptr, Len: 4096, Type: dtype.Uint8, Alloc: a}
			r, err := d.RegisterBuffer(v)
			require.NoError(t, err)
			h, err := onesided.MarshalHandle(r)
			require.NoError(t, err)
			m, err := onesided.SpaceOf(comms[0]).Import(h)
			require.NoError(t, err)
			early, err := d.RegisterBuffer(v)
			require.NoError(t, err)
			require.NoError(t, early.Close())
			other, err := comms[1].RegisterBuffer(v)
			require.NoError(t, err)

			require.NoError(t, k.end(d))
			require.ErrorIs(t, r.Close(), fault.ErrClosed)
			_, err = onesided.MarshalHandle(r)
			require.ErrorIs(t, err, fault.ErrStale)
			require.ErrorIs(t, m.Live(), fault.ErrStale)
			_, err = d.RegisterBuffer(v)
			require.ErrorIs(t, err, k.want)
			err = d.Free(a)
			require.ErrorIs(t, err, fault.ErrInUse, "the one that the parent made stays")
			require.ErrorContains(t, err, "1 registrations")
			require.NoError(t, other.Close())
			require.NoError(t, d.Free(a))
		})
	}
}
