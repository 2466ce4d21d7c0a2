package mail

import (
	"sync"
	"sync/atomic"
)

// mailroom knows the communicators of a domain, and which of them have open requests. Every wait of this rank moves
// those requests' messages, since its peers may be waiting for them.
type mailroom struct {
	all   sync.Map // *Mail
	open  atomic.Int32
	mu    sync.Mutex
	mails map[*Mail]int // with open requests
	first func()        // runs before their messages are moved, or nil; for tests
}

// pass waits until the current holders of all lanes have let go of them.
func (r *mailroom) pass() {
	for m := range r.all.Range {
		for l := range m.(*Mail).lanes() {
			l.Lock()
			//lint:ignore SA2001 the wait for the lock is all that is wanted: what its holder does is over then
			l.Unlock()
		}
	}
}

// leave ends all requests of m, which has been closed.
func (r *mailroom) leave(m *Mail) {
	r.all.Delete(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open.Add(-int32(r.mails[m]))
	delete(r.mails, m)
}

// move moves the messages of open requests. Without any, it is only a load.
func (r *mailroom) move() {
	if r.open.Load() == 0 {
		return
	}
	if !r.mu.TryLock() {
		return // another goroutine does it
	}
	defer r.mu.Unlock()
	for m := range r.mails {
		if r.first != nil {
			r.first()
		}
		m.Move()
	}
}

// OpenRequest makes the waits of this rank move the messages of m, until as many calls of CloseRequest.
func (m *Mail) OpenRequest() {
	r := m.domain
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mails == nil {
		r.mails = map[*Mail]int{}
	}
	r.mails[m]++
	r.open.Add(1)
}

// CloseRequest undoes one OpenRequest, unless the communicator has been closed meanwhile.
func (m *Mail) CloseRequest() {
	r := m.domain
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := r.mails[m]; n {
	case 0:
		return
	case 1:
		delete(r.mails, m)
	default:
		r.mails[m] = n - 1
	}
	r.open.Add(-1)
}

// BeforeMove makes waits call f before they move the messages of any communicator of the domain. For tests.
func (m *Mail) BeforeMove(f func()) {
	m.domain.mu.Lock()
	m.domain.first = f
	m.domain.mu.Unlock()
}
