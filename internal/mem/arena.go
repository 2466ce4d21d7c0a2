package mem

import (
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// arena is a memory file from which allocations are cut. Its number is never reused.
type arena struct {
	number uint32
	file   *shm.File
	free   spans
	holes  spans // parts of free that were punched out: without memory until they are used again
	used   int   // offsets from here on were never handed out, so they are zero
	live   int   // number of live allocations
}

type span struct{ off, n int }

// spans are sorted by offset, and never adjacent.
type spans []span

// add adds [off, off+n), which must not be in s.
func (s *spans) add(off, n int) {
	l := *s
	i, _ := slices.BinarySearchFunc(l, off, func(s span, off int) int { return s.off - off })
	if i < len(l) && off+n == l[i].off {
		l[i].off, l[i].n = off, l[i].n+n
	} else {
		l = slices.Insert(l, i, span{off, n})
	}
	if i > 0 && l[i-1].off+l[i-1].n == l[i].off {
		l[i-1].n += l[i].n
		l = slices.Delete(l, i, i+1)
	}
	*s = l
}

// cut removes [off, off+n) from s, and reports whether s had any of it.
func (s *spans) cut(off, n int) bool {
	var rest spans
	for _, p := range *s {
		if p.off < off {
			rest = append(rest, span{p.off, min(p.n, off-p.off)})
		}
		if end := p.off + p.n; end > off+n {
			rest = append(rest, span{max(p.off, off+n), end - max(p.off, off+n)})
		}
	}
	changed := !slices.Equal(rest, *s)
	*s = rest
	return changed
}

func (s spans) sum() (n int) {
	for _, p := range s {
		n += p.n
	}
	return n
}

// first removes n bytes from the first span that has so many.
func (s *spans) first(n int) (off int, ok bool) {
	for i, p := range *s {
		if p.n < n {
			continue
		}
		if p.n == n {
			*s = slices.Delete(*s, i, i+1)
		} else {
			(*s)[i] = span{p.off + n, p.n - n}
		}
		return p.off, true
	}
	return 0, false
}

const (
	firstArena     = 4 << 20
	arenaDoublings = 6 // each arena is twice the one before, up to 256 MiB; a larger request gets one of its own size
)

// fit takes n bytes of the first arena with room for them. The caller holds h.mu.
func (h *Heap) fit(n int) (*arena, int, bool) {
	for _, a := range h.arenas {
		if off, ok := a.free.first(n); ok {
			return a, off, true
		}
	}
	return nil, 0, false
}

// take is fit, but makes a new arena if none has room, and restores memory that was punched out.
func (h *Heap) take(n int) (a *arena, off int, grew bool, err error) {
	a, off, ok := h.fit(n)
	if !ok {
		if err := h.grow(n); err != nil {
			return nil, 0, false, err
		}
		grew = true
		a, off, _ = h.fit(n)
	}
	if a.holes.cut(off, n) {
		if err := a.file.Fill(off, n); err != nil {
			a.free.add(off, n)
			a.holes.add(off, n)
			return nil, 0, grew, err
		}
	}
	return a, off, grew, nil
}

func (h *Heap) grow(n int) error {
	number := h.dir.Arenas()
	if number == MaxArenas {
		return fmt.Errorf("allocate %d bytes: the rank has made %d memory files, and none that it has left has room: %w",
			n, MaxArenas, fault.ErrLimit)
	}
	h.trim(true)
	size := max(n, firstArena<<min(len(h.arenas), arenaDoublings))
	f, err := shm.Create("arena", size)
	if err != nil { // short of memory: take only what is needed, and keep no spare
		h.spare = 0
		h.trim(true)
		f, err = shm.Create("arena", n)
	}
	if err != nil {
		return err
	}
	h.arenas = append(h.arenas, &arena{number: uint32(number), file: f, free: spans{{0, f.Size()}}})
	h.dir.publish(f.Ref())
	missed := min(f.Size(), h.missed)
	h.missed, h.spare = h.missed-missed, h.spare+missed
	return nil
}

// give takes the memory of an allocation back. If a peer may still access it, it is held: its pages are punched out,
// and whatever the peer writes there is never read.
func (h *Heap) give(a *Allocation) error {
	ar, at := a.arena, span{int(a.At.Offset), a.pages}
	ar.live--
	var err error
	if kept := a.kept.Load(); kept || h.quarantines > 0 {
		err = ar.file.Punch(at.off, at.n)
		h.held = append(h.held, held{ar, at, kept})
	} else {
		ar.free.add(at.off, at.n)
	}
	if ar.live == 0 {
		h.trim(false)
	}
	if invariants.Enabled {
		h.check()
	}
	return err
}

// held is memory freed in quarantine: its own (kept), or the heap's.
type held struct {
	arena *arena
	span
	kept bool
}

// trim gives arenas without allocations back to the system. Arenas that are all free go, the youngest first, as long as
// h.spare bytes are left. Arenas that are partly held go if nothing in them is free; with full, because no arena had
// room, they go anyway. Arenas that had to be made again increase the spare, so a program that allocates and frees in
// turns pays for that only once.
func (h *Heap) trim(full bool) {
	idle := 0
	for _, a := range h.arenas {
		if a.live == 0 && a.free.sum() == a.file.Size() {
			idle += a.file.Size()
		}
	}
	for i := len(h.arenas) - 1; i >= 0; i-- {
		a := h.arenas[i]
		switch n := a.free.sum(); {
		case a.live > 0:
			continue
		case n == a.file.Size() && idle > h.spare:
			idle -= n
			h.missed += n
		case n == a.file.Size() || n > 0 && !full:
			continue
		}
		h.release(a)
		h.arenas = slices.Delete(h.arenas, i, i+1)
	}
}

// release ends an arena. A peer that has mapped it keeps the mapping, which has no memory, until the peer's domain
// ends.
func (h *Heap) release(a *arena) {
	h.dir.withdraw(a.number)
	a.file.Punch(0, a.file.Size()) // if this fails, the memory is freed when the last peer unmaps it
	a.file.Close()
	h.held = slices.DeleteFunc(h.held, func(s held) bool { return s.arena == a })
}

// Quarantine keeps memory that is freed from now on from being reused, until lift: a peer that timed out may still read
// or write it. Its pages go back to the system at once, but its offsets do not. lift may be called several times, and
// after Close.
func (h *Heap) Quarantine() (lift func()) {
	h.mu.Lock()
	h.quarantines++
	h.mu.Unlock()
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.quarantines--
		if h.quarantines > 0 || h.closed {
			return
		}
		h.held = slices.DeleteFunc(h.held, func(s held) bool {
			if !s.kept {
				s.arena.free.add(s.off, s.n)
				s.arena.holes.add(s.off, s.n)
			}
			return !s.kept
		})
		if invariants.Enabled {
			h.check()
		}
	})
}

// Quarantined reports whether there is a Quarantine that has not been lifted.
func (h *Heap) Quarantined() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.quarantines > 0
}
