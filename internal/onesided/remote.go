package onesided

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Remote is memory that a peer exports.
type Remote struct {
	engine.Import
	c   *engine.Comm   // which imported it
	ptr unsafe.Pointer // nil on a device, which has the memory mapped for each end
	far *far           // of a rank of another host; else nil

	region atomic.Pointer[transport.Region] // of far memory, how it is reached by RDMA; nil: not asked yet
}

// Import returns the memory that a handle names. The caller closes it.
func (sp *Space) Import(handle []byte) (*Remote, error) {
	c := sp.c
	if err := c.Usable("import"); err != nil {
		return nil, err
	}
	h, err := unmarshal(c.Domain().Identity(), handle)
	if err != nil {
		return nil, c.LocalError("import", err)
	}
	rank := c.OfJob(h.rank)
	if rank >= 0 && rank < c.Size() && sp.local(rank) < 0 && h.host != c.Domain().Identity().Host {
		return sp.importFar(rank, h.Export)
	}
	defer c.Polls.Leave()
	if !c.Polls.Enter() {
		return nil, c.LocalError("import", engine.ErrCommClosed)
	}
	for i := range c.Team().Peers {
		r := c.Team().Name(i)
		if c.Team().Peers[i].Domain != h.domain {
			continue
		}
		if r == c.Rank() {
			return nil, peerError(c, "import", r, fmt.Errorf("handle: it is this rank's own: %w", fault.ErrArgument))
		}
		if c.Team().Peers[i].Proc != h.process {
			break
		}
		m, err := sp.reach(r, h.Export)
		if err != nil {
			return nil, peerError(c, "import", r, err)
		}
		return m, nil
	}
	return nil, c.LocalError("import", fmt.Errorf("handle: its maker, %v, is not among the ranks: %w", h.process, fault.ErrStale))
}

// importFar is Import for a rank of another host, which it asks.
func (sp *Space) importFar(rank int, e engine.Export) (*Remote, error) {
	c := sp.c
	if !sp.asking.Enter() {
		sp.asking.Leave()
		return nil, c.LocalError("import", engine.ErrCommClosed)
	}
	defer sp.asking.Leave()
	m, err := sp.reach(rank, e)
	if err == nil {
		err = m.checkFar(context.Background(), "import")
	}
	if err != nil {
		return nil, peerError(c, "import", rank, err)
	}
	return m, nil
}

// reach returns another rank's export as memory in this process.
func (sp *Space) reach(rank int, e engine.Export) (*Remote, error) {
	c := sp.c
	m := &Remote{c: c, Import: engine.Import{Export: e, Rank: rank}}
	if e.Bytes <= 0 {
		return nil, fmt.Errorf("%d bytes: %w", e.Bytes, fault.ErrArgument)
	}
	if m.far = sp.far(rank, false); m.far != nil {
		m.Memory = farMemory{m.far}
		if e.GPU {
			if err := sp.noDevice(); err != nil {
				return nil, fmt.Errorf("memory on the device of rank %d: %w", rank, err)
			}
		}
		return m, e.ReachableFar()
	}
	m.Memory = sp.peer(rank).Mem
	if err := m.Live(); err != nil {
		return nil, err
	}
	if err := e.Reachable(); err != nil {
		return nil, err
	}
	if e.GPU {
		if err := sp.noDeviceOf(rank); err != nil {
			return nil, fmt.Errorf("memory on the device of rank %d: %w", rank, err)
		}
		return m, nil
	}
	var err error
	m.ptr, err = m.Memory.Resolve(e.At, e.Bytes)
	return m, err
}

// String is what users see: see ubcoll.Remote.
func (m *Remote) String() string {
	s := fmt.Sprintf("%d bytes of rank %d: %v; %v", m.Bytes, m.Rank, m.Access, m.Transports)
	if g := m.region.Load(); g != nil && g.Key != 0 {
		s += fmt.Sprintf("; at %#x by %v", g.Address, verbs.RKey(g.Key))
	}
	return s
}

// Close ends the import.
func (m *Remote) Close() error {
	if first := m.End(); !first {
		return peerError(m.c, "close", m.Rank, fmt.Errorf("remote memory: %w", fault.ErrClosed))
	}
	return nil
}

// check returns what is wrong with a call about n bytes at off that needs a right, or nil.
func (m *Remote) check(off, n int, need engine.Access) error {
	if err := m.Needs(need); err != nil {
		return err
	}
	if off < 0 || n < 0 || off > m.Bytes || n > m.Bytes-off {
		return engine.OutsideError(off, n, m.Bytes, fmt.Sprintf("rank %d's memory", m.Rank))
	}
	return nil
}

// copyPiece is how much is copied between two checks of the grant. A peer that revokes the grant waits no longer than
// that.
const copyPiece = 1 << 20

// copy copies n bytes from local to offset off in the peer's memory, or the other way. If the peer has taken the memory
// back meanwhile, it returns an error, and the bytes read are undefined. It checks after the last piece, too: only a later
// signal tells the peer that the copy is done, and no peer may close the registration before that.
func (m *Remote) copy(copies *atomic.Uint64, off int, local unsafe.Pointer, n int, put bool) error {
	need := engine.RemoteRead
	if put {
		need = engine.RemoteWrite
	}
	remote, err := m.begin(copies, off, n, need)
	if err != nil {
		return err
	}
	stream := n >= m.c.Team().Tuning().StreamFrom
	for done := 0; done < n && err == nil; done += copyPiece {
		dst, src := unsafe.Add(remote, done), unsafe.Add(local, done)
		if !put {
			dst, src = src, dst
		}
		cpu.Copy(dst, src, min(copyPiece, n-done), stream)
		err = m.Live()
	}
	copies.Add(^uint64(0))
	return err
}

// begin starts a copy from or to n bytes at off, which needs a right. It raises the count, which keeps the peer from giving the memory to
// somebody else, and only then checks the grant. The caller lowers the count after the copy.
func (m *Remote) begin(copies *atomic.Uint64, off, n int, need engine.Access) (unsafe.Pointer, error) {
	if m.Access&need != need || off < 0 || n < 0 || off > m.Bytes || n > m.Bytes-off { // without a call, since this counts
		return nil, m.check(off, n, need)
	}
	copies.Add(1)
	if err := m.Live(); err != nil {
		copies.Add(^uint64(0))
		return nil, err
	}
	return unsafe.Add(m.ptr, off), nil
}
