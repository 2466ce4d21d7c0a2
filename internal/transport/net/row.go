package net

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/ubcoll/ubcoll/fault"
)

// Row is what others need to reach a node. Node.Row makes it, and it travels as bytes (Append, ParseRow).
type Row struct {
	Key   [32]byte     // the node's public key (X25519)
	Port  uint16       // the same on all addresses
	Addrs []netip.Addr // where it listens, MaxAddrs at most
	PID   int32        // its process, and when that started (clock ticks since its host's start)
	Start uint64
}

// MaxAddrs is the most addresses that a Row has.
const MaxAddrs = 4

const rowVersion = 1

// Append appends the binary form, of at most transport.MaxRow bytes: version (1), addresses (1), port (2), process (4), its start
// (8), key (32), and 16 bytes for each address; little endian.
func (r Row) Append(b []byte) []byte {
	b = append(b, rowVersion, byte(len(r.Addrs)))
	b = binary.LittleEndian.AppendUint16(b, r.Port)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.PID))
	b = binary.LittleEndian.AppendUint64(b, r.Start)
	b = append(b, r.Key[:]...)
	for _, a := range r.Addrs {
		x := a.As16()
		b = append(b, x[:]...)
	}
	return b
}

// ParseRow parses what Row.Append wrote. Bytes left over are an error. Errors wrap fault.ErrMismatch.
func ParseRow(b []byte) (Row, error) {
	const fixed = 1 + 1 + 2 + 4 + 8 + 32
	if len(b) < fixed || b[0] != rowVersion || b[1] == 0 || b[1] > MaxAddrs || len(b) != fixed+16*int(b[1]) {
		return Row{}, fmt.Errorf("network: %d bytes are no row of this version: %w", len(b), fault.ErrMismatch)
	}
	r := Row{Port: binary.LittleEndian.Uint16(b[2:]), PID: int32(binary.LittleEndian.Uint32(b[4:])),
		Start: binary.LittleEndian.Uint64(b[8:]), Key: [32]byte(b[16:48])}
	for i := fixed; i < len(b); i += 16 {
		a := netip.AddrFrom16([16]byte(b[i:])).Unmap()
		if a.IsUnspecified() || a.IsMulticast() {
			return Row{}, fmt.Errorf("network: a row has address %v: %w", a, fault.ErrMismatch)
		}
		r.Addrs = append(r.Addrs, a)
	}
	if r.Port == 0 {
		return Row{}, fmt.Errorf("network: a row without port: %w", fault.ErrMismatch)
	}
	return r, nil
}
