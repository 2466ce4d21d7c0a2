package verbs

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// Access says what a device may do with a memory region (enum ibv_access_flags). This process may always read it.
type Access uint32

// The flags. RemoteWrite and RemoteAtomic require LocalWrite as well.
const (
	LocalWrite   Access = 1 << 0 // receives, and the results of reads and atomics, may be written here
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	// OnDemand pins nothing: the device asks for pages when it needs them (on-demand paging). [Limits] says whether it
	// can.
	OnDemand Access = 1 << 6
	// RelaxedOrdering lets writes become visible in another order than they came in. This is faster on some machines,
	// but then the last byte must not be polled. A device that does not know the flag ignores it.
	RelaxedOrdering Access = 1 << 20
)

// Remote is everything that peers can be allowed to do.
const Remote = RemoteWrite | RemoteRead | RemoteAtomic

const known = LocalWrite | Remote | OnDemand | RelaxedOrdering

// Has reports whether all of b is in a.
func (a Access) Has(b Access) bool { return a&b == b }

// String is like "LOCAL_WRITE|REMOTE_READ", or "local read" for none.
func (a Access) String() string {
	if a == 0 {
		return "local read"
	}
	var names []string
	for _, f := range []struct {
		flag Access
		name string
	}{{LocalWrite, "LOCAL_WRITE"}, {RemoteWrite, "REMOTE_WRITE"}, {RemoteRead, "REMOTE_READ"},
		{RemoteAtomic, "REMOTE_ATOMIC"}, {OnDemand, "ON_DEMAND"}, {RelaxedOrdering, "RELAXED_ORDERING"}} {
		if a.Has(f.flag) {
			names = append(names, f.name)
		}
	}
	if rest := a &^ known; rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(rest)))
	}
	return strings.Join(names, "|")
}

// Check refuses combinations that no device accepts.
func (a Access) Check() error {
	switch {
	case a&^known != 0:
		return fmt.Errorf("access %v has flags that this package does not know: %w", a, fault.ErrArgument)
	case a&(RemoteWrite|RemoteAtomic) != 0 && !a.Has(LocalWrite):
		return fmt.Errorf("access %v lets peers write what this process may not: add LOCAL_WRITE: %w", a, fault.ErrArgument)
	}
	return nil
}
