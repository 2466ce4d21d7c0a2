package mail

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// fakeEnd is an endpoint whose peer is the test: what a correct peer never sends can come from nowhere else.
type fakeEnd struct {
	transport.Endpoint
	words  [placesFar]atomic.Uint64
	landed [placesFar]int
	places [placesFar][]byte // what was posted or granted
	puts   []int             // the places of puts
}

func (e *fakeEnd) Post(place int, _ uint64, p unsafe.Pointer, n int) {
	e.places[place] = unsafe.Slice((*byte)(p), n)
}
func (e *fakeEnd) Grant(place int, seq uint64, p unsafe.Pointer, n int) { e.Post(place, seq, p, n) }
func (e *fakeEnd) Put(place int, _ uint64, _ unsafe.Pointer, _ int)     { e.puts = append(e.puts, place) }
func (e *fakeEnd) Revoke(int, uint64)                                   {}
func (e *fakeEnd) Revoking() int                                        { return 0 }
func (e *fakeEnd) Word(place int) *atomic.Uint64                        { return &e.words[place] }
func (e *fakeEnd) Landed(place int) int                                 { return e.landed[place] }
func (e *fakeEnd) Connections() int                                     { return 1 }
func (e *fakeEnd) Poll()                                                {}

// land lets b land at a place.
func (e *fakeEnd) land(place int, seq uint64, b []byte) {
	e.landed[place] = copy(e.places[place], b)
	e.words[place].Store(seq)
}

// fakeFar is the messages of rank 0 with rank 1 of another host, which is the test.
func fakeFar() (m *Mail, b *Box, e *fakeEnd) {
	e = &fakeEnd{}
	m = &Mail{c: &engine.Comm{}, between: &between{eager: EagerFar}}
	b = &Box{Peer: 1, local: -1}
	x := &hosts.Pair{Endpoint: e, Rank: 1}
	b.far.Store(newFar(x).(*far))
	return m, b, e
}

// batchOf is a batch of messages of bytes, from number first on; n < 0 is an announcement of -n.
func batchOf(first uint64, sizes ...int) []byte {
	b := make([]byte, batchHead)
	binary.LittleEndian.PutUint64(b[16:], first)
	for _, n := range sizes {
		if n < 0 {
			b = binary.LittleEndian.AppendUint64(b, head(formLarge, dtype.Uint8, -n))
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, head(formEager, dtype.Uint8, n))
		b = append(b, make([]byte, padded(n)-recordHead)...)
	}
	return b
}

// TestBatches: messages are taken by their numbers, in whatever order batches and data land.
func TestBatches(t *testing.T) {
	m, b, e := fakeFar()
	f := b.far.Load()
	place := func(class, number int) int { return f.ways[class].placeOf(uint64(number)) }
	next := func(want int) {
		t.Helper()
		r, there, err := m.arrivedFar(b)
		require.NoError(t, err)
		if want < 0 {
			require.False(t, there)
			return
		}
		require.True(t, there)
		require.Len(t, r.data, want)
		n, err := m.copyFar(b, f, &r, &team.Vec{Ptr: unsafe.Pointer(&make([]byte, max(want, 1))[0]), Len: want, Type: dtype.Uint8}, true)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	next(-1)
	e.land(place(medium, 1), 1, batchOf(3, 9000))
	e.land(place(small, 2), 2, batchOf(4, 5, -50_000))
	next(-1)
	e.land(place(small, 1), 1, batchOf(1, 0, 7))
	for _, n := range []int{0, 7, 9000, 5} {
		next(n)
	}
	r, there, err := m.arrivedFar(b)
	require.NoError(t, err)
	require.True(t, there)
	require.Equal(t, header{formLarge, dtype.Uint8, 50_000, 50_000}, r.header)
	require.Nil(t, r.data)
	b.Recv.Seq++ // its data was there before
	next(-1)
	e.land(place(small, 3), 3, batchOf(6, 1))
	next(1)
	require.Empty(t, e.puts, "the sender need not be told yet")
	e.land(place(small, 4), 4, batchOf(7, 1))
	next(1)
	require.Equal(t, []int{takenPlace + small}, e.puts)
	require.Equal(t, uint64(4), f.ways[small].taken.Load())
}

// TestDamagedBatches: what a correct peer never sends is an error about that peer.
func TestDamagedBatches(t *testing.T) {
	number := func(b []byte, at int, v uint64) []byte {
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	for name, bad := range map[string][]byte{
		"empty":             {},
		"no message":        batchOf(1),
		"an old message":    batchOf(0, 5),
		"an unknown form":   number(batchOf(1, 5), batchHead, head(9, dtype.Uint8, 5)),
		"an unknown type":   number(batchOf(1, 5), batchHead, head(formEager, 200, 5)),
		"longer than it is": number(batchOf(1, 5), batchHead, head(formEager, dtype.Uint8, 4000)),
		"longer than any":   number(batchOf(1, 5), batchHead, head(formEager, dtype.Float64, MediumFar)),
		"an endless one":    number(batchOf(1, 5), batchHead, head(formLarge, dtype.Float64, maxBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			m, b, e := fakeFar()
			e.land(b.far.Load().ways[small].placeOf(1), 1, bad)
			_, there, err := m.arrivedFar(b)
			require.False(t, there)
			require.ErrorIs(t, err, fault.ErrPeerLost)
			var of *fault.Error
			require.True(t, errors.As(err, &of))
			require.Equal(t, 1, of.Peer)
		})
	}
	m, b, e := fakeFar()
	e.words[takenPlace].Store(7) // of none
	_, err := m.roomFar(b, b.far.Load(), &b.far.Load().ways[small])
	require.ErrorContains(t, err, "count of batches taken 0x7")
}

// FuzzBatch takes the messages of a batch with any contents: each is within the batch, or there is an error.
func FuzzBatch(f *testing.F) {
	f.Add(batchOf(1, 5, 0, -9000, 800), false)
	f.Add(batchOf(1, 30_000), true)
	f.Add([]byte{1, 2, 3}, false)
	f.Fuzz(func(t *testing.T, in []byte, large bool) {
		m, b, e := fakeFar()
		x := b.far.Load()
		w := &x.ways[small]
		if large {
			w = &x.ways[medium]
		}
		e.land(w.placeOf(1), 1, in)
		for at := 0; w.taken.Load() == 0; at++ {
			r, there, err := m.arrivedFar(b)
			if err != nil {
				require.ErrorIs(t, err, fault.ErrPeerLost)
				return
			}
			if !there {
				return
			}
			require.Less(t, at, w.bytes/recordHead)
			require.LessOrEqual(t, len(r.data), MediumFar)
			for _, c := range r.data {
				_ = c
			}
			b.Recv.Seq++
			m.takeFar(x, &r)
		}
	})
}

// Parts cover a message, and there are as many as places at most.
func TestParts(t *testing.T) {
	for _, connections := range []int{1, 2, 8} {
		for _, n := range []int{0, 1, MediumFar + 1, partBytes, partBytes + 1, SendSlots*partBytes - 1, SendSlots*partBytes + 1, 1 << 30} {
			size, number := parts(n, connections)
			require.LessOrEqual(t, number, SendSlots)
			require.GreaterOrEqual(t, size*number, n)
			require.Less(t, size*(number-1), max(n, 1))
			if n <= sidePartBytes {
				require.Equal(t, 1, number)
			}
		}
	}
	for places := 1; places <= SendSlots; places++ {
		require.Equal(t, places, keyPlaces(key(1<<47, places, true, dtype.Float64)))
	}
}
