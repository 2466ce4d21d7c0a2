// Package sendq is what a connection over devices has to send. Words go first; then communicators take turns with their
// other puts, a chunk each. A put whose memory is registered is moved by the devices; else it goes in messages.
//
// Nothing here is safe for concurrent use: the connection that a Queue belongs to guards it with a lock of its own.
package sendq

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/register"
)

// Queue is what a connection has to send, and which puts are under way. The zero Queue is empty.
type Queue struct {
	words []byte // frames that go first, with their payloads
	ends  []int  // of each in words
	first int    // of ends that has not been taken
	lines []*line
	turn  int    // of lines, who is next
	tails []*Put // whose messages are to be sent now

	ended []*register.Claim // of puts that are over
	count atomic.Int64
}

// line is a communicator's puts, in order.
type line struct {
	comm        uint64
	first, last *Put // that are not over
	next        *Put // of these, the first of which not all was posted; nil: all were
}

// Put is one whose memory is in use.
type Put struct {
	H      frame.Header // of the whole put
	P      unsafe.Pointer
	Off    int               // bytes that were sent
	Flying int               // chunks under way
	Tail   bool              // a message has to follow the chunks
	Chases bool              // that message may leave as soon as all chunks are on their way; else once they have completed
	Device bool              // the device moves it; else it goes in messages
	Claim  *register.Claim   // of P, for the device; or nil
	Key    uint64            // what the device calls P by
	Sent   *atomic.Uint64    // raised once the memory is free; nil: nobody counts
	Result *transport.Result // of a read

	counts uint64 // how many puts count as sent with this one: words go before it, and count in order
	line   *line
	after  *Put
	copied []byte // a call's payload, at P
	part   bool   // not all of it was done
}

// Whole reports whether all of it was sent.
func (x *Put) Whole() bool { return x.Off == int(x.H.Length) && !x.Tail }

// posted reports whether all of its chunks or messages are on their way, but for its tail.
func (x *Put) posted() bool { return x.Off == int(x.H.Length) }

// Chunk is how much the next chunk or message carries, and its head. A message carries up to most bytes.
func (x *Put) Chunk(most int) (h frame.Header, n int) {
	h, n = x.H, int(x.H.Length)-x.Off
	switch {
	case x.Device && n > frame.MaxPayload+frame.Short:
		n = frame.MaxPayload
	case x.Device && n > frame.MaxPayload: // so that the last one is longer than what the processor copies into a work request
		n = frame.MaxPayload - frame.Short
	case x.Device:
	case n > most:
		if n = most; h.Kind == frame.Put {
			h.Kind = frame.Part
		}
	}
	if h.Length = uint64(n); h.Kind == frame.Write {
		h.Offset += uint64(x.Off)
	}
	return h, n
}

// Pending is how many bytes wait.
func (q *Queue) Pending() (n int) {
	n = len(q.words) - q.start()
	for _, l := range q.lines {
		for x := l.next; x != nil; x = x.after {
			n += int(x.H.Length) - x.Off
		}
	}
	return n
}

// start is where the first word begins.
func (q *Queue) start() int {
	if q.first == 0 {
		return 0
	}
	return q.ends[q.first-1]
}

// Count is how many words and puts are not over, and what Hold has added. It may be called without the lock.
func (q *Queue) Count() int { return int(q.count.Load()) }

// Hold adds to Count what is under way besides.
func (q *Queue) Hold(n int) { q.count.Add(int64(n)) }

// of returns a communicator's line, or nil.
func (q *Queue) of(comm uint64) *line {
	for _, l := range q.lines {
		if l.comm == comm {
			return l
		}
	}
	return nil
}

// Add queues a frame, and returns its put; nil: it is a word. claim, if not nil, sets Device, Claim and Key, if the device may
// move the payload.
func (q *Queue) Add(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64, claim func(x *Put)) (x *Put) {
	n := h.Payload()
	behind := n > frame.Short
	l := q.of(h.Comm)
	if l != nil {
		for x := l.first; x != nil && !behind; x = x.after {
			behind = !x.Whole() && h.Behind(&x.H)
		}
	}
	q.count.Add(1)
	if !behind {
		q.words = h.Append(q.words)
		q.words = append(q.words, unsafe.Slice((*byte)(p), n)...)
		q.ends = append(q.ends, len(q.words))
		count(l, sent)
		return nil
	}
	x = &Put{H: h, P: p, Sent: sent}
	switch {
	case h.Kind == frame.Call: // its memory may be changed
		x.copied = append(x.copied, unsafe.Slice((*byte)(p), n)...)
		x.P = unsafe.Pointer(&x.copied[0])
	case claim != nil && n > 0:
		claim(x)
	}
	q.append(x)
	return x
}

