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
	maxExtents = engine.MaxExtents // exported at a time by one rank

	ledgerMagic = 0x75622d6c64670002 // "ub-ldg", layout 2
)

// ledger is what a rank that uses a device tells its peers: what it exports, and how far it has followed their exports.
// It lies in the rank's host memory, whose peers map it, and is written by its owner alone. Peers may write anything
// into theirs: what is read there is checked before it is used, and the driver refuses handles that are none.
type ledger struct {
	*ledgerHead
	attached []atomic.Uint64             // domains of the peers that it has attached, in this order
	acks     [][maxExtents]atomic.Uint64 // of attached peer p's extents: see ack
	failures []failure                   // the last one for each of them
}

// ledgerHead is how a ledger begins. Behind it come the acks, failures and domains of so many peers.
type ledgerHead struct {
	magic, domain uint64
	peers         atomic.Uint64 // see ledgerAt
	closed        atomic.Uint64 // 1 once the owner has unmapped all that it imported, and imports nothing any more
	extents       atomic.Uint64 // entries of exports that were ever used
	_             [88]byte
	exports       [maxExtents]exported
}

const (
	ledgerAcks     = int(unsafe.Sizeof([maxExtents]atomic.Uint64{})) // of a peer
	ledgerFailures = int(unsafe.Sizeof(failure{}))
	ledgerDomains  = int(unsafe.Sizeof(atomic.Uint64{}))
)

// ledgerBytes is the size of a ledger with room for so many peers.
func ledgerBytes(peers int) int {
	return int(unsafe.Sizeof(ledgerHead{})) + peers*(ledgerAcks+ledgerFailures+ledgerDomains)
}

// ledgerAt is the ledger at p, for so many peers.
func ledgerAt(p unsafe.Pointer, peers int) ledger {
	l := ledger{ledgerHead: (*ledgerHead)(p)}
	if peers == 0 {
		return l // behind the head is other memory, perhaps none: Go allows no pointer there
	}
	p = unsafe.Add(p, unsafe.Sizeof(ledgerHead{}))
	l.acks = unsafe.Slice((*[maxExtents]atomic.Uint64)(p), peers)
	p = unsafe.Add(p, peers*ledgerAcks)
	l.failures = unsafe.Slice((*failure)(p), peers)
	p = unsafe.Add(p, peers*ledgerFailures)
	l.attached = unsafe.Slice((*atomic.Uint64)(p), peers)
	return l
}

// exported is one export. Everything but the version stands still while the version does.
type exported struct {
	version atomic.Uint64 // odd: exported; even: withdrawn. It only goes up
	how     atomic.Uint64
	device  atomic.Uint64 // of the owner's process
	base    atomic.Uint64 // address in the owner's process
	size    atomic.Uint64
	id      atomic.Uint64 // the driver's, in the owner's process
	handle  [8]atomic.Uint64
	_       [2]uint64
}

// How an export is imported.
const (
	byDescriptor = 1 // the owner's service hands out a descriptor
	byHandle     = 2 // handle has the driver's older kind of export
)

// An ack is the version that was followed, shifted by one, and whether that failed. Version 0 is that of an extent
// which nobody has exported yet.
func ack(version uint64, failed bool) uint64 {
	if failed {
		return version<<1 | 1
	}
	return version << 1
}

// failure is why an import failed, for people.
type failure struct {
	ack  atomic.Uint64 // which; written last
	text [31]atomic.Uint64
}

// checkLedger checks that a ledger of domain begins at p, and returns for how many peers it says that it has room.
func checkLedger(p unsafe.Pointer, domain uint64) (peers int, err error) {
	h := (*ledgerHead)(p)
	if h.magic != ledgerMagic || h.domain != domain {
		return 0, fmt.Errorf("ledger has magic %#x domain %#x, not %#x and %#x: %w",
			h.magic, h.domain, uint64(ledgerMagic), domain, fault.ErrStale)
	}
	n := h.peers.Load() // once: the peer may change it
	if n < 1 || n >= engine.MaxRanks {
		return 0, fmt.Errorf("ledger has room for %d peers, not 1 to %d: %w", n, engine.MaxRanks-1, fault.ErrStale)
	}
	return int(n), nil
}

// live reports whether version is that of an export.
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

// read is the text for ack, "" if there is another one now. The peer may have written anything.
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
