package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/membership"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Shrink makes a communicator of the ranks that are left of c, which is broken, or breaks now. Collective over these.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	if err := c.Barred(&team.Work{}, "shrink"); err != nil {
		return nil, err
	}
	if c.size == 0 {
		return nil, c.Err()
	}
	if ctx == nil {
		return nil, c.LocalError("shrink", ErrNilContext)
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.turn.Leave()
	if c.closing.Load() {
		return nil, c.LocalError("shrink", ErrCommClosed)
	}
	if c.left {
		return nil, c.LocalError("shrink", errLeft)
	}
	defer c.Tracer.Begin(Context(ctx), "shrink").End()
	c.Fail(&fault.Error{Op: "shrink", Rank: c.rank, Peer: c.rank, Host: c.Hostname(c.rank),
		Err: fmt.Errorf("rank %d shrinks the communicator: %w", c.rank, fault.ErrAborted)})
	start := time.Now()
	child, err := c.shrinking().run(Context(ctx))
	if err != nil {
		return nil, err
	}
	if err := child.joinGroups(Context(ctx)); err != nil { // all ranks have the communicator, and one of them was lost since
		child.Fail(&fault.Error{Op: "shrink", Rank: child.rank, Peer: -1, Host: child.Hostname(child.rank), Err: err})
	}
	child.dumps()
	child.logOpen("shrink", start)
	return child, nil
}

// errLeft is for a rank that gave up when it had told all others that it was done.
var errLeft = fmt.Errorf("an earlier call gave up when the others could go on already, and may have: %w", fault.ErrAborted)

// shrinking is one rank's side of a Shrink.
type shrinking struct {
	splitting
	last      membership.Step // a rank that finds another gone before that has told this one begins anew
	agreement *membership.Agreement
	states    []membership.State // what the ranks have told last
	dead      membership.Set     // certainly, or they have closed the communicator
	closed    membership.Set     // those of dead that have
	connect   *connecting        // nil unless it is under way
	cuts      int                // between hosts, that are known
	settled   time.Time          // when these count: others may follow
}

func (c *Comm) shrinking() *shrinking {
	s := &shrinking{splitting: splitting{parent: c, op: "shrink", me: member{rank: c.rank}, opts: c.opts}, last: membership.Mapped}
	if c.SpansHosts() {
		s.last = membership.Connected
	}
	return s
}

// connecting is a goroutine that connects the child's hosts.
type connecting struct {
	cancel context.CancelFunc
	err    chan error
}

const (
	lookEvery = 5 * time.Millisecond // between looks at the processes of ranks that are awaited
	// doubt is how long a rank whose work for a step has failed waits for a reason that lies with another rank: one that dies
	// takes its memory along before its process has ended.
	doubt = time.Second
	// settling is how long a rank that learns that hosts do not reach each other waits for more of that: a host that is cut off
	// from several is so at about the same time.
	settling = time.Second
	// reaching is how long it also waits for connections that are being made: to a process that is stopped that takes long.
	reaching = 10 * time.Second
)

// run agrees on who is left, and makes the communicator with them.
func (s *shrinking) run(ctx context.Context) (*Comm, error) {
	w, err := s.begin()
	for ; err == nil; s.parent.team.Rest(w.changed) {
		over := false
		if over, err = s.turn(ctx, &w); over {
			s.tell(nil)
			s.agreeOnDevices(s.notes(membership.Mapped))
			if !s.closed.Holds(s.agreement.Ended()) {
				s.parent.dom.survive()
			}
			return s.child, nil
		}
	}
	return nil, s.giveUp(err)
}

// begin begins the attempt.
func (s *shrinking) begin() (w awaiting, err error) {
	c, t := s.parent, &s.parent.team
	before, _ := t.Told(t.Rank())
	s.states, s.dead, s.closed = make([]membership.State, c.size), membership.NewSet(c.size), membership.NewSet(c.size)
	if c.SpansHosts() && c.far == nil {
		c.far, err = hosts.OpenMembership(hosts.MembershipConfig{ID: c.membershipID(), Hosts: c.stage.Hosts, Mine: c.stage.Host(),
			Size: c.size, Network: c.dom.network, World: c.InJob, Name: c.Hostname})
	}
	if err == nil {
		_, err = s.listen()
	}
	s.agreement = membership.New(c.rank, c.size, s.last, before, s.states)
	if err == nil {
		s.tell(nil)
	}
	return awaiting{changed: time.Now()}, err
}

