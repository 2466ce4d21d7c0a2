package onesided

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// far is this rank's side of what is one-sided with a rank of another host. Both sides write to each other's exports and
// call each other: see call.go. What the peer tells of its ends and windows stays here in words like those that ranks of
// one host share, so that waits look at the same words, and make progress besides.
//
// The rank that owns memory checks each write and call: a grant that is revoked is found no more. It tells the peer, whose
// later calls that use the grant fail.
type far struct {
	sp   *Space
	pair *hosts.Pair

	mu        sync.Mutex // held for moments: the network's goroutine takes it, too
	made      uint64     // ends that this rank has made with the peer
	ends      map[uint64]*farEnd
	windows   map[uint64]*windowRank // by Window.id
	asked     map[uint64]*request    // by their numbers
	number    uint64                 // of requests
	refused   map[mem.Location]bool  // grants that the peer has revoked, the last mostRefused
	oldest    []mem.Location         // the same, as a ring
	forgotten int                    // of them
	told      map[mem.Location]bool  // this rank's grants that the peer knows
	serving   []reply                // gets of the peer whose data are not sent
	late      []*signals             // of which signals were not sent

	called  atomic.Uint64 // calls to the peer, and of the peer
	heard   atomic.Uint64
	given   atomic.Uint64 // what this rank has sent that the peer's process puts into its memory
	taken   atomic.Uint64 // of that, what it surely has
	pacing  sync.Mutex    // held by goroutines that count what they send
	since   int           // bytes since the last mark
	marked  uint64        // marks so far
	marks   atomic.Uint64
	staging sync.Mutex // held by goroutines that write data and make the call about them

	// Those who serve the peer use these.
	scratch [transport.MaxCall / 8]uint64 // for calls whose data are not aligned
	staged  []uint64                      // see dataSlot; nil until it is needed
	came    int                           // bytes there

	deferred deferred
	landed   landed

	landings landings
}

// farEnd is an end of this rank, and what the peer has told of its own.
type farEnd struct{ mine, theirs channelEnd }

// reply is the answer to a get, from memory of a grant. It is sent once the pair has sent so many puts.
type reply struct {
	grant mem.Location
	to    transport.Target
	until uint64
}

// Span implements engine.Spanner.
func (sp *Space) Span(c hosts.PairsConfig) (err error) {
	sp.index = make([]int32, sp.c.Size())
	for r := range sp.index {
		sp.index[r] = int32(sp.c.Team().Index(r))
	}
	sp.fars = make([]atomic.Pointer[far], sp.c.Size())
	c.Made = sp.madeFar
	c.Last = func(x *hosts.Pair) hosts.Last { return hosts.Last{Sent: x.Mine.(*far).called.Load()} }
	sp.unhook = sp.c.Domain().OnRevoke(sp.revokeFar)
	sp.pairs, err = hosts.OpenPairs(c)
	return err
}

func (sp *Space) madeFar(x *hosts.Pair) any {
	return &far{sp: sp, pair: x, ends: map[uint64]*farEnd{}, windows: map[uint64]*windowRank{}, asked: map[uint64]*request{},
		refused: map[mem.Location]bool{}, told: map[mem.Location]bool{}}
}

// local is the team's rank of a rank of the communicator, or -1.
func (sp *Space) local(rank int) int {
	if sp.index == nil {
		return rank
	}
	return int(sp.index[rank])
}

// peer is what this rank knows of a rank of its host.
func (sp *Space) peer(rank int) *team.Peer { return &sp.c.Team().Peers[sp.local(rank)] }

// far returns what is one-sided with a rank of another host; nil for ranks of this one. expected says that the peer is
// about to ask for it, too.
func (sp *Space) far(rank int, expected bool) *far {
	if sp.local(rank) >= 0 {
		return nil
	}
	if f := sp.fars[rank].Load(); f != nil {
		return f
	}
	f := sp.pairs.With(rank, expected).Mine.(*far)
	sp.fars[rank].Store(f)
	return f
}

// allFar are those that there are.
func (sp *Space) allFar() (all []*far) {
	if sp.pairs == nil {
		return nil
	}
	for _, x := range sp.pairs.All() {
		all = append(all, x.Mine.(*far))
	}
	return all
}

// closeFar ends the pairs.
func (sp *Space) closeFar() error {
	if sp.unhook != nil {
		sp.unhook()
	}
	if sp.pairs == nil {
		return nil
	}
	all := sp.allFar()
	err := sp.pairs.Close()
	for _, f := range all {
		f.closeServing()
	}
	return err
}

// revokeFar stops what ranks of other hosts do with a grant, which has been revoked. Those that know it are told, and it
// waits until they have answered: so a call of theirs that begins after this rank's Close is refused at once. It does not
// depend on that.
func (sp *Space) revokeFar(g mem.Location) {
	type question struct {
		f  *far
		r  *request
		id uint64
	}
	var open []question
	for _, f := range sp.allFar() {
		if f.knew(g) && sp.c.Broken() == nil {
			r, k := &request{}, &call{Kind: callRefused, Slot: uint64(g.Slot), Generation: g.Generation}
			f.ask(k, r)
			open = append(open, question{f, r, k.ID})
		}
		f.stop(g) // after that was sent, so that an answer to a Flush does not come between what is dropped and the word of it
	}
	var w hosts.Wait
	for start := time.Now(); len(open) > 0 && time.Since(start) < revokeTimeout && sp.c.Broken() == nil; {
		open = slices.DeleteFunc(open, func(q question) bool {
			return q.r.over.Load() || q.f.pair.Err() != nil || q.f.pair.Last() != nil
		})
		if len(open) > 0 {
			sp.pairs.Idle(&w, open[0].f.pair, false)
		}
	}
	for _, q := range open {
		q.f.mu.Lock()
		delete(q.f.asked, q.id)
		q.f.mu.Unlock()
	}
}

