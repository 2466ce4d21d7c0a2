package bootstrap

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// leaf is any rank of an Env job except rank 0. It has one connection, to rank 0.
type leaf struct {
	rank, size int
	key        []byte
	gate       gate
	wire       *wire
	unwatch    func() // ends the watch of the wire
	swaps      swaps
	wg         sync.WaitGroup // its reader

	broken  chan struct{} // closed once failure is set and, if this rank is the cause, rank 0 is told
	results chan frame
	seq     uint32 // of the current AllGather; owned by its caller

	mu      sync.Mutex
	failure *cause
	asked   bool // an AllGather waits for its result
	closing bool
}

// newLeaf makes a rank that is connected to rank 0 by w, and takes w and its watch over.
func newLeaf(rank, size int, key []byte, w *wire, unwatch func()) *leaf {
	l := &leaf{
		rank: rank, size: size, key: key,
		swaps:   newSwaps(),
		wire:    w,
		unwatch: unwatch,
		broken:  make(chan struct{}),
		results: make(chan frame, 1),
	}
	l.wg.Go(l.read)
	return l
}

func (l *leaf) Rank() int { return l.rank }
func (l *leaf) Size() int { return l.size }

// read handles rank 0's frames until the connection ends.
func (l *leaf) read() {
	for seq := uint32(0); ; {
		f, err := readFrame(l.wire)
		if err == nil {
			err = l.take(f, &seq)
		}
		if err != nil {
			l.fail(lost(0, l.wire.lostText(err)))
			return
		}
	}
}

// take handles one frame; an error ends the connection. seq is the number of the next result.
func (l *leaf) take(f frame, seq *uint32) error {
	switch f.kind {
	case kindResult, kindPacked:
		l.mu.Lock()
		asked := l.asked
		l.asked = false
		l.mu.Unlock()
		if !asked || f.seq != *seq {
			return fmt.Errorf("it sent result %d out of turn: %w", f.seq, fault.ErrMismatch)
		}
		*seq++
		l.results <- f // has room: one was asked for
		return nil
	case kindSwap:
		if uint64(f.seq) >= uint64(l.size) || int(f.seq) == l.rank {
			return fmt.Errorf("it sent what rank %d is to have sent: %w", f.seq, fault.ErrMismatch)
		}
		return l.swaps.put(int(f.seq), f.body)
	case kindAbort, kindLost, kindTimeout:
		c, err := f.decode(l.size)
		if err != nil {
			return err
		}
		l.fail(c)
		return nil
	}
	return fmt.Errorf("it sent a frame of kind %d: %w", f.kind, fault.ErrMismatch)
}

// fail breaks the job for this rank; the first cause stays. If this rank is the cause, rank 0 is told before this
// rank's calls return, because its process may exit next.
func (l *leaf) fail(c cause) {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return
	}
	first := l.failure == nil
	if first {
		l.failure = &c
	}
	l.mu.Unlock()
	if first {
		if c.peer == l.rank {
			l.wire.sendNotice(c.encode())
		}
		close(l.broken)
	}
	<-l.broken
}

func (l *leaf) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure.on(l.rank)
}

// check returns why mine cannot be sent, or nil.
func (l *leaf) check(mine []byte) error {
	select {
	case <-l.broken:
		return l.reason()
	default:
	}
	if len(mine) > maxPart {
		return l.giveUp(fmt.Errorf("part of %d bytes, at most %d: %w", len(mine), maxPart, fault.ErrLimit))
	}
	return nil
}

func (l *leaf) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := l.gate.enter(busy); err != nil {
		return nil, err
	}
	defer l.gate.leave()
	if err := l.check(mine); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, l.giveUp(reason.Ended(ctx))
	}
	l.mu.Lock()
	l.asked = true
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { l.timeOut(reason.Ended(ctx), frame{kind: kindTimeout, seq: l.seq}) }) // also ends a send that rank 0 does not read
	defer stop()
	// If this fails, the reader learns why: rank 0 may have told what broke the job before it went.
	_ = l.wire.send(frame{kindGather, l.seq, mine})
	var result frame
	select {
	case result = <-l.results:
	case <-l.broken:
		select {
		case result = <-l.results: // it came before the job broke
		default:
			if ctx.Err() != nil {
				return nil, l.timeoutError(reason.Ended(ctx))
			}
			return nil, l.reason()
		}
	}
	if !stop() {
		return nil, l.giveUp(reason.Ended(ctx)) // the others have been told that this rank gave up
	}
	l.seq++
	parts, err := result.result(l.size)
	if err != nil {
		return nil, l.giveUp(fmt.Errorf("the result from rank 0: %w", err))
	}
	all := make([][]byte, len(parts))
	for i, p := range parts {
		all[i] = append([]byte{}, p...) // a copy: keeping one part must not keep the whole message
	}
	return all, nil
}

// giveUp returns this rank's error and tells the others that this rank left.
func (l *leaf) giveUp(why error) error {
	l.fail(gaveUp(l.rank, why))
	return &fault.Error{Op: "bootstrap", Rank: l.rank, Peer: -1, Err: why}
}

// timeOut ends a call whose context has ended. After a deadline, f asks rank 0, which knows who is missing; if rank 0 does
// not answer, rank 0 itself is missing.
func (l *leaf) timeOut(why error, f frame) {
	if !reason.TimedOut(why) {
		l.fail(gaveUp(l.rank, why))
		return
	}
	l.wire.sendNotice(f)
	select {
	case <-l.broken:
	case <-time.After(notice):
		l.fail(cause{0, 0, "rank 0 does not answer", fault.ErrTimeout})
	}
}

// timeoutError is the error of a call whose context has ended; it names the rank that rank 0 has named.
func (l *leaf) timeoutError(why error) error {
	l.mu.Lock()
	c := *l.failure
	l.mu.Unlock()
	e := &fault.Error{Op: "bootstrap", Rank: l.rank, Peer: -1, Err: why}
	if c.peer != l.rank {
		e.Peer, e.Err = c.peer, fmt.Errorf("%s: %w", c.why, why)
	}
	return e
}

func (l *leaf) Abort(code int) { l.fail(aborted(l.rank, code)) }

func (l *leaf) Close() error {
	if err := l.gate.enter(closed); err != nil {
		return err
	}
	l.mu.Lock()
	l.closing = true
	failed := l.failure != nil
	l.mu.Unlock()
	if !failed {
		l.wire.sendNotice(frame{kind: kindBye})
	}
	l.unwatch()
	l.wire.Close()
	l.wg.Wait()
	return nil
}
