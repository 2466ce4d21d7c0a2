package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// root is rank 0 of an Env job. It has a connection to every other rank, puts the parts of an AllGather together, and
// passes on what breaks the job.
type root struct {
	size  int
	key   []byte
	made  []byte // the key, if rank 0 has made it; nil if it comes from the secret
	gate  gate
	wg    sync.WaitGroup // its readers
	swaps swaps

	unwatch func() // ends the watch of the wires

	started chan struct{} // closed once the job has been started on all ranks
	broken  chan struct{} // closed once failure is set and the others are told
	full    chan struct{} // holds a value when all parts of the current AllGather are there
	allLeft chan struct{} // closed once every other rank has said goodbye

	mu      sync.Mutex
	wires   []*wire // by rank; nil for 0
	failure *cause
	seq     uint32   // of the current AllGather
	parts   [][]byte // nil where a rank has yet to send
	n       int
	left    []bool // by rank; [0] once Close has begun
	nleft   int
	ahead   map[[2]int]int // by pair, lower rank first: parts sent by the lower rank minus parts sent by the higher
}

func newRoot(size int) *root {
	return &root{
		size:    size,
		unwatch: func() {},
		swaps:   newSwaps(),
		ahead:   map[[2]int]int{},
		started: make(chan struct{}),
		broken:  make(chan struct{}),
		full:    make(chan struct{}, 1),
		allLeft: make(chan struct{}),
		wires:   make([]*wire, size),
		parts:   make([][]byte, size),
		left:    make([]bool, size),
	}
}

func (r *root) Rank() int { return 0 }
func (r *root) Size() int { return r.size }

// startOthers starts the job on the other ranks.
func (r *root) startOthers() {
	for rank, err := range r.toAll(func(w *wire) error { return w.send(frame{kind: kindGo, body: r.made}) }) {
		r.fail(lost(rank, "connection failed: "+err.Error()))
	}
	close(r.started)
}

// refuse ends a job that could not start. It sets failure first, so that a rank that hears of it and hangs up does not
// become the reason.
func (r *root) refuse(why error) {
	r.mu.Lock()
	first := r.failure == nil
	if first {
		r.failure = &cause{err: why}
	}
	r.mu.Unlock()
	if first {
		r.notify(-1, refusal(why))
		close(r.broken)
	}
	<-r.broken
}

// drop closes all connections.
func (r *root) drop() {
	for _, w := range r.wires {
		if w != nil {
			w.Close()
		}
	}
}

// connected returns the connections to the ranks that have not closed. The caller only reads the result.
func (r *root) connected() (wires []*wire) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, w := range r.wires {
		if w != nil && !r.left[rank] {
			wires = append(wires, w)
		}
	}
	return wires
}

// hangUp closes all connections and waits for their readers and their watch.
func (r *root) hangUp() {
	r.unwatch()
	r.drop()
	r.wg.Wait()
}

// read handles one rank's frames until its connection ends.
func (r *root) read(rank int) {
	for {
		f, err := readFrame(r.wires[rank])
		if err == nil {
			err = r.take(rank, f)
		}
		if err == nil {
			continue
		}
		r.mu.Lock()
		left := r.left[rank]
		r.mu.Unlock()
		if !left {
			r.fail(lost(rank, r.wires[rank].lostText(err)))
		}
		return
	}
}

// lostText says how a connection ended.
func (w *wire) lostText(err error) string {
	if w.isSilent(err) {
		return w.silentText()
	}
	if errors.Is(err, io.EOF) {
		return "ended without closing its bootstrap"
	}
	return "connection failed: " + err.Error()
}

// take handles one frame; an error ends the connection.
func (r *root) take(rank int, f frame) error {
	switch f.kind {
	case kindGather:
		return r.place(rank, f.seq, f.body)
	case kindBye:
		r.leave(rank)
		return io.EOF
	case kindSwap:
		select { // relay nothing before the job has started on all ranks
		case <-r.started:
		case <-r.broken:
		}
		return r.relay(rank, int(f.seq), f.body)
	case kindExchangeTimeout:
		if uint64(f.seq) >= uint64(r.size) || int(f.seq) == rank {
			return fmt.Errorf("it waits for rank %d: %w", f.seq, fault.ErrMismatch)
		}
		r.fail(timedOutWaiting([]int{int(f.seq)}, rank))
		return nil
	case kindTimeout:
		if len(f.body) == 0 {
			r.allGatherTimedOut(rank, f.seq)
			return nil
		}
		fallthrough // the sender gave up by itself
	case kindAbort, kindLost:
		c, err := f.decode(r.size)
		if err != nil {
			return err
		}
		if c.peer != rank {
			return fmt.Errorf("it speaks for rank %d: %w", c.peer, fault.ErrMismatch)
		}
		r.fail(c)
		return nil
	}
	return fmt.Errorf("it sent a frame of kind %d: %w", f.kind, fault.ErrMismatch)
}

