package bootstrap

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestFrame(t *testing.T) {
	for _, f := range []frame{
		{kindGather, 7, []byte("part")},
		{kindResult, 1 << 31, packParts([][]byte{nil, []byte("x")})},
		resultFrame(3, [][]byte{make([]byte, packLeast), nil}),
		{kindBye, 0, nil},
		aborted(3, -1).encode(),
		lost(2, "gone").encode(),
		timedOutWaiting([]int{2, 3}, 1).encode(),
	} {
		got, err := readFrame(bytes.NewReader(f.append(nil)))
		require.NoError(t, err)
		require.Equal(t, f.kind, got.kind)
		require.Equal(t, f.seq, got.seq)
		require.True(t, bytes.Equal(f.body, got.body))
	}
}

func TestFrameRefused(t *testing.T) {
	header := func(kind byte, size uint32) []byte {
		b := frame{kind: kind}.append(nil)
		binary.BigEndian.PutUint32(b[8:], size)
		return b
	}
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"empty", nil, io.EOF},
		{"half a header", header(kindBye, 0)[:5], io.ErrUnexpectedEOF},
		{"no magic", append([]byte("XY"), header(kindBye, 0)[2:]...), fault.ErrMismatch},
		{"kind 0", header(0, 0), fault.ErrMismatch},
		{"kind too high", header(kindEnd, 0), fault.ErrMismatch},
		{"body missing", header(kindGather, 10), io.ErrUnexpectedEOF},
		{"claims 64 MiB, has none", header(kindGather, maxPart), io.ErrUnexpectedEOF},
		{"part too long", header(kindGather, maxPart+1), fault.ErrLimit},
		{"result too long", header(kindResult, maxResult+1), fault.ErrLimit},
		{"packed result too long", header(kindPacked, maxResult+1), fault.ErrLimit},
		{"text too long", header(kindLost, maxText+1), fault.ErrLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readFrame(bytes.NewReader(c.in))
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestCause(t *testing.T) {
	got, err := aborted(3, -6).encode().decode(4)
	require.NoError(t, err)
	require.Equal(t, aborted(3, -6), got)
	got, err = lost(1, "why").encode().decode(2)
	require.NoError(t, err)
	require.Equal(t, lost(1, "why"), got)

	_, err = lost(2, "why").encode().decode(2)
	require.ErrorIs(t, err, fault.ErrMismatch)
	_, err = frame{kind: kindLost, body: []byte("short")}.decode(2)
	require.ErrorIs(t, err, fault.ErrMismatch)
	require.LessOrEqual(t, len(about(0, 0, string(make([]byte, 2*maxText)))), maxText)
}

// A rank that has a result may break the job before the others have theirs: they still get the result first.
func TestResultComesBeforeWhatFollowsIt(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	w := wire{Conn: here}
	w.sendFirst(frame{kindResult, 5, []byte("parts")}.append(nil))
	sent := make(chan error, 1)
	go func() {
		w.sendNotice(aborted(1, 3).encode())
		sent <- w.flushFirst() // nothing is left to send first
	}()
	for _, want := range []byte{kindResult, kindAbort} {
		f, err := readFrame(there)
		require.NoError(t, err)
		require.Equal(t, want, f.kind)
	}
	require.NoError(t, <-sent)
}

// FuzzFrame checks that any input is either refused or encodes back to the same bytes.
func FuzzFrame(f *testing.F) {
	f.Add(frame{kindGather, 1, []byte("part")}.append(nil))
	f.Add(frame{kindResult, 1, packParts([][]byte{{1}, {2, 3}, nil})}.append(nil))
	f.Add(resultFrame(1, [][]byte{make([]byte, packLeast), {1}, nil}).append(nil))
	f.Add(aborted(1, 9).encode().append(nil))
	f.Add(lost(2, "gone").encode().append(nil))
	f.Add([]byte("UB\x01\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		again := got.append(nil)
		require.True(t, bytes.Equal(b[:len(again)], again))
		switch got.kind {
		case kindResult:
			if parts, err := unpackParts(got.body, 3); err == nil {
				require.Equal(t, got.body, packParts(parts))
			}
		case kindPacked:
			if parts, err := got.result(3); err == nil {
				samePacked(t, parts)
			}
		case kindAbort, kindLost:
			if c, err := got.decode(3); err == nil {
				require.Less(t, c.peer, 3)
				require.GreaterOrEqual(t, c.peer, 0)
			}
		}
	})
}

// When a rank's time for an AllGather is up, rank 0 blames those who have not come to that AllGather, if it still runs: those
// who have not come to the next one yet have nothing to do with it.
func TestLate(t *testing.T) {
	for _, k := range []struct {
		name  string
		seq   uint32 // of the AllGather that runs; rank 1's time was up for the one before it, number 4
		came  []int  // to the one that runs
		about int
		why   string
	}{
		{"some are missing", 4, []int{1, 2}, 0, "ranks 0, 3"},
		{"all are there", 4, []int{0, 1, 2, 3}, 1, "its time was up"},
		{"it is over", 5, nil, 1, "its time was up"},
		{"it is over, and the next one has begun", 5, []int{2, 3}, 1, "its time was up"},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := newRoot(4)
			r.seq = k.seq
			for _, rank := range k.came {
				require.NoError(t, r.place(rank, k.seq, []byte("part")))
			}
			require.NoError(t, r.take(1, frame{kind: kindTimeout, seq: 4}))
			require.Equal(t, k.about, r.failure.peer)
			require.ErrorIs(t, r.reason(), fault.ErrTimeout)
			require.ErrorContains(t, r.reason(), k.why)
		})
	}
}

// The last missing part comes while the others are being told that the job broke: its rank must not get a result that
// the others do not get.
func TestNoResultAfterFailure(t *testing.T) {
	r := newRoot(3)
	var ends [3]net.Conn
	for rank := 1; rank < r.size; rank++ {
		here, there := net.Pipe()
		r.wires[rank], ends[rank] = &wire{Conn: here}, there
		require.NoError(t, r.place(rank, 0, []byte("part")))
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { r.fail(aborted(1, 3)) }) // until rank 2 reads that
	testkit.Until(func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.failure != nil })
	all.Go(func() {
		_, err := r.AllGather(t.Context(), []byte("part"))
		assert.ErrorIs(t, err, fault.ErrAborted)
		r.hangUp()
	})
	time.Sleep(50 * time.Millisecond) // time for what must not happen
	for _, there := range ends[1:] {
		all.Go(func() {
			for {
				f, err := readFrame(there)
				if err != nil {
					return
				}
				assert.EqualValues(t, kindAbort, f.kind)
			}
		})
	}
}