// membershipID is that of the communicator's hosts.Membership.
func (c *Comm) membershipID() uint64 {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("membership"), c.team.ID()))
	return binary.LittleEndian.Uint64(sum[:])
}

// leaveMembership tells ranks of other hosts that Shrink must not wait for this rank.
func (c *Comm) leaveMembership() {
	switch {
	case c.far != nil:
		c.far.Close()
	case c.SpansHosts() && c.dom.network != nil:
		c.dom.network.LeaveMembership(c.membershipID())
	}
}

// turn does what can be done now. It reports whether all is done, or returns why this rank gives up.
func (s *shrinking) turn(ctx context.Context, w *awaiting) (over bool, err error) {
	v, about, err := s.look(w)
	switch {
	case err != nil:
		return false, err
	case v == membership.Over:
		return true, nil
	case v == membership.Failed:
		return false, s.refusal(about)
	case v == membership.Excluded:
		return false, reason.About(about, fmt.Errorf("rank %d takes this rank for gone: %w", about, fault.ErrAborted))
	case v == membership.Ready && w.failed == nil:
		note, done, err := s.work(ctx)
		switch {
		case err != nil:
			w.failed, w.changed = err, time.Now()
		case done:
			s.agreement.Advance()
			s.tell(note)
			w.progress()
			return false, nil
		}
	}
	return false, w.err(ctx, s.parent, about)
}

// awaiting is the state of a wait.
type awaiting struct {
	changed time.Time // when a rank last told something new, this one included
	looked  time.Time // at the processes
	failed  error     // of this rank's work for the next step
	said    bool      // that it lasts
}

func (w *awaiting) progress() { *w = awaiting{changed: time.Now(), looked: w.looked} }

// err is why this rank gives up, or nil.
func (w *awaiting) err(ctx context.Context, c *Comm, about int) error {
	waited := time.Since(w.changed)
	if about >= 0 && !w.said && int64(waited) > c.team.ReportAfter.Load() {
		w.said = true
		c.Log().Warn("ubcoll: still waiting", "op", "shrink", "rank", c.rank, "host", c.Hostname(about), "missing", about,
			"for", waited.Round(time.Second), "timeout", time.Duration(c.team.Timeout.Load()))
	}
	switch limit := time.Duration(c.team.Timeout.Load()); {
	case w.failed != nil && waited > doubt:
		return w.failed
	case ctx.Err() != nil && about >= 0:
		return reason.About(about, fmt.Errorf("waiting for rank %d: %w", about, reason.Ended(ctx)))
	case ctx.Err() != nil:
		return reason.Ended(ctx)
	case waited > limit && about >= 0:
		return reason.About(about, fmt.Errorf("nothing from rank %d for %v: %w", about, limit, fault.ErrTimeout))
	}
	return nil
}

// listen reads what the others have told. It notes those that are dead, which have told nothing since, and reports whether
// anything is new.
func (s *shrinking) listen() (news bool, err error) {
	heard := func(r int, ok bool, told membership.State, dead, closed bool) {
		if closed {
			s.closed.Add(r)
		}
		if (dead || closed) && !s.dead.Has(r) {
			s.dead.Add(r)
			news = true
		}
		if was := &s.states[r]; ok && (told.Step != was.Step || told.Attempt != was.Attempt || told.Done != was.Done || !told.Gone.Equal(was.Gone)) {
			*was, news = told, true
		}
	}
	t := &s.parent.team
	for i := range t.Size() {
		if i != t.Rank() {
			dead, closed := t.Gone(i) // before what it has told: that is the last then
			told, ok := t.Told(i)
			heard(t.Name(i), ok, told, dead, closed)
		}
	}
	if s.parent.far != nil {
		err = s.parent.far.Look(heard)
	}
	return news, err
}