// Extend adds bytes to the word that Add has just queued.
func (q *Queue) Extend(f func(b []byte) []byte) {
	q.words = f(q.words)
	q.ends[len(q.ends)-1] = len(q.words)
}

// Append queues a put behind its communicator's others.
func (q *Queue) Append(x *Put) {
	q.count.Add(1)
	q.append(x)
}

func (q *Queue) append(x *Put) {
	l := q.of(x.H.Comm)
	if l == nil {
		l = &line{comm: x.H.Comm, first: x}
		q.lines = append(q.lines, l)
	} else {
		l.last.after = x
	}
	l.last, x.line = x, l
	x.counts = max(x.counts, 1)
	if l.next == nil {
		l.next = x
	}
}

// Skip counts a put of a communicator that is not sent, once all its puts before it are.
func (q *Queue) Skip(comm uint64, sent *atomic.Uint64) { count(q.of(comm), sent) }

// count counts a put whose memory is free, once those before it are over.
func count(l *line, sent *atomic.Uint64) {
	switch {
	case sent == nil:
	case l == nil:
		sent.Add(1)
	default:
		l.last.counts++
	}
}

// Ready reports whether something waits.
func (q *Queue) Ready() bool {
	if q.first < len(q.ends) || len(q.tails) > 0 {
		return true
	}
	for _, l := range q.lines {
		if l.next != nil {
			return true
		}
	}
	return false
}

// WordBytes is how long the first word is; 0: there is none.
func (q *Queue) WordBytes() int {
	if q.first == len(q.ends) {
		return 0
	}
	return q.ends[q.first] - q.start()
}

// Word copies the first word to b, and returns its length; 0: there is none.
func (q *Queue) Word(b []byte) int {
	if q.first == len(q.ends) {
		return 0
	}
	n := copy(b, q.words[q.start():q.ends[q.first]])
	q.first++
	q.count.Add(-1)
	if q.first == len(q.ends) {
		q.words, q.ends, q.first = q.words[:0], q.ends[:0], 0
	}
	return n
}

// Next returns the put whose turn it is, or nil. Next time it is another communicator's.
func (q *Queue) Next() *Put {
	for range q.lines {
		if q.turn >= len(q.lines) {
			q.turn = 0
		}
		l := q.lines[q.turn]
		q.turn++
		if l.next != nil {
			return l.next
		}
	}
	return nil
}

// Posted notes that a chunk, or a message, of what Next returned is on its way: Off and Flying say so.
func (q *Queue) Posted(x *Put) {
	if x.posted() {
		if x.Tail && x.Chases {
			q.tails = append(q.tails, x)
		}
		x.line.next = x.after
		q.settle(x.line)
	}
}

// Completed notes that a chunk of x is not under way any more.
func (q *Queue) Completed(x *Put) {
	if x.Flying--; x.Flying == 0 && x.Tail && !x.Chases && x.posted() {
		q.tails = append(q.tails, x)
	}
	q.settle(x.line)
}

// NextTail returns a put whose message is to be sent now; or nil. PostedTail notes that it is
// on its way.
func (q *Queue) NextTail() *Put {
	if len(q.tails) == 0 {
		return nil
	}
	return q.tails[0]
}

// PostedTail see NextTail.
func (q *Queue) PostedTail(x *Put) {
	q.tails = q.tails[:copy(q.tails, q.tails[1:])]
	x.Tail = false
	q.settle(x.line)
}

// Flies reports whether a chunk of a communicator's put to a place is under way.
func (q *Queue) Flies(comm uint64, place uint32) bool {
	if l := q.of(comm); l != nil {
		for x := l.first; x != nil; x = x.after {
			if x.Flying > 0 && x.H.Place == place {
				return true
			}
		}
	}
	return false
}

