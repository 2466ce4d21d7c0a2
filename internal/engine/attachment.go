package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Attachment is all that the engine knows of a communicator's messages, or of its channels and windows; see also Advancer.
type Attachment interface {
	// AreaBytes is how much memory the attachment needs in each rank's area.
	AreaBytes() int
	// Lay passes the address of its part of a rank's area: this rank's own first, zeroed; the others' once mapped.
	Lay(rank int, at unsafe.Pointer)
	// Count adds the attachment's counters to s.
	Count(s *Stats)

	// Shut refuses new operations until Reopen or Close. It returns fault.ErrBusy while operations are under way,
	// except on a broken communicator, where they end.
	Shut(broken bool) error
	// Reopen undoes Shut.
	Reopen()
	// Close ends it, after Shut. Operations that wait for nothing have ended when it returns. If Open or Split failed,
	// Close is called without Shut.
	Close() error
	// Abort ends what must end with the communicator. It does not wait.
	Abort()
}

// Advancer is an attachment with work that this rank itself does. Its methods serve all communicators of the domain, even
// after this one has closed.
type Advancer interface {
	// Advance moves on the work that only proceeds when called. It is called whenever this rank waits for anything, and
	// does not wait itself.
	Advance()
	// Pass waits until operations end that are under way without holding their memory; some of it is being freed.
	Pass()
}

// Spanner is an attachment that a communicator has whose ranks are on several hosts, too. Its other methods are about the
// ranks of this host.
type Spanner interface {
	// Span opens what the attachment has on the network. Where and of whom is filled in. If it fails, or making the
	// communicator does, Close ends that.
	Span(c hosts.PairsConfig) error
}

// NewAttachment makes the attachment of c. The communicators of a domain may share parts of theirs: sibling is the
// attachment of the domain's first communicator that has attachments, or nil if c is that communicator.
type NewAttachment func(c *Comm, sibling Attachment) Attachment

// attach makes c's attachments. If c spans hosts, it has the Spanners alone: the others need to map the memory of all
// ranks.
func (c *Comm) attach() {
	d := c.dom
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attached == nil {
		d.attached = make([]Attachment, len(c.providers.Attachments))
	}
	for i, make := range c.providers.Attachments {
		a := make(c, d.attached[i])
		if _, ok := a.(Spanner); !ok && c.SpansHosts() {
			continue
		}
		c.attached = append(c.attached, a)
		m, advances := a.(Advancer)
		if advances {
			c.advancers = append(c.advancers, m)
		}
		if d.attached[i] == nil {
			if d.attached[i] = a; advances {
				d.advancers = append(d.advancers, m)
			}
		}
	}
}

// span opens what c's attachments have on the network.
func (c *Comm) span(id uint64) error {
	for i, a := range c.attached {
		of := sha256.Sum256(binary.LittleEndian.AppendUint64(fmt.Appendf(nil, "attachment %d", i), id))
		err := a.(Spanner).Span(hosts.PairsConfig{ID: binary.LittleEndian.Uint64(of[:]), Team: &c.team, Network: c.dom.network,
			World: c.InJob, Rank: c.OfJob, Name: c.Hostname, Break: c.breakBy})
		if err != nil {
			return err
		}
	}
	return nil
}

// domainAdvancers returns what moves on the domain's work: c's or, if it lacks attachments, other communicators'.
func (c *Comm) domainAdvancers() []Advancer {
	if c.attached != nil && !c.SpansHosts() {
		return c.advancers
	}
	c.dom.mu.Lock()
	defer c.dom.mu.Unlock()
	return c.dom.advancers
}

// Attached returns c's attachment of type A, if it has one.
func Attached[A Attachment](c *Comm) (of A, ok bool) {
	for _, a := range c.attached {
		if of, ok = a.(A); ok {
			break
		}
	}
	return of, ok
}

// attachedBytes is how much memory all attachments have in an area.
func (c *Comm) attachedBytes() (n int) {
	for _, a := range c.attached {
		n += aligned(a.AreaBytes())
	}
	return n
}

// aligned rounds n up, so that what follows starts on its own pair of cache lines.
func aligned(n int) int { return (n + 127) &^ 127 }

// lay tells the attachments where their memory is in rank r's area.
func (c *Comm) lay(r int) {
	at := c.team.AttachmentArea(r)
	for _, a := range c.attached {
		a.Lay(r, at)
		at = unsafe.Add(at, aligned(a.AreaBytes()))
	}
}

// shut shuts all attachments or, after an error, none.
func (c *Comm) shut(broken bool) error {
	for i, a := range c.attached {
		if err := a.Shut(broken); err != nil {
			for _, b := range slices.Backward(c.attached[:i]) {
				b.Reopen()
			}
			return err
		}
	}
	return nil
}

// RetireAtClose frees a when all ranks have closed the communicator, as it does with the areas.
func (c *Comm) RetireAtClose(a *mem.Allocation) {
	c.keeping.Lock()
	c.shared = append(c.shared, a)
	c.keeping.Unlock()
}
