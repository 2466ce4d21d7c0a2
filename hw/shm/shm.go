// Package shm makes memory that several processes of one host can share: sealed memory files (memfd), their mappings,
// and the identity of the processes that own them. It works on Linux only; elsewhere every call returns an error that
// wraps hw.ErrNotSupported. Everything here is local.
package shm

import (
	"errors"
	"fmt"
)

// ErrLost says that another thread may have mapped something at addresses of a reservation.
var ErrLost = errors.New("the addresses are not used again")

// Process identifies a process for as long as the host is up. A process id alone does not: it may be used again, and
// means another process in each pid namespace.
type Process struct {
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"`               // clock ticks after boot, /proc/PID/stat field 22
	Namespace uint32 `json:"namespace,omitempty"` // inode of its pid namespace; 0: this process's own
}

// String is "pid 123".
func (p Process) String() string { return fmt.Sprintf("pid %d", p.PID) }

// Ref names a memory file of a process for that process's peers. It is enough to open the file and to notice if it is
// another one.
type Ref struct {
	Process Process `json:"process"`
	FD      int     `json:"fd"`
	Inode   uint64  `json:"inode"`
	Size    int     `json:"size"`
}

// File is an open memory file of this process or of a peer.
type File struct {
	fd  int
	ref Ref
}

// Ref names f for the process's peers.
func (f *File) Ref() Ref { return f.ref }

// FD is f's descriptor; it belongs to f.
func (f *File) FD() int { return f.fd }

// Size is f's size in bytes, a multiple of the page size. It never changes: the file is sealed.
func (f *File) Size() int { return f.ref.Size }
