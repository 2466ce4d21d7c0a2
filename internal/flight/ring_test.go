package flight

import (
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// BenchmarkCall is what a call pays for its entry.
func BenchmarkCall(b *testing.B) {
	var r Recorder
	r.Init(new(Ring))
	name := "eager"
	for i := range b.N {
		r.Way(name)
		r.Begin(Entered, 1<<59, uint64(i), 8)
		r.Agreed()
		r.End()
	}
}

// do records n operations that end, from seq on.
func do(r *Recorder, seq, n uint64) {
	for i := range n {
		r.Begin(Entered, 7, seq+i, int(8*i))
		r.Agreed()
		r.End()
	}
}

func TestRecords(t *testing.T) {
	for _, first := range []uint64{0, 5, 1<<32 - 2000, 1<<32 - 3} {
		var r Recorder
		ring := new(Ring)
		r.Init(ring)
		r.pos = first
		r.Way("push")
		require.Empty(t, ring.Records())
		do(&r, 1, 3)
		require.Equal(t, []uint64{1, 2, 3}, seqs(ring))
		do(&r, 4, 2000)
		all := ring.Records()
		require.Len(t, all, Entries, "the ring is full")
		for i, k := range all {
			require.EqualValues(t, 2003-Entries+1+i, k.Seq)
			require.Equal(t, uint32(first)+uint32(k.Seq), k.Pos)
			require.Equal(t, []any{Done, "push", uint64(7), 8 * (k.Seq - 4), uint8(0)}, []any{k.State, k.Way, k.Call, k.Bytes, k.Code})
		}
	}
}

func seqs(r *Ring) (all []uint64) {
	for _, k := range r.Records() {
		all = append(all, k.Seq)
	}
	return all
}

// TestStates: what is told of an operation that is under way is in the ring at once.
func TestStates(t *testing.T) {
	var r Recorder
	ring := new(Ring)
	r.Init(ring)
	last := func() Record { all := ring.Records(); return all[len(all)-1] }
	for name, k := range map[string]struct {
		tell func()
		want Record
	}{
		"waits":     {func() {}, Record{State: Entered}},
		"agreed":    {r.Agreed, Record{State: Agreed}},
		"agreed at": {func() { r.AgreedAt(1000 + 10*unit) }, Record{State: Agreed, Agreed: 11 * unit}},
		"done":      {r.End, Record{State: Done}},
		"done at":   {func() { r.AgreedAt(1000); r.EndAt(1000 + 3*unit) }, Record{State: Done, Agreed: unit, Took: 4 * unit}},
		"long":      {func() { r.EndAt(math.MaxUint64) }, Record{State: Done, Took: (1<<32 - 1) * unit}},
		"renamed":   {func() { r.Way("ring"); r.Rename(); r.End() }, Record{State: Done, Way: "ring"}},
		"dropped":   {r.Drop, Record{Seq: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			*ring = Ring{}
			r = Recorder{}
			r.Init(ring)
			r.skip = 10
			r.Begin(Entered, 0, 1, 0)
			r.End()
			r.Begin(Entered, 5, 2, 6)
			r.Began(1000)
			k.tell()
			got := last()
			if k.want.Seq == 1 {
				require.EqualValues(t, 1, got.Seq)
				r.Begin(Entered, 5, 2, 6)
				require.EqualValues(t, 2, last().Pos, "as if the other had never been")
				return
			}
			k.want.Pos, k.want.Seq, k.want.Call, k.want.Bytes, k.want.Began = 2, 2, 5, 6, 1000
			require.Equal(t, k.want, got)
		})
	}
	r.Begin(Entered, 5, 3, 6)
	r.Fail(9)
	require.Equal(t, Failed, last().State)
	require.EqualValues(t, 9, last().Code)
	for _, tell := range []func(){r.Agreed, r.End, r.Drop, func() { r.Fail(1) }, func() { r.Began(5) }, func() { r.AgreedAt(1) }, func() { r.EndAt(1) }, r.Rename} {
		before := last()
		tell() // nothing is under way
		require.Equal(t, before, last())
	}
}

// TestClock: rare calls have their times, and of hot ones one in many.
func TestClock(t *testing.T) {
	var r Recorder
	ring := new(Ring)
	r.Init(ring)
	for range 3 {
		time.Sleep(time.Millisecond)
		do(&r, 1, 1)
	}
	for _, k := range ring.Records() {
		require.NotZero(t, k.Began, "calls a millisecond apart")
		require.Less(t, Now()-k.Began, uint64(time.Minute))
	}
	require.InDelta(t, float64(Now()), float64(AtTime(time.Now())), float64(time.Second))
	*ring = Ring{}
	r.read, r.skip, r.rare = Now(), 0, math.MaxInt32 // as after many calls that came fast
	do(&r, 1, hot)
	known := 0
	for _, k := range ring.Records() {
		if k.Began != 0 {
			known++
		}
	}
	require.Equal(t, 1, known)
}

func TestWays(t *testing.T) {
	var r Recorder
	ring := new(Ring)
	r.Init(ring)
	long := strings.Repeat("x", 2*nameSize)
	var want []string
	for i := range maxWays + 3 {
		name := strings.Repeat("w", i+1)
		if want = append(want, name); i >= maxWays {
			want[i] = ""
		}
		r.Way(name)
		do(&r, uint64(i), 1)
	}
	for i, k := range ring.Records() {
		require.Equal(t, want[i], k.Way)
	}
	ring = new(Ring)
	r = Recorder{}
	r.Init(ring)
	r.Way(long)
	do(&r, 1, 1)
	require.Equal(t, long[:nameSize], ring.Records()[0].Way)
}

// TestReadWhileWritten reads a ring that its rank writes: each record is one that was there.
func TestReadWhileWritten(t *testing.T) {
	var r Recorder
	ring := new(Ring)
	r.Init(ring)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i := range uint64(testkit.Often(20000)) {
			do(&r, i+1, 1)
		}
	}()
	for {
		last := uint32(0)
		for _, k := range ring.Records() {
			require.Greater(t, k.Pos, last)
			last = k.Pos
		}
		select {
		case <-over:
			return
		default:
		}
	}
}

func TestNoAllocation(t *testing.T) {
	var r Recorder
	r.Init(new(Ring))
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.Way("push"); do(&r, 1, 1) }))
}

// FuzzRecords: a ring of another process may have anything.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{}, 0)
	f.Add([]byte{1, 0, 0, 0, 3, 255}, 512)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		ring := new(Ring)
		raw := unsafe.Slice((*byte)(unsafe.Pointer(ring)), unsafe.Sizeof(*ring))
		copy(raw[min(max(at, 0), len(raw)):], b)
		require.LessOrEqual(t, len(ring.Records()), Entries)
		ring.Latest()
	})
}
