package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
)

const (
	outstanding = 16      // operations under way in bandwidth tests
	short       = 4 << 10 // bytes of an operation up to which some are posted together
	signaled    = 4       // every how many of them raise a completion, which covers those before
	pings       = 16      // the same for puts that are answered, while nobody waits for completions
	inlined     = 220     // bytes that travel inside a work request: perftest's value for latencies
)

// stall is how long a wait for one operation may last: the loss of the peer is not always reported.
const stall = 30 * time.Second

// Looks at memory, or at a completion queue, between looks at anything else. A look at memory takes nanoseconds.
const (
	looksAtMemory = 1 << 14
	looksAtQueue  = 1 << 10
)

// Side describes a rank.
type Side struct {
	Rank     int    `json:"rank"`
	PID      int    `json:"pid"`
	Hostname string `json:"hostname"`
	Device   string `json:"device"`
	Firmware string `json:"firmware"`
	Port     int    `json:"port"`
	Link     string `json:"link"`
	MTU      int    `json:"mtu"`
	GID      string `json:"gid"`
	GIDIndex int    `json:"gid_index"` // -1: chosen by default
	Inline   int    `json:"inline_bytes"`
	Most     int    `json:"most_bytes"` // longest message
	Atomics  bool   `json:"atomics"`

	Why         string `json:"why,omitempty"` // why it has none of the above
	Unsupported bool   `json:"unsupported,omitempty"`
}

// end is one rank's end of the connection: a region whose first half is the source and whose second half is the
// destination.
type end struct {
	c    *ubcoll.Comm
	rank int
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP

	channel *verbs.Channel
	mr      *verbs.MR
	words   []uint64
	half    int // words
	undo    []func() error

	peer struct { // the other rank's region
		memory uint64
		key    verbs.RKey
	}
	each   verbs.Work // what is posted again and again
	work   [outstanding]verbs.Work
	count  uint64 // of answered puts, or of atomics, since prepare
	done   [outstanding]verbs.Completion
	unseen int // completions still to come

	team    *team.Team
	waiting team.WaitState // the last wait that took longer,
	since   time.Duration  // and when it began
}

func newEnd(c *ubcoll.Comm, cfg *Config) *end {
	return &end{c: c, rank: c.Rank(), team: (*inside.Comm)(c).View().Team(), half: (cfg.MaxBytes + 4095) / 4096 * 512}
}

// connect connects the two ranks and describes them. Collective: both succeed, or both fail.
func connect(ctx context.Context, c *ubcoll.Comm, cfg *Config) (*end, []Side, error) {
	type record struct {
		Side
		Address     []byte
		Memory      uint64
		Key         uint32
		Why         string // why it has none of that
		Unsupported bool
	}
	e := newEnd(c, cfg)
	mine, address, err := e.open(cfg)
	r := record{Side: mine}
	if err != nil {
		r.Why, r.Unsupported = shorten(err.Error(), 512), errors.Is(err, fault.ErrNotSupported)
	} else {
		r.Address, r.Memory, r.Key = address.Append(nil), e.mr.Address(), uint32(e.mr.RKey())
	}
	all, failed := bench.Gather(ctx, c, r)
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, errors.Join(err, e.close())
	}
	other := all[1-e.rank]
	switch {
	case other.Why == "":
	case other.Unsupported:
		err = fmt.Errorf("rank %d: %s: %w", other.Rank, other.Why, fault.ErrNotSupported)
	default:
		err = fmt.Errorf("rank %d: %s: %w", other.Rank, other.Why, ubcoll.ErrAborted)
	}
	if most := min(all[0].Most, all[1].Most); err == nil && cfg.MaxBytes > most {
		err = fmt.Errorf("messages of %d bytes (-e): the ports take %d at most: %w", cfg.MaxBytes, most, ubcoll.ErrArgument)
	}
	if err == nil {
		if address, err = verbs.ParseAddress(other.Address); err == nil {
			err = e.qp.Connect(address, fmt.Sprintf("rank %d on %s", other.Rank, other.Hostname))
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, e.close())
	}
	e.peer.memory, e.peer.key = other.Memory, verbs.RKey(other.Key)
	return e, []Side{all[0].Side, all[1].Side}, nil
}

