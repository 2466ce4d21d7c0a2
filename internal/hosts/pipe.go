package hosts

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// pipe carries items in order from each host to the next one. The receiver grants each item its place before the sender
// sends it: at any time, the places of the next window items. It grants the first window before the hosts agree on an
// operation, so that the grants travel with the proposals.
type pipe struct {
	before, behind *peer // items come from before, and go to behind
	window         int
	chunk          int    // size of an item in bytes, at most
	land           []byte // landing memory, for items without a place of their own

	plan    plan                     // of the operation; nil outside of operations that use the pipe
	grants  walk                     // goes through the items to be granted
	first   struct{ in, out uint64 } // sequences at which this operation's items start; both neighbours have the same
	in, out uint64                   // items received and sent
	granted uint64                   // items granted
	told    uint64                   // how much of granted has been sent to the sender
	all     bool                     // all items of the operation are granted
}

const (
	landing  = 2 << 20 // bytes; with two hosts an item is half a mebibyte, as much as one call on a socket moves
	minChunk = 4 << 10
)

// pipeWindow is how many items may be under way between n hosts: twice what a host sends before it needs one (see
// reduction).
func pipeWindow(n int) int { return 2 * (2*n - 2) }

func (p *pipe) lay(s *Stage) {
	p.window = pipeWindow(s.n)
	p.chunk = max(landing/p.window, minChunk) &^ 63
	p.land = make([]byte, p.window*p.chunk)
	p.before, p.behind = s.peers[(s.me-1+s.n)%s.n], s.peers[(s.me+1)%s.n]
}

// plan is how an operation uses the pipe.
type plan interface {
	// walk goes through all steps, in order.
	walk() walk
	// place returns where a step's received item belongs; nil means in landing memory.
	place(step) unsafe.Pointer
}

// walk enumerates steps.
type walk interface {
	// next returns the next step, or false at the end.
	next() (step, bool)
}

// step is one chunk of an operation: what a host receives, and what it does then.
type step struct {
	t        int // the algorithm's step number: see there
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
	q.told = q.granted // these leave with the proposals
}

// grantItems grants items until the window is full.
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

// landed is the address of item i in landing memory.
func (q *pipe) landed(i uint64) unsafe.Pointer {
	return unsafe.Pointer(&q.land[int(i%uint64(q.window))*q.chunk])
}

// receive waits for the next item, and returns the address where it was granted.
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

// taken says that the item received last no longer needs its place.
func (s *Stage) taken() {
	q := &s.pipe
	q.in++
	s.grantItems()
	if news := q.granted - q.told; news >= uint64(q.window)/2 || q.all && news > 0 {
		q.told = q.granted
		q.before.link.Poll()
	}
}

// send sends bytes at p as the next item. They must not change until the operation ends.
func (s *Stage) send(ctx context.Context, p unsafe.Pointer, bytes int, what string) error {
	q := &s.pipe
	l := q.behind.link
	i := s.pipePlace() + int(q.out%uint64(q.window))
	if err := s.await(ctx, q.behind, l.Granted(i), q.first.out+q.out+1, what); err != nil {
		return err
	}
	q.out++
	l.Put(i, q.first.out+q.out, p, bytes)
	return nil
}

// withdraw revokes the grants of an operation on which the hosts do not agree. No host uses their sequences again: all
// skip a window, the most that any of them has granted.
func (s *Stage) withdraw() {
	q := &s.pipe
	if q.plan != nil {
		for i := uint64(0); i < q.granted; i++ {
			q.before.link.Revoke(s.pipePlace()+int(i%uint64(q.window)), q.first.in+i+1)
		}
	}
	q.plan = nil
	q.first.in += uint64(q.window)
	q.first.out += uint64(q.window)
}

// ended ends an operation, all of whose items have been received and sent.
func (s *Stage) ended(ctx context.Context) error {
	q := &s.pipe
	q.plan = nil
	q.first.in += q.in
	q.first.out += q.out
	return s.flush(ctx)
}
