// Package turn keeps the order of a communicator's operations.
package turn

import (
	"sync"
	"sync/atomic"
)

// Turn lets the operations of one communicator run one at a time in call order: blocking calls, which refuse to queue
// behind each other, and operations queued on streams, which take their place in the order when they are queued.
type Turn struct {
	state atomic.Uint32 // flags running, blocking, closing, plus waiter for each ticket in the queue
	mu    sync.Mutex
	queue []*Ticket
}

const (
	running  = 1
	blocking = 2 // the running operation is a blocking call
	closing  = 4 // it is Close, which soon decides whether the communicator has ended
	waiter   = 8
)

// Ticket is an operation's place in the queue.
type Ticket struct {
	Ready chan struct{} // closed when it is the ticket's turn
	kind  uint32        // the flags of state at that turn
}

// tryBlock begins a blocking call if nothing runs or is queued.
func (t *Turn) tryBlock() bool { return t.state.CompareAndSwap(0, running|blocking) }

// Enter begins a blocking call: at once, after the operations queued on streams, or after a Close has decided. It
// returns the ticket to wait for, or nil and whether the call may go on (false: another blocking call runs or waits).
func (t *Turn) Enter() (*Ticket, bool) {
	if t.tryBlock() {
		return nil, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		v := t.state.Load()
		switch {
		case v == 0:
			if t.tryBlock() {
				return nil, true
			}
			continue
		case v&(blocking|closing) == blocking:
			return nil, false
		}
		for _, k := range t.queue {
			if k.kind&(blocking|closing) == blocking {
				return nil, false
			}
		}
		if k := t.push(v, running|blocking); k != nil {
			return k, true
		}
	}
}

// Close begins Close, as Enter begins a blocking call, if nothing but another Close runs or waits.
func (t *Turn) Close() (*Ticket, bool) {
	const kind = running | blocking | closing
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		v := t.state.Load()
		if v == 0 {
			if t.state.CompareAndSwap(0, kind) {
				return nil, true
			}
			continue
		}
		if v&closing == 0 {
			return nil, false
		}
		for _, k := range t.queue {
			if k.kind != kind {
				return nil, false
			}
		}
		if k := t.push(v, kind); k != nil {
			return k, true
		}
	}
}

// Take gives a stream operation its place.
func (t *Turn) Take() *Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		v := t.state.Load()
		if v == 0 {
			if t.state.CompareAndSwap(0, running) {
				k := &Ticket{Ready: make(chan struct{})}
				close(k.Ready)
				return k
			}
			continue
		}
		if k := t.push(v, running); k != nil {
			return k
		}
	}
}

// push queues a ticket unless the state is no longer v. The caller holds mu, which Leave takes before it reads the
// queue.
func (t *Turn) push(v, kind uint32) *Ticket {
	if !t.state.CompareAndSwap(v, v+waiter) {
		return nil
	}
	k := &Ticket{Ready: make(chan struct{}), kind: kind}
	t.queue = append(t.queue, k)
	return k
}

// Leave ends the running operation and starts the next one that is queued.
func (t *Turn) Leave() {
	if t.state.CompareAndSwap(running|blocking, 0) || t.state.CompareAndSwap(running, 0) ||
		t.state.CompareAndSwap(running|blocking|closing, 0) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.queue[0]
	t.queue = t.queue[1:]
	t.state.Store(k.kind + uint32(waiter*len(t.queue)))
	close(k.Ready)
}

// Run begins a turn, after the queued operations.
func (t *Turn) Run() {
	if !t.state.CompareAndSwap(0, running) {
		<-t.Take().Ready
	}
}
