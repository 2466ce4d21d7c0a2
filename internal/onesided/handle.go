package onesided

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/roster"
)

// A handle is a registration as bytes: who exports which memory, and a code that reveals any change. All numbers are
// little endian.
const (
	handleMagic   = "ubrh"
	handleVersion = 4
	handleBytes   = 120

	codeBytes = 16
)

// marshal returns the handle of e, which a rank of the job has made.
func marshal(d *roster.Identity, domain uint64, rank int, e engine.Export) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, handleBytes)
	b = append(b, handleMagic...)
	b = le.AppendUint16(b, handleVersion)
	b = le.AppendUint16(b, handleBytes)
	b = le.AppendUint64(b, d.Job)
	b = le.AppendUint64(b, d.Host)
	b = le.AppendUint32(b, uint32(d.Process.PID))
	b = le.AppendUint32(b, d.Process.Namespace)
	b = le.AppendUint64(b, d.Process.Start)
	b = le.AppendUint64(b, domain)
	b = le.AppendUint32(b, e.At.Arena)
	b = le.AppendUint32(b, e.At.Slot)
	b = le.AppendUint64(b, e.At.Generation)
	b = le.AppendUint64(b, e.At.Offset)
	b = le.AppendUint64(b, uint64(e.Bytes))
	b = le.AppendUint32(b, e.Grant.Slot)
	var gpu uint8 // 0 is host memory, 1 the rank's device
	if e.GPU {
		gpu = 1
	}
	b = append(b, gpu, uint8(e.Access), uint8(e.Transports), 0)
	b = le.AppendUint64(b, e.Grant.Generation)
	b = le.AppendUint64(b, uint64(rank))
	return append(b, code(d, b)...)
}

func code(d *roster.Identity, b []byte) []byte {
	m := hmac.New(sha256.New, d.Secret)
	m.Write(b)
	return m.Sum(nil)[:codeBytes]
}

// handle is what a handle says.
type handle struct {
	engine.Export
	host    uint64
	process shm.Process
	domain  uint64
	rank    int // of its maker, in the job
}

// unmarshal reads a handle. It does all the checks that need no peer.
func unmarshal(d *roster.Identity, b []byte) (h handle, err error) {
	le := binary.LittleEndian
	bad := func(format string, args ...any) (handle, error) {
		return handle{}, fmt.Errorf("handle: "+format, args...)
	}
	switch {
	case len(b) < 8:
		return bad("%d bytes, which is too few: %w", len(b), fault.ErrArgument)
	case string(b[:4]) != handleMagic:
		return bad("it begins with %q, which no handle does: %w", b[:4], fault.ErrArgument)
	case le.Uint16(b[4:]) != handleVersion:
		return bad("version %d, this library has %d: %w", le.Uint16(b[4:]), handleVersion, fault.ErrArgument)
	case len(b) != handleBytes || le.Uint16(b[6:]) != handleBytes:
		return bad("%d bytes, which says that it has %d, and a handle has %d: truncated, changed, or with more behind it: %w",
			len(b), le.Uint16(b[6:]), handleBytes, fault.ErrArgument)
	case le.Uint64(b[8:]) != d.Job:
		return bad("it was made in another job: %w", fault.ErrStale)
	case !hmac.Equal(code(d, b[:handleBytes-codeBytes]), b[handleBytes-codeBytes:]):
		return bad("its bytes were changed on the way: %w", fault.ErrArgument)
	case b[84] > 1 || b[87] != 0 || le.Uint64(b[96:]) >= 1<<31:
		return bad("it is of an unknown kind of memory: %w", fault.ErrNotSupported)
	}
	h.host = le.Uint64(b[16:])
	h.process = shm.Process{PID: int(le.Uint32(b[24:])), Namespace: le.Uint32(b[28:]), Start: le.Uint64(b[32:])}
	h.domain = le.Uint64(b[40:])
	h.At = mem.Location{Arena: le.Uint32(b[48:]), Slot: le.Uint32(b[52:]), Generation: le.Uint64(b[56:]),
		Offset: le.Uint64(b[64:])}
	h.Bytes = int(le.Uint64(b[72:]))
	h.Grant = mem.Location{Slot: le.Uint32(b[80:]), Generation: le.Uint64(b[88:])}
	h.GPU, h.Access, h.Transports = b[84] == 1, engine.Access(b[85]), engine.Transports(b[86])
	h.rank = int(le.Uint64(b[96:]))
	return h, nil
}

// MarshalHandle returns a handle of r, for Import on a peer.
func MarshalHandle(r *engine.Registration) ([]byte, error) {
	e, err := r.Export()
	if err == nil && e.Access&^(engine.LocalWrite|engine.LocalOnly) == 0 {
		err = fmt.Errorf("the registration is for this rank only (access %v): no peer may use a handle: %w", e.Access,
			fault.ErrArgument)
	}
	if err != nil {
		return nil, r.Comm().LocalError("marshal", err)
	}
	c := r.Comm()
	d := c.Domain()
	return marshal(d.Identity(), d.Heap.Domain, c.InJob(c.Rank()), e), nil
}