// revokeTimeout is how long a rank that closes a registration waits for others to learn of it.
const revokeTimeout = time.Second

// knew forgets that the peer knows a grant, and reports whether it did.
func (f *far) knew(g mem.Location) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	knew := f.told[g]
	delete(f.told, g)
	return knew
}

// stop stops what the peer does with a grant.
func (f *far) stop(g mem.Location) {
	f.stopCopy(g)
	f.pair.Refuse(transport.Target{Slot: g.Slot, Key: g.Generation})
	sent := f.pair.Sent()
	var under []reply
	f.mu.Lock()
	f.serving = slices.DeleteFunc(f.serving, func(r reply) bool {
		if r.until > sent && r.grant == g {
			under = append(under, r)
		}
		return r.until <= sent || r.grant == g
	})
	f.mu.Unlock()
	for _, r := range under {
		f.pair.Withdraw(r.to) // the peer sees that not all has come
	}
}

// tells notes that the peer is told of a grant.
func (f *far) tells(g mem.Location) {
	f.mu.Lock()
	f.told[g] = true
	f.mu.Unlock()
}

// makeRoom lets ranks of other hosts tell which ends they have closed, if all slots are taken: whatever made this rank know
// that they have, such as a barrier, does not wait for that.
func (sp *Space) makeRoom(ctx context.Context) {
	sp.mu.Lock()
	slot := sp.freeSlot(false)
	sp.mu.Unlock()
	if slot >= 0 && slot < maxEnds {
		return
	}
	for _, f := range sp.allFar() {
		f.flush(ctx, nil) // its error is the next call's
	}
}

// otherEnd returns what the peer has told of its end, or nil before it has. The caller may hold Space.mu.
func (f *far) otherEnd(number uint64) *channelEnd {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.ends[number]; e != nil && e.theirs.key.Load() != 0 {
		return &e.theirs
	}
	return nil
}

// leave forgets an end of this rank, which is closed, if the peer has closed its own, or will do nothing more. It
// reports whether it has.
func (f *far) leave(number uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.ends[number]
	if e != nil && e.theirs.state.Load() != team.StateClosed && f.pair.Err() == nil && f.pair.Last() == nil {
		return false
	}
	delete(f.ends, number)
	return true
}

// live returns why a grant of the peer must not be used any more, or nil.
func (f *far) live(g mem.Location) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused[g] {
		return staleError(f.pair.Rank)
	}
	return nil
}

func staleError(rank int) error {
	return fmt.Errorf("rank %d has closed the registration or freed the memory: %w", rank, fault.ErrStale)
}

// mostRefused is how many revoked grants this rank remembers. One that it has forgotten is refused anew.
const mostRefused = 1 << 10

// refuse remembers that the peer has revoked a grant.
func (f *far) refuse(g mem.Location) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused[g] {
		return
	}
	if len(f.oldest) < mostRefused {
		f.oldest = append(f.oldest, g)
	} else { // the one that was refused first
		at := &f.oldest[f.forgotten%mostRefused]
		delete(f.refused, *at)
		*at = g
		f.forgotten++
	}
	f.refused[g] = true
}

// farMemory is a peer's memory on another host, as an engine.Import has it.
type farMemory struct{ f *far }

func (m farMemory) Resolve(mem.Location, int) (unsafe.Pointer, error) { return nil, errNotHere }
func (m farMemory) ReadOnly(mem.Location, int) (unsafe.Pointer, func() error, error) {
	return nil, nil, errNotHere
}
func (m farMemory) Live(g mem.Location) bool { return m.f.live(g) == nil }
func (m farMemory) Dead() bool               { return m.f.pair.Err() != nil }
func (m farMemory) Close() error             { return nil }

var errNotHere = fmt.Errorf("memory of another host: %w", fault.ErrNotSupported)

// A wait for another host looks so often before it does anything else: each look is a system call.
const looksFar = 16

// lost returns why the peer will do nothing more, or nil.
func (f *far) lost() error {
	if last := f.pair.Last(); last != nil {
		if f.heard.Load() >= last.Sent || f.pair.Err() != nil {
			return hosts.Closed(f.pair.Rank)
		}
		return nil // what it did before is on its way
	}
	return f.sp.pairs.Lost(f.pair)
}

// wait waits until ready returns true, for something that the peer does, or its kernel takes. of, if not nil, is what the
// wait ends with.
func (f *far) wait(ctx context.Context, op, step string, of closable, ready func() bool) error {
	w := waiting{WaitState: team.WaitState{Op: op, Ctx: engine.Context(ctx), Peer: f.pair.Rank, Step: step}, c: f.sp.c, of: of, sp: f.sp}
	if f.look(looksFar, ready) {
		return nil
	}
	return w.until(looksFar, ready)
}

// look reports whether ready returns true in one of so many calls, with progress between them.
func (f *far) look(looks int, ready func() bool) bool {
	for range looks {
		if ready() {
			return true
		}
		f.pair.Poll()
	}
	return ready()
}

// errorOf is the error of a call about the peer.
func (f *far) errorOf(code int) error {
	if code == codeStale {
		return staleError(f.pair.Rank)
	}
	if is := reason.OfCode(code); is != nil {
		return fmt.Errorf("rank %d refuses it: %w", f.pair.Rank, is)
	}
	return nil
}

var codeStale = reason.Code(fault.ErrStale)
