package mail

import (
	"iter"
	"sync"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// Lane is one direction. A goroutine that waits for any message of a lane advances the lane's first, under its lock.
type Lane struct {
	sync.Mutex
	Seq     uint64 // number of the last message posted, or taken
	taken   uint64 // of the messages sent: the last one known to be taken
	Open    messageList
	waiting messageList
	closed  bool
}

// messageList is a queue of messages.
type messageList struct{ Head, tail *Message }

// push appends m.
func (l *messageList) push(m *Message) {
	if m.next = nil; l.Head == nil {
		l.Head, l.tail = m, m
		return
	}
	l.tail.next, l.tail = m, m
}

// pop takes the first message off.
func (l *messageList) pop() *Message {
	m := l.Head
	l.Head, m.next = m.next, nil
	return m
}

// remove takes m out of the list.
func (l *messageList) remove(m *Message) {
	var before *Message
	for w := l.Head; w != nil; before, w = w, w.next {
		if w != m {
			continue
		}
		if before == nil {
			l.Head = m.next
		} else {
			before.next = m.next
		}
		if l.tail == m {
			l.tail = before
		}
		m.next = nil
		return
	}
}

// idle reports whether no message is under way.
func (l *Lane) idle() bool { return l.Open.Head == nil && l.waiting.Head == nil }

// tryEnter locks the lane if it is free and the communicator has not been closed.
func (l *Lane) tryEnter() bool {
	if !l.TryLock() {
		return false
	}
	if l.closed {
		l.Unlock()
		return false
	}
	return true
}

// Enter locks the lane for a new message. It fails if the communicator has been closed.
func (l *Lane) Enter() error {
	l.Lock()
	if l.closed {
		l.Unlock()
		return engine.ErrCommClosed
	}
	return nil
}

// lane is one of b's lanes.
func (b *Box) lane(recv bool) *Lane {
	if recv {
		return &b.Recv
	}
	return &b.Send
}

// leave unlocks one of b's lanes; b may be nil.
func (b *Box) leave(recv bool) {
	if b != nil {
		b.lane(recv).Unlock()
	}
}

// all yields all boxes that there are.
func (m *Mail) all() iter.Seq[*Box] {
	return func(yield func(*Box) bool) {
		for r := range m.boxes {
			if !yield(&m.boxes[r]) {
				return
			}
		}
		m.between.all()(yield)
	}
}

// lanes yields all lanes with their peers' ranks.
func (m *Mail) lanes() iter.Seq2[*Lane, int] {
	return func(yield func(*Lane, int) bool) {
		for b := range m.all() {
			if !yield(&b.Send, b.Peer) || !yield(&b.Recv, b.Peer) {
				return
			}
		}
	}
}