// Forget is Completed of a chunk that was not done. No more of x is sent. Its line settles with the next call about it.
func (q *Queue) Forget(x *Put) {
	x.Flying--
	x.Off, x.Tail, x.part = int(x.H.Length), false, true
}

// settle ends the puts of a line that are over, and the line if there are no more.
func (q *Queue) settle(l *line) {
	for x := l.first; x != nil && x.Whole() && x.Flying == 0; x = l.first {
		l.first = x.after
		q.over(x)
	}
	if l.first == nil {
		q.drop(l)
	}
}

// over frees a put's memory.
func (q *Queue) over(x *Put) {
	if x.Sent != nil {
		x.Sent.Add(x.counts)
	}
	if x.Claim != nil {
		q.ended = append(q.ended, x.Claim)
	}
	if x.Result != nil {
		x.Result.End(x.Whole() && x.Flying == 0 && !x.part)
	}
	q.count.Add(-1)
	x.P = nil
}

// drop forgets a line.
func (q *Queue) drop(l *line) {
	for i, other := range q.lines {
		if other == l {
			q.lines = append(q.lines[:i], q.lines[i+1:]...)
			if q.turn > i {
				q.turn--
			}
			return
		}
	}
}

// Ended returns the claims of puts that are over, which the caller releases once it has unlocked.
func (q *Queue) Ended() []*register.Claim {
	ended := q.ended
	q.ended = nil
	return ended
}

// Remove takes puts out of a communicator's line as far as they are not sent.
func (q *Queue) Remove(comm uint64, which func(h *frame.Header) bool) {
	l := q.of(comm)
	if l == nil {
		return
	}
	var before *Put
	for at := &l.first; *at != nil; {
		x := *at
		switch {
		case x.Whole() || !which(&x.H):
		case x.Flying > 0: // over once what was sent is
			x.H.Length, x.Tail, x.part = uint64(x.Off), false, true
		default:
			if before != nil && x.Sent != nil { // counts first
				before.counts += x.counts
				x.counts = 0
			}
			*at = x.after
			q.tails = slices.DeleteFunc(q.tails, func(y *Put) bool { return y == x })
			q.over(x)
			continue
		}
		before, at = x, &x.after
	}
	l.last, l.next = before, l.first
	for l.next != nil && l.next.posted() {
		l.next = l.next.after
	}
	q.settle(l)
}

// All is every put, for Remove and Has.
func All(*frame.Header) bool { return true }

// Has reports whether a communicator has a put that is not over, of these.
func (q *Queue) Has(comm uint64, which func(h *frame.Header) bool) bool {
	if l := q.of(comm); l != nil {
		for x := l.first; x != nil; x = x.after {
			if which(&x.H) {
				return true
			}
		}
	}
	return false
}

// Clear ends all puts, and forgets all words. Nothing is under way any more.
func (q *Queue) Clear() {
	for _, l := range q.lines {
		for x := l.first; x != nil; x = x.after {
			q.over(x)
		}
	}
	q.words, q.ends, q.first, q.lines, q.turn, q.tails = nil, nil, 0, nil, 0, nil
	q.count.Store(0)
}

// Moved is what a queue had, of which nothing was sent.
type Moved struct {
	words []byte
	ends  []int
	lines []*line
}

// Move takes all out of a queue of which nothing was sent.
func (q *Queue) Move() Moved {
	m := Moved{q.words, q.ends, q.lines}
	q.words, q.ends, q.lines, q.turn = nil, nil, nil, 0
	q.count.Store(0)
	return m
}

// Adopt queues what another queue had, in its order, to travel in messages. If gone, its puts end at once.
func (q *Queue) Adopt(m Moved, gone bool) {
	if !gone {
		for _, end := range m.ends { // those before its words are added
			q.ends = append(q.ends, len(q.words)+end)
		}
		q.words = append(q.words, m.words...)
		q.count.Add(int64(len(m.ends)))
	}
	for _, l := range m.lines {
		for x := l.first; x != nil; {
			next := x.after
			if x.Claim != nil {
				q.ended = append(q.ended, x.Claim)
			}
			x.Device, x.Claim, x.after = false, nil, nil
			if q.count.Add(1); gone {
				q.over(x)
			} else {
				q.append(x)
			}
			x = next
		}
	}
}
