package mail

import (
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// mailLines are the status lines: the first one is that of all that is queued on streams, the others are for one call
// each.
const mailLines = 128

func (m *gpuMail) StatusLines() int     { return mailLines }
func (m *gpuMail) PlaceLines(first int) { m.first = first }

func (m *gpuMail) Abort() {
	for i := range mailLines {
		m.status(i).Abort.Store(1)
	}
}

func (m *gpuMail) status(line int) *kernels.Status {
	return m.d.Status(m.first + line)
}

// told is what kernels say in a line of the status page, and whether it breaks the communicator. The caller keeps the
// page from going.
func (m *gpuMail) told(op string, s *kernels.Status) (e *fault.Error, fatal bool) {
	peer := s.About(len(m.mail.boxes))
	code := s.Error.Load()
	if op == "" {
		if op = "send"; s.Detail == 1 && code == kernels.Mismatch {
			op = "recv"
		}
	}
	about := func(step string, err error) *fault.Error {
		e := m.mail.Error(op, peer, step, err)
		e.Seq, e.Device = uint64(s.Epoch), m.d.Domain.Context.Device()
		return e
	}
	switch code {
	case kernels.OK:
		return nil, false
	case kernels.Mismatch:
		if s.Detail == 1 {
			return about("", fmt.Errorf("it sent %s, and %s were expected: %w", kernels.DescribeHead(s.Theirs),
				kernels.DescribeHead(s.Mine), fault.ErrMismatch)), false
		}
		return about("", fmt.Errorf("it expected %s, and %s were sent: %w", kernels.DescribeHead(s.Theirs),
			kernels.DescribeHead(s.Mine), fault.ErrMismatch)), false
	}
	more := ""
	if code == kernels.Timeout {
		more = m.hint(peer)
	}
	return about(s.Broke(code, time.Duration(m.mail.team.Timeout.Load()), more)), true
}

// hint says what else has come from a peer that is waited for.
func (m *gpuMail) hint(peer int) string {
	if peer < 0 || peer == m.mail.rank {
		return ""
	}
	b := m.mail.Box(peer)
	if !b.Recv.TryLock() {
		return ""
	}
	defer b.Recv.Unlock()
	if b.arrived() == nil {
		return ""
	}
	return " (but a message of host memory)"
}

// Fatal is what has ended all messages, if something has. The caller keeps the page from going.
func (m *gpuMail) Fatal() (first *fault.Error) {
	for i := range mailLines {
		e, fatal := m.told("", m.status(i))
		if fatal && (first == nil || errors.Is(first, fault.ErrAborted)) {
			first = e
		}
	}
	return first
}

// Collect takes what kernels on streams have said.
func (m *gpuMail) Collect() error {
	d := m.d
	if !d.LockStatus() {
		return nil
	}
	s := m.status(0)
	more := s.More.Load() // before the error is taken: what fails behind it is told or counted, by its own Sync at the latest
	e, fatal := m.told("", s)
	switch n := more - m.more; {
	case fatal:
		e = m.Fatal()
	case e != nil:
		s.Error.Store(kernels.OK)
		s.Claim.Store(0)
		if n > 0 {
			e.Err = fmt.Errorf("%w (and %d more messages of this rank's streams did not match)", e.Err, n)
		}
	case n > 0:
		e = m.mail.Error("message", -1, "", fmt.Errorf("%d messages of this rank's streams did not match, and came "+
			"while the error of another one had not been taken: %w", n, fault.ErrMismatch))
		e.Device = d.Domain.Context.Device()
	}
	m.more = more
	d.UnlockStatus()
	if e == nil {
		return nil
	}
	if fatal {
		m.mail.c.FailOpen(e)
		if b := m.mail.c.Broken(); b != nil {
			return b
		}
	}
	return e
}

func (m *gpuMail) giveBack(line int) {
	if line > 0 {
		m.spare <- line
	}
}

func (m *gpuMail) error(op, step string, err error) *fault.Error {
	e := m.mail.Error(op, -1, step, err)
	e.Device = m.d.Domain.Context.Device()
	return e
}
