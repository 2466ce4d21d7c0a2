package bootstrap

import (
	"bytes"
	"context"

	"github.com/ubcoll/ubcoll/internal/reason"
)

// localRank is a rank of a job that has all its ranks in this process: two of them can exchange without the others.
type localRank struct{ *goRank }

// swap is an Exchange that one rank of a pair waits in.
type swap struct {
	from       int // by local index
	part, back []byte
	done       chan struct{} // closed once back is set
}

func pairOf(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// Exchange implements Exchanger.
func (r *localRank) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	if err := checkPeer(r, peer); err != nil {
		return nil, err
	}
	if err := r.gate.enter(busy); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	s, err := r.offer(ctx, peer, mine)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.done:
	case <-r.m.broken.Done():
	case <-ctx.Done():
	}
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-s.done: // before the job broke, or this rank's time was up
		return s.back, nil
	default:
	}
	delete(m.swaps, pairOf(r.i, peer))
	if m.failure != nil {
		return nil, m.failure.on(r.i)
	}
	return nil, r.leaveWaiting(peer, reason.Ended(ctx))
}

// offer gives mine to peer if peer waits for it already; otherwise it leaves mine for peer, and the caller waits.
func (r *localRank) offer(ctx context.Context, peer int, mine []byte) (*swap, error) {
	m, pair := r.m, pairOf(r.i, peer)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed[peer] {
		m.failLocked(lost(peer, "closed its bootstrap"))
	}
	if m.failure != nil {
		return nil, m.failure.on(r.i)
	}
	if ctx.Err() != nil {
		return nil, r.leaveWaiting(peer, reason.Ended(ctx))
	}
	mine = append([]byte{}, mine...)
	s := m.swaps[pair]
	if s == nil {
		s = &swap{from: r.i, part: mine, done: make(chan struct{})}
		m.swaps[pair] = s
		return s, nil
	}
	delete(m.swaps, pair)
	s.back = mine
	close(s.done)
	return &swap{back: bytes.Clone(s.part), done: s.done}, nil
}

// leaveWaiting returns this rank's error when its context ended before peer came, and tells the others that this rank
// left. The caller holds mu.
func (r *localRank) leaveWaiting(peer int, why error) error {
	if reason.TimedOut(why) {
		r.m.failLocked(timedOutWaiting([]int{peer}, r.i))
	}
	r.m.failLocked(gaveUp(r.i, why))
	return waitingFor([]int{peer}, r.i, why)
}

// awaited reports whether some rank waits for i in an Exchange. The caller holds mu.
func (m *meeting) awaited(i int) bool {
	for pair, s := range m.swaps {
		if s.from != i && (pair[0] == i || pair[1] == i) {
			return true
		}
	}
	return false
}

// Host implements Hoster.
func (r *goRank) Host() string {
	if h, ok := r.m.under.(Hoster); ok {
		return h.Host()
	}
	return ""
}

// Key implements Keyed.
func (r *goRank) Key() []byte {
	if k, ok := r.m.under.(Keyed); ok {
		return k.Key()
	}
	return nil
}
