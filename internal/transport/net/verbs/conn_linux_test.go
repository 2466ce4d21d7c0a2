package verbs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// TestDouble runs the other tests over the double.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{
		"InfiniBand":       {},
		"Ethernet":         {"LINK": "Ethernet"},
		"in order":         {"IN_ORDER": "1"},
		"little is inline": {"MAX_INLINE": "64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := verbstest.Again(t, knobs, "-test.run=^Test", "-test.skip=^TestDouble")
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestPuts")
		})
	}
}

// Puts of all sizes, from memory that is registered or not to memory that is or not, both ways at once, with words and
// calls in between.
func TestPuts(t *testing.T) {
	r := testkit.Random(t)
	h := newHost(t)
	a, b := connect(t, h, h)
	sizes := []int{0, 1, 8, frame.Short, frame.Short + 1, 70000, frame.MaxPayload, frame.MaxPayload + 1, 1<<20 - 3}
	type job struct {
		from, to     *end
		source, into []byte
		place        uint32
		put          bool
	}
	var jobs []*job
	rounds := max(testkit.Often(400), 40)
	seq, calls := uint64(0), map[*end][]string{}
	area := func(slot int, n int) []byte { // of the arena, or not
		if r.IntN(3) == 0 {
			return make([]byte, n)
		}
		return h.arena[slot<<20:][:n:n]
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
		for _, e := range []*end{a, b} {
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

// A transfer between registered memory takes one work request for each chunk, and no byte is copied.
func TestWorkRequests(t *testing.T) {
	h := newHost(t)
	a, b := connect(t, h, h)
	for _, chunks := range []int{1, 3, 10} {
		n := chunks*frame.MaxPayload - 5
		b.grant(0, uint64(chunks), h.arena[4<<20:][:n])
		move(t, a, b, func() bool { return len(a.theirs) == 1 })
		before := a.qp.Posted()
		for i := range n {
			h.arena[i] = byte(rand.Uint32())
		}
		a.answer(1, 0, h.arena[:n])
		move(t, a, b, func() bool { return b.places[0].done == uint64(chunks) && a.sent.Load() == a.put })
		require.EqualValues(t, chunks, a.qp.Posted().Work-before.Work)
		require.True(t, bytes.Equal(h.arena[:n], h.arena[4<<20:][:n]))
	}
}

// However much is sent one way or both, credits return, by messages and chunks, and no peer is found without a receive.
func TestCredits(t *testing.T) {
	h := newHost(t)
	for name, f := range map[string]func(e *end, i int){
		"words": func(e *end, i int) { e.Put(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: uint64(i + 1)}, nil, nil) },
		"pieces": func(e *end, i int) {
			e.Put(frame.Header{Kind: frame.Write, Comm: 1, Seq: 1, Length: 40000}, at(make([]byte, 40000)), &e.sent)
			e.put++
		},
	} {
		for _, both := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", both ways: ", both), func(t *testing.T) {
				a, b := connect(t, h, h)
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
		a, b := connect(t, h, h)
		for i := range uint64(200) {
			b.grant(0, i+1, h.arena[4<<20:][:5000])
			move(t, a, b, func() bool { return len(a.theirs) == 1 })
			a.answer(1, 0, h.arena[:5000])
			move(t, a, b, func() bool { return b.places[0].done == i+1 })
		}
	})
}
