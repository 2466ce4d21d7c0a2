package bootstrap

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/internal/fault"
)

// spoke is every other rank of an Env job: it has one connection, to rank 0.
type spoke struct {
	rank, size int
	gate       gate
	wire       wire
	wg         sync.WaitGroup // its reader

	broken  chan struct{} // closed once failure is set and told
	results chan []byte
	seq     uint32 // of the present AllGather; its caller's

	mu      sync.Mutex
	failure *cause
	asked   bool // an AllGather waits for its result
	closing bool
}

func newSpoke(rank, size int, conn net.Conn) *spoke {
	s := &spoke{
		rank: rank, size: size,
		wire:    wire{Conn: conn},
		broken:  make(chan struct{}),
		results: make(chan []byte, 1),
	}
	s.wg.Go(s.read)
	return s
}

func (s *spoke) Rank() int { return s.rank }
func (s *spoke) Size() int { return s.size }

// read takes what rank 0 sends until the connection ends.
func (s *spoke) read() {
	for seq := uint32(0); ; {
		f, err := readFrame(&s.wire)
		if err == nil {
			err = s.take(f, &seq)
		}
		if err != nil {
			s.fail(lost(0, lostText(err)))
			return
		}
	}
}

// take handles one frame; an error ends the connection. seq is the result that comes next.
func (s *spoke) take(f frame, seq *uint32) error {
	switch f.kind {
	case kindResult:
		s.mu.Lock()
		asked := s.asked
		s.asked = false
		s.mu.Unlock()
		if !asked || f.seq != *seq {
			return fmt.Errorf("it sent result %d out of turn: %w", f.seq, fault.ErrMismatch)
		}
		*seq++
		s.results <- f.body // has room: one was asked for
		return nil
	case kindAbort, kindLost, kindLate:
		c, err := f.decode(s.size)
		if err != nil {
			return err
		}
		s.fail(c)
		return nil
	}
	return fmt.Errorf("it sent a frame of kind %d: %w", f.kind, fault.ErrMismatch)
}

// fail breaks the job for this rank; the first cause stays. If this rank is the cause, rank 0 is told before calls on
// this rank return, since its process may exit next.
func (s *spoke) fail(c cause) {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return
	}
	first := s.failure == nil
	if first {
		s.failure = &c
	}
	s.mu.Unlock()
	if first {
		if c.peer == s.rank {
			s.wire.sendNotice(c.encode())
		}
		close(s.broken)
	}
	<-s.broken
}

func (s *spoke) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure.on(s.rank)
}

func (s *spoke) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := s.gate.enter(busy); err != nil {
		return nil, err
	}
	defer s.gate.leave()
	select {
	case <-s.broken:
		return nil, s.reason()
	default:
	}
	if ctx.Err() != nil {
		return nil, s.giveUp(fault.Ended(ctx))
	}
	if len(mine) > maxPart {
		return nil, s.giveUp(fmt.Errorf("part of %d bytes, at most %d: %w", len(mine), maxPart, fault.ErrLimit))
	}
	s.mu.Lock()
	s.asked = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { s.late(fault.Ended(ctx)) }) // also ends a send that rank 0 does not read
	defer stop()
	// Where this fails, the reader knows why: rank 0 may have told what broke the job before it went.
	_ = s.wire.send(frame{kindGather, s.seq, mine})
	var body []byte
	select {
	case body = <-s.results:
	case <-s.broken:
		select {
		case body = <-s.results: // it came before the job broke
		default:
			if ctx.Err() != nil {
				return nil, s.tooLate(fault.Ended(ctx))
			}
			return nil, s.reason()
		}
	}
	if !stop() {
		return nil, s.giveUp(fault.Ended(ctx)) // the others have been told so
	}
	s.seq++
	parts, err := unpackParts(body, s.size)
	if err != nil {
		return nil, s.giveUp(fmt.Errorf("the result from rank 0: %w", err))
	}
	all := make([][]byte, len(parts))
	for i, p := range parts {
		all[i] = append([]byte{}, p...) // memory of its own: a kept part does not keep the others
	}
	return all, nil
}

// giveUp is this rank's error; the others learn that it left.
func (s *spoke) giveUp(why error) error {
	s.fail(gaveUp(s.rank, why))
	return &fault.Error{Op: "bootstrap", Rank: s.rank, Peer: -1, Err: why}
}

// late ends an AllGather whose context has ended. Who is missing when a deadline passes, rank 0 knows; if that says
// nothing, it is what is missing.
func (s *spoke) late(why error) {
	if !fault.Late(why) {
		s.fail(gaveUp(s.rank, why))
		return
	}
	s.wire.sendNotice(frame{kind: kindLate, seq: s.seq})
	select {
	case <-s.broken:
	case <-time.After(notice):
		s.fail(cause{0, 0, "rank 0 does not answer", fault.ErrTimeout})
	}
}

// tooLate is the error of an AllGather whose context has ended, about the rank that rank 0 has named.
func (s *spoke) tooLate(why error) error {
	s.mu.Lock()
	c := *s.failure
	s.mu.Unlock()
	e := &fault.Error{Op: "bootstrap", Rank: s.rank, Peer: -1, Err: why}
	if c.peer != s.rank {
		e.Peer, e.Err = c.peer, fmt.Errorf("%s: %w", c.why, why)
	}
	return e
}

func (s *spoke) Abort(code int) { s.fail(aborted(s.rank, code)) }

func (s *spoke) Close() error {
	if err := s.gate.enter(closed); err != nil {
		return err
	}
	s.mu.Lock()
	s.closing = true
	failed := s.failure != nil
	s.mu.Unlock()
	if !failed {
		s.wire.sendNotice(frame{kind: kindBye})
	}
	s.wire.Close()
	s.wg.Wait()
	return nil
}