// look takes in what the others have told, and says what to do next.
func (s *shrinking) look(w *awaiting) (v membership.Verdict, about int, err error) {
	c := s.parent
	if now := time.Now(); now.Sub(w.looked) > lookEvery {
		w.looked = now
		c.Look()
	}
	c.Advance()
	news, err := s.listen()
	if err != nil {
		return v, -1, err
	}
	was := s.agreement.Mine()
	for r, told := range s.states {
		s.agreement.Heard(r, told)
		if s.dead.Has(r) {
			s.agreement.Lost(r)
		}
	}
	apart := s.divide()
	v, about = s.agreement.Next()
	if now := s.agreement.Mine(); (!now.Gone.Equal(was.Gone) || now.Attempt != was.Attempt) && v != membership.Over { // it begins anew
		s.stopConnecting()
		s.tell(nil)
		news = true
	}
	if news {
		w.progress()
	}
	if v != membership.Over && apart != nil && w.failed == nil {
		w.failed, w.changed = apart, time.Now()
	}
	return v, about, nil
}

// divide takes ranks for gone that are alive, so that those who are left reach each other. It returns why this rank must not go
// on, if another part of the ranks will.
func (s *shrinking) divide() error {
	c := s.parent
	if c.far == nil {
		return nil
	}
	cuts := c.far.Cuts()
	if len(cuts) > s.cuts {
		s.cuts, s.settled = len(cuts), time.Now().Add(settling)
	}
	now, late := time.Now(), s.settled.Add(reaching)
	if s.cuts == 0 || now.Before(s.settled) || now.Before(late) && c.far.Connecting() {
		return nil
	}
	gone := slices.Clone(s.agreement.Mine().Gone)
	for _, set := range []membership.Set{s.dead, c.far.Apart(gone.With(s.dead))} {
		gone = gone.With(set)
	}
	switch {
	case gone.Has(c.rank):
		if now.Before(late) { // perhaps others find that they do not reach those either that this host does not reach
			return nil
		}
	case membership.Quorum(c.size, gone, s.known()):
		for r := range c.size {
			if gone.Has(r) {
				s.agreement.Lost(r)
			}
		}
		return nil
	}
	var names []string
	for _, k := range cuts {
		names = append(names, fmt.Sprintf("%s and %s", c.Hostname(c.stage.Hosts[k[0]][0]), c.Hostname(c.stage.Hosts[k[1]][0])))
	}
	is, what := fault.ErrPeerLost, fmt.Sprintf("the %d ranks that reach each other are not more than half of those that may be alive", c.size-gone.Count())
	if gone.Has(c.rank) {
		is, what = fault.ErrAborted, "the others go on without this host"
	}
	return fmt.Errorf("hosts do not reach each other: %s; %s: %w", strings.Join(names, ", "), what, is)
}

// known are the ranks that are dead, as far as this one knows. Those that others have found are among them if more of their host
// are left: whom hosts take for gone because they do not reach them are always all ranks of a host.
func (s *shrinking) known() membership.Set {
	gone := s.agreement.Mine().Gone
	known := gone.With(s.dead)
	for _, ranks := range s.parent.stage.Hosts {
		if !slices.ContainsFunc(ranks, func(r int) bool { return !gone.Has(r) }) {
			for _, r := range ranks {
				if !s.dead.Has(r) {
					known.Remove(r)
				}
			}
		}
	}
	return known
}

// tell tells the others this rank's state.
func (s *shrinking) tell(note []byte) {
	mine := s.agreement.Mine()
	_ = s.parent.team.Tell(mine, note[:min(len(note), team.NoteBytes)])
	if far := s.parent.far; far != nil {
		if mine.Step != membership.Refused {
			note = nil
		}
		far.Tell(mine, note[:min(len(note), far.NoteBytes())])
	}
}

// work does what comes after this rank's step, and returns the note that tells of it. It reports whether that is done: connecting
// goes on meanwhile.
func (s *shrinking) work(ctx context.Context) (note []byte, done bool, err error) {
	switch s.agreement.Mine().Step {
	case membership.Proposed:
		s.regroup()
		note, err = s.create(ctx)
	case membership.Made:
		var about int
		if about, err = s.place(s.notes(membership.Made)); err == nil {
			note, err = s.meet()
		} else {
			err = reason.About(about, err)
		}
	case membership.Mapped:
		return s.connected(ctx)
	}
	if err == nil && len(note) > team.NoteBytes {
		err = fmt.Errorf("a note of %d bytes, more than %d: %w", len(note), team.NoteBytes, fault.ErrLimit)
	}
	return note, err == nil, err
}

