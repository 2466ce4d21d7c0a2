// Package onesided implements access to another rank's memory without that rank's help: handles and imports, channels,
// and windows, on the host and on devices.
package onesided

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Space is the channels, semaphores and windows of a communicator. It is one of the communicator's Attachments.
type Space struct {
	c *engine.Comm

	mu      sync.Mutex
	open    map[closable]bool
	closed  counters // of what is no longer open
	table   *endTable
	watched []bool              // by the team's rank: this rank watches its table
	used    [tableEnds]occupant // slots of the table: open, or closed here and not yet at the peer
	places  []*team.Place       // where the tables of the team's ranks are
	device  *gpuend.Table       // nil if there was never a device

	// Of communicators of several hosts.
	index   []int32 // by rank: its rank in the team, or -1
	fars    []atomic.Pointer[far]
	pairs   *hosts.Pairs // nil before Span
	unhook  func()
	asking  team.Gate          // counts calls that wait for a rank of another host and use nothing that closes
	windows map[uint64]*Window // by Window.id; guarded by mu
}

// NewSpace makes c's Space.
func NewSpace(c *engine.Comm, _ engine.Attachment) engine.Attachment { return &Space{c: c} }

// SpaceOf returns c's Space. If c has none, because it has no ranks, it returns one whose calls say why.
func SpaceOf(c *engine.Comm) *Space {
	if sp, ok := engine.Attached[*Space](c); ok {
		return sp
	}
	return &Space{c: c}
}

// AreaBytes implements engine.Attachment.
func (sp *Space) AreaBytes() int { return int(unsafe.Sizeof(team.Place{})) }

// Lay sets where a rank publishes its table. It implements engine.Attachment.
func (sp *Space) Lay(rank int, at unsafe.Pointer) {
	if sp.places == nil {
		sp.places = make([]*team.Place, sp.c.Team().Size())
	}
	sp.places[rank] = (*team.Place)(at)
}

// Count implements engine.Attachment.
func (sp *Space) Count(s *engine.Stats) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	var all counters
	all.add(&sp.closed)
	for k := range sp.open {
		all.add(k.stats())
	}
	s.Puts, s.Gets, s.OneSided = all.puts.Load(), all.gets.Load(), all.bytes.Load()
}

// Shut implements engine.Attachment.
func (sp *Space) Shut(bool) error {
	for _, k := range sp.list() {
		if k.busy() {
			return fmt.Errorf("%s is in use: %w", k.name(), fault.ErrBusy)
		}
	}
	return nil
}

// Reopen implements engine.Attachment.
func (sp *Space) Reopen() {}

// Close implements engine.Attachment.
func (sp *Space) Close() error {
	err := sp.closeAll(false)
	sp.asking.Close()
	err = errors.Join(err, sp.closeFar())
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.table != nil {
		sp.table.state.Store(team.StateClosed)
	}
	return err
}

// Abort implements engine.Attachment.
func (sp *Space) Abort() { sp.closeAll(true) }

// closeAll closes all channels, semaphores and windows. Without quick it waits until their uses have ended.
func (sp *Space) closeAll(quick bool) error {
	var errs []error
	for i := 0; ; i++ {
		all := sp.list()
		for _, k := range all {
			if k.use().Closed() || closedWithOther(k) {
				continue
			}
			if err := shut(k, quick); !errors.Is(err, fault.ErrClosed) { // its owner has closed it just now
				errs = append(errs, err)
			}
		}
		if quick || len(all) == 0 {
			return errors.Join(errs...)
		}
		if i > 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// closedWithOther reports whether k is a channel over a semaphore, which closes it.
func closedWithOther(k closable) bool {
	ch, ok := k.(*Channel)
	return ok && ch.over != nil
}

func (sp *Space) list() []closable {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	var all []closable
	for k := range sp.open {
		all = append(all, k)
	}
	return all
}

// add makes k end with the communicator.
func (sp *Space) add(k closable) {
	sp.mu.Lock()
	sp.put(k)
	sp.mu.Unlock()
}

// put is add for a caller that holds mu.
func (sp *Space) put(k closable) {
	if sp.open == nil {
		sp.open = map[closable]bool{}
	}
	sp.open[k] = true
}

func (sp *Space) remove(k closable) {
	sp.mu.Lock()
	if sp.open[k] {
		sp.closed.add(k.stats())
	}
	delete(sp.open, k)
	sp.mu.Unlock()
}

// peerError returns err as an error about a peer, of a call that is no collective.
func peerError(c *engine.Comm, op string, peer int, err error) error {
	var e *fault.Error
	if errors.As(err, &e) {
		return err
	}
	return &fault.Error{Op: op, Rank: c.Rank(), Peer: peer, Host: c.Hostname(c.Rank()), Err: err}
}

// between names this rank and a peer, in the same way on both.
func between(c *engine.Comm, peer int) string {
	return fmt.Sprintf("between ranks %d and %d", min(c.Rank(), peer), max(c.Rank(), peer))
}
