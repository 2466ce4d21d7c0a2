package engine

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// Access is what peers may do with memory that they import, in the bits of verbs' enum ibv_access_flags.
type Access uint8

// The rights.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	// LocalOnly says that none of the remote ones is given; it tells no remote rights from the default.
	LocalOnly Access = 1 << 7

	remote        = RemoteWrite | RemoteRead | RemoteAtomic
	rights        = LocalWrite | remote
	DefaultAccess = LocalWrite | RemoteWrite | RemoteRead
)

var accessNames = [8]string{0: "local write", 1: "remote write", 2: "remote read", 3: "remote atomic", 7: "local only"}

// String lists the names: "local write, remote read".
func (a Access) String() string { return bitNames(uint8(a), &accessNames) }

func bitNames(bits uint8, names *[8]string) string {
	var s []string
	for i, name := range names {
		switch {
		case bits&(1<<i) == 0:
		case name == "":
			s = append(s, fmt.Sprintf("%#x", 1<<i))
		default:
			s = append(s, name)
		}
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, ", ")
}

// resolve returns the rights that a asks for.
func (a Access) resolve() (Access, error) {
	switch {
	case a == 0:
		return DefaultAccess, nil
	case a&^(rights|LocalOnly) != 0:
		return 0, fmt.Errorf("access %v: not all of these rights are known: %w", a, fault.ErrArgument)
	case a&LocalOnly != 0 && a&remote != 0:
		return 0, fmt.Errorf("access %v: local only excludes the remote rights: %w", a, fault.ErrArgument)
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		return 0, fmt.Errorf("access %v: remote write and remote atomic need local write, as in verbs: %w", a, fault.ErrArgument)
	}
	return a, nil
}

// Transports is a set of ways to reach memory.
type Transports uint8

// The transports.
const (
	HostMemory Transports = 1 << 0
	CUDAIPC    Transports = 1 << 1
	TCP        Transports = 1 << 2
	RDMA       Transports = 1 << 3

	allTransports = HostMemory | CUDAIPC | TCP | RDMA
)

var transportNames = [8]string{"host memory", "CUDA IPC", "TCP", "RDMA"}

// String lists the names: "host memory, TCP".
func (t Transports) String() string { return bitNames(uint8(t), &transportNames) }

// sameHost is the transport by which peers on the same host reach memory of the host, or of a device.
func sameHost(device bool) Transports {
	if device {
		return CUDAIPC
	}
	return HostMemory
}

// resolve returns the transports that t asks for.
func (t Transports) resolve(device bool) (Transports, error) {
	have := allTransports &^ sameHost(!device)
	switch {
	case t == 0:
		return have, nil
	case t&^allTransports != 0:
		return 0, fmt.Errorf("transports %v: not all of them are known: %w", t, fault.ErrArgument)
	case t&have == 0:
		return 0, fmt.Errorf("transports %v: this memory is reached by %v only: %w", t, have, fault.ErrArgument)
	}
	return t & have, nil
}

// Needs returns why the exporter has not granted what a call needs, or nil.
func (im *Import) Needs(need Access) error {
	if im.Access&need == need {
		return nil
	}
	return fmt.Errorf("rank %d has registered the memory with %v, without %v (RegisterWith says what peers may do): %w",
		im.Rank, im.Access, need&^im.Access, fault.ErrArgument)
}

// Reachable returns why peers on the same host cannot reach what is exported, or nil.
func (e *Export) Reachable() error {
	if way := sameHost(e.GPU); e.Transports&way == 0 {
		return fmt.Errorf("the memory is registered for %v, not for %v: %w", e.Transports, way, fault.ErrNotSupported)
	}
	return nil
}
