package mail

import (
	"sync"
	"sync/atomic"
)

// progress knows the communicators of a domain, and which of them have open requests. Every wait of this rank moves
// those requests' messages, since its peers may be waiting for them.
type progress struct {
	all   sync.Map // *Mail
	open  atomic.Int32
	mu    sync.Mutex
	mails map[*Mail]int // with open requests
	first func()        // runs before their messages are moved, or nil; for tests
}

// pass waits until the current holders of all lanes have let go of them.
func (p *progress) pass() {
	for m := range p.all.Range {
		for l := range m.(*Mail).lanes() {
			l.Lock()
			//lint:ignore SA2001 the wait for the lock is all that is wanted: what its holder does is over then
			l.Unlock()
		}
	}
}

// leave ends all requests of m, which has been closed.
func (p *progress) leave(m *Mail) {
	p.all.Delete(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open.Add(-int32(p.mails[m]))
	delete(p.mails, m)
}

// move moves the messages of open requests. Without any, it is only a load.
func (p *progress) move() {
	if p.open.Load() == 0 {
		return
	}
	if !p.mu.TryLock() {
		return // another goroutine does it
	}
	defer p.mu.Unlock()
	for m := range p.mails {
		if p.first != nil {
			p.first()
		}
		m.Move()
	}
}

// OpenRequest makes the waits of this rank move the messages of m, until as many calls of CloseRequest.
func (m *Mail) OpenRequest() {
	p := m.domain
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mails == nil {
		p.mails = map[*Mail]int{}
	}
	p.mails[m]++
	p.open.Add(1)
}

// CloseRequest undoes one OpenRequest, unless the communicator has been closed meanwhile.
func (m *Mail) CloseRequest() {
	p := m.domain
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := p.mails[m]; n {
	case 0:
		return
	case 1:
		delete(p.mails, m)
	default:
		p.mails[m] = n - 1
	}
	p.open.Add(-1)
}

// BeforeMove makes waits call f before they move the messages of any communicator of the domain. For tests.
func (m *Mail) BeforeMove(f func()) {
	m.domain.mu.Lock()
	m.domain.first = f
	m.domain.mu.Unlock()
}
