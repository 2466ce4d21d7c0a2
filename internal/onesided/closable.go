package onesided

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// closable is a channel or a window: what ends by its own Close, or with its communicator.
type closable interface {
	// use is its uses, and its end.
	use() *uses
	// giveUp ends it, once. quick: if the communicator is broken, what is on a device ends with it, later.
	giveUp(quick bool) error
	// failed is for an error of giveUp that no Close returns.
	failed(err error)
	// name is what a user calls it.
	name() string
	// counts is what it has moved.
	counts() *moved
}

// uses are those of something closable.
type uses struct {
	team.Gate
	over atomic.Bool // it has been given up, with err
	err  error
	left atomic.Bool // no Close waits for that
}

func (u *uses) use() *uses { return u }

// begin begins a use of k: fault.ErrClosed after its end.
func begin(k closable) error {
	if k.use().Enter() {
		return nil
	}
	end(k)
	return fmt.Errorf("%s: %w", k.name(), fault.ErrClosed)
}

// end ends a use of k.
func end(k closable) {
	if k.use().Leave() {
		finish(k, true)
	}
}

func finish(k closable, quick bool) {
	u := k.use()
	u.err = k.giveUp(quick)
	if u.left.Load() {
		k.failed(u.err)
	}
	u.over.Store(true)
}

// shutFor is shut for the user of k, who does not wait for longer than engine.CloseTimeout for what is on devices.
func shutFor(k closable, c *engine.Comm, device bool) error {
	if !device {
		return shut(k, false)
	}
	return c.Within("close", func() error { return shut(k, false) })
}

// shut closes k, once. Without quick it waits until the last use has ended, so that what k held is free when it
// returns: uses end soon, since copies are never long, and waits look whether what they belong to is closed.
func shut(k closable, quick bool) error {
	u := k.use()
	if quick && !u.Closed() {
		u.left.Store(true)
	}
	first, last := u.Close()
	switch {
	case !first:
		return fmt.Errorf("%s: %w", k.name(), fault.ErrClosed)
	case last:
		finish(k, quick)
	}
	if quick {
		return nil
	}
	team.PauseUntil(u.over.Load)
	return u.err
}
