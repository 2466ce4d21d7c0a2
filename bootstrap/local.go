package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Local makes a job of n ranks that are goroutines of this process, and returns the bootstrap of each; none if n is
// below 1. It is local, does not block and starts no goroutine. The ranks exchange bytes in memory; Abort wakes all of
// them.
func Local(n int) []Bootstrap { return newMeeting(n, nil).ranks() }

// PerProcess replaces each rank of b by n goroutine ranks of its process: the i-th result is rank b.Rank()*n + i. It is
// local and does not block. Every process of b must use the same n. The last of the n ranks to arrive calls b on its
// own goroutine, so b must not be bound to one (as [Gompi]'s is). PerProcess takes b over: the last of the n ranks to
// close closes it. The ranks pass on b's [Hoster] and [Keyed], and what its [Watcher] tells; they have no [Exchanger],
// even if b has one.
func PerProcess(b Bootstrap, n int) []Bootstrap { return newMeeting(n, b).ranks() }

// meeting joins the n goroutine ranks of one process. If under is set, it connects them to other processes.
type meeting struct {
	n     int
	under Bootstrap // nil: this process is the whole job

	// broken ends when the job breaks. A context keeps only the first cause.
	broken context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	now     *round
	closed  []bool // by local index: the rank has closed
	nclosed int
	failure *cause
	swaps   map[[2]int]*swap // by pairs of local indices, the lower first
	watched bool             // what breaks under is heard without a call

	exchanging sync.Mutex     // held by the exchange between processes, until an error of it has broken the job
	watch      sync.WaitGroup // of under
	over       chan struct{}  // closed when the last rank closes
}

// round is one AllGather.
type round struct {
	parts [][]byte // by local index; nil where the rank has yet to come
	n     int
	done  chan struct{} // closed once all is set
	all   [][]byte      // by global rank

	reach context.Context // ends the exchange between processes early
	stop  context.CancelCauseFunc
}

func newMeeting(n int, under Bootstrap) *meeting {
	n = max(n, 0)
	m := &meeting{n: n, under: under, closed: make([]bool, n), swaps: map[[2]int]*swap{}, over: make(chan struct{})}
	m.broken, m.cancel = context.WithCancelCause(context.Background())
	m.now = m.newRound()
	return m
}

func (m *meeting) newRound() *round {
	now := &round{parts: make([][]byte, m.n), done: make(chan struct{})}
	now.reach, now.stop = context.WithCancelCause(context.Background())
	return now
}

func (m *meeting) ranks() []Bootstrap {
	bs := make([]Bootstrap, m.n)
	for i := range bs {
		r := &goRank{m: m, i: i}
		if bs[i] = r; m.under == nil {
			bs[i] = &localRank{r}
		}
	}
	return bs
}

// global is the rank of local index i.
func (m *meeting) global(i int) int {
	if m.under == nil {
		return i
	}
	return m.under.Rank()*m.n + i
}

// fail breaks the job; the first cause stays.
func (m *meeting) fail(c cause) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(c)
}

func (m *meeting) failLocked(c cause) {
	if m.failure == nil {
		m.failure = &c
		m.cancel(c.err)
	}
}

// goRank is one goroutine rank.
type goRank struct {
	m    *meeting
	i    int
	gate gate
}

func (r *goRank) Rank() int { return r.m.global(r.i) }

func (r *goRank) Size() int {
	if r.m.under == nil {
		return r.m.n
	}
	return r.m.under.Size() * r.m.n
}

func (r *goRank) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := r.gate.enter(busy); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	if ctx.Err() != nil {
		return nil, r.giveUp(nil, reason.Ended(ctx))
	}
	now, last, err := r.arrive(mine)
	if err != nil {
		return nil, err
	}
	if last {
		if err := r.complete(ctx, now); err != nil {
			return nil, err
		}
	}
	select {
	case <-now.done:
		return r.copyOf(now.all), nil
	default:
	}
	select {
	case <-now.done:
		return r.copyOf(now.all), nil
	case <-r.m.broken.Done():
		select {
		case <-now.done: // before the job broke, perhaps by a rank that has seen the result
			return r.copyOf(now.all), nil
		default:
			return nil, r.failure()
		}
	case <-ctx.Done():
		return nil, r.giveUp(now, reason.Ended(ctx))
	}
}

// arrive puts mine into the current round. If that completes the round, it opens the next one.
func (r *goRank) arrive(mine []byte) (now *round, last bool, err error) {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, gone := range m.closed {
		if gone {
			m.failLocked(lost(m.global(i), "closed its bootstrap"))
		}
	}
	if m.failure != nil {
		return nil, false, m.failure.on(r.Rank())
	}
	now = m.now
	now.parts[r.i] = append([]byte{}, mine...) // not nil: it has come
	now.n++
	if now.n < m.n {
		return now, false, nil
	}
	m.now = m.newRound()
	return now, true, nil
}

// complete ends now, for which all ranks of this process are there, or breaks the job.
func (r *goRank) complete(ctx context.Context, now *round) (err error) {
	r.m.exchanging.Lock()
	defer r.m.exchanging.Unlock()
	if now.all, err = r.m.exchange(ctx, now); err != nil {
		return r.exchangeFailed(ctx, err)
	}
	close(now.done)
	return nil
}

