// Package conntest tests data connections over devices: frames of all kinds, from memory that is registered or not, to memory that
// is or not.
package conntest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/register"
)

// Conn is a connection over devices.
type Conn interface {
	frame.Conn
	Landing(p unsafe.Pointer, n int) (frame.Landing, *register.Claim)
}

// ArenaBytes is how much registered memory the tests use.
const ArenaBytes = 8 << 20

// End is an end of a connection, and what came there.
type End struct {
	Conn
	places map[uint32]*place
	region []byte // which writes go to
	call   [frame.Short]byte
	calls  []string
	told   []frame.Header
	theirs map[uint32]frame.Header // the last grant for each place
	failed error
	sent   atomic.Uint64
	put    uint64
}

// place is memory that is granted, and how much has come.
type place struct {
	memory []byte
	claim  *register.Claim
	seq    uint64
	came   int
	done   uint64
}

// Place implements Sink.
func (e *End) Place(h frame.Header) (unsafe.Pointer, bool, error) {
	switch x := e.places[h.Place]; {
	case e.failed != nil:
		return nil, false, e.failed
	case h.Kind == frame.Call:
		return at(e.call[:]), true, nil
	case h.Kind == frame.Write:
		return at(e.region[h.Offset:]), h.Place == 0, nil
	case x == nil || h.Seq != x.seq || x.came+int(h.Length) > len(x.memory):
		return nil, false, frame.Refused(h, "not granted")
	case h.Length == 0:
		return nil, true, nil
	default:
		return at(x.memory[x.came:]), true, nil
	}
}

// Landed implements Sink.
func (e *End) Landed(h frame.Header) {
	switch {
	case h.Kind == frame.Call:
		e.calls = append(e.calls, string(e.call[:h.Length]))
	case h.Kind != frame.Write:
		e.landed(h.Place, int(h.Length), h.Kind == frame.Put)
	}
}

func (e *End) landed(place uint32, n int, last bool) {
	x := e.places[place]
	if x.came += n; last {
		x.done = x.seq
		if x.claim != nil {
			x.claim.Release()
			x.claim = nil
		}
	}
}

// Wrote implements Sink.
func (e *End) Wrote(index uint32, n int, last bool) error {
	e.landed(index, n, last)
	return nil
}

// Told implements Sink.
func (e *End) Told(h frame.Header) error {
	if h.Kind == frame.Grant {
		e.theirs[h.Place] = h
	} else {
		e.told = append(e.told, h)
	}
	return nil
}

// Sink is what a connection tells what comes, of package verbs too.
type Sink interface {
	frame.Sink
	Wrote(index uint32, n int, last bool) error
}

// New returns an end of a connection; begin lets the connection tell what comes. The end of the test closes it.
func New(t testing.TB, c Conn, begin func(s Sink)) *End {
	e := &End{Conn: c, places: map[uint32]*place{}, theirs: map[uint32]frame.Header{}, region: make([]byte, 1<<20)}
	begin(e)
	t.Cleanup(func() {
		e.Close()
		for _, x := range e.places {
			if x.claim != nil {
				x.claim.Release()
			}
		}
	})
	return e
}

// grant grants memory to the peer.
func (e *End) grant(i uint32, seq uint64, b []byte) {
	x := &place{memory: b, seq: seq}
	h := frame.Header{Kind: frame.Grant, Comm: 1, Place: i, Seq: seq, Length: uint64(len(b))}
	h.Landing, x.claim = e.Landing(at(b), len(b))
	if by := h.Landing.Index; by == 0 && h.Landing.Address != 0 { // verbs: the sink knows the place by it
		h.Landing.Index = i
	}
	e.places[i] = x
	e.Put(h, nil, nil)
}

// answer puts b to where the peer has granted.
func (e *End) answer(comm uint64, i uint32, b []byte) {
	g := e.theirs[i]
	delete(e.theirs, i)
	e.put++
	e.Put(frame.Header{Kind: frame.Put, Comm: comm, Place: i, Seq: g.Seq, Length: uint64(len(b)), Landing: g.Landing}, at(b), &e.sent)
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// move moves both ends until f returns true.
func move(t testing.TB, a, b *End, f func() bool) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		for _, e := range []*End{a, b} {
			_, err := e.Receive()
			require.NoError(t, err)
			e.Flush()
		}
		return f()
	})
}

