package team

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// openArea is the memory of a rank's area in which an operation waits, behind so many bytes.
func openArea(before int) []byte {
	words := make([]uint64, (before+peerBytes+int(unsafe.Sizeof(flight.Ring{})))/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	p := Peer{}
	p.lay(unsafe.Pointer(&b[before]))
	a := p.Area
	a.magic, a.comm, a.rank, a.size, a.pid = areaMagic, 77, 2, 5, 4711
	a.State.Store(StateOpen)
	a.dumps.Store(1)
	a.waits.Store(uint64(newWaitWord(KindAllReduce, false, 3, 1)))
	var f flight.Recorder
	f.Init(p.ring())
	w := Work{Kind: KindAllReduce}
	f.Begin(flight.Entered, w.Signature(), 1, 20, "ring", false)
	return b
}

// whole is next for a file that has data from begin to end.
func whole(begin, end int) func(int64) (int64, int64, error) {
	return func(at int64) (int64, int64, error) {
		if at >= int64(end) {
			return 0, 0, io.EOF
		}
		return max(at, int64(begin)), int64(end), nil
	}
}

func TestFind(t *testing.T) {
	b := openArea(3 * 4096)
	all, err := Find(bytes.NewReader(b), whole(4096, len(b)), 8)
	require.NoError(t, err)
	require.Len(t, all, 1)
	f := all[0]
	require.Equal(t, Found{Comm: 77, Rank: 2, Size: 5, PID: 4711, Dumps: true, Side: f.Side}, f)
	require.Equal(t, &flight.Wait{Op: "all_reduce", Seq: 1, Peer: 3}, f.Waits)
	require.Len(t, f.Operations, 1)
	require.Equal(t, "all_reduce", f.Operations[0].Name())
	require.WithinDuration(t, time.Now(), f.Operations[0].Began, testkit.Limit)

	a := (*Area)(unsafe.Pointer(&b[3*4096]))
	a.lostText.Set("a rank died")
	a.Lost.Store(lostPeer<<32 | 1)
	all, err = Find(bytes.NewReader(b), whole(0, len(b)), 8)
	require.NoError(t, err)
	require.True(t, all[0].Broken)
	require.Equal(t, "a rank died", all[0].Why)

	for name, change := range map[string]func(){
		"closed": func() { a.State.Store(StateClosed) }, "no state": func() { a.State.Store(0) },
		"no such rank": func() { a.rank = a.size }, "too large": func() { a.size = MaxRanks + 1 }, "no area": func() { a.magic++ },
	} {
		b = openArea(3 * 4096)
		a = (*Area)(unsafe.Pointer(&b[3*4096]))
		change()
		all, err = Find(bytes.NewReader(b), whole(0, len(b)), 8)
		require.NoError(t, err, name)
		require.Empty(t, all, name)
	}
	// The file ends before the area does.
	b = openArea(0)
	for _, n := range []int{0, 1, 7, 8, areaBytes - 1, areaBytes, peerBytes, len(b) - 1} {
		all, err = Find(bytes.NewReader(b[:n]), whole(0, len(b)), 8)
		require.NoError(t, err, n)
		require.Empty(t, all, n)
	}
}

// Whatever another process has in its memory, there is a text for it.
func FuzzFind(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.LittleEndian.AppendUint64([]byte{8, 0, 0, 0}, math.MaxUint64))
	clean := openArea(0)
	f.Fuzz(func(t *testing.T, changes []byte) { findChanged(t, slices.Clone(clean), changes) })
}

func TestFindNonsense(t *testing.T) {
	clean := openArea(0)
	b := make([]byte, len(clean))
	for _, seed := range testkit.Seeds(t) {
		r := rand.New(rand.NewPCG(seed, 0))
		for range testkit.Often(5000) {
			copy(b, clean)
			var changes []byte
			for range r.IntN(40) {
				at := r.IntN(areaBytes)
				if r.IntN(2) == 0 {
					at = peerBytes + r.IntN(4096)
				}
				v := r.Uint64() >> r.IntN(64)
				if r.IntN(4) == 0 {
					v = -v
				}
				changes = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(changes, uint32(at/8)), v)
			}
			findChanged(t, b, changes)
		}
		random := testkit.Bytes(r, 1<<20)
		for at := 0; at < len(random); at += 4096 {
			binary.LittleEndian.PutUint64(random[at:], areaMagic)
		}
		findChanged(t, random, nil)
	}
}

// findChanged changes words of b, each by its number and value, and has Find look at that.
func findChanged(t *testing.T, b, changes []byte) {
	t.Helper()
	for ; len(changes) >= 12; changes = changes[12:] {
		at := int(binary.LittleEndian.Uint32(changes)) % (len(b) / 8) * 8
		copy(b[at:at+8], changes[4:12])
	}
	all, err := Find(bytes.NewReader(b), whole(0, len(b)), 8)
	require.NoError(t, err)
	for _, f := range all {
		require.Less(t, f.Rank, f.Size)
		require.LessOrEqual(t, len(f.Operations), 8)
		require.True(t, utf8.ValidString(f.Doing()+f.Why))
		_, err := json.Marshal(f)
		require.NoError(t, err)
	}
}
