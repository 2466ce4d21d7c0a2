package bootstrap

import (
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// closedNow reports whether c is closed.
func closedNow(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Broken implements Watcher.
func (r *root) Broken() <-chan struct{} { return r.broken }

// Cause implements Watcher.
func (r *root) Cause() error {
	if !closedNow(r.broken) {
		return nil // the others are being told
	}
	return r.reason()
}

// Broken implements Watcher.
func (l *leaf) Broken() <-chan struct{} { return l.broken }

// Cause implements Watcher.
func (l *leaf) Cause() error {
	if !closedNow(l.broken) {
		return nil // rank 0 is being told
	}
	return l.reason()
}

// Broken implements Watcher.
func (r *goRank) Broken() <-chan struct{} {
	r.m.watchUnder()
	return r.m.broken.Done()
}

// Cause implements Watcher.
func (r *goRank) Cause() error {
	r.m.watchUnder()
	if r.m.broken.Err() == nil {
		return nil
	}
	return r.failure()
}

// watchUnder begins to watch the bootstrap under the meeting, if that can be watched and is not watched yet. Without a
// rank that wants to know, there is no goroutine that could be left behind.
func (m *meeting) watchUnder() {
	w, ok := m.under.(Watcher)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watched || m.failure != nil || m.nclosed == m.n {
		return
	}
	m.watched = true
	m.watch.Go(func() {
		select {
		case <-w.Broken():
			m.underBroke(w.Cause())
		case <-m.over:
		}
	})
}

// underBroke breaks the meeting. If an exchange is under way, its error counts, which says more.
func (m *meeting) underBroke(err error) {
	m.exchanging.Lock()
	defer m.exchanging.Unlock()
	m.fail(m.causeUnder(err, -1).toOthers(err))
}

// causeUnder is the cause when the bootstrap under the meeting broke by err; about is the rank that it is about if err
// does not say.
func (m *meeting) causeUnder(err error, about int) cause {
	c := cause{peer: about, err: err}
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Peer >= 0 { // Peer is a process of under: name its ranks
		first := e.Peer * m.n
		c = cause{peer: first, err: fmt.Errorf("process %d with ranks %d to %d: %w", e.Peer, first, first+m.n-1, e.Err)}
	} else if reason.TimedOut(err) {
		c.peer = -1 // under does not say who was missing
	}
	return c
}

// toOthers is c, by err, for ranks that need not know whose context has ended.
func (c cause) toOthers(err error) cause {
	if reason.TimedOut(err) {
		c.why, c.err = err.Error(), fault.ErrTimeout
	}
	return c
}
