package onesided

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// closable is a channel or a window. It ends by its own Close, or with its communicator.
type closable interface {
	// Err returns why this rank's waits on it must end, or nil: it is closed, or its communicator is closing.
	Err() error
	// use returns its uses, which know whether it has ended.
	use() *uses
	// giveUp ends it, once. quick: if the communicator is broken, the parts on a device end later, with the
	// communicator.
	giveUp(quick bool) error
	// failed takes an error of giveUp that no Close returns.
	failed(err error)
	// name returns the name for users.
	name() string
	// stats returns its counters.
	stats() *counters
}

// uses are the uses of a closable.
type uses struct {
	team.Gate
	over atomic.Bool // giveUp has returned, with err
	err  error
	left atomic.Bool // no Close waits for over
}

func (u *uses) use() *uses { return u }

// begin begins a use of k. After k has ended it returns fault.ErrClosed.
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

// shutFor is shut for the user of k. With parts on devices, it waits no longer than engine.CloseTimeout.
func shutFor(k closable, c *engine.Comm, device bool) error {
	if !device {
		return shut(k, false)
	}
	return c.Within("close", func() error { return shut(k, false) })
}

// shut closes k, once. Without quick it waits until the last use has ended, so that k's memory is free when it returns.
// Uses end soon, because copies are short, and waits check whether k is closed.
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