// connected begins to connect the child's hosts, and reports whether they are. It does not block: a rank that the others wait for
// may be lost meanwhile.
func (s *shrinking) connected(ctx context.Context) (note []byte, done bool, err error) {
	if !s.child.SpansHosts() {
		return nil, true, nil
	}
	if s.connect == nil {
		x := &connecting{err: make(chan error, 1)}
		ctx, x.cancel = context.WithCancel(ctx)
		go func() { x.err <- s.open(ctx) }()
		s.connect = x
	}
	select {
	case err = <-s.connect.err:
		s.connect.cancel()
		s.connect = nil
		return nil, err == nil, err
	default:
		return nil, false, nil
	}
}

// stopConnecting ends what connected has begun.
func (s *shrinking) stopConnecting() {
	if x := s.connect; x != nil {
		x.cancel()
		<-x.err
		s.connect = nil
	}
}

// regroup drops what there is of a communicator of more ranks, and says which ranks there are now.
func (s *shrinking) regroup() {
	c, gone := s.parent, s.agreement.Mine().Gone
	if s.child != nil {
		c.dom.Failed(s.undo(fmt.Errorf("a rank was lost on the way: %w", fault.ErrPeerLost)))
	}
	s.child, s.group, s.here, s.devices = nil, nil, nil, nil
	sum := sha256.New()
	sum.Write(binary.LittleEndian.AppendUint64(nil, c.team.ID()))
	sum.Write(binary.LittleEndian.AppendUint32([]byte("shrink"), s.agreement.Mine().Attempt))
	for _, w := range gone {
		sum.Write(binary.LittleEndian.AppendUint64(nil, w))
	}
	s.id = binary.LittleEndian.Uint64(sum.Sum(nil))
	for r := range c.size {
		if !gone.Has(r) {
			s.group = append(s.group, member{rank: r})
		}
	}
}

// notes are those of a step, by rank.
func (s *shrinking) notes(step membership.Step) [][]byte {
	t, all := &s.parent.team, make([][]byte, s.parent.size)
	for i := range t.Size() {
		all[t.Name(i)] = t.Note(i, step)
	}
	return all
}

// gaveUp is why a rank gave up, for the others.
type gaveUp struct {
	Rank  int    `json:"rank"`
	About int    `json:"about"`
	Code  int    `json:"code"`
	Text  string `json:"text"`
}

// mostReason is how long the text of a reason may be, so that it fits where ranks of other hosts are told.
const mostReason = 300

// refusal is why a rank gave up, as it has told.
func (s *shrinking) refusal(rank int) error {
	var f gaveUp
	if s.states[rank].Step != membership.Refused || json.Unmarshal(s.why(rank), &f) != nil {
		return reason.About(rank, fmt.Errorf("rank %d gave up: %w", rank, fault.ErrAborted))
	}
	if f.About == s.parent.rank || f.About < 0 || f.About >= s.parent.size {
		f.About = rank
	}
	is := reason.OfCode(f.Code)
	if is == nil {
		is = fault.ErrAborted
	}
	return &refused{f, reason.About(f.About, reason.As(fmt.Sprintf("rank %d gave up: %s", f.Rank, f.Text), is))}
}

// why is the note of a rank that gave up.
func (s *shrinking) why(rank int) []byte {
	if local := s.parent.team.Index(rank); local >= 0 {
		return s.parent.team.Note(local, membership.Refused)
	}
	return s.parent.far.Note(rank)
}

// refused is another rank's failure.
type refused struct {
	gaveUp
	error
}

func (e *refused) Unwrap() error { return e.error }

// giveUp ends the attempt, tells the others why, and returns the error.
func (s *shrinking) giveUp(err error) error {
	c := s.parent
	f := gaveUp{Rank: c.rank, About: reason.Blamed(err, -1), Code: reason.Code(err), Text: reason.Text(err, c.rank)}
	if e, ok := errors.AsType[*refused](err); ok {
		f = e.gaveUp
	}
	f.Text = f.Text[:min(len(f.Text), mostReason)]
	s.stopConnecting()
	if c.left = s.agreement.Refuse(); !c.left { // else it leaves the others' communicator below
		note, _ := json.Marshal(f)
		s.tell(note)
	}
	e := &fault.Error{Op: s.op, Rank: c.rank, Peer: reason.Blamed(err, -1), Host: c.Hostname(c.rank), Err: err}
	if s.child != nil {
		return WithCleanup(e, s.undo(err))
	}
	return e
}
