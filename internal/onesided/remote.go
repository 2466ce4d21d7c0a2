package onesided

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Remote is memory of a peer that it exports.
type Remote struct {
	c      *engine.Comm
	rank   int
	mem    team.PeerMemory
	ptr    unsafe.Pointer // nil on a device, where those that use it import it
	gpu    bool
	at     mem.Location
	bytes  int
	grant  mem.Location
	closed atomic.Bool
}

// Import is the memory that a handle names.
func (sp *Space) Import(handle []byte) (*Remote, error) {
	c := sp.c
	if err := c.Usable("import"); err != nil {
		return nil, err
	}
	e, domain, p, err := unmarshal(c.Domain().Identity(), handle)
	if err == nil {
		err = c.BetweenHosts("import")
	}
	if err != nil {
		return nil, c.LocalError("import", err)
	}
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return nil, c.LocalError("import", engine.ErrCommClosed)
	}
	for r := range c.Team().Peers {
		if c.Team().Peers[r].Domain != domain {
			continue
		}
		if r == c.Rank() {
			return nil, aside(c, "import", r, fmt.Errorf("handle: it is this rank's own: %w", fault.ErrArgument))
		}
		if c.Team().Peers[r].Proc != p {
			break
		}
		m, err := sp.reach(r, e)
		if err != nil {
			return nil, aside(c, "import", r, err)
		}
		return m, nil
	}
	return nil, c.LocalError("import", fmt.Errorf("handle: its maker, %v, is not among the ranks: %w", p, fault.ErrStale))
}

// reach is another rank's export in this process.
func (sp *Space) reach(rank int, e engine.Export) (*Remote, error) {
	c := sp.c
	m := &Remote{c: c, rank: rank, mem: c.Team().Peers[rank].Mem, bytes: e.Bytes, grant: e.Grant, gpu: e.GPU,
		at: e.At}
	if e.Bytes <= 0 {
		return nil, fmt.Errorf("%d bytes: %w", e.Bytes, fault.ErrArgument)
	}
	if err := m.live(); err != nil {
		return nil, err
	}
	if e.GPU {
		if err := sp.noDeviceOf(rank); err != nil {
			return nil, fmt.Errorf("memory on the device of rank %d: %w", rank, err)
		}
		return m, nil
	}
	var err error
	m.ptr, err = m.mem.Resolve(e.At, e.Bytes)
	return m, err
}

// Rank is the rank whose memory it is.
func (m *Remote) Rank() int { return m.rank }

// Len is its size in bytes.
func (m *Remote) Len() int { return m.bytes }

// Comm is the communicator that imported it.
func (m *Remote) Comm() *engine.Comm { return m.c }

// Close ends the import.
func (m *Remote) Close() error {
	if m.closed.Swap(true) {
		return aside(m.c, "close", m.rank, fmt.Errorf("remote memory: %w", fault.ErrClosed))
	}
	return nil
}

func (m *Remote) live() error {
	switch {
	case m.closed.Load():
		return fmt.Errorf("the remote memory: %w", fault.ErrClosed)
	case !m.mem.Live(m.grant):
		return fmt.Errorf("rank %d has closed the registration or freed the memory: %w", m.rank, fault.ErrStale)
	}
	return nil
}

// copyPiece is what is copied between two looks at the grant: the peer that revokes it does not wait for longer.
const copyPiece = 1 << 20

// copy copies n bytes from here to off in the peer's memory, or the other way. An error says that the peer has taken
// the memory back meanwhile, so that what was read may be anything. It looks after the last piece too: a signal that
// comes later is what tells the peer of a put or a get, and no peer may close before.
func (m *Remote) copy(copies *atomic.Uint64, off int, here unsafe.Pointer, n int, put bool) error {
	there, err := m.begin(copies, off, n)
	if err != nil {
		return err
	}
	stream := n >= m.c.Team().Tuning().StreamFrom
	for done := 0; done < n && err == nil; done += copyPiece {
		dst, src := unsafe.Add(there, done), unsafe.Add(here, done)
		if !put {
			dst, src = src, dst
		}
		cpu.Copy(dst, src, min(copyPiece, n-done), stream)
		err = m.live()
	}
	copies.Add(^uint64(0))
	return err
}

// begin starts a copy from or to n bytes at off: the count keeps the peer from giving the memory to somebody else, and
// the look at the grant comes after the count was raised. Whoever called it lowers the count.
func (m *Remote) begin(copies *atomic.Uint64, off, n int) (unsafe.Pointer, error) {
	if off < 0 || n < 0 || off > m.bytes || n > m.bytes-off {
		return nil, engine.OutsideError(off, n, m.bytes, fmt.Sprintf("rank %d's memory", m.rank))
	}
	copies.Add(1)
	if err := m.live(); err != nil {
		copies.Add(^uint64(0))
		return nil, err
	}
	return unsafe.Add(m.ptr, off), nil
}
