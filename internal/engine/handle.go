package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// A handle is a registration as bytes: who exports what, and a code by which any change shows. All numbers are little
// endian.
const (
	handleMagic   = "ubrh"
	handleVersion = 2
	HandleBytes   = 112

	codeBytes = 16
)

// identity is what handles of one rank say of it.
type identity struct {
	secret  []byte
	job     uint64
	host    uint64
	process shm.Process
}

func (d *identity) identify(secret []byte) error {
	host, err1 := hostID()
	self, err2 := shm.Self()
	*d = identity{secret: secret, job: hash("job", secret), host: hash("host", []byte(host)), process: self}
	return errors.Join(err1, err2)
}

func hash(what string, b []byte) uint64 {
	sum := sha256.Sum256(append([]byte(what+":"), b...))
	return binary.LittleEndian.Uint64(sum[:])
}

// export is memory that peers may use until the grant is revoked.
type export struct {
	at    mem.Location
	bytes int
	grant mem.Location
	gpu   bool // at is on the rank's device
}

// marshal makes the handle of e.
func (d *identity) marshal(domain uint64, e export) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, HandleBytes)
	b = append(b, handleMagic...)
	b = le.AppendUint16(b, handleVersion)
	b = le.AppendUint16(b, HandleBytes)
	b = le.AppendUint64(b, d.job)
	b = le.AppendUint64(b, d.host)
	b = le.AppendUint32(b, uint32(d.process.PID))
	b = le.AppendUint32(b, d.process.Namespace)
	b = le.AppendUint64(b, d.process.Start)
	b = le.AppendUint64(b, domain)
	b = le.AppendUint32(b, e.at.Arena)
	b = le.AppendUint32(b, e.at.Slot)
	b = le.AppendUint64(b, e.at.Generation)
	b = le.AppendUint64(b, e.at.Offset)
	b = le.AppendUint64(b, uint64(e.bytes))
	b = le.AppendUint32(b, e.grant.Slot)
	var gpu uint32 // 0 is host memory, 1 the rank's device
	if e.gpu {
		gpu = 1
	}
	b = le.AppendUint32(b, gpu)
	b = le.AppendUint64(b, e.grant.Generation)
	return append(b, d.code(b)...)
}

func (d *identity) code(b []byte) []byte {
	m := hmac.New(sha256.New, d.secret)
	m.Write(b)
	return m.Sum(nil)[:codeBytes]
}

// unmarshal is the export and the domain that a handle names, after all the checks that need no peer.
func (d *identity) unmarshal(b []byte) (e export, domain uint64, p shm.Process, err error) {
	le := binary.LittleEndian
	bad := func(format string, args ...any) (export, uint64, shm.Process, error) {
		return export{}, 0, shm.Process{}, fmt.Errorf("handle: "+format, args...)
	}
	switch {
	case len(b) < 8:
		return bad("%d bytes, which is too few: %w", len(b), fault.ErrArgument)
	case string(b[:4]) != handleMagic:
		return bad("it begins with %q, which no handle does: %w", b[:4], fault.ErrArgument)
	case le.Uint16(b[4:]) != handleVersion:
		return bad("version %d, this library has %d: %w", le.Uint16(b[4:]), handleVersion, fault.ErrArgument)
	case len(b) != HandleBytes || le.Uint16(b[6:]) != HandleBytes:
		return bad("%d bytes, not %d: truncated or with more behind it: %w", len(b), HandleBytes, fault.ErrArgument)
	case le.Uint64(b[8:]) != d.job:
		return bad("it was made in another job: %w", fault.ErrStale)
	case !hmac.Equal(d.code(b[:HandleBytes-codeBytes]), b[HandleBytes-codeBytes:]):
		return bad("its bytes were changed on the way: %w", fault.ErrArgument)
	case le.Uint64(b[16:]) != d.host:
		return bad("it was made on another host: %w", hw.ErrNotSupported)
	case le.Uint32(b[84:]) > 1:
		return bad("it is of an unknown kind of memory: %w", hw.ErrNotSupported)
	}
	e.gpu = le.Uint32(b[84:]) == 1
	p = shm.Process{PID: int(le.Uint32(b[24:])), Namespace: le.Uint32(b[28:]), Start: le.Uint64(b[32:])}
	domain = le.Uint64(b[40:])
	e.at = mem.Location{Arena: le.Uint32(b[48:]), Slot: le.Uint32(b[52:]), Generation: le.Uint64(b[56:]),
		Offset: le.Uint64(b[64:])}
	e.bytes = int(le.Uint64(b[72:]))
	e.grant = mem.Location{Slot: le.Uint32(b[80:]), Generation: le.Uint64(b[88:])}
	return e, domain, p, nil
}

// export lets peers use the registered bytes until the registration closes.
func (r *Registration) export() (export, error) {
	claim, err := r.Acquire()
	if err != nil {
		return export{}, err
	}
	defer claim.Release()
	h, err := claim.Handle(register.IPC)
	if err != nil {
		return export{}, err
	}
	at := h.(mem.Location).Add(claim.Addr() - claim.Memory().Base)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return export{}, errRegistrationClosed
	}
	if r.grant.Generation == 0 {
		if r.grant, err = r.c.dom.Heap.Grant(); err != nil {
			return export{}, err
		}
	}
	return export{at: at, bytes: claim.Len(), grant: r.grant, gpu: !claim.Memory().Device.IsHost()}, nil
}

var errRegistrationClosed = fmt.Errorf("the registration has been closed: %w", fault.ErrStale)

