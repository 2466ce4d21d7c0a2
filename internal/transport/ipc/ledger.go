package ipc

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unicode"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
)

const (
	maxExtents = engine.MaxExtents // that one rank exports at a time

	ledgerMagic = 0x75622d6c64670002 // "ub-ldg", layout 2
)

// ledger is where a rank that uses a device tells its peers what it exports, and how far it has followed their exports.
// It is in the rank's host memory, which peers map. Only the owner should write it, but a faulty peer may write
// anything to its own ledger. So readers check every value before they use it, and the driver refuses invalid handles.
type ledger struct {
	*ledgerHead
	attached []atomic.Uint64             // domains of the peers that the owner has attached, in this order
	acks     [][maxExtents]atomic.Uint64 // for attached peer p's extents: see ack
	failures []failure                   // the last failure for each peer
}

// ledgerHead is the beginning of a ledger. The acks, failures and domains of `peers` peers follow.
type ledgerHead struct {
	magic, domain uint64
	peers         atomic.Uint64 // see ledgerAt
	closed        atomic.Uint64 // 1 once the owner has unmapped all imports, and will import nothing any more
	extents       atomic.Uint64 // number of entries of exports that were ever used
	_             [88]byte
	exports       [maxExtents]exported
}

const (
	ledgerAcks     = int(unsafe.Sizeof([maxExtents]atomic.Uint64{})) // of a peer
	ledgerFailures = int(unsafe.Sizeof(failure{}))
	ledgerDomains  = int(unsafe.Sizeof(atomic.Uint64{}))
)

// ledgerBytes returns the size of a ledger with room for that many peers.
func ledgerBytes(peers int) int {
	return int(unsafe.Sizeof(ledgerHead{})) + peers*(ledgerAcks+ledgerFailures+ledgerDomains)
}

// ledgerAt returns the ledger at p, for that many peers.
func ledgerAt(p unsafe.Pointer, peers int) ledger {
	l := ledger{ledgerHead: (*ledgerHead)(p)}
	if peers == 0 {
		return l // behind the head is other memory, or none: Go allows no pointer there
	}
	p = unsafe.Add(p, unsafe.Sizeof(ledgerHead{}))
	l.acks = unsafe.Slice((*[maxExtents]atomic.Uint64)(p), peers)
	p = unsafe.Add(p, peers*ledgerAcks)
	l.failures = unsafe.Slice((*failure)(p), peers)
	p = unsafe.Add(p, peers*ledgerFailures)
	l.attached = unsafe.Slice((*atomic.Uint64)(p), peers)
	return l
}

// exported is one export. The other fields change only together with the version.
type exported struct {
	version atomic.Uint64 // odd: exported; even: withdrawn; only increases
	how     atomic.Uint64
	device  atomic.Uint64 // of the owner's process
	base    atomic.Uint64 // address in the owner's process
	size    atomic.Uint64
	id      atomic.Uint64 // the driver's ID, in the owner's process
	handle  [8]atomic.Uint64
	_       [2]uint64
}

// How peers import an export.
const (
	byDescriptor = 1 // the owner's service hands out a descriptor
	byHandle     = 2 // handle has a handle of the driver's older kind
)

// ack returns an acknowledgement: the version that was followed, shifted by one, and whether that failed. An extent
// that was never exported has version 0.
func ack(version uint64, failed bool) uint64 {
	if failed {
		return version<<1 | 1
	}
	return version << 1
}

// failure is the text about a failed import.
type failure struct {
	ack  atomic.Uint64 // the ack it belongs to; written last
	text [31]atomic.Uint64
}

// checkLedger checks that a ledger of domain begins at p, and returns the number of peers that it claims to have room
// for.
func checkLedger(p unsafe.Pointer, domain uint64) (peers int, err error) {
	h := (*ledgerHead)(p)
	if h.magic != ledgerMagic || h.domain != domain {
		return 0, fmt.Errorf("ledger has magic %#x domain %#x, not %#x and %#x: %w",
			h.magic, h.domain, uint64(ledgerMagic), domain, fault.ErrStale)
	}
	n := h.peers.Load() // load it once: the peer may change it
	if n < 1 || n >= engine.MaxRanks {
		return 0, fmt.Errorf("ledger has room for %d peers, not 1 to %d: %w", n, engine.MaxRanks-1, fault.ErrStale)
	}
	return int(n), nil
}

// live reports whether an extent with this version is exported.
func live(version uint64) bool { return version&1 == 1 }

func (f *failure) write(ack uint64, text string) {
	f.ack.Store(0)
	for i := range f.text {
		var word [8]byte
		text = text[copy(word[:], text):]
		f.text[i].Store(*(*uint64)(unsafe.Pointer(&word)))
	}
	f.ack.Store(ack)
}

// read returns the text for ack, or "" if the text belongs to another ack by now. The peer may have written anything.
func (f *failure) read(ack uint64) string {
	if f.ack.Load() != ack {
		return ""
	}
	var b []byte
	for i := range f.text {
		word := f.text[i].Load()
		b = append(b, (*(*[8]byte)(unsafe.Pointer(&word)))[:]...)
	}
	if f.ack.Load() != ack {
		return ""
	}
	text, _, _ := strings.Cut(string(b), "\x00")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
