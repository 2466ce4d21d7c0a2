// Package gpumail has the messages of device memory of a communicator: kernels move them, and the host keeps the order
// of those kernels. Messages of host memory are package mail's.
package gpumail

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// Mail is the messages of device memory of one communicator. It is one of the communicator's attachments.
type Mail struct {
	c    *engine.Comm
	on   *messages // on this rank's device; nil if there was never one; see device
	shut bool      // the lanes are locked

	between *mail.Mail // to and from other hosts; nil if there are none
}

var _ gpu.ClientMaker = (*Mail)(nil)

// New makes the messages of device memory of c.
func New(c *engine.Comm, _ engine.Attachment) engine.Attachment {
	m := &Mail{c: c}
	if c.SpansHosts() {
		m.between = mail.NewBouncing(c)
	}
	return m
}

// Of returns the messages of device memory of c. If c has none, they say why: c has no ranks.
func Of(c *engine.Comm) *Mail {
	if m, ok := engine.Attached[*Mail](c); ok {
		return m
	}
	return &Mail{c: c}
}

// OnDevice implements gpu.ClientMaker.
func (m *Mail) OnDevice(d *gpu.Device) gpu.Client {
	m.on = newMessages(m.c.Team().Size(), d)
	m.on.c, m.on.host, m.on.eager = m.c, mail.Of(m.c), m.c.Team().Tuning().Messages.EagerDevice
	if m.between != nil {
		m.on.far = newFar(m.on, m.between)
		m.between.Beside(m.on.host)
	}
	return m.on
}

// Span implements engine.Spanner.
func (m *Mail) Span(c hosts.PairsConfig) error { return m.between.Span(c) }

// device returns what the communicator has on its device, or nil without one.
func (m *Mail) device() *messages {
	if m.on == nil || gpu.DeviceOf(m.c) == nil {
		return nil
	}
	return m.on
}

// AreaBytes implements engine.Attachment.
func (m *Mail) AreaBytes() int { return 0 }

// Lay implements engine.Attachment.
func (m *Mail) Lay(int, unsafe.Pointer) {}

// Count implements engine.Attachment.
func (m *Mail) Count(*engine.Stats) {}

// Abort implements engine.Attachment: the device ends what it has queued.
func (m *Mail) Abort() {}

// Shut implements engine.Attachment: it locks all lanes.
func (m *Mail) Shut(broken bool) error {
	on := m.device()
	if on != nil {
		if err := on.shut(broken); err != nil {
			return err
		}
	}
	if m.between != nil {
		if err := m.between.Shut(broken); err != nil {
			if on != nil {
				on.reopen(false)
			}
			return err
		}
	}
	m.shut = true
	return nil
}

// Reopen implements engine.Attachment.
func (m *Mail) Reopen() {
	m.shut = false
	if on := m.device(); on != nil {
		on.reopen(false)
	}
	if m.between != nil {
		m.between.Reopen()
	}
}

// Close implements engine.Attachment.
func (m *Mail) Close() error {
	if !m.shut { // the communicator was never opened
		if err := m.Shut(true); err != nil {
			return err
		}
	}
	if on := m.device(); on != nil {
		on.reopen(true)
	}
	if m.between != nil {
		return m.between.Close()
	}
	return nil
}
