package onesided

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// closable is a channel, a semaphore or a window. It ends by its own Close, or with its communicator.
type closable interface {
	// Err returns why this rank's waits on it must end, or nil: it is closed, or its communicator is closing.
	Err() error
	// use returns its uses, which know whether it has ended.
	use() *uses
	// busy reports whether calls use it.
	busy() bool
	// ending is called when its Close begins. It returns what is closed with it, and uses it until then: the channels
	// over a semaphore.
	ending() []closable
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

// watch has every call of k tell c's tracer, if that counts operations.
func watch(k closable, c *engine.Comm) {
	if c.Tracer.Counts() {
		k.use().Watch()
	}
}

// told is for a use of k whose Enter has returned false. If k is open, it tells c's tracer of an operation. Else it ends the use
// and returns fault.ErrClosed.
func told(k closable, c *engine.Comm, operation bool) error {
	switch {
	case k.use().Closed():
		end(k)
		return closedError(k)
	case operation:
		c.Tracer.Count()
	}
	return nil
}

func (u *uses) use() *uses         { return u }
func (u *uses) busy() bool         { return u.InUse() }
func (u *uses) ending() []closable { return nil }

// begin begins a use of k that is no operation. After k has ended it returns fault.ErrClosed.
func begin(k closable) error {
	if k.use().Enter() || !k.use().Closed() {
		return nil
	}
	end(k)
	return closedError(k)
}

// closedError is the error of a call on k after it has ended.
func closedError(k closable) error { return fmt.Errorf("%s: %w", k.name(), fault.ErrClosed) }

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

// shut closes k and what ends with it, once. Without quick it waits until the last use has ended, so that k's memory is
// free when it returns. Uses end soon, because copies are short, and waits check whether k is closed.
func shut(k closable, quick bool) error {
	u := k.use()
	if quick && !u.Closed() {
		u.left.Store(true)
	}
	first, last := u.Close()
	switch {
	case !first:
		return closedError(k)
	case last:
		finish(k, quick)
	}
	var errs []error
	for _, in := range k.ending() {
		if err := shut(in, quick); !errors.Is(err, fault.ErrClosed) { // its owner has closed it just now
			errs = append(errs, err)
		}
	}
	if quick {
		return nil
	}
	team.PauseUntil(u.over.Load)
	return errors.Join(append(errs, u.err)...)
}
