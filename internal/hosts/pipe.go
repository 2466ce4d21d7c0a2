package hosts

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// The pipe: items in order, from each host to the next one around. The receiver grants each item its place before it
// is sent: the next window items' at any time. So many are granted before the hosts agree on an operation, so that the
// first need no word; from then on the receiver raises a word of the sender's as it grants more.
type pipe struct {
	before, behind *peer // from which items come, and to which they go
	window         int
	chunk          int    // bytes of an item, at most
	land           []byte // for items that have no place of their own

	plan    plan                     // of the operation, nil outside of one that uses the pipe
	grants  walk                     // of items to be granted
	first   struct{ in, out uint64 } // sequences that this operation's items count from: both neighbours have the same
	in, out uint64                   // items that have come, and have gone
	granted uint64                   // that may come
	told    uint64                   // granted, as the sender knows
	all     bool                     // all of the operation's items are granted
}

const (
	landing  = 2 << 20 // bytes: of two hosts an item is half a mebibyte, as much as one call on a socket moves
	minChunk = 4 << 10
)

// pipeWindow is how many items of n hosts may be under way: more than a host sends before it needs one (see reduction).
func pipeWindow(n int) int { return 2 * (2*n - 2) }

func (p *pipe) lay(s *Stage) {
	p.window = pipeWindow(s.n)
	p.chunk = max(landing/p.window, minChunk) &^ 63
	p.land = make([]byte, p.window*p.chunk)
	p.before, p.behind = s.peers[(s.me-1+s.n)%s.n], s.peers[(s.me+1)%s.n]
}

// plan is what an operation does with the pipe.
type plan interface {
	// walk is all steps, in order.
	walk() walk
	// place is where what a step receives belongs: nil is in landing memory.
	place(step) unsafe.Pointer
}

// walk goes through steps.
type walk interface {
	// next is the next step; false at the end.
	next() (step, bool)
}

// step is one chunk of an operation: what a host receives in it, and what it does.
type step struct {
	t        int // of an algorithm: see there
	off, n   int // elements
	bytes    int
	receives bool
	sends    bool
}

var errNotExpected = errors.New("data between hosts that nobody expects")

// expect grants the first items of an operation.
func (s *Stage) expect(p plan) {
	q := &s.pipe
	q.plan, q.grants = p, p.walk()
	q.in, q.out, q.granted, q.all = 0, 0, 0, false
	s.grantItems()
	q.told = q.granted // as the sender assumes
}

// grantItems grants as many items as may be under way.
func (s *Stage) grantItems() {
	q := &s.pipe
	for q.granted < q.in+uint64(q.window) {
		k, ok := q.grants.next()
		if !ok {
			q.all = true
			return
		}
		if !k.receives {
			continue
		}
		i := int(q.granted % uint64(q.window))
		at := q.plan.place(k)
		if at == nil {
			at = q.landed(q.granted)
		}
		q.granted++
		q.before.link.Grant(s.pipePlace()+i, q.first.in+q.granted, at, k.bytes)
	}
}

// landed is where item i is in landing memory.
func (q *pipe) landed(i uint64) unsafe.Pointer {
	return unsafe.Pointer(&q.land[int(i%uint64(q.window))*q.chunk])
}

// receive waits for the next item, which is where it was granted.
func (s *Stage) receive(ctx context.Context, k step, what string) (in unsafe.Pointer, err error) {
	q := &s.pipe
	i := s.pipePlace() + int(q.in%uint64(q.window))
	l := q.before.link
	if err := s.await(ctx, q.before, l.Word(i), q.first.in+q.in+1, what); err != nil {
		return nil, err
	}
	if got := l.Landed(i); got != k.bytes {
		return nil, s.fail(s.Team.Errorf(what, q.before.rank, fmt.Errorf("an item of %d bytes, not %d: %w", got, k.bytes,
			fault.ErrMismatch)))
	}
	if in = q.plan.place(k); in == nil {
		in = q.landed(q.in)
	}
	return in, nil
}

// taken says that the item that was received last is not needed any more where it landed.
func (s *Stage) taken() {
	q := &s.pipe
	q.in++
	s.grantItems()
	if news := q.granted - q.told; news >= uint64(q.window)/2 || q.all && news > 0 {
		q.told = q.granted
		q.before.link.Put(s.creditPlace(), q.first.in+q.told, nil, 0)
	}
}

// send passes bytes at p on as the next item: they stay as they are until the operation ends.
func (s *Stage) send(ctx context.Context, p unsafe.Pointer, bytes int, what string) error {
	q := &s.pipe
	l := q.behind.link
	if q.out >= uint64(q.window) { // the first were granted before the verdict
		if err := s.await(ctx, q.behind, l.Word(s.creditPlace()), q.first.out+q.out+1, what); err != nil {
			return err
		}
	}
	i := s.pipePlace() + int(q.out%uint64(q.window))
	q.out++
	l.Put(i, q.first.out+q.out, p, bytes)
	return nil
}

// withdraw takes the grants of an operation back on which the hosts do not agree. Their sequences are not used again, by
// nobody: what some host has granted is a window at most.
func (s *Stage) withdraw() {
	q := &s.pipe
	if q.plan != nil {
		for i := uint64(0); i < q.granted; i++ {
			q.before.link.Grant(s.pipePlace()+int(i%uint64(q.window)), q.first.in+i+1, nil, 0)
		}
	}
	q.plan = nil
	q.first.in += uint64(q.window)
	q.first.out += uint64(q.window)
}

// ended ends an operation whose items have all come and gone.
func (s *Stage) ended(ctx context.Context) error {
	q := &s.pipe
	q.plan = nil
	q.first.in += q.in
	q.first.out += q.out
	return s.flush(ctx)
}