func shorten(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// open makes all of this rank's end except the connection.
func (e *end) open(cfg *Config) (s Side, address verbs.Address, err error) {
	s = Side{Rank: e.rank, PID: os.Getpid(), Hostname: e.c.Hostname(e.rank), GIDIndex: cfg.GID}
	d, port, err := choose(cfg.Devices)
	if err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, d.Close)
	s.Device, s.Firmware, s.Port, s.Link, s.MTU, s.Most = d.Name(), d.Limits().Firmware, port.Number, port.Link.String(), port.MTU,
		port.MaxMessage
	s.Atomics = d.Limits().Atomics != verbs.AtomicsNone
	if e.pd, err = d.AllocPD(); err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, e.pd.Close)
	if e.channel, err = d.CreateChannel(); err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, e.channel.Close)
	if e.cq, err = d.CreateCQ(2*outstanding+1, e.channel); err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, e.cq.Close)
	q := verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 2 * outstanding, Receives: 1, Inline: inlined}
	if e.qp, err = e.pd.CreateQP(q); err != nil {
		q.Inline = 0 // not every device has that much
		if e.qp, err = e.pd.CreateQP(q); err != nil {
			return s, address, err
		}
	}
	e.undo = append(e.undo, e.qp.Close)
	s.Inline = e.qp.Inline()
	path := verbs.DefaultPath()
	path.Port, path.GIDIndex, path.Timeout = port.Number, cfg.GID, 14 // perftest's timeout
	if address, err = e.qp.Init(path, access); err != nil {
		return s, address, err
	}
	s.GID = address.GID.String()
	buf, err := ubcoll.Alloc[uint64](e.c, ubcoll.Host, 2*e.half)
	if err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, buf.Free)
	e.words = buf.Slice()
	if e.mr, err = e.pd.Register(uintptr(unsafe.Pointer(unsafe.SliceData(e.words))), 16*e.half, access); err != nil {
		return s, address, err
	}
	e.undo = append(e.undo, e.mr.Close)
	return s, address, nil
}

// choose opens the first selected device that has an active port, and returns both.
func choose(devices string) (*verbs.Device, verbs.Port, error) {
	selection, err := verbs.ParseSelection(devices)
	if err != nil {
		return nil, verbs.Port{}, err
	}
	if p := verbs.Have(); p.Err != nil {
		return nil, verbs.Port{}, p.Err
	}
	names, err := verbs.Devices()
	if err != nil {
		return nil, verbs.Port{}, err
	}
	var not []string
	for _, name := range names {
		d, err := verbs.Open(name)
		if err != nil {
			not = append(not, err.Error())
			continue
		}
		for n := range d.Limits().Ports {
			p, err := d.Port(n + 1)
			switch {
			case err != nil:
				not = append(not, err.Error())
			case !selection.Match(name, n+1):
				not = append(not, fmt.Sprintf("%s:%d is not selected", name, n+1))
			case p.State != verbs.PortActive:
				not = append(not, fmt.Sprintf("%s:%d is %v", name, n+1, p.State))
			default:
				return d, p, nil
			}
		}
		if err := d.Close(); err != nil {
			return nil, verbs.Port{}, err
		}
	}
	return nil, verbs.Port{}, fmt.Errorf("no active port of an RDMA device: %s: %w", strings.Join(not, "; "), fault.ErrNotSupported)
}

