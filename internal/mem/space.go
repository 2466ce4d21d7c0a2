package mem

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// space is the addresses at which allocations are mapped. They come from windows, reservations that hold nothing else,
// and the addresses of what was freed are used again in the order in which it was freed, and only if there are no
// others: until then a stale view faults. While little waits in that queue, another window is made first, where address
// space is not limited.
type space struct {
	window  int // size of a window
	windows []span
	free    spans
	dead    []span // the queue: what was freed, in that order
	queued  int    // bytes of it
	lost    []span // perhaps somebody else's by now
}

const (
	windowSize = 64 << 30
	perWindow  = 4         // so many allocations of a size fit in a window that is made for it
	spareSpace = 128 << 20 // address space to leave to the Go runtime, which does not survive the lack of it
	deadPiece  = 64 << 20  // neighbours in the queue grow together up to this size,
	deadPieces = 1 << 16   // and so many are queued
)

// take is the address of n bytes that nothing is mapped at.
func (s *space) take(n int) (unsafe.Pointer, error) {
	for {
		if at, ok := s.free.first(n); ok {
			return pointer(cuda.Addr(at)), nil
		}
		if s.queued < max(s.window/2, 2*n) && s.reserve(n, false) == nil {
			continue
		}
		if !s.age() {
			break
		}
	}
	if err := s.reserve(n, true); err != nil {
		return nil, err
	}
	at, _ := s.free.first(n)
	return pointer(cuda.Addr(at)), nil
}

// give takes back n bytes at p at which nothing was mapped.
func (s *space) give(p unsafe.Pointer, n int) { s.free.add(int(uintptr(p)), n) }

// bury queues n bytes at p, whose views fault from now on.
func (s *space) bury(p unsafe.Pointer, n int) {
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
		// The kernel keeps the page tables of a small mapping that goes; those of all at once it frees.
		shm.Retire(pointer(cuda.Addr(s.dead[k].off)), s.dead[k].n)
	}
	s.dead = append(s.dead, span{at, n})
	if len(s.dead) > deadPieces {
		s.age()
	}
}

// age frees the first of the queue.
func (s *space) age() bool {
	if len(s.dead) == 0 {
		return false
	}
	d := s.dead[0]
	s.dead = s.dead[1:]
	s.queued -= d.n
	s.free.add(d.off, d.n)
	return true
}

// lose is for n bytes at p that may be somebody else's: they are neither used again nor unmapped.
func (s *space) lose(p unsafe.Pointer, n int) { s.lost = append(s.lost, span{int(uintptr(p)), n}) }

// reserve makes a window for n bytes. If there is no address space for a whole one (ulimit -v), it takes a part of what
// is left, if it may.
func (s *space) reserve(n int, part bool) error {
	size := max(s.window, min(n, 1<<46/perWindow)*perWindow)
	keep := size
	base, err := shm.Reserve(size + spareSpace)
	for err != nil && part && size/2 >= n {
		size = shm.RoundUp(size / 2)
		base, err = shm.Reserve(size + spareSpace)
		keep = max(n, shm.RoundUp(size/4)) // the rest is for others
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

// unmap gives all addresses back, but for those that are lost.
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