// exchange exchanges the parts with the other processes, if any, and returns every part by global rank.
func (m *meeting) exchange(ctx context.Context, now *round) ([][]byte, error) {
	if m.under == nil {
		return now.parts, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Another rank of this process may give up or abort meanwhile, or its time may be up.
	stop1 := context.AfterFunc(m.broken, func() { cancel(nil) })
	stop2 := context.AfterFunc(now.reach, func() { cancel(context.Cause(now.reach)) })
	defer stop1()
	defer stop2()
	packed, err := m.under.AllGather(ctx, packParts(now.parts))
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for p, b := range packed {
		parts, err := unpackParts(b, m.n)
		if err != nil {
			return nil, fmt.Errorf("process %d, which may run another number of ranks than the %d of process %d: %w",
				p, m.n, m.under.Rank(), err)
		}
		all = append(all, parts...)
	}
	return all, nil
}

// exchangeFailed tells the ranks of this process why the exchange between processes failed.
func (r *goRank) exchangeFailed(ctx context.Context, err error) error {
	m := r.m
	if m.broken.Err() != nil {
		return r.failure()
	}
	if errors.Is(ctx.Err(), context.Canceled) && !reason.TimedOut(err) {
		return r.giveUp(nil, err)
	}
	c := m.causeUnder(err, r.Rank())
	m.fail(c.toOthers(err))
	return c.on(r.Rank())
}

func (r *goRank) failure() error {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.failure.on(r.Rank())
}

// giveUp returns this rank's error when its context ended, and tells the others that this rank left.
func (r *goRank) giveUp(now *round, why error) error {
	m := r.m
	if now != nil && reason.TimedOut(why) && m.under != nil && m.allLocalCame(now) {
		return r.processesTimedOut(now, why)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var missing []int
	if now != nil {
		for i, p := range now.parts {
			if p == nil {
				missing = append(missing, m.global(i))
			}
		}
	}
	if len(missing) == 0 {
		m.failLocked(gaveUp(r.Rank(), why))
		return &fault.Error{Op: "bootstrap", Rank: r.Rank(), Peer: -1, Err: why}
	}
	if reason.TimedOut(why) {
		m.failLocked(timedOutWaiting(missing, r.Rank()))
	}
	m.failLocked(gaveUp(r.Rank(), why))
	return waitingFor(missing, r.Rank(), why)
}

// allLocalCame reports whether now waits only for other processes.
func (m *meeting) allLocalCame(now *round) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.n == m.n
}

// processesTimedOut is giveUp while this process waits for other processes: only under knows which ones are missing.
func (r *goRank) processesTimedOut(now *round, why error) error {
	m := r.m
	now.stop(fmt.Errorf("the time of rank %d was up: %w", r.Rank(), fault.ErrTimeout))
	select {
	case <-m.broken.Done():
	case <-now.done: // the result came, but too late for this rank
		m.fail(gaveUp(r.Rank(), why))
	}
	m.mu.Lock()
	c := *m.failure
	m.mu.Unlock()
	e := &fault.Error{Op: "bootstrap", Rank: r.Rank(), Peer: -1, Err: why}
	if c.peer != r.Rank() {
		e.Peer, e.Err = c.peer, fmt.Errorf("%v: %w", c.on(r.Rank()), why)
	}
	return e
}

// waitingFor is the error of a rank whose context ended before the ranks of missing came.
func waitingFor(missing []int, rank int, why error) error {
	return &fault.Error{Op: "bootstrap", Rank: rank, Peer: missing[0],
		Err: fmt.Errorf("waiting for %s: %w", rankList(missing), why)}
}

// copyOf copies all, so that this rank has memory of its own.
func (r *goRank) copyOf(all [][]byte) [][]byte {
	mine := make([][]byte, len(all))
	for i, b := range all {
		mine[i] = bytes.Clone(b)
	}
	return mine
}

func (r *goRank) Abort(code int) {
	r.m.fail(aborted(r.Rank(), code))
	if r.m.under != nil {
		r.m.under.Abort(code)
	}
}

// Survive implements Survivor.
func (r *goRank) Survive() {
	if s, ok := r.m.under.(Survivor); ok {
		s.Survive()
	}
}

func (r *goRank) Close() error {
	if err := r.gate.enter(closed); err != nil {
		return err
	}
	m := r.m
	m.mu.Lock()
	m.closed[r.i] = true
	m.nclosed++
	last := m.nclosed == m.n
	if m.now.n > 0 || m.awaited(r.i) { // some rank waits for this one in vain
		m.failLocked(lost(r.Rank(), "closed its bootstrap"))
	}
	m.mu.Unlock()
	if last && m.under != nil {
		close(m.over)
		m.watch.Wait()
		return m.under.Close()
	}
	return nil
}

// rankList is "rank 3" or "ranks 1, 2, 5"; long lists are cut.
func rankList(ranks []int) string {
	const most = 16
	var s []string
	for _, r := range ranks[:min(len(ranks), most)] {
		s = append(s, strconv.Itoa(r))
	}
	list := strings.Join(s, ", ")
	if len(ranks) > most {
		list += fmt.Sprintf(" and %d more", len(ranks)-most)
	}
	if len(ranks) == 1 {
		return "rank " + list
	}
	return "ranks " + list
}
