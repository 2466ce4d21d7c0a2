package mem

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// space is the addresses at which allocations are mapped. They come from windows, which are reservations of address
// space. Freed addresses wait in a queue, and are reused in the order in which they were freed, and only if there are
// no others: until then a stale view faults. While the queue is short, space first makes another window, if address
// space is not limited.
type space struct {
	window  int // size of a window
	windows []span
	free    spans
	dead    []span // the queue: freed addresses, oldest first
	queued  int    // bytes in dead
	lost    []span // may be used by others by now
}

const (
	windowSize = 64 << 30
	perWindow  = 4         // a window made for a larger allocation has room for so many of its size
	spareSpace = 128 << 20 // address space left to the Go runtime, which crashes without any
	deadPiece  = 64 << 20  // neighbours in the queue are merged up to this size
	deadPieces = 1 << 16   // most pieces in the queue
)

// take returns the address of n bytes where nothing is mapped.
func (s *space) take(n int) (unsafe.Pointer, error) {
	for {
		if at, ok := s.free.first(n); ok {
			return pointer(cuda.Addr(at)), nil
		}
		if s.queued < max(s.window/2, 2*n) && s.reserve(n, false) == nil {
			continue
		}
		if !s.releaseOldest() {
			break
		}
	}
	if err := s.reserve(n, true); err != nil {
		return nil, err
	}
	at, _ := s.free.first(n)
	return pointer(cuda.Addr(at)), nil
}

// give takes back n bytes at p where nothing was mapped.
func (s *space) give(p unsafe.Pointer, n int) { s.free.add(int(uintptr(p)), n) }

// delayReuse queues n bytes at p; views of them fault from now on.
func (s *space) delayReuse(p unsafe.Pointer, n int) {
	s.queued += n
	at := int(uintptr(p))
	if k := len(s.dead) - 1; k >= 0 && s.dead[k].n+n <= deadPiece {
		switch last := &s.dead[k]; at {
		case last.off + last.n:
			last.n += n
			return
		case last.off - n:
			last.off, last.n = at, last.n+n
			return
		}
	}
	if k := len(s.dead) - 1; k >= 0 && s.dead[k].n > deadPiece/2 {
		// The kernel keeps page tables when it unmaps small mappings one by one; it frees them when a large range is
		// unmapped.
		shm.Retire(pointer(cuda.Addr(s.dead[k].off)), s.dead[k].n)
	}
	s.dead = append(s.dead, span{at, n})
	if len(s.dead) > deadPieces {
		s.releaseOldest()
	}
}

// releaseOldest frees the oldest entry of the queue.
func (s *space) releaseOldest() bool {
	if len(s.dead) == 0 {
		return false
	}
	d := s.dead[0]
	s.dead = s.dead[1:]
	s.queued -= d.n
	s.free.add(d.off, d.n)
	return true
}

// abandon records n bytes at p that others may use by now. They are neither reused nor unmapped.
func (s *space) abandon(p unsafe.Pointer, n int) { s.lost = append(s.lost, span{int(uintptr(p)), n}) }

// reserve makes a window for n bytes. If there is not enough address space for a whole one (ulimit -v), and part is
// set, it takes part of what is left.
func (s *space) reserve(n int, part bool) error {
	size := max(s.window, min(n, 1<<46/perWindow)*perWindow)
	keep := size
	base, err := shm.Reserve(size + spareSpace)
	for err != nil && part && size/2 >= n {
		size = shm.RoundUp(size / 2)
		base, err = shm.Reserve(size + spareSpace)
		keep = max(n, shm.RoundUp(size/4)) // leave the rest to others
	}
	if err != nil {
		return err
	}
	if err := shm.Unmap(unsafe.Add(base, keep), size+spareSpace-keep); err != nil {
		return errors.Join(err, shm.Unmap(base, size+spareSpace))
	}
	s.windows = append(s.windows, span{int(uintptr(base)), keep})
	s.give(base, keep)
	return nil
}

// unmap gives back all addresses except the lost ones.
func (s *space) unmap() error {
	var errs []error
	slices.SortFunc(s.lost, func(a, b span) int { return a.off - b.off })
	for _, w := range s.windows {
		at, end := w.off, w.off+w.n
		for _, l := range append(s.lost[:len(s.lost):len(s.lost)], span{off: end}) {
			if l.off > at && l.off <= end {
				errs = append(errs, shm.Unmap(pointer(cuda.Addr(at)), l.off-at))
			}
			if l.off <= end {
				at = max(at, l.off+l.n)
			}
		}
	}
	return errors.Join(errs...)
}
