// Package ofi binds libfabric (OpenFabrics Interfaces), through which the vendors of fabrics offer them: EFA, Slingshot
// (cxi), Omni-Path (opx, psm2), verbs, and sockets. It loads the library at the first use, so one binary runs with and
// without it ([Have]).
//
// [List] asks which providers reach other processes, in which domains (network devices), and what they can do; [Open] opens
// one of those. An [Endpoint] of a domain exchanges messages with others by their addresses, and accesses memory that
// they have registered ([Domain.Register]), if the provider has remote memory access (RMA). All endpoints are reliable
// datagrams (FI_EP_RDM): nothing is lost, one endpoint talks to all peers.
//
// Providers whose progress is manual move data only while somebody polls ([Endpoint.Poll]), on both sides.
//
// Objects are made from one another: domain, endpoint, registration. Close them in reverse order: an object refuses to
// close while objects made from it are open ([fault.ErrInUse]). All methods are local and safe for concurrent use; none
// blocks unless it says so. Any use after Close is an error that wraps [fault.ErrClosed].
//
// Addresses are numbers, since a provider accesses the memory at any time. Memory that is registered or named in an
// operation must not belong to Go's garbage collector, and must stay mapped until it is deregistered or the operation has
// completed.
//
// The library's own cache of registrations is off, unless FI_MR_CACHE_MAX_COUNT is set or the process had started the
// library before: it cannot know of all ways in which memory goes away. Other FI_ variables have their effect.
//
// Source: libfabric's manual pages (fabric(7), fi_getinfo(3), fi_domain(3), fi_mr(3), fi_endpoint(3), fi_rma(3),
// fi_cq(3)); each method names its call there.
package ofi

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/ubcoll/ubcoll/hw"
)

// Library is what Load has found.
type Library struct {
	Path    string // as it was asked for
	Version string // of its interface, as "1.17"
	// Shared says that the process, as MPI in it, had loaded the library before, and may have started it: then its cache of
	// registrations may be on.
	Shared bool
	// Signals is how many signal handlers were taken away again that what was loaded had installed over Go's, and that would
	// have crashed the process: they do not run on signal stacks.
	Signals int
}

// ErrAgain says that an operation was not posted because too many are under way: poll, then try again.
var ErrAgain = errors.New("too many operations are under way: poll first")

// Caps are what a provider can do (fi_getinfo(3), caps).
type Caps uint64

// The capabilities that matter here.
const (
	Messages Caps = 1 << 1
	RMA      Caps = 1 << 2 // reads and writes of peers' memory
	Atomics  Caps = 1 << 4
	Devices  Caps = 1 << 47 // memory of GPUs (FI_HMEM)
	Remote   Caps = 1 << 52 // reaches other hosts
)

// Has reports whether all of b is in c.
func (c Caps) Has(b Caps) bool { return c&b == b }

// MRMode is what a provider asks of registrations (fi_mr(3)).
type MRMode uint32

// The modes that this package serves.
const (
	MRLocal    MRMode = 1 << 2 // this process's own operations need registered memory, too
	MRVirtual  MRMode = 1 << 4 // peers name memory by its address; otherwise by the offset within the registration
	MRMapped   MRMode = 1 << 5 // memory has to be there when it is registered (FI_MR_ALLOCATED)
	MRKey      MRMode = 1 << 6 // the provider chooses keys (FI_MR_PROV_KEY); otherwise this package does, at random
	MREndpoint MRMode = 1 << 9 // a registration belongs to one endpoint
	MRDevices  MRMode = 1 << 10
)

const (
	served      = MRLocal | MRVirtual | MRMapped | MRKey | MREndpoint
	servedModes = 1<<59 | 1<<52 // FI_CONTEXT, FI_CONTEXT2
)

type bit struct {
	mask uint64
	name string
}

var mrModes = []bit{{1 << 2, "MR_LOCAL"}, {1 << 3, "MR_RAW"}, {1 << 4, "MR_VIRT_ADDR"}, {1 << 5, "MR_ALLOCATED"}, {1 << 6, "MR_PROV_KEY"},
	{1 << 7, "MR_MMU_NOTIFY"}, {1 << 8, "MR_RMA_EVENT"}, {1 << 9, "MR_ENDPOINT"}, {1 << 10, "MR_HMEM"}, {1 << 11, "MR_COLLECTIVE"}}