// Puts moves puts of all sizes, from memory that is registered or not to memory that is or not, both ways at once, with words and
// calls in between.
func Puts(t *testing.T, a, b *End, arena []byte) {
	r := testkit.Random(t)
	sizes := []int{0, 1, 8, frame.Short, frame.Short + 1, 70000, frame.MaxPayload, frame.MaxPayload + 1, 1<<20 - 3}
	type job struct {
		from, to     *End
		source, into []byte
		place        uint32
		put          bool
	}
	var jobs []*job
	rounds := max(testkit.Often(400), 40)
	seq, calls := uint64(0), map[*End][]string{}
	area := func(slot int, n int) []byte { // of the arena, or not
		if r.IntN(3) == 0 {
			return make([]byte, n)
		}
		return arena[slot<<20:][:n:n]
	}
	for begun := 0; begun < rounds || len(jobs) > 0; {
		if begun < rounds && len(jobs) < 4 {
			used := map[uint32]bool{}
			for _, j := range jobs {
				used[j.place] = true
			}
			i := uint32(0)
			for used[i] {
				i++
			}
			seq++
			n := sizes[r.IntN(len(sizes))]
			j := &job{from: a, to: b, place: i, source: area(2*int(i), n), into: area(2*int(i)+1, n)}
			if r.IntN(2) == 0 {
				j.from, j.to = b, a
			}
			for k := range j.source {
				j.source[k] = byte(r.Uint32())
			}
			clear(j.into)
			j.to.grant(i, seq, j.into)
			jobs = append(jobs, j)
			begun++
		}
		for _, e := range []*End{a, b} {
			if r.IntN(4) == 0 {
				text := fmt.Sprint("call ", len(calls[e]))
				calls[e] = append(calls[e], text)
				c := []byte(text)
				e.put++
				e.Put(frame.Header{Kind: frame.Call, Comm: 1, Length: uint64(len(c))}, at(c), &e.sent)
				clear(c)
			}
			_, err := e.Receive()
			require.NoError(t, err)
			e.Flush()
		}
		for k := 0; k < len(jobs); k++ {
			j := jobs[k]
			if _, ok := j.from.theirs[j.place]; ok && !j.put {
				j.put = true
				j.from.answer(1+uint64(r.IntN(3)), j.place, j.source)
			}
			if x := j.to.places[j.place]; j.put && x.done == x.seq {
				require.True(t, bytes.Equal(j.source, j.into), "%d bytes", len(j.into))
				jobs = append(jobs[:k], jobs[k+1:]...)
				k--
			}
		}
	}
	move(t, a, b, func() bool {
		return a.sent.Load() == a.put && b.sent.Load() == b.put && a.Queued() == 0 && b.Queued() == 0 &&
			len(a.calls) == len(calls[b]) && len(b.calls) == len(calls[a])
	})
	require.Equal(t, calls[b], a.calls)
	require.Equal(t, calls[a], b.calls)
}

// Credits: however much is sent one way or both, credits return, by messages and chunks, and no peer is found without a receive.
func Credits(t *testing.T, connect func(t *testing.T) (a, b *End), arena []byte) {
	for name, f := range map[string]func(e *End, i int){
		"words": func(e *End, i int) { e.Put(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: uint64(i + 1)}, nil, nil) },
		"pieces": func(e *End, i int) {
			e.Put(frame.Header{Kind: frame.Write, Comm: 1, Seq: 1, Length: 40000}, at(make([]byte, 40000)), &e.sent)
			e.put++
		},
	} {
		for _, both := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", both ways: ", both), func(t *testing.T) {
				a, b := connect(t)
				for i := range 500 {
					f(a, i)
					if both {
						f(b, i)
					}
				}
				move(t, a, b, func() bool {
					return a.Queued() == 0 && b.Queued() == 0 && a.sent.Load() == a.put && b.sent.Load() == b.put
				})
				if name == "words" {
					move(t, a, b, func() bool { return len(b.told) == 500 })
					for i, h := range b.told {
						require.EqualValues(t, i+1, h.Seq)
					}
				}
			})
		}
	}
	t.Run("chunks", func(t *testing.T) {
		a, b := connect(t)
		for i := range uint64(200) {
			b.grant(0, i+1, arena[4<<20:][:5000])
			move(t, a, b, func() bool { return len(a.theirs) == 1 })
			a.answer(1, 0, arena[:5000])
			move(t, a, b, func() bool { return b.places[0].done == i+1 })
		}
	})
}

// Transfer puts from one part of registered memory to another, and waits until that is over at both ends.
func Transfer(t testing.TB, a, b *End, seq uint64, from, to []byte) {
	t.Helper()
	b.grant(0, seq, to)
	move(t, a, b, func() bool { return len(a.theirs) == 1 })
	a.answer(1, 0, from)
	move(t, a, b, func() bool { return b.places[0].done == seq && a.sent.Load() == a.put })
}
