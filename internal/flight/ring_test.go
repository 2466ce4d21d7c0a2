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
		if !r.Again(1<<59, name) {
			r.Begin(Entered, 1<<59, uint64(i), 8, name, true)
		}
		r.Finish()
	}
}

// BenchmarkOthers is the same for calls that differ from those before.
func BenchmarkOthers(b *testing.B) {
	var r Recorder
	r.Init(new(Ring))
	name := "eager"
	for i := range b.N {
		if !r.Again(1<<59|uint64(i&1), name) {
			r.Begin(Entered, 1<<59|uint64(i&1), uint64(i), 8, name, true)
		}
		r.Finish()
	}
}

// do records n operations that end, from seq on.
func do(r *Recorder, seq, n uint64) {
	for i := range n {
		r.Begin(Entered, 7, seq+i, int(8*i), ours, true)
		r.Finish()
	}
}

// again records n operations that are alike.
func again(r *Recorder, seq, n uint64) {
	for i := range n {
		if !r.Again(9, ours) {
			r.Begin(Entered, 9, seq+i, 16, ours, true)
		}
		r.Finish()
	}
}

const ours = "push"

func TestRecords(t *testing.T) {
	for _, first := range []uint64{0, 5, 1<<32 - 2000, 1<<32 - 3} {
		var r Recorder
		ring := new(Ring)
		r.Init(ring)
		r.what = first
		require.Empty(t, ring.Records())
		do(&r, 1, 3)
		require.Equal(t, []uint64{1, 2, 3}, seqs(ring))
		do(&r, 4, 2000)
		all := ring.Records()
		require.Len(t, all, Entries, "the ring is full")
		for i, k := range all {
			require.EqualValues(t, 2003-Entries+1+i, k.Seq)
			require.Equal(t, uint32(first)+uint32(k.Seq), k.Pos)
			require.Equal(t, []any{Done, ours, uint64(7), 8 * (k.Seq - 4), uint8(0)}, []any{k.State, k.Way, k.Call, k.Bytes, k.Code})
		}
	}
}

func seqs(r *Ring) (all []uint64) {
	for _, k := range r.Records() {
		all = append(all, k.Seq)
	}
	return all
}

// TestAgain: operations that are alike share an entry, and are read as if they did not.
func TestAgain(t *testing.T) {
	var r Recorder
	ring := new(Ring)
	r.Init(ring)
	want := []Record{}
	expect := func(k Record) {
		k.Pos, k.Way = uint32(len(want)+1), ours
		want = append(want, k)
	}
	equal := func() {
		t.Helper()
		got := ring.Records()
		for i := range got {
			got[i].Began = min(got[i].Began, 1) // that it is known
			if got[i].Began == 1 && want[max(0, len(want)-len(got))+i].Began == 0 {
				got[i].Began = 0 // the clock was read
			}
		}
		require.Equal(t, want[max(0, len(want)-Entries):], got)
	}
	for round := range uint64(40) {
		r.read, r.skip, r.rare = Now(), 1, 1000 // as after many calls that came fast
		from := uint64(len(want)) + 1
		again(&r, from, 30)
		for i := range uint64(30) {
			expect(Record{State: Done, Call: 9, Seq: from + i, Bytes: 16})
		}
		equal()
		require.True(t, r.Again(9, ours))
		expect(Record{State: Entered, Call: 9, Seq: from + 30, Bytes: 16})
		last := &want[len(want)-1]
		equal()
		switch round % 5 {
		case 0:
			r.Began(1)
			last.Began = 1
			equal()
			r.Agreed(1 + unit)
			last.State, last.Agreed = Agreed, 2*unit
			equal()
			r.End(1 + 3*unit)
			last.State, last.Took = Done, 4*unit
		case 1:
			r.Drop()
			want = want[:len(want)-1]
		case 2:
			r.Fail(3)
			last.State, last.Code = Failed, 3
			require.False(t, r.Again(9, ours), "after a failure")
		case 3:
			r.End(0)
			last.State = Done
			require.False(t, r.Again(8, ours), "another call")
			require.False(t, r.Again(9, "pull"), "another way")
		case 4:
			r.Finish()
			last.State = Done
			again(&r, last.Seq+1, 200)
			for i := range uint64(200) {
				expect(Record{State: Done, Call: 9, Seq: from + 31 + i, Bytes: 16})
			}
		}
		equal()
	}
	require.Less(t, r.n, len(want)/5)
	r.Begin(Entered, 9, 1, 16, ours, false)
	require.False(t, r.Again(9, ours), "what need not have the same bytes")
}

// TestStates: what is told of an operation that is under ours is in the ring at once.
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
		"agreed":    {func() { r.Agreed(0) }, Record{State: Agreed}},
		"agreed at": {func() { r.Agreed(1000 + 10*unit) }, Record{State: Agreed, Agreed: 11 * unit}},
		"done":      {func() { r.End(0) }, Record{State: Done}},
		"done at":   {func() { r.Agreed(1000); r.End(1000 + 3*unit) }, Record{State: Done, Agreed: unit, Took: 4 * unit}},
		"long":      {func() { r.End(math.MaxUint64) }, Record{State: Done, Took: (1<<32 - 1) * unit}},
		"renamed":   {func() { r.Rename("ring"); r.End(0) }, Record{State: Done, Way: "ring"}},
		"dropped":   {r.Drop, Record{Seq: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			*ring = Ring{}
			r = Recorder{}
			r.Init(ring)
			r.Begin(Entered, 3, 1, 0, "", true)
			r.End(0)
			r.Begin(Entered, 5, 2, 6, "", true)
			r.Began(1000)
			k.tell()
			got := last()
			if k.want.Seq == 1 {
				require.EqualValues(t, 1, got.Seq)
				r.Begin(Entered, 5, 2, 6, "", true)
				require.EqualValues(t, 2, last().Pos, "as if the other had never been")
				return
			}
			k.want.Pos, k.want.Seq, k.want.Call, k.want.Bytes, k.want.Began = 2, 2, 5, 6, 1000
			require.Equal(t, k.want, got)
		})
	}
	r.Begin(Entered, 5, 3, 6, "", true)
	r.Fail(9)
	require.Equal(t, Failed, last().State)
	require.EqualValues(t, 9, last().Code)
	for _, tell := range []func(){func() { r.Agreed(0) }, func() { r.End(0) }, r.Drop, func() { r.Fail(1) }, func() { r.Began(5) }, func() { r.Agreed(1) }, func() { r.End(1) }, func() { r.Rename("x") }} {
		before := last()
		tell() // nothing is under ours
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
	r.read, r.skip, r.rare = Now(), 1, math.MaxInt32 // as after many calls that came fast
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
		r.Begin(Entered, 1, uint64(i), 0, name, true)
	}
	for i, k := range ring.Records() {
		require.Equal(t, want[i], k.Way)
	}
	ring = new(Ring)
	r = Recorder{}
	r.Init(ring)
	r.Begin(Entered, 1, 1, 0, long, true)
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
			again(&r, i+2, i%7)
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
	require.Zero(t, testing.AllocsPerRun(1000, func() { do(&r, 1, 1); again(&r, 1, 3) }))
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