var modes = []bit{{1 << 59, "CONTEXT"}, {1 << 58, "MSG_PREFIX"}, {1 << 57, "ASYNC_IOV"}, {1 << 56, "RX_CQ_DATA"}, {1 << 55, "LOCAL_MR"},
	{1 << 54, "NOTIFY_FLAGS_ONLY"}, {1 << 53, "RESTRICTED_COMP"}, {1 << 52, "CONTEXT2"}, {1 << 51, "BUFFERED_RECV"}}

// named lists the bits of v by name, with | between.
func named(v uint64, names []bit) string {
	var s []string
	for _, b := range names {
		if v&b.mask != 0 {
			s = append(s, b.name)
			v &^= b.mask
		}
	}
	if v != 0 {
		s = append(s, fmt.Sprintf("%#x", v))
	}
	return strings.Join(s, "|")
}

// Has reports whether all of b is in m.
func (m MRMode) Has(b MRMode) bool { return m&b == b }

// String is like "MR_VIRT_ADDR|MR_PROV_KEY", or "none".
func (m MRMode) String() string {
	if m == 0 {
		return "none"
	}
	return named(uint64(m), mrModes)
}

// Description is what fi_getinfo says of one way to other processes.
type Description struct {
	Provider string // as "tcp;ofi_rxm"
	Fabric   string // the network, as "10.0.0.0/24"
	Domain   string // the network device, as "eth0"
	Version  string // the provider's
	Caps     Caps
	MRMode   MRMode
	Manual   bool // data moves only while somebody polls
	// Address is that of the domain on IP networks. On others it is zero.
	Address    netip.Addr
	MaxMessage int
	Inline     int  // the longest message that an operation with [Inline] may have
	Work       int  // how many operations an endpoint may have under way to peers
	Receives   int  // how many receives it may have posted
	DataBytes  int  // how much data can come with a write ([WithData]), of 8 bytes; 0: none
	KeyBytes   int  // how long a key is, of 8 bytes at most
	SendsLast  bool // a message is sent behind what the endpoint has written to the peer before it (FI_ORDER_SAW)
	// Gbits is the speed of the device's link in Gbit/s, 0 if the provider does not know. Down says that the link is.
	Gbits float64
	Down  bool

	rdm    bool   // has reliable datagrams
	asks   uint64 // of its user: mode
	serial bool   // not thread-safe
	source string
}

// Core is the name of the provider proper, as "tcp" of "tcp;ofi_rxm": what follows are utility providers, which give it
// what it lacks.
func (d *Description) Core() string {
	core, _, _ := strings.Cut(d.Provider, ";")
	return core
}

// String is like "tcp;ofi_rxm eth0 (10.0.0.1)".
func (d *Description) String() string {
	s := d.Provider + " " + d.Domain
	if d.Address.IsValid() {
		s += fmt.Sprintf(" (%v)", d.Address)
	}
	return s
}

// Matches reports whether the provider has that name. The core's name will do, in any case of letters; "" is every
// provider's.
func (d *Description) Matches(provider string) bool {
	return provider == "" || strings.EqualFold(provider, d.Provider) || strings.EqualFold(provider, d.Core())
}

// Refused is a provider's domain that [Open] would not open, and why.
type Refused struct {
	Description
	Why error // wraps hw.ErrNotSupported
}

// lacks says what keeps a provider from being used, nil if nothing does.
func (d *Description) lacks() error {
	var why []string
	if !d.rdm {
		why = append(why, "has no reliable datagrams (FI_EP_RDM)")
	}
	if !d.Caps.Has(Messages) {
		why = append(why, "has no messages (FI_MSG)")
	}
	if !d.Caps.Has(Remote) {
		why = append(why, "reaches processes of this host only")
	}
	if m := uint64(d.MRMode &^ (served | MRDevices)); m != 0 {
		why = append(why, "asks of registrations: "+named(m, mrModes))
	}
	if m := d.asks &^ servedModes; m != 0 {
		why = append(why, "asks of its user: "+named(m, modes))
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(why, ", "), hw.ErrNotSupported)
}

// most is n as an int: providers say that something has no limit by the largest number.
func most(n uint64) int { return int(min(n, math.MaxInt)) }
