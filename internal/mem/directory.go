package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// The directory tells a heap's peers which arenas exist and which allocations are live. It is a separate memory file.
// Only the owner writes it, except for the doorbell.
const (
	MaxArenas = 8192  // that a heap ever makes
	MaxSlots  = 32768 // live allocations: each needs a mapping, and vm.max_map_count is 65530

	directoryMagic = 0x75622d6469720002 // "ub-dir", layout 2
)

type arenaEntry struct {
	fd    uint64
	inode uint64
	size  atomic.Uint64 // 0: the arena no longer exists
	_     uint64
}

// Directory is the layout of the directory's memory.
type Directory struct {
	magic    uint64
	domain   uint64
	arenas   atomic.Uint64 // number of complete entries of table
	_        [104]byte
	Doorbell atomic.Uint32 // peers ring it to make this rank look at their directories
	_        [124]byte
	table    [MaxArenas]arenaEntry
	slots    [MaxSlots]atomic.Uint64 // generation of the live allocation, or 0
}

// DirectorySize is the size of a directory, in whole pages.
var DirectorySize = shm.RoundUp(int(unsafe.Sizeof(Directory{})))

// CheckDirectory checks that the memory at p, DirectorySize bytes, is the directory of domain.
func CheckDirectory(p unsafe.Pointer, domain uint64) (*Directory, error) {
	d := (*Directory)(p)
	if d.magic != directoryMagic || d.domain != domain {
		return nil, fmt.Errorf("memory directory has magic %#x domain %#x, not %#x and %#x: %w",
			d.magic, d.domain, uint64(directoryMagic), domain, fault.ErrStale)
	}
	return d, nil
}

// Arenas returns the number of arenas that the owner has published.
func (d *Directory) Arenas() int { return int(min(d.arenas.Load(), MaxArenas)) }

// Arena names arena i, below Arenas, of process p, which owns the directory. Its size is 0 if it no longer exists.
func (d *Directory) Arena(i int, p shm.Process) shm.Ref {
	e := &d.table[i]
	return shm.Ref{Process: p, FD: int(e.fd), Inode: e.inode, Size: int(e.size.Load())}
}

// Live reports whether the allocation at l still exists. It costs one load.
func (d *Directory) Live(l Location) bool {
	return l.Slot < MaxSlots && l.Generation != 0 && d.slots[l.Slot].Load() == l.Generation
}

func (d *Directory) publish(r shm.Ref) {
	i := d.arenas.Load()
	e := &d.table[i]
	e.fd, e.inode = uint64(r.FD), r.Inode
	e.size.Store(uint64(r.Size))
	d.arenas.Store(i + 1)
}

// withdraw removes an arena without live allocations, before its descriptor is closed.
func (d *Directory) withdraw(i uint32) { d.table[i].size.Store(0) }
