package gpumail

import (
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// statusLines is the number of status lines. Line 0 is for all work on streams; each other line is for one call.
const statusLines = 128

func (m *messages) StatusLines() int     { return statusLines }
func (m *messages) PlaceLines(first int) { m.first = first }

func (m *messages) Abort() {
	for i := range statusLines {
		m.status(i).Abort.Store(1)
	}
}

func (m *messages) status(line int) *kernels.Status {
	return m.d.Status(m.first + line)
}

// statusError returns what kernels report in a line of the status page, and whether that breaks the communicator. The caller
// has locked the status page.
func (m *messages) statusError(op string, s *kernels.Status) (e *fault.Error, fatal bool) {
	peer := m.d.Name(s.About(m.ranks()))
	code := s.Error.Load()
	if op == "" {
		if op = "send"; s.Detail == 1 && code == kernels.Mismatch {
			op = "recv"
		}
	}
	about := func(step string, err error) *fault.Error {
		e := m.host.Error(op, peer, step, err)
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
	return about(s.Broke(code, peer, time.Duration(m.c.Team().Timeout.Load()), more)), true
}

// hint says what else has come from a peer that this rank waits for.
func (m *messages) hint(peer int) string {
	if peer < 0 || peer == m.c.Rank() || !m.host.Arrived(peer) {
		return ""
	}
	return " (but a message of host memory)"
}

// Fatal returns the error that ended all messages, or nil. The caller has locked the status page.
func (m *messages) Fatal() (first *fault.Error) {
	for i := range statusLines {
		e, fatal := m.statusError("", m.status(i))
		if fatal && (first == nil || errors.Is(first, fault.ErrAborted)) {
			first = e
		}
	}
	return first
}

// Collect returns the error that kernels on streams have reported, if any.
func (m *messages) Collect() error {
	d := m.d
	if !d.LockStatus() {
		return nil
	}
	s := m.status(0)
	more := s.More.Load() // read before the error is cleared: later failures are reported or counted by their own Sync at the latest
	e, fatal := m.statusError("", s)
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
		e = m.host.Error("message", -1, "", fmt.Errorf("%d messages of this rank's streams did not match, and came "+
			"while the error of another one had not been taken: %w", n, fault.ErrMismatch))
		e.Device = d.Domain.Context.Device()
	}
	m.more = more
	d.UnlockStatus()
	if e == nil {
		return nil
	}
	if fatal {
		m.c.FailOpen(e)
		if b := m.c.Broken(); b != nil {
			return b
		}
	}
	return e
}

func (m *messages) giveBack(line int) {
	if line > 0 {
		m.spare <- line
	}
}

func (m *messages) error(op, step string, err error) *fault.Error {
	e := m.host.Error(op, -1, step, err)
	e.Device = m.d.Domain.Context.Device()
	return e
}