func (e *end) close() error {
	var errs []error
	for _, undo := range slices.Backward(e.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// word is a source's word at i. Counts of calls never get as large.
func word(rank, i int) uint64 { return uint64(rank+1)<<56 | uint64(i)*0x9e3779b1 }

func (e *end) source() []uint64      { return e.words[:e.half] }
func (e *end) destination() []uint64 { return e.words[e.half:] }

// prepare prepares the memory for op on n bytes, and sets the work to do.
func (e *end) prepare(op verbs.Op, n int) {
	for i := range e.source()[:n/8] {
		e.words[i] = word(e.rank, i)
	}
	clear(e.destination()[:n/8])
	e.count = 0
	w := verbs.Work{Op: op, Length: uint32(n), Local: e.mr.Address(), Key: e.mr.LKey(), Remote: e.peer.memory, Peer: e.peer.key}
	half := uint64(8 * e.half)
	switch op {
	case verbs.Write:
		w.Remote += half
	case verbs.Read:
		w.Local += half
	default:
		w.Local += half
		w.Remote += half
	}
	e.each = w
}

// wrong returns how many of the first n bytes' words are wrong here after that many operations. answered says whether
// the other rank has answered them.
func (e *end) wrong(op verbs.Op, n, operations int, answered bool) (words int) {
	rank, got := e.rank, e.destination()[:n/8]
	switch {
	case op == verbs.FetchAdd || op == verbs.CompareSwap:
		if got[0] != uint64(operations-1+rank) { // the old value that the last one returned, and the value that it left
			words = 1
		}
	case op == verbs.Read && rank == 0, op == verbs.Write && (rank == 1 || answered):
		for i, w := range got {
			if w != word(1-rank, i) {
				words++
			}
		}
	}
	return words
}

// pingPong makes puts that the other rank answers with the same. It returns half of each round trip, in microseconds.
func (e *end) pingPong(ctx context.Context, count int) ([]float64, error) {
	us := make([]float64, count)
	last := len(e.source()[:e.each.Length/8]) - 1
	mine, theirs := &e.source()[last], (*atomic.Uint64)(unsafe.Pointer(&e.destination()[last]))
	first := e.rank == 0
	before := now()
	for i := range us {
		e.count++
		if !first {
			if err := e.arrival(ctx, theirs, e.count); err != nil {
				return nil, err
			}
		}
		*mine = e.count
		if err := e.post(e.count%pings == 0 || i+1 == count); err != nil {
			return nil, err
		}
		if first {
			if err := e.arrival(ctx, theirs, e.count); err != nil {
				return nil, err
			}
		}
		// This is quick: the answer or the next put has arrived, so the peer's device has this one.
		if err := e.drain(ctx); err != nil {
			return nil, err
		}
		after := now()
		us[i], before = float64(after-before)/2e3, after
	}
	return us, nil
}

// oneByOne makes operations one after the other, and returns how long each took, in microseconds.
func (e *end) oneByOne(ctx context.Context, count int) ([]float64, error) {
	us := make([]float64, count)
	before := now()
	for i := range us {
		if err := e.post(true); err != nil {
			return nil, err
		}
		if err := e.drain(ctx); err != nil {
			return nil, err
		}
		after := now()
		us[i], before = float64(after-before)/1e3, after
	}
	return us, nil
}

// stream keeps operations under way. Short ones that have room are posted together, as perftest does with --post_list, since a
// call from Go into C costs as much as such an operation. It returns when each was posted, and when it was seen to be complete.
func (e *end) stream(ctx context.Context, count int) (began, ended []time.Duration, err error) {
	began, ended = make([]time.Duration, count), make([]time.Duration, count)
	together := outstanding
	if e.each.Length > short {
		together = 1
	}
	for posted, completed := 0, 0; completed < count; {
		for room := min(count-posted, outstanding-(posted-completed)); room > 0; {
			n := min(room, together)
			t := now()
			for i := range n {
				began[posted] = t
				posted++
				e.add(i, posted%signaled == 0 || posted == count)
			}
			if err := e.send(n); err != nil {
				return nil, nil, err
			}
			room -= n
		}
		done, err := e.completions(ctx)
		if err != nil {
			return nil, nil, err
		}
		for t := now(); done > 0; done-- {
			for to := min(count, (completed/signaled+1)*signaled); completed < to; completed++ {
				ended[completed] = t
			}
		}
	}
	return began, ended, nil
}

// rest prepares a rank to be idle until the other calls wake. It asks the queue for an event before it posts the
// receive for the wake: an earlier completion would raise no event.
func (e *end) rest() error {
	if err := e.cq.Notify(false); err != nil {
		return err
	}
	_, err := e.qp.PostReceive(verbs.Receive{})
	return err
}

// idle sleeps until the other rank has called wake. On a machine with few processors, polling would take processor time
// from the rank that measures.
func (e *end) idle(ctx context.Context) error {
	defer e.team.EndWait(&e.waiting)
	for {
		sleep, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		err := e.channel.Wait(sleep)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
		n, err := e.cq.Poll(e.done[:1], 1)
		switch {
		case err != nil:
			return err
		case n > 0:
			return e.cq.Failure(&e.done[0])
		}
		if err := e.wait(ctx, "end of what the other rank measures", false); err != nil { // the other rank takes as long as it needs
			return err
		}
	}
}

// wake ends the other rank's rest.
func (e *end) wake(ctx context.Context) error {
	if _, err := e.qp.Post(verbs.Work{Op: verbs.Send, Flags: verbs.Signaled}); err != nil {
		return err
	}
	e.unseen++
	return e.drain(ctx)
}

// post posts the work.
func (e *end) post(signal bool) error {
	e.add(0, signal)
	return e.send(1)
}

// add makes the work the one of that number in the next list.
func (e *end) add(i int, signal bool) {
	w := &e.work[i]
	*w = e.each
	if signal {
		w.Flags = verbs.Signaled
		e.unseen++
	}
	switch w.Op {
	case verbs.FetchAdd:
		w.Add = 1
	case verbs.CompareSwap: // each finds the value that the one before has left
		w.Add, w.Swap = e.count, e.count+1
		e.count++
	}
}

// send posts a list.
func (e *end) send(n int) error {
	_, err := e.qp.Post(e.work[:n]...)
	return err
}

// drain waits for all completions that are still to come.
func (e *end) drain(ctx context.Context) error {
	for e.unseen > 0 {
		if _, err := e.completions(ctx); err != nil {
			return err
		}
	}
	return nil
}

// completions waits for at least one completion.
func (e *end) completions(ctx context.Context) (int, error) {
	for long := false; ; long = true {
		n, err := e.look(looksAtQueue)
		if n == 0 && err == nil {
			err = e.wait(ctx, "completion", long)
		}
		if n > 0 || err != nil {
			e.team.EndWait(&e.waiting)
			return n, err
		}
	}
}

// look takes what has completed.
func (e *end) look(times int) (int, error) {
	n, err := e.cq.Poll(e.done[:], times)
	if err != nil {
		return 0, err
	}
	for i := range e.done[:n] {
		if err := e.cq.Failure(&e.done[i]); err != nil {
			return 0, err
		}
	}
	e.unseen -= n
	return n, nil
}

// arrival waits until the peer has written v.
func (e *end) arrival(ctx context.Context, at *atomic.Uint64, v uint64) error {
	for long := false; ; long = true {
		for range looksAtMemory {
			if at.Load() == v {
				e.team.EndWait(&e.waiting)
				return nil
			}
		}
		_, err := e.look(1) // if an own put failed, no answer will come
		if err == nil {
			err = e.wait(ctx, "put", long)
		}
		if err != nil {
			e.team.EndWait(&e.waiting)
			return err
		}
	}
}

// wait is the housekeeping of one step of a wait: it returns an error if the wait has lasted too long, the context has
// ended, or the other rank has failed.
func (e *end) wait(ctx context.Context, what string, long bool) error {
	t := now()
	if !long {
		e.waiting, e.since = team.WaitState{Op: "bench mr", Ctx: ctx, Step: what, Kind: team.KindRefused}, t
		if e.c.LocalSize() == 2 {
			e.waiting.Peer = 1 - e.rank
		}
	}
	if t-e.since > stall {
		return fmt.Errorf("no %s for %v: is the other rank there still?: %w", what, stall, ubcoll.ErrTimeout)
	}
	if err := e.team.Check(&e.waiting); err != nil {
		return err
	}
	return e.c.Err() // the other rank is on another host
}

var epoch = time.Now()

// now is one reading of the monotonic clock.
func now() time.Duration { return time.Since(epoch) }
