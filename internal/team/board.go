package team

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/membership"
)

// board is what a rank of a broken communicator tells the others of its host while they agree on who is left: see package
// membership. The rank alone writes it, and may be at it while others read. So whoever reads a part compares word before and
// after.
type board struct {
	word atomic.Uint64 // changes<<8 | step; 0 while the rank writes the rest. Written last
	what atomic.Uint64 // attempt<<32 | done
	_    [48]byte
	gone [boardWords]atomic.Uint64
	// notes are what comes with the steps: of Made and Refused the first, of others the second.
	notes [2]note
}

type note struct {
	n    atomic.Uint64
	text [NoteBytes / 8]atomic.Uint64
}

const (
	boardWords = (MaxRanks + 63) / 64
	NoteBytes  = 1216 // the most bytes of a note on a board
	boardAt    = peerBytes + int(unsafe.Sizeof(flight.Ring{}))
)

func init() {
	if boardAt+int(unsafe.Sizeof(board{})) > SharedBytes {
		panic("team: no room for the board behind the ring")
	}
}

// board is the rank's board, which lies where its ring ends.
func (p *Peer) board() *board { return (*board)(unsafe.Add(unsafe.Pointer(p.Area), boardAt)) }

// noteOf is where the note of a step is.
func noteOf(step membership.Step) int {
	if step == membership.Made || step == membership.Refused {
		return 0
	}
	return 1
}

// Tell tells the other ranks of this host what this rank knows of who is left, with a note, which stays until the next one of
// a step that has its place. For the communicator's turn.
func (t *Team) Tell(s membership.State, text []byte) error {
	if len(text) > NoteBytes {
		return fmt.Errorf("a note of %d bytes, more than %d: %w", len(text), NoteBytes, fault.ErrLimit)
	}
	b := t.Peers[t.rank].board()
	t.told++
	b.word.Store(0)
	b.what.Store(uint64(s.Attempt)<<32 | uint64(s.Done))
	for i, w := range s.Gone {
		b.gone[i].Store(w)
	}
	if text != nil {
		b.notes[noteOf(s.Step)].set(text)
	}
	b.word.Store(t.told<<8 | uint64(s.Step))
	return nil
}

func (n *note) set(text []byte) {
	n.n.Store(uint64(len(text)))
	var w [8]byte
	for i := 0; i*8 < len(text); i++ {
		copy(w[:], text[i*8:])
		n.text[i].Store(binary.LittleEndian.Uint64(w[:]))
	}
}

func (n *note) get() (b []byte) {
	size := int(min(n.n.Load(), NoteBytes))
	for i := 0; i*8 < size; i++ {
		b = binary.LittleEndian.AppendUint64(b, n.text[i].Load())
	}
	return b[:size]
}

// Told is what a rank of the team has told. ok is false while it writes, or has told nothing.
func (t *Team) Told(rank int) (s membership.State, ok bool) {
	b := t.Peers[rank].board()
	word := b.word.Load()
	if word == 0 {
		return s, false
	}
	what := b.what.Load()
	s = membership.State{Attempt: uint32(what >> 32), Done: uint32(what), Step: membership.Step(word), Gone: membership.NewSet(t.all)}
	for i := range s.Gone {
		s.Gone[i] = b.gone[i].Load()
	}
	return s, b.word.Load() == word
}

// Note is the note of a step that a rank of the team has told. It counts only as long as Told says the same as before.
func (t *Team) Note(rank int, step membership.Step) []byte {
	return t.Peers[rank].board().notes[noteOf(step)].get()
}

// Gone reports whether a rank's process has ended, and whether the rank has closed the communicator. Look finds the former.
func (t *Team) Gone(rank int) (dead, closed bool) {
	p := &t.Peers[rank]
	if rank == t.rank {
		return false, false
	}
	return p.Mem != nil && p.Mem.Dead(), p.Closed()
}
