// Package clock measures limits in the time in which this process runs. While it is stopped (by SIGSTOP or Ctrl-Z, a
// debugger, a suspended machine or a paused virtual one) it can neither do its part nor see what others did, so that
// time does not count.
package clock

import (
	"context"
	"time"
)

// Gap is the longest time between two looks at a clock that counts in full: who looks more often than this, and sees
// more time pass, was stopped meanwhile.
const Gap = 100 * time.Millisecond

// Deadline is a limit for a loop that looks at least every Gap.
type Deadline struct {
	left time.Duration
	last time.Time
}

// In is a deadline that passes after limit.
func In(limit time.Duration) Deadline { return Deadline{limit, time.Now()} }

// Passed reports whether the deadline has passed.
func (d *Deadline) Passed() bool { return d.passed(time.Now(), Gap) }

func (d *Deadline) passed(now time.Time, most time.Duration) bool {
	d.left -= min(now.Sub(d.last), most)
	d.last = now
	return d.left <= 0
}

// Timer is a time.Timer for a limit. It wakes up now and then, to notice that the process was stopped.
type Timer struct {
	C    <-chan struct{} // closed when the limit has passed
	stop context.CancelFunc
}

// After begins a limit. The caller stops the timer.
func After(limit time.Duration) Timer {
	ctx, stop := WithTimeout(context.Background(), limit, nil)
	return Timer{ctx.Done(), stop}
}

// Stop releases the timer.
func (t Timer) Stop() { t.stop() }

// WithTimeout is context.WithTimeoutCause in the process's running time. The context has no Deadline of its own.
func WithTimeout(parent context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	step := min(max(limit/16, time.Millisecond), time.Second)
	go func() {
		t := time.NewTicker(step)
		defer t.Stop()
		for d := In(limit); !d.passed(time.Now(), step+Gap); {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
		end(cause)
	}()
	return timed{ctx, cause}, func() { end(context.Canceled) }
}

// timed is a context whose Err tells its time limit from a cancellation.
type timed struct {
	context.Context
	cause error
}

// Err implements context.Context.
func (t timed) Err() error {
	err := t.Context.Err()
	if err != nil && context.Cause(t.Context) == t.cause {
		return context.DeadlineExceeded
	}
	return err
}
