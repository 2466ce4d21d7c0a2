package gpuend

import (
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/register"
)

// Memory is the two memories of an end.
type Memory struct {
	Local  *engine.Registration // nil: there is none, for ends that only signal
	Remote *engine.Import       // the peer's memory
	// What sets the packets to the peer, and those from it, apart from other channels' packets.
	SaltOut, SaltIn uint32
}

// memories are the memories of an open end.
type memories struct {
	Memory
	peer       int             // whose memory Remote is
	claim      *register.Claim // on this rank's memory
	localAddr  cuda.Addr
	remoteAddr cuda.Addr // as mapped by this rank; 0 on another host
	bytes      [2]int    // sizes: of this rank's memory, and of the peer's
}

// acquire claims this rank's memory.
func (m *memories) acquire() (err error) {
	if m.claim, err = m.Local.Acquire(); err != nil {
		return err
	}
	m.localAddr = cuda.Addr(m.claim.Addr())
	m.bytes = [2]int{m.claim.Len(), m.Remote.Bytes}
	return nil
}

// unclaim ends what acquire began.
func (m *memories) unclaim() {
	if m.claim != nil {
		m.claim.Release()
	}
}

// registered returns an error if this rank has closed its registration. The end's own claim only keeps the memory.
func (m *memories) registered() error {
	if m.Local == nil {
		return nil
	}
	claim, err := m.Local.Acquire()
	if err != nil {
		return err
	}
	claim.Release()
	return nil
}

// check returns what is wrong with steps, or the memory that they use, in `all`, which it appends to.
func (m *memories) check(steps []Step, all []touch) ([]touch, error) {
	for i := range steps {
		if err := m.allowed(&steps[i]); err != nil {
			return nil, err
		}
		t, err := m.touches(&steps[i])
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// allowed returns why the registrations do not allow s, or nil.
func (m *memories) allowed(s *Step) error {
	switch s.Kind {
	case StepPut, StepPutPackets:
		return m.Remote.Needs(engine.RemoteWrite)
	case StepGet:
		return errors.Join(m.Remote.Needs(engine.RemoteRead), m.Local.Writable())
	case StepGetPackets:
		return m.Local.Writable()
	}
	return nil
}

// touches checks that s stays within the memories, and returns what it reads and writes.
func (m *memories) touches(s *Step) (t touch, err error) {
	n, half := s.N, 0
	if s.Kind == StepPutPackets || s.Kind == StepGetPackets {
		switch {
		case s.Width != 8 && s.Width != 16:
			return t, fmt.Errorf("packets of %d bytes (8 or 16): %w", s.Width, fault.ErrArgument)
		case s.N < 0 || s.N > 1<<46:
			return t, fmt.Errorf("%d bytes as packets: %w", s.N, fault.ErrArgument)
		}
		half = s.packed()
	}
	switch s.Kind {
	case StepPut:
		t.reads[0], t.writes[1] = span{s.Src, n}, span{s.Dst, n}
	case StepGet:
		t.reads[1], t.writes[0] = span{s.Src, n}, span{s.Dst, n}
	case StepPutPackets:
		t.reads[0], t.writes[1] = span{s.Src, n}, span{s.Dst, half}
	case StepGetPackets:
		t.reads[0], t.writes[0] = span{s.Src, half}, span{s.Dst, n}
	}
	what := [2]string{"the registration", fmt.Sprintf("rank %d's memory", m.peer)}
	for i, most := range m.bytes {
		for _, x := range []span{t.reads[i], t.writes[i]} {
			if x.at < 0 || x.n < 0 || x.at > most || x.n > most-x.at {
				return t, engine.OutsideError(x.at, x.n, most, what[i])
			}
		}
	}
	if half > 0 {
		at := m.remoteAddr + cuda.Addr(s.Dst)
		if s.Kind == StepGetPackets {
			at = m.localAddr + cuda.Addr(s.Src)
			if t.reads[0].meets(t.writes[0]) {
				return t, fmt.Errorf("packets [%d,+%d) overlap their destination [%d,+%d): %w", s.Src, half, s.Dst, n,
					fault.ErrArgument)
			}
		}
		if uintptr(at)%uintptr(s.Width) != 0 {
			return t, fmt.Errorf("packets at %#x, which is no multiple of %d: %w", uintptr(at), s.Width, fault.ErrArgument)
		}
	}
	return t, nil
}

// addresses returns the destination and source of a step.
func (m *memories) addresses(s *Step) (dst, src cuda.Addr) {
	switch s.Kind {
	case StepPut, StepPutPackets:
		return m.remoteAddr + cuda.Addr(s.Dst), m.localAddr + cuda.Addr(s.Src)
	case StepGet:
		return m.localAddr + cuda.Addr(s.Dst), m.remoteAddr + cuda.Addr(s.Src)
	}
	return m.localAddr + cuda.Addr(s.Dst), m.localAddr + cuda.Addr(s.Src)
}
