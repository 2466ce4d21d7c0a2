package sendq

import (
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// step sends the next word or a part of the next put, and reports whether there was one. flying gets the put of a chunk.
func step(t *testing.T, q *Queue, flying *[]*Put, order map[uint64][]uint64) bool {
	b := make([]byte, frame.HeaderSize+frame.Short)
	if n := q.WordBytes(); n > 0 {
		require.Equal(t, n, q.Word(b))
		h, err := frame.Decode(b)
		require.NoError(t, err)
		order[h.Comm] = append(order[h.Comm], h.Seq)
		return true
	}
	if x := q.NextTail(); x != nil {
		require.True(t, x.Flying == 0 || x.Chases)
		require.Equal(t, int(x.H.Length), x.Off)
		order[x.H.Comm] = append(order[x.H.Comm], x.H.Seq)
		q.PostedTail(x)
		return true
	}
	x := q.Next()
	if x == nil {
		return false
	}
	h, n := x.Chunk(frame.Short)
	switch {
	case n > 0 && x.Device:
		require.LessOrEqual(t, n, frame.MaxPayload)
		x.Off += n
		x.Flying++
		*flying = append(*flying, x)
	default:
		require.LessOrEqual(t, n, frame.Short)
		require.Equal(t, x.Off+n < int(x.H.Length), h.Kind == frame.Part)
		x.Off += n
	}
	if x.Whole() {
		order[h.Comm] = append(order[h.Comm], h.Seq)
	}
	q.Posted(x)
	return true
}

// TestQueue: whatever is added, sent, completed in any order, or taken back: each put is sent once, counts once, after all before it;
// those to a place are sent in order, but for puts that devices move, which wait for a grant of their own.
func TestQueue(t *testing.T) {
	r := testkit.Random(t)
	memory := make([]byte, 2<<20)
	for range testkit.Often(1000) {
		var q Queue
		var sent [3]atomic.Uint64
		var added [3]uint64
		seq := uint64(0)
		var flying []*Put
		order, dropped := map[uint64][]uint64{}, map[uint64]bool{}
		for range 200 {
			comm := uint64(r.IntN(3))
			switch k := r.IntN(10); {
			case k < 4:
				seq++
				added[comm]++
				n := []int{0, 8, frame.Short, frame.Short + 1, 3 * frame.Short, frame.MaxPayload + 1}[r.IntN(6)]
				h := frame.Header{Kind: frame.Put, Comm: comm, Seq: seq, Length: uint64(n)}
				device, chases := r.IntN(2) == 0, r.IntN(2) == 0
				x := q.Add(h, unsafe.Pointer(&memory[0]), &sent[comm], func(x *Put) { x.Device, x.Tail, x.Chases = device, device, chases })
				require.True(t, x != nil || n <= frame.Short)
			case k < 8:
				step(t, &q, &flying, order)
			case k < 9 && len(flying) > 0:
				i := r.IntN(len(flying))
				q.Completed(flying[i])
				flying = append(flying[:i], flying[i+1:]...)
			case k == 9 && r.IntN(5) == 0:
				q.Remove(comm, func(h *frame.Header) bool { dropped[h.Seq] = true; return true })
			case r.IntN(3) == 0:
				added[comm]++
				q.Skip(comm, &sent[comm])
			}
			require.LessOrEqual(t, sent[comm].Load(), added[comm])
		}
		for len(flying) > 0 || q.Ready() {
			if !step(t, &q, &flying, order) {
				require.True(t, q.Has(flying[0].H.Comm, All))
				require.True(t, q.Flies(flying[0].H.Comm, 0))
				q.Completed(flying[0])
				flying = flying[1:]
			}
		}
		require.False(t, q.Ready())
		require.Zero(t, q.Count())
		require.Zero(t, q.Pending())
		for comm := range added {
			require.Equal(t, added[comm], sent[comm].Load())
			require.False(t, q.Has(uint64(comm), All))
			seqs := order[uint64(comm)]
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(seqs))), len(seqs), "once")
		}
	}
}

// TestClear: all counts, and nothing is left.
func TestClear(t *testing.T) {
	var q Queue
	var sent atomic.Uint64
	memory := make([]byte, frame.MaxPayload)
	for i := range uint64(4) {
		q.Add(frame.Header{Kind: frame.Put, Comm: i % 2, Seq: i + 1, Length: uint64(len(memory))}, unsafe.Pointer(&memory[0]), &sent, nil)
	}
	q.Add(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: 1}, nil, nil, nil)
	require.Equal(t, 5, q.Count())
	require.Equal(t, 4*len(memory)+frame.HeaderSize, q.Pending())
	q.Clear()
	require.EqualValues(t, 4, sent.Load())
	require.Zero(t, q.Count())
	require.False(t, q.Ready())
	require.Zero(t, q.WordBytes())
}

// TestDeviceChunks: of what devices move, no chunk is short unless all of it is: it may be of memory that the processor cannot read.
func TestDeviceChunks(t *testing.T) {
	const most, short = frame.MaxPayload, frame.Short
	for total, want := range map[int][]int{
		1: {1}, short: {short}, most: {most}, most + 1: {most - short, short + 1}, most + short: {most - short, 2 * short},
		most + short + 1: {most, short + 1}, 2 * most: {most, most}, 2*most + 7: {most, most - short, short + 7},
	} {
		var got []int
		for x := (&Put{H: frame.Header{Kind: frame.Put, Length: uint64(total)}, Device: true}); !x.Whole(); {
			_, n := x.Chunk(100)
			x.Off += n
			got = append(got, n)
		}
		require.Equal(t, want, got, "%d bytes", total)
	}
}
