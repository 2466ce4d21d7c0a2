package verbs

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// QPConfig says how to make a queue pair.
type QPConfig struct {
	Send, Receive *CQ // where work and receives complete; may be the same queue
	Shared        *SRQ
	// Work and Receives say how many can be posted at a time, at least. With Shared, Receives is 0.
	Work, Receives int
	// Inline asks that messages of up to this many bytes travel inside their work requests; 0: none do. The device may
	// take longer ones ([QP.Inline]); a device that cannot take this many refuses. Post copies such messages with the
	// processor, so a queue pair with Inline can send only from host memory.
	Inline int
}

// Path says how packets of a queue pair travel. The defaults are NCCL's.
type Path struct {
	Port         int   // from 1
	GIDIndex     int   // NCCL_IB_GID_INDEX, 0 to 255; < 0: see [ChooseGID]
	PKeyIndex    int   // NCCL_IB_PKEY: a place in the port's table, not a key
	ServiceLevel uint8 // NCCL_IB_SL, 0 to 15; on RoCE, the VLAN's priority
	TrafficClass uint8 // NCCL_IB_TC; on RoCE v2, the DSCP times 4. Packets within an InfiniBand subnet have none
	// Timeout, 1 to 31: the device waits 4.096 us * 2^Timeout for an answer before it retries; 0 waits forever.
	// NCCL_IB_TIMEOUT
	Timeout uint8
	Retries uint8 // NCCL_IB_RETRY_CNT, 0 to 7
	// NotReady is how often to retry while the peer has no receive posted, 0 to 6; 7 never gives up.
	NotReady uint8
}

// DefaultPath is port 1 with NCCL's values. The device gives up on a silent peer after 34 s or, since it may take up to
// four times its timeout, after some two minutes. It waits forever for a peer that has no receive posted.
func DefaultPath() Path { return Path{Port: 1, GIDIndex: -1, Timeout: 20, Retries: 7, NotReady: 7} }

func (p Path) check(ports int) error {
	switch {
	case p.Port < 1 || p.Port > ports:
		return fmt.Errorf("port %d: the device has ports 1 to %d: %w", p.Port, ports, fault.ErrArgument)
	case p.GIDIndex > maxGID:
		return fmt.Errorf("GID index %d: must be 0 to %d, or below 0 to choose: %w", p.GIDIndex, maxGID, fault.ErrArgument)
	case p.PKeyIndex < 0 || p.PKeyIndex > 0xffff:
		return fmt.Errorf("P_Key index %d: must be 0 to 65535: %w", p.PKeyIndex, fault.ErrArgument)
	case p.ServiceLevel > 15:
		return fmt.Errorf("service level %d: must be 0 to 15: %w", p.ServiceLevel, fault.ErrArgument)
	case p.Timeout > 31:
		return fmt.Errorf("timeout %d: must be 0 (forever) to 31: %w", p.Timeout, fault.ErrArgument)
	case p.Retries > 7 || p.NotReady > 7:
		return fmt.Errorf("%d retries and %d for a peer that is not ready: must be 0 to 7: %w", p.Retries, p.NotReady,
			fault.ErrArgument)
	}
	return nil
}

// Address is what the peer of a queue pair needs to know about it.
type Address struct {
	QP   uint32 // 24 bits
	PSN  uint32 // the first packet's number, 24 bits
	MTU  uint16 // bytes
	LID  uint16 // InfiniBand
	Link LinkLayer
	// ReadsOut is how many reads and atomics it may have under way, ReadsIn how many of its peer's it can answer at a
	// time.
	ReadsOut, ReadsIn uint8
	GID               GID
}

// AddressSize is the length of an Address on the wire.
const AddressSize = 32

// Append adds the address in network byte order, AddressSize bytes, to b.
func (a Address) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, a.QP)
	b = binary.BigEndian.AppendUint32(b, a.PSN)
	b = binary.BigEndian.AppendUint16(b, a.MTU)
	b = binary.BigEndian.AppendUint16(b, a.LID)
	b = append(b, byte(a.Link), a.ReadsOut, a.ReadsIn, 0)
	return append(b, a.GID[:]...)
}

// ParseAddress reads what Append wrote, and refuses values that no port can have.
func ParseAddress(b []byte) (Address, error) {
	if len(b) != AddressSize {
		return Address{}, fmt.Errorf("an address of a queue pair has %d bytes, not %d: %w", AddressSize, len(b), fault.ErrArgument)
	}
	a := Address{QP: binary.BigEndian.Uint32(b), PSN: binary.BigEndian.Uint32(b[4:]), MTU: binary.BigEndian.Uint16(b[8:]),
		LID: binary.BigEndian.Uint16(b[10:]), Link: LinkLayer(b[12]), ReadsOut: b[13], ReadsIn: b[14], GID: GID(b[16:])}
	if err := a.check(); err != nil {
		return Address{}, err
	}
	if b[15] != 0 {
		return Address{}, fmt.Errorf("an address of a queue pair ends its numbers with %d, not 0: %w", b[15], fault.ErrArgument)
	}
	return a, nil
}

func (a Address) check() error {
	switch {
	case a.QP>>24 != 0 || a.PSN>>24 != 0:
		return fmt.Errorf("queue pair %#x, packet %#x: both have 24 bits: %w", a.QP, a.PSN, fault.ErrArgument)
	case mtuCode(int(a.MTU)) == 0:
		return fmt.Errorf("an MTU of %d bytes: must be 256, 512, 1024, 2048 or 4096: %w", a.MTU, fault.ErrArgument)
	case a.Link != LinkInfiniBand && a.Link != LinkEthernet:
		return fmt.Errorf("%v: must be InfiniBand or Ethernet: %w", a.Link, fault.ErrArgument)
	case a.Link == LinkInfiniBand && a.LID == 0:
		return fmt.Errorf("an InfiniBand port without a LID: no subnet manager has given it one: %w", fault.ErrArgument)
	case a.Link == LinkEthernet && a.GID.Zero():
		return fmt.Errorf("a RoCE port without a GID: %w", fault.ErrArgument)
	}
	return nil
}

// mtuCode is enum ibv_mtu for a number of bytes, 0 if there is none.
func mtuCode(bytes int) int {
	for code := 1; code <= 5; code++ {
		if bytes == mtuBytes(code) {
			return code
		}
	}
	return 0
}

func mtuBytes(code int) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}
