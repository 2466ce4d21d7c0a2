package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/internal/fault"
)

// hub is rank 0 of an Env job: it has a connection to every other rank, puts the parts of an AllGather together, and
// passes on what breaks the job.
type hub struct {
	size int
	gate gate
	wg   sync.WaitGroup // its readers

	broken  chan struct{} // closed once failure is set and told
	full    chan struct{} // holds a value when all parts of the present AllGather are there
	allLeft chan struct{} // closed once every other rank has said goodbye

	mu      sync.Mutex
	wires   []*wire // by rank; nil for 0
	failure *cause
	seq     uint32   // of the present AllGather
	parts   [][]byte // nil where a rank has yet to send
	n       int
	left    []bool // by rank; [0] once Close has begun
	nleft   int
}

func newHub(size int) *hub {
	return &hub{
		size:    size,
		broken:  make(chan struct{}),
		full:    make(chan struct{}, 1),
		allLeft: make(chan struct{}),
		wires:   make([]*wire, size),
		parts:   make([][]byte, size),
		left:    make([]bool, size),
	}
}

func (h *hub) Rank() int { return 0 }
func (h *hub) Size() int { return h.size }

// letGo starts the job on the other ranks.
func (h *hub) letGo() {
	for rank, err := range h.toAll(func(w *wire) error { return w.send(frame{kind: kindGo}) }) {
		h.fail(lost(rank, "connection failed: "+err.Error()))
	}
}

// refuse ends a job that could not start. Whoever hears of it and hangs up must not pass for the reason.
func (h *hub) refuse(why error) {
	h.mu.Lock()
	first := h.failure == nil
	if first {
		h.failure = &cause{err: why}
	}
	h.mu.Unlock()
	if first {
		h.notify(-1, refusal(why))
		close(h.broken)
	}
	<-h.broken
}

// hangUp closes all connections and waits for their readers.
func (h *hub) hangUp() {
	for _, w := range h.wires {
		if w != nil {
			w.Close()
		}
	}
	h.wg.Wait()
}

// read takes what one rank sends until its connection ends.
func (h *hub) read(rank int) {
	for {
		f, err := readFrame(h.wires[rank])
		if err == nil {
			err = h.take(rank, f)
		}
		if err == nil {
			continue
		}
		h.mu.Lock()
		left := h.left[rank]
		h.mu.Unlock()
		if !left {
			h.fail(lost(rank, lostText(err)))
		}
		return
	}
}

// lostText says in which way a connection ended.
func lostText(err error) string {
	if errors.Is(err, io.EOF) {
		return "ended without closing its bootstrap"
	}
	return "connection failed: " + err.Error()
}

// take handles one frame; an error ends the connection.
func (h *hub) take(rank int, f frame) error {
	switch f.kind {
	case kindGather:
		return h.place(rank, f.seq, f.body)
	case kindBye:
		h.leave(rank)
		return io.EOF
	case kindLate:
		if len(f.body) == 0 {
			h.late(rank, f.seq)
			return nil
		}
		fallthrough // it gave up by itself
	case kindAbort, kindLost:
		c, err := f.decode(h.size)
		if err != nil {
			return err
		}
		if c.peer != rank {
			return fmt.Errorf("it speaks for rank %d: %w", c.peer, fault.ErrMismatch)
		}
		h.fail(c)
		return nil
	}
	return fmt.Errorf("it sent a frame of kind %d: %w", f.kind, fault.ErrMismatch)
}

// late ends the job since rank's time for AllGather number seq was up.
func (h *hub) late(rank int, seq uint32) {
	missing := h.missing()
	h.mu.Lock()
	now := seq == h.seq
	h.mu.Unlock()
	if len(missing) == 0 || !now { // the result is under way
		h.fail(cause{rank, 0, "gave up: its time was up", fault.ErrTimeout})
	} else {
		h.fail(late(missing, rank))
	}
}

// place puts one rank's part into the present AllGather. Somebody who has left makes that impossible: the job breaks.
func (h *hub) place(rank int, seq uint32, part []byte) error {
	h.mu.Lock()
	if seq != h.seq || h.parts[rank] != nil {
		h.mu.Unlock()
		return fmt.Errorf("it sent all-gather %d, the job is at %d: %w", seq, h.seq, fault.ErrMismatch)
	}
	if part == nil {
		part = []byte{}
	}
	h.parts[rank] = part
	h.n++
	if h.n == h.size {
		h.full <- struct{}{}
	}
	gone := h.firstLeft()
	h.mu.Unlock()
	if gone >= 0 {
		h.fail(lost(gone, "closed its bootstrap"))
	}
	return nil
}

// firstLeft is a rank that has closed, or -1. The caller holds mu.
func (h *hub) firstLeft() int {
	for r, left := range h.left {
		if left {
			return r
		}
	}
	return -1
}

// leave notes that a rank has closed.
func (h *hub) leave(rank int) {
	h.mu.Lock()
	h.left[rank] = true
	if rank != 0 {
		if h.nleft++; h.nleft == h.size-1 {
			close(h.allLeft)
		}
	}
	waiting := h.n > 0
	h.mu.Unlock()
	if waiting {
		h.fail(lost(rank, "closed its bootstrap"))
	}
}

