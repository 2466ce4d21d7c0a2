package roster

import (
	"context"

	"github.com/ubcoll/ubcoll/bootstrap"
)

// Watch is ctx until the job breaks. Then it ends, with the bootstrap's error as its cause, if the bootstrap is a
// Watcher. The caller calls stop when it no longer needs it.
func (r *Roster) Watch(ctx context.Context) (_ context.Context, stop func()) {
	w, ok := r.b.(bootstrap.Watcher)
	if !ok {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		select {
		case <-w.Broken():
			cancel(w.Cause())
		case <-over:
		}
	}()
	return ctx, func() { close(over); cancel(nil) }
}