// allGatherTimedOut ends the job: rank's time for AllGather number seq was up.
func (r *root) allGatherTimedOut(rank int, seq uint32) {
	missing := r.missing()
	r.mu.Lock()
	now := seq == r.seq
	r.mu.Unlock()
	if len(missing) == 0 || !now { // the result is under way
		r.fail(cause{rank, 0, "gave up: its time was up", fault.ErrTimeout})
	} else {
		r.fail(timedOutWaiting(missing, rank))
	}
}

// place puts one rank's part into the current AllGather. If some rank has left, the AllGather cannot complete, and the
// job breaks.
func (r *root) place(rank int, seq uint32, part []byte) error {
	r.mu.Lock()
	if r.failure != nil { // the others are being told: this rank must not go on without them
		r.mu.Unlock()
		return nil
	}
	if seq != r.seq || r.parts[rank] != nil {
		r.mu.Unlock()
		return fmt.Errorf("it sent all-gather %d, the job is at %d: %w", seq, r.seq, fault.ErrMismatch)
	}
	if part == nil {
		part = []byte{}
	}
	r.parts[rank] = part
	r.n++
	if r.n == r.size {
		r.full <- struct{}{}
	}
	gone := r.firstLeft()
	r.mu.Unlock()
	if gone >= 0 {
		r.fail(lost(gone, "closed its bootstrap"))
	}
	return nil
}

// firstLeft is the first rank that has closed, or -1. The caller holds mu.
func (r *root) firstLeft() int {
	for rank, left := range r.left {
		if left {
			return rank
		}
	}
	return -1
}

// leave notes that a rank has closed.
func (r *root) leave(rank int) {
	r.mu.Lock()
	r.left[rank] = true
	if rank != 0 {
		if r.nleft++; r.nleft == r.size-1 {
			close(r.allLeft)
		}
	}
	waiting := r.n > 0 || r.awaited(rank)
	r.mu.Unlock()
	if waiting {
		r.fail(lost(rank, "closed its bootstrap"))
	}
}

// fail breaks the job and tells all other ranks; the first cause stays. This rank's calls return only after the others
// have been told, because its process may exit next.
func (r *root) fail(c cause) {
	r.mu.Lock()
	first := r.failure == nil
	if first {
		r.failure = &c
	}
	r.mu.Unlock()
	if first {
		but := c.peer
		if errors.Is(c.err, fault.ErrTimeout) {
			but = -1 // c.peer lives, and must be told too
		}
		r.notify(but, c.encode())
		close(r.broken)
	}
	<-r.broken
}

func (r *root) reason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure.on(0)
}

// notify sends f to every rank except but, which is dead or knows already.
func (r *root) notify(but int, f frame) {
	r.mu.Lock()
	var sends sync.WaitGroup
	for rank, w := range r.wires {
		if w != nil && rank != but && !r.left[rank] {
			sends.Go(func() { w.sendNotice(f) })
		}
	}
	r.mu.Unlock()
	sends.Wait()
}

// toAll calls send for every other rank, all at once, and returns the errors by rank.
func (r *root) toAll(send func(w *wire) error) map[int]error {
	var mu sync.Mutex
	var sends sync.WaitGroup
	failed := map[int]error{}
	for rank, w := range r.wires {
		if w == nil {
			continue
		}
		sends.Go(func() {
			if err := send(w); err != nil {
				mu.Lock()
				failed[rank] = err
				mu.Unlock()
			}
		})
	}
	sends.Wait()
	return failed
}