// Acquire keeps the registered memory from being freed until Release of what it returns: fault.ErrStale after Close.
func (r *Registration) Acquire() (*register.Claim, error) {
	claim, err := r.ref.Acquire()
	if errors.Is(err, fault.ErrClosed) {
		err = errRegistrationClosed
	}
	return claim, err
}

// Comm is the communicator that r was made with.
func (r *Registration) Comm() *Comm { return r.c }

// MarshalBinary is a handle of the registration, for Import on a peer.
func (r *Registration) MarshalBinary() ([]byte, error) {
	e, err := r.export()
	if err != nil {
		return nil, r.c.local("marshal", err)
	}
	return r.c.dom.marshal(r.c.dom.Heap.Domain, e), nil
}

// Close ends the registration for this rank and for all that imported it. Peers in the middle of a copy are waited
// for, by the first call: others are fault.ErrClosed at once, and the memory is registered until then.
func (r *Registration) Close() error {
	r.c.regs.remove(r)
	if r.ending.Swap(true) {
		return r.c.local("deregister", fmt.Errorf("registration of the memory at %p: %w", r.base, fault.ErrClosed))
	}
	var errs []error
	if g, granted := r.revoke(); granted {
		over, err := r.c.dom.settle(g)
		if !over {
			r.alloc.Quarantine()
		}
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, r.ref.Close())...); err != nil {
		return r.c.local("deregister", err)
	}
	return nil
}

// revoke has peers refuse what reaches for the memory from now on: the grant that they had until now, if they had one.
func (r *Registration) revoke() (g mem.Location, granted bool) {
	r.mu.Lock()
	granted = r.grant.Generation != 0 && !r.closed
	r.closed = true
	r.mu.Unlock()
	if granted {
		r.c.dom.Heap.Revoke(r.grant)
	}
	return r.grant, granted
}

// Remote is memory of a peer that it exports.
type Remote struct {
	c      *Comm
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
func (c *Comm) Import(handle []byte) (*Remote, error) {
	if err := c.usable("import"); err != nil {
		return nil, err
	}
	e, domain, p, err := c.dom.unmarshal(handle)
	if err != nil {
		return nil, c.local("import", err)
	}
	defer c.polls.leave()
	if !c.polls.enter() {
		return nil, c.local("import", errCommClosed)
	}
	for r := range c.team.Peers {
		if c.team.Peers[r].Domain != domain {
			continue
		}
		if r == c.rank {
			return nil, c.aside("import", r, fmt.Errorf("handle: it is this rank's own: %w", fault.ErrArgument))
		}
		if c.team.Peers[r].Proc != p {
			break
		}
		m, err := c.reach(r, e)
		if err != nil {
			return nil, c.aside("import", r, err)
		}
		return m, nil
	}
	return nil, c.local("import", fmt.Errorf("handle: its maker, %v, is not among the ranks: %w", p, fault.ErrStale))
}

// reach is another rank's export in this process.
func (c *Comm) reach(rank int, e export) (*Remote, error) {
	m := &Remote{c: c, rank: rank, mem: c.team.Peers[rank].Mem, bytes: e.bytes, grant: e.grant, gpu: e.gpu,
		at: e.at}
	if e.bytes <= 0 {
		return nil, fmt.Errorf("%d bytes: %w", e.bytes, fault.ErrArgument)
	}
	if err := m.live(); err != nil {
		return nil, err
	}
	if e.gpu {
		if c.device == nil || !c.devicePeer(rank).HasDevice() {
			return nil, fmt.Errorf("memory on the device of rank %d: %w", rank, c.gpuWhyNot())
		}
		return m, nil
	}
	var err error
	m.ptr, err = m.mem.Resolve(e.at, e.bytes)
	return m, err
}

// Rank is the rank whose memory it is.
func (m *Remote) Rank() int { return m.rank }

// Len is its size in bytes.
func (m *Remote) Len() int { return m.bytes }

// Comm is the communicator that imported it.
func (m *Remote) Comm() *Comm { return m.c }

// Close ends the import.
func (m *Remote) Close() error {
	if m.closed.Swap(true) {
		return m.c.aside("close", m.rank, fmt.Errorf("remote memory: %w", fault.ErrClosed))
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
// the memory back meanwhile, so that what was read may be anything.
func (m *Remote) copy(copies *atomic.Uint64, off int, here unsafe.Pointer, n int, put bool) error {
	there, err := m.begin(copies, off, n)
	if err != nil {
		return err
	}
	stream := n >= m.c.team.Tuning().StreamFrom
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
		return nil, outside(off, n, m.bytes, fmt.Sprintf("rank %d's memory", m.rank))
	}
	copies.Add(1)
	if err := m.live(); err != nil {
		copies.Add(^uint64(0))
		return nil, err
	}
	return unsafe.Add(m.ptr, off), nil
}

func outside(off, n, bytes int, what string) error {
	return fmt.Errorf("bytes [%d,+%d) are outside of %s, which has %d: %w", off, n, what, bytes, fault.ErrArgument)
}

// Range is n bytes of the registered memory at off; Release the claim after use.
func (r *Registration) Range(off, n int) (unsafe.Pointer, *register.Claim, error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, nil, err
	}
	if off < 0 || n < 0 || off > claim.Len() || n > claim.Len()-off {
		claim.Release()
		return nil, nil, outside(off, n, claim.Len(), "the registration")
	}
	return unsafe.Add(r.base, off), claim, nil
}

// aside is an error of a call beside the collectives, about a peer.
func (c *Comm) aside(op string, peer int, err error) error {
	var e *fault.Error
	if errors.As(err, &e) {
		return err
	}
	return &fault.Error{Op: op, Rank: c.rank, Peer: peer, Host: c.team.Peers[c.rank].Host, Err: err}
}
