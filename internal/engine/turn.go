package engine

import (
	"sync"
	"sync/atomic"
)

// turn lets the operations of one communicator run one at a time in call order: blocking calls, which refuse to queue
// behind each other, and operations queued on streams, which take their place in the order when they are queued.
type turn struct {
	state atomic.Uint32 // turnRunning, turnBlocking, turnClosing, and turnWaiter for each ticket in the queue
	mu    sync.Mutex
	queue []*ticket
}

const (
	turnRunning  = 1
	turnBlocking = 2 // what runs is a blocking call
	turnClosing  = 4 // it is Close, which soon knows whether the communicator has ended
	turnWaiter   = 8
)

type ticket struct {
	ready chan struct{} // closed when it is the ticket's turn
	kind  uint32        // what state is then, but for who else waits
}

// tryBlock begins a blocking call if nothing runs or is queued.
func (t *turn) tryBlock() bool { return t.state.CompareAndSwap(0, turnRunning|turnBlocking) }

// enter begins a blocking call: at once, or after the operations that are queued on streams, or once Close has decided.
// It returns the ticket to wait for, or nil and whether the call may go on (false: another blocking call runs or
// waits).
func (t *turn) enter() (*ticket, bool) {
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
		case v&(turnBlocking|turnClosing) == turnBlocking:
			return nil, false
		}
		for _, k := range t.queue {
			if k.kind&(turnBlocking|turnClosing) == turnBlocking {
				return nil, false
			}
		}
		if k := t.push(v, turnRunning|turnBlocking); k != nil {
			return k, true
		}
	}
}

// close begins Close as enter begins a blocking call, if nothing but another Close runs or waits.
func (t *turn) close() (*ticket, bool) {
	const kind = turnRunning | turnBlocking | turnClosing
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
		if v&turnClosing == 0 {
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

// take gives a stream operation its place.
func (t *turn) take() *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		v := t.state.Load()
		if v == 0 {
			if t.state.CompareAndSwap(0, turnRunning) {
				k := &ticket{ready: make(chan struct{})}
				close(k.ready)
				return k
			}
			continue
		}
		if k := t.push(v, turnRunning); k != nil {
			return k
		}
	}
}

// push queues a ticket unless the state is no longer v. The caller holds mu, which leave takes before it looks at the
// queue.
func (t *turn) push(v, kind uint32) *ticket {
	if !t.state.CompareAndSwap(v, v+turnWaiter) {
		return nil
	}
	k := &ticket{ready: make(chan struct{}), kind: kind}
	t.queue = append(t.queue, k)
	return k
}

// leave ends the running operation and starts the next one that is queued.
func (t *turn) leave() {
	if t.state.CompareAndSwap(turnRunning|turnBlocking, 0) || t.state.CompareAndSwap(turnRunning, 0) ||
		t.state.CompareAndSwap(turnRunning|turnBlocking|turnClosing, 0) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.queue[0]
	t.queue = t.queue[1:]
	t.state.Store(k.kind + uint32(turnWaiter*len(t.queue)))
	close(k.ready)
}

// run begins a turn, after what is queued.
func (t *turn) run() {
	if !t.state.CompareAndSwap(0, turnRunning) {
		<-t.take().ready
	}
}
