package collnet

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// stuck counts threads that have been given up.
var stuck atomic.Int64

// Stuck is how many threads have been given up in this process, since a plugin's call did not return.
func Stuck() int { return int(stuck.Load()) }

// grace is how much longer than its context a call may take, to end by itself. A variable for tests.
var grace = time.Second

// thread makes calls one after the other, on a thread of the system. Any goroutine may use it.
type thread struct {
	plugin string
	work   chan func()

	mu    sync.Mutex
	given string // the call with which it was given up, or ""
}

func newThread(plugin string) *thread {
	t := &thread{plugin: plugin, work: make(chan func())}
	go t.run()
	return t
}

func (t *thread) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and what a plugin has tied to it
	for f := range t.work {
		f()
	}
}

// end ends the thread, once its calls are over.
func (t *thread) end() { close(t.work) }

// do runs f, which makes a call. When ctx ends it calls cancel, if that is not nil, and soon gives the thread up: then f still
// runs, perhaps for ever, and whatever it uses must not be used again.
func (t *thread) do(ctx context.Context, call string, cancel func(), f func()) error {
	if given := t.gone(); given != "" {
		return fmt.Errorf("the CollNet plugin %q has not returned from %s: %w", t.plugin, given, fault.ErrAborted)
	}
	done := make(chan struct{})
	select {
	case t.work <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if cancel != nil {
		cancel()
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-done:
		return context.Cause(ctx)
	case <-late.C:
	}
	t.mu.Lock()
	t.given = call
	t.mu.Unlock()
	stuck.Add(1)
	return fmt.Errorf("%s of the CollNet plugin %q does not return, and its thread is given up: %w", call, t.plugin, context.Cause(ctx))
}

// gone is the call with which the thread was given up, or "".
func (t *thread) gone() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.given
}