func (r *root) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := r.gate.enter(busy); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	if err := r.check(ctx, mine); err != nil {
		return nil, err
	}
	r.mu.Lock()
	seq := r.seq
	r.mu.Unlock()
	if err := r.place(0, seq, append([]byte{}, mine...)); err != nil {
		return nil, err
	}
	select {
	case <-r.full:
	case <-r.broken:
		return nil, r.reason()
	case <-ctx.Done():
		return nil, r.giveUp(reason.Ended(ctx))
	}
	all, err := r.result(seq)
	if err != nil {
		return nil, err
	}
	// A rank that reads slowly delays this; if a rank does not read at all, the end of ctx ends it.
	stop := context.AfterFunc(ctx, func() { r.fail(gaveUp(0, reason.Ended(ctx))) })
	defer stop()
	for rank, err := range r.toAll((*wire).flushFirst) {
		r.fail(lost(rank, "connection failed: "+err.Error()))
		return nil, r.reason()
	}
	if !stop() {
		return nil, r.giveUp(reason.Ended(ctx)) // the others have been told that this rank gave up
	}
	return all, nil
}

// result ends AllGather number seq, whose parts are all there, and owes the result to the others. Either all ranks get
// it or, if the job has broken before, none does. A rank that has it may break the job at once: the others still get
// the result, before they hear of the break.
func (r *root) result(seq uint32) ([][]byte, error) {
	r.mu.Lock()
	all := r.parts // complete: they stay as they are until the next AllGather begins
	r.mu.Unlock()
	total := 4
	for _, p := range all {
		total += 4 + len(p)
	}
	if total > maxResult {
		return nil, r.giveUp(fmt.Errorf("all parts together have %d bytes, at most %d: %w", total, maxResult, fault.ErrLimit))
	}
	b := resultFrame(seq, all).append(nil)
	if !r.owe(b) {
		<-r.broken
		return nil, r.reason()
	}
	return all, nil
}

// owe begins the next AllGather, and makes b, the frame of this one's result, what each other rank gets first. It
// reports false, and has done nothing, if the job has broken.
func (r *root) owe(b []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return false
	}
	r.parts, r.n = make([][]byte, r.size), 0
	r.seq++
	for _, w := range r.wires {
		if w != nil {
			w.sendFirst(b) // no other write is under way: notices are sent only after failure is set
		}
	}
	return true
}

// check returns why mine cannot be sent, or nil.
func (r *root) check(ctx context.Context, mine []byte) error {
	select {
	case <-r.broken:
		return r.reason()
	default:
	}
	if ctx.Err() != nil {
		return r.giveUp(reason.Ended(ctx))
	}
	if len(mine) > maxPart {
		return r.giveUp(fmt.Errorf("part of %d bytes, at most %d: %w", len(mine), maxPart, fault.ErrLimit))
	}
	return nil
}

// giveUp returns this rank's error and tells the others that this rank left.
func (r *root) giveUp(why error) error {
	missing := r.missing()
	if len(missing) == 0 || missing[0] == 0 {
		r.fail(gaveUp(0, why))
		return &fault.Error{Op: "bootstrap", Rank: 0, Peer: -1, Err: why}
	}
	if reason.TimedOut(why) {
		r.fail(timedOutWaiting(missing, 0))
	}
	r.fail(gaveUp(0, why))
	return waitingFor(missing, 0, why)
}

// missing are the ranks that have not come to the current AllGather; none if nobody has come.
func (r *root) missing() (ranks []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, p := range r.parts {
		if p == nil && r.n > 0 {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

func (r *root) Abort(code int) { r.fail(aborted(0, code)) }

func (r *root) Close() error {
	if err := r.gate.enter(closed); err != nil {
		return err
	}
	defer r.hangUp()
	r.leave(0)
	if r.size == 1 {
		return nil
	}
	// The others hear of an abort or a loss only through this rank, so it stays until the last one leaves.
	select {
	case <-r.broken:
		return nil
	default:
	}
	limit := clock.After(closeTimeout)
	defer limit.Stop()
	select {
	case <-r.allLeft:
		return nil
	case <-r.broken:
		r.mu.Lock()
		mine := r.failure.peer == 0 // another rank calls an AllGather after this Close: the error is that rank's
		r.mu.Unlock()
		if mine {
			return nil
		}
		return r.reason()
	case <-limit.C:
		r.mu.Lock()
		var missing []int
		for rank := 1; rank < r.size; rank++ {
			if !r.left[rank] {
				missing = append(missing, rank)
			}
		}
		r.mu.Unlock()
		return &fault.Error{Op: "bootstrap", Rank: 0, Peer: -1, Step: "close",
			Err: fmt.Errorf("%s did not close: %w", rankList(missing), fault.ErrTimeout)}
	}
}
