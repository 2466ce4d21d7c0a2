package engine

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
)

// Attachment is what a communicator has beside its collectives: messages, or channels and windows. The engine knows no
// more of them than this.
type Attachment interface {
	// AreaBytes is how much memory it has in each rank's area.
	AreaBytes() int
	// Lay says where a rank's part of that is: this rank's own first, zeroed, and then the others', when they are mapped.
	Lay(rank int, at unsafe.Pointer)
	// Advance moves on what does not move by itself, whenever this rank waits for anything. It does not wait. It is for
	// all communicators of the domain, and so is Pass; that this one is closed makes no difference.
	Advance()
	// Pass waits until what is under way without holding its memory is over: some of that is freed.
	Pass()
	// Count adds to s what it counts.
	Count(s *Stats)

	// Shut lets nothing begin any more until Reopen or Close: fault.ErrBusy while something is under way, which on a
	// broken communicator ends with it.
	Shut(broken bool) error
	// Reopen undoes Shut.
	Reopen()
	// Close ends it, after Shut. What waits for nothing is over when it returns. On a communicator that did not come to be
	// there was no Shut.
	Close() error
	// Abort ends what has to end with the communicator, and waits for nothing.
	Abort()
}

// NewAttachment makes c's. sibling is that of the domain's first communicator that had attachments, or nil if that is c.
type NewAttachment func(c *Comm, sibling Attachment) Attachment

// attach makes c's attachments. A communicator that spans hosts has none, since all of them need its ranks' memory.
func (c *Comm) attach() {
	if c.SpansHosts() {
		return
	}
	d := c.dom
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, make := range c.rooms.Attachments {
		var of Attachment
		if i < len(d.attached) {
			of = d.attached[i]
		}
		c.attached = append(c.attached, make(c, of))
	}
	if d.attached == nil {
		d.attached = c.attached
	}
}

// beside is the attachments by which what is under way in the domain moves on: c's, or if it has none another
// communicator's.
func (c *Comm) beside() []Attachment {
	if c.attached != nil {
		return c.attached
	}
	c.dom.mu.Lock()
	defer c.dom.mu.Unlock()
	return c.dom.attached
}

// Attached is c's attachment of a type, if it has one.
func Attached[A Attachment](c *Comm) (of A, ok bool) {
	for _, a := range c.attached {
		if of, ok = a.(A); ok {
			break
		}
	}
	return of, ok
}

// attachedBytes is what all attachments have in an area.
func (c *Comm) attachedBytes() (n int) {
	for _, a := range c.attached {
		n += aligned(a.AreaBytes())
	}
	return n
}

// aligned is n bytes, and so many that what follows has a pair of cache lines of its own.
func aligned(n int) int { return (n + 127) &^ 127 }

// lay tells the attachments where they are in rank r's area.
func (c *Comm) lay(r int) {
	at := c.team.AttachmentArea(r)
	for _, a := range c.attached {
		a.Lay(r, at)
		at = unsafe.Add(at, aligned(a.AreaBytes()))
	}
}

// shut shuts all attachments, or none.
func (c *Comm) shut(broken bool) error {
	for i, a := range c.attached {
		if err := a.Shut(broken); err != nil {
			for _, b := range c.attached[:i] {
				b.Reopen()
			}
			return err
		}
	}
	return nil
}

// RetireAtClose gives a back when all ranks have closed the communicator, like the areas.
func (c *Comm) RetireAtClose(a *mem.Allocation) {
	c.keeping.Lock()
	c.shared = append(c.shared, a)
	c.keeping.Unlock()
}
