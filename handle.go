package ubcoll

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// MarshalBinary is the registration as bytes, its handle: what a peer needs for [Comm.Import]. Send them any way you
// like. The handle names the host, the process, the memory and its exact bytes, and is signed with the job's secret. It
// holds until this registration is closed, even if the memory is registered again. Local. [ErrNotSupported] if peers
// cannot reach the memory ([Adopt]), [ErrStale] after Close, [ErrLimit].
func (r *Registration) MarshalBinary() ([]byte, error) {
	if r.engine() == nil {
		return nil, errNoRegistration
	}
	return onesided.MarshalHandle(r.engine())
}

// Remote is memory of a peer, made by [Comm.Import]: what p2p.NewChannel wants. Its methods may be called from any
// goroutine.
type Remote remote

type remote = inside.Remote

// errNoRemote is what is wrong with a nil or zero Remote.
var errNoRemote = engine.NilError("remote", "Comm.Import makes one")

// Import makes a peer's registration known from its handle. Local and blocking: the first import of new memory may cost
// system calls. The memory stays the peer's, who may close the registration at any time: every use looks, and then
// returns [ErrStale]. Nothing of a handle is believed: [ErrArgument] for bytes that are no handle, too few, of another
// version, changed, or this rank's own; ErrStale if it comes from another job (another [Open] is one), from a process
// that is no rank of c, or from a registration that has been closed; [ErrNotSupported] from another host, and where c
// has ranks on several hosts.
func (c *Comm) Import(handle []byte) (*Remote, error) {
	m, err := c.view().Space.Import(handle)
	if err != nil {
		return nil, err
	}
	return (*Remote)(inside.NewRemote(m)), nil
}

// Rank is the rank whose memory it is. Local.
func (m *Remote) Rank() int {
	if m.onesided() == nil {
		return -1
	}
	return m.onesided().Rank()
}

// Len is the size in bytes. Local.
func (m *Remote) Len() int {
	if m.onesided() == nil {
		return 0
	}
	return m.onesided().Len()
}

// Close ends the import: channels made with it return [ErrClosed]. Local, waits for nothing; ErrClosed the second time.
func (m *Remote) Close() error {
	if m.onesided() == nil {
		return errNoRemote
	}
	return m.onesided().Close()
}

func (m *Remote) onesided() *onesided.Remote { return (*inside.Remote)(m).Onesided() }