// fail breaks the job and tells all other ranks; the first cause stays. Only when they have been told do calls on this
// rank return, since its process may exit next.
func (h *hub) fail(c cause) {
	h.mu.Lock()
	first := h.failure == nil
	if first {
		h.failure = &c
	}
	h.mu.Unlock()
	if first {
		but := c.peer
		if errors.Is(c.err, fault.ErrTimeout) {
			but = -1 // it lives, and may come yet
		}
		h.notify(but, c.encode())
		close(h.broken)
	}
	<-h.broken
}

func (h *hub) reason() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure.on(0)
}

// notify tells every rank but one, which is dead or knows.
func (h *hub) notify(but int, f frame) {
	h.mu.Lock()
	var told sync.WaitGroup
	for rank, w := range h.wires {
		if w != nil && rank != but && !h.left[rank] {
			told.Go(func() { w.sendNotice(f) })
		}
	}
	h.mu.Unlock()
	told.Wait()
}

// toAll sends something to every other rank at once and gives the errors by rank.
func (h *hub) toAll(send func(w *wire) error) map[int]error {
	var mu sync.Mutex
	var told sync.WaitGroup
	failed := map[int]error{}
	for rank, w := range h.wires {
		if w == nil {
			continue
		}
		told.Go(func() {
			if err := send(w); err != nil {
				mu.Lock()
				failed[rank] = err
				mu.Unlock()
			}
		})
	}
	told.Wait()
	return failed
}

func (h *hub) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := h.gate.enter(busy); err != nil {
		return nil, err
	}
	defer h.gate.leave()
	if err := h.check(ctx, mine); err != nil {
		return nil, err
	}
	h.mu.Lock()
	seq := h.seq
	h.mu.Unlock()
	if err := h.place(0, seq, append([]byte{}, mine...)); err != nil {
		return nil, err
	}
	select {
	case <-h.full:
	case <-h.broken:
		return nil, h.reason()
	case <-ctx.Done():
		return nil, h.giveUp(fault.Ended(ctx))
	}
	h.mu.Lock()
	all := h.parts
	h.parts, h.n = make([][]byte, h.size), 0
	h.seq++
	h.mu.Unlock()

	total := 4
	for _, p := range all {
		total += 4 + len(p)
	}
	if total > maxResult {
		return nil, h.giveUp(fmt.Errorf("all parts together have %d bytes, at most %d: %w", total, maxResult, fault.ErrLimit))
	}
	// A rank that reads slowly holds this up; one that does not read at all is for ctx to end.
	stop := context.AfterFunc(ctx, func() { h.fail(gaveUp(0, fault.Ended(ctx))) })
	defer stop()
	// A rank that has the result may break the job at once: the others get the result all the same, and before they hear
	// of that.
	result := frame{kindResult, seq, packParts(all)}.append(nil)
	for _, w := range h.wires {
		if w != nil {
			w.owe(result)
		}
	}
	for rank, err := range h.toAll((*wire).pay) {
		h.fail(lost(rank, "connection failed: "+err.Error()))
		return nil, h.reason()
	}
	if !stop() {
		return nil, h.giveUp(fault.Ended(ctx)) // the others have been told so
	}
	return all, nil
}

// check is what has to hold before a part is sent.
func (h *hub) check(ctx context.Context, mine []byte) error {
	select {
	case <-h.broken:
		return h.reason()
	default:
	}
	if ctx.Err() != nil {
		return h.giveUp(fault.Ended(ctx))
	}
	if len(mine) > maxPart {
		return h.giveUp(fmt.Errorf("part of %d bytes, at most %d: %w", len(mine), maxPart, fault.ErrLimit))
	}
	return nil
}

// giveUp is this rank's error; the others learn that it left.
func (h *hub) giveUp(why error) error {
	missing := h.missing()
	if len(missing) == 0 || missing[0] == 0 {
		h.fail(gaveUp(0, why))
		return &fault.Error{Op: "bootstrap", Rank: 0, Peer: -1, Err: why}
	}
	if fault.Late(why) {
		h.fail(late(missing, 0))
	}
	h.fail(gaveUp(0, why))
	return waitingFor(missing, 0, why)
}

// missing are the ranks that have not come to the present AllGather, if any has.
func (h *hub) missing() (ranks []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r, p := range h.parts {
		if p == nil && h.n > 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (h *hub) Abort(code int) { h.fail(aborted(0, code)) }

func (h *hub) Close() error {
	if err := h.gate.enter(closed); err != nil {
		return err
	}
	defer h.hangUp()
	h.leave(0)
	if h.size == 1 {
		return nil
	}
	// The others hear of an abort or a loss through this rank only, so it stays until the last one leaves.
	select {
	case <-h.broken:
		return nil
	default:
	}
	select {
	case <-h.allLeft:
		return nil
	case <-h.broken:
		h.mu.Lock()
		mine := h.failure.peer == 0 // another rank wants an AllGather that cannot be: its error, not ours
		h.mu.Unlock()
		if mine {
			return nil
		}
		return h.reason()
	case <-time.After(closeTimeout):
		h.mu.Lock()
		var missing []int
		for r := 1; r < h.size; r++ {
			if !h.left[r] {
				missing = append(missing, r)
			}
		}
		h.mu.Unlock()
		return &fault.Error{Op: "bootstrap", Rank: 0, Peer: -1, Step: "close",
			Err: fmt.Errorf("%s did not close: %w", rankList(missing), fault.ErrTimeout)}
	}
}
