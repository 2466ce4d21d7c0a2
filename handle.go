package ubcoll

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// MarshalBinary returns the registration's handle: the bytes that a peer needs for [Comm.Import]. Send them any way you
// like. The handle names the host, the process, the memory, its exact bytes, the rights and the transports, and is signed
// with the job's secret. It is valid until this registration closes, even if the memory is registered again. Local.
// [ErrArgument] if the registration gives peers no right ([AccessLocalOnly]), [ErrNotSupported] if they cannot reach the
// memory ([Adopt]), [ErrStale] after Close, [ErrLimit].
func (r *Registration) MarshalBinary() ([]byte, error) {
	if r.engine() == nil {
		return nil, errNoRegistration
	}
	return onesided.MarshalHandle(r.engine())
}

// Remote is a peer's memory, made by [Comm.Import]: p2p.NewChannel takes it. Its methods may be called from any
// goroutine.
type Remote remote

type remote = inside.Remote

// errNoRemote is the error of a nil or zero Remote.
var errNoRemote = engine.NilError("remote", "Comm.Import makes one")

// Import makes a peer's memory usable here from the handle of its registration. Local and blocking: the first import of
// new memory may cost system calls, and a peer of another host is asked, for at most [Options.Timeout]. The memory stays the
// peer's, who may close the registration at any time: every use checks this and then returns [ErrStale]. Import checks everything in the handle. [ErrArgument]: the bytes are no
// handle, too few, of another version, changed, or this rank's own handle. ErrStale: it comes from another job (another
// [Open] counts as one), from a process that is no rank of c, or from a closed registration. [ErrNotSupported]: its
// [Transports] are not those between the two ranks, or it is of a device and this rank has none. Of another host's peer also
// [ErrTimeout], which leaves c usable, and what breaks c: [ErrPeerLost], [ErrAborted].
func (c *Comm) Import(handle []byte) (*Remote, error) {
	m, err := c.view().Space.Import(handle)
	if err != nil {
		return nil, err
	}
	return (*Remote)(inside.NewRemote(m)), nil
}

// Rank is the rank that owns the memory. Local.
func (m *Remote) Rank() int {
	if m.onesided() == nil {
		return -1
	}
	return m.onesided().Rank
}

// Len is the size in bytes. Local.
func (m *Remote) Len() int {
	if m.onesided() == nil {
		return 0
	}
	return m.onesided().Bytes
}

// String is like "4096 bytes of rank 1: remote write, remote read; host memory, TCP, RDMA; at 0x7f1200000000 by rkey 0x00000342":
// what peers may do, and how they reach the memory. Address and key are there if this rank uses an RDMA device for it. Whoever
// knows them can use them, as far as the rights go, until the registration closes. Local.
func (m *Remote) String() string {
	if m.onesided() == nil {
		return "no remote memory"
	}
	return m.onesided().String()
}

// Close ends the import: channels made with it return [ErrClosed]. Local, does not wait; ErrClosed the second time.
func (m *Remote) Close() error {
	if m.onesided() == nil {
		return errNoRemote
	}
	return m.onesided().Close()
}

func (m *Remote) onesided() *onesided.Remote { return (*inside.Remote)(m).Onesided() }
