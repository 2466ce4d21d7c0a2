package bootstrap

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// key is the secret that Key returns: derived from the job's secret, not the secret itself.
func (c config) key() []byte {
	h := hmac.New(sha256.New, c.secret)
	io.WriteString(h, "key")
	return h.Sum(nil)
}

// Key implements Keyed.
func (l *leaf) Key() []byte { return l.key }

// Key implements Keyed.
func (r *root) Key() []byte { return r.key }

// swaps holds the parts that other ranks have sent to this one in Exchanges.
type swaps struct {
	mu   sync.Mutex
	from map[int][][]byte // by rank
	came chan struct{}    // holds a value when a part has come
}

func newSwaps() swaps { return swaps{from: map[int][][]byte{}, came: make(chan struct{}, 1)} }

// maxSwaps is how many parts of one rank may be here: the one that this rank waits for, and the next.
const maxSwaps = 2

func (s *swaps) put(rank int, part []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.from[rank]) == maxSwaps {
		return fmt.Errorf("more parts of rank %d than it can have sent: %w", rank, fault.ErrMismatch)
	}
	if part == nil {
		part = []byte{}
	}
	s.from[rank] = append(s.from[rank], part)
	select {
	case s.came <- struct{}{}:
	default:
	}
	return nil
}

// take returns the next part of a rank, or nil.
func (s *swaps) take(rank int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := s.from[rank]
	if len(parts) == 0 {
		return nil
	}
	s.from[rank] = parts[1:]
	return parts[0]
}

// await waits for the next part of a rank. It returns nil if the job breaks, or over is closed, before the part comes.
func (s *swaps) await(rank int, broken, over <-chan struct{}) []byte {
	for {
		if part := s.take(rank); part != nil {
			return part
		}
		select {
		case <-s.came:
		case <-broken:
			return s.take(rank) // it may have come before the job broke
		case <-over:
			return s.take(rank)
		}
	}
}

// Exchange implements Exchanger.
func (l *leaf) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	if err := checkPeer(l, peer); err != nil {
		return nil, err
	}
	if err := l.gate.enter(busy); err != nil {
		return nil, err
	}
	defer l.gate.leave()
	if err := l.check(mine); err != nil {
		return nil, err
	}
	timeOut := func() { l.timeOut(reason.Ended(ctx), frame{kind: kindExchangeTimeout, seq: uint32(peer)}) }
	stop := context.AfterFunc(ctx, timeOut) // also ends a send that rank 0 does not read
	defer stop()
	_ = l.wire.send(frame{kindSwap, uint32(peer), mine}) // if this fails, the reader learns why
	part := l.swaps.await(peer, l.broken, nil)
	switch {
	case part == nil && ctx.Err() != nil:
		return nil, l.without(peer, reason.Ended(ctx))
	case part == nil:
		return nil, l.reason()
	case !stop():
		return nil, l.giveUp(reason.Ended(ctx)) // the others have been told so
	}
	return part, nil
}

// without is the error of an Exchange with peer whose context has ended; it names the rank that broke the job, if one
// did meanwhile.
func (l *leaf) without(peer int, why error) error {
	err := l.timeoutError(why).(*fault.Error)
	if err.Peer < 0 {
		return waitingFor([]int{peer}, l.rank, why)
	}
	return err
}

// Exchange implements Exchanger.
func (r *root) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	if err := checkPeer(r, peer); err != nil {
		return nil, err
	}
	if err := r.gate.enter(busy); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	if err := r.check(ctx, mine); err != nil {
		return nil, err
	}
	// A rank that does not read blocks relay until ctx ends.
	stop := context.AfterFunc(ctx, func() { r.exchangeTimedOut(peer, reason.Ended(ctx)) })
	defer stop()
	if err := r.relay(0, peer, mine); err != nil {
		return nil, r.giveUp(err)
	}
	part := r.swaps.await(peer, r.broken, nil)
	switch {
	case part == nil && ctx.Err() != nil:
		<-r.broken
		return nil, waitingFor([]int{peer}, 0, reason.Ended(ctx))
	case part == nil:
		return nil, r.reason()
	case !stop():
		return nil, r.giveUp(reason.Ended(ctx)) // the others have been told so
	}
	return part, nil
}

// exchangeTimedOut ends the job: rank 0's context has ended before peer came.
func (r *root) exchangeTimedOut(peer int, why error) {
	if reason.TimedOut(why) {
		r.fail(timedOutWaiting([]int{peer}, 0))
	} else {
		r.fail(gaveUp(0, why))
	}
}

// relay passes on a part of an Exchange. An error means that the sending rank is at fault.
func (r *root) relay(from, to int, part []byte) error {
	if to < 0 || to >= r.size || to == from {
		return fmt.Errorf("it has something for rank %d of %d: %w", to, r.size, fault.ErrMismatch)
	}
	r.mu.Lock()
	pair, by := pairOf(from, to), 1
	if from > to {
		by = -1
	}
	n := r.ahead[pair] + by
	switch {
	case r.failure != nil: // the others are being told: this rank must not go on without them
		r.mu.Unlock()
		return nil
	case n < -1 || n > 1:
		r.mu.Unlock()
		return fmt.Errorf("it does not wait for rank %d's part: %w", to, fault.ErrMismatch)
	}
	if r.ahead[pair] = n; n == 0 {
		delete(r.ahead, pair)
	}
	gone := r.left[to] && n != 0 // if n is 0, to has sent its part, and may leave
	w := r.wires[to]
	r.mu.Unlock()
	switch {
	case gone:
		r.fail(lost(to, "closed its bootstrap"))
	case to == 0:
		return r.swaps.put(from, append([]byte{}, part...))
	default:
		// If this fails, the connection's reader learns why, once it has read all that came before.
		_ = w.send(frame{kindSwap, uint32(from), part})
	}
	return nil
}

// awaited reports whether some rank waits for a part of rank's. The caller holds mu.
func (r *root) awaited(rank int) bool {
	for pair, n := range r.ahead {
		if pair[0] == rank && n < 0 || pair[1] == rank && n > 0 {
			return true
		}
	}
	return false
}
