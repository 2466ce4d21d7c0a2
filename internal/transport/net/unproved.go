package net

import (
	stdnet "net"
	"slices"
	"sync"
	"time"
)

const (
	strangers = 64 // at most so many connections may be unproved

	// How long a connection may keep its place while others want one: with a hello, and without one from an address of
	// the job. A rank says hello as it connects; then the proofs take a message each way.
	spokenLimit = time.Second
	silentLimit = 100 * time.Millisecond
)

// unproved has the connections that have not proved themselves yet, oldest first. It has few places. While all are
// taken, further connections wait in the kernel's queue, which is longer than any list here could be.
type unproved struct {
	mu     sync.Mutex
	list   []stranger
	closed bool
	freed  chan struct{} // has a value if a place has become free
}

type stranger struct {
	stdnet.Conn
	known bool      // it comes from an address of the job
	spoke bool      // it has sent a hello
	since time.Time // when it spoke, or came
}

func newUnproved() *unproved { return &unproved{freed: make(chan struct{}, 1)} }

// add waits until c has a place, and reports whether it has one: not once u is closed.
func (u *unproved) add(c stdnet.Conn, known bool) bool {
	for {
		if added, closed := u.tryAdd(stranger{Conn: c, known: known}, time.Now()); added || closed {
			return added
		}
		select {
		case <-u.freed:
		case <-time.After(silentLimit / 4):
		}
	}
}

// tryAdd is add without waiting.
func (u *unproved) tryAdd(s stranger, now time.Time) (added, closed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		s.Close()
		return false, true
	}
	if len(u.list) == strangers && !u.evict(now) {
		return false, false
	}
	s.since = now
	u.list = append(u.list, s)
	return true, false
}

// evict closes the connection that has kept its place for longest without a right to it, and reports whether there was
// one. The caller holds the lock.
func (u *unproved) evict(now time.Time) bool {
	for _, worse := range []func(s stranger) bool{
		func(s stranger) bool { return !s.spoke && !s.known },
		func(s stranger) bool { return !s.spoke && now.Sub(s.since) > silentLimit },
		func(s stranger) bool { return now.Sub(s.since) > spokenLimit },
	} {
		if i := slices.IndexFunc(u.list, worse); i >= 0 {
			u.list[i].Close()
			u.list = slices.Delete(u.list, i, i+1)
			return true
		}
	}
	return false
}

// speaks notes that c has sent a hello.
func (u *unproved) speaks(c stdnet.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := u.find(c); i >= 0 {
		u.list[i].spoke, u.list[i].since = true, time.Now()
	}
}

// find returns c's index, or -1. The caller holds the lock.
func (u *unproved) find(c stdnet.Conn) int {
	return slices.IndexFunc(u.list, func(s stranger) bool { return s.Conn == c })
}

// remove gives c's place back, and reports whether c still had it.
func (u *unproved) remove(c stdnet.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := u.find(c)
	if i < 0 {
		return false
	}
	u.list = slices.Delete(u.list, i, i+1)
	select {
	case u.freed <- struct{}{}:
	default: // somebody is told already, and looks again until there is no place
	}
	return true
}

func (u *unproved) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.list {
		s.Close()
	}
	u.list, u.closed = nil, true
}
