package team

import (
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// unpack decodes a signature by its layout, which other ranks rely on.
func unpack(sig uint64) (k OpKind, d dtype.Type, r Reduction, root, count int) {
	return OpKind(sig >> 59), dtype.Type(sig << 5 >> 60), Reduction(sig << 9 >> 61), int(sig << 12 >> 52), int(sig << 24 >> 24)
}

func TestSignature(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := OpKind(rapid.IntRange(0, 30).Draw(t, "kind")) // 31 is a group
		d := dtype.Type(rapid.IntRange(0, 15).Draw(t, "type"))
		r := Reduction(rapid.IntRange(0, 7).Draw(t, "reduction"))
		root := rapid.IntRange(0, 1<<12-1).Draw(t, "root")
		count := rapid.OneOf(rapid.IntRange(0, MaxCount), rapid.Just(MaxCount), rapid.IntRange(0, 3)).Draw(t, "count")
		sig := Signature(k, d, r, root, count)
		k2, d2, r2, root2, count2 := unpack(sig)
		require.Equal(t, []int{int(k), int(d), int(r), root, count}, []int{int(k2), int(d2), int(r2), root2, count2})
	})
	for want, sig := range map[string]uint64{
		"all_reduce(count 5, float32, sum)":         Signature(KindAllReduce, dtype.Float32, Sum, 0, 5),
		"reduce(count 5, int8, max, root 0)":        Signature(KindReduce, dtype.Int8, Max, 0, 5),
		"broadcast(count 0, float32, root 3)":       Signature(KindBroadcast, dtype.Float32, 0, 3, 0),
		"all_to_all(count 5, float32)":              Signature(KindAllToAll, dtype.Float32, 0, 0, 5),
		"all_reduce(count 5, float32, sum, root 3)": Signature(KindAllReduce, dtype.Float32, Sum, 3, 5),
		"barrier": Signature(KindBarrier, 0, 0, 0, 0),
		"split":   Signature(KindSplit, dtype.Uint8, 0, 0, 8),
	} {
		require.Equal(t, want, Describe(sig))
	}
	require.Equal(t, uint64(math.MaxUint64), Signature(31, 15, 7, 1<<12-1, MaxCount)|OnDevice)
	require.Equal(t, "all_reduce(count 5, float32, sum, device memory)", Describe(Signature(KindAllReduce, dtype.Float32, Sum, 0, 5)|OnDevice))
	require.LessOrEqual(t, int(numKinds), 31, "a kind has 5 bits, and the last one is a group")
	require.LessOrEqual(t, int(numReductions), 8, "a reduction has 3")
}

func TestNames(t *testing.T) {
	for k := range numKinds {
		require.NotEmpty(t, k.String(), "kind %d", uint8(k))
	}
	for r := range numReductions {
		require.NotEmpty(t, r.String(), "reduction %d", uint8(r))
	}
	require.Equal(t, "operation(200)", OpKind(200).String())
	require.Equal(t, "reduction(200)", Reduction(200).String())
	require.Equal(t, "all_reduce", KindAllReduce.String())
	require.False(t, noReduction.Valid())
	require.True(t, Sum.Valid())
	require.False(t, numReductions.Valid())
}

// The layout keeps each line with one writer, and is the interface between ranks of two builds.
func TestLayout(t *testing.T) {
	const line, pair = 64, 128
	var a Area
	require.Equal(t, uintptr(pair), unsafe.Sizeof(Descriptor{}))
	require.Equal(t, uintptr(line), unsafe.Offsetof(a.Desc[0].Refusal), "the first line ends with the payload")
	require.Zero(t, unsafe.Offsetof(a.Desc)%pair)
	require.Zero(t, unsafe.Offsetof(a.progress)%pair)
	require.Zero(t, unsafe.Offsetof(a.State)%pair)
	require.GreaterOrEqual(t, unsafe.Offsetof(a.State)-unsafe.Offsetof(a.progress), uintptr(pair))
	require.GreaterOrEqual(t, unsafe.Offsetof(a.Refusals)-unsafe.Offsetof(a.State), uintptr(pair))
	require.LessOrEqual(t, unsafe.Sizeof(a), uintptr(areaBytes))
	require.Zero(t, areaBytes%4096)
	require.Zero(t, EagerBytes%4096)
	var p Peer
	shared := make([]byte, SharedBytes)
	p.lay(unsafe.Pointer(&shared[0]))
	require.Equal(t, uintptr(SharedBytes), uintptr(unsafe.Pointer(p.ring()))-uintptr(unsafe.Pointer(p.Area))+uintptr(ringBytes))
	require.Equal(t, uintptr(StagingBytes), uintptr(unsafe.Pointer(p.ring()))-uintptr(p.staging))
	require.Equal(t, uintptr(2*EagerBytes), uintptr(p.staging)-uintptr(p.eager))
}

func TestAreaCheck(t *testing.T) {
	good := Area{magic: areaMagic, comm: 5, rank: 1, size: 4}
	require.NoError(t, good.check(5, 1, 4))
	for name, change := range map[string]func(*Area){
		"magic": func(a *Area) { a.magic++ }, "communicator": func(a *Area) { a.comm++ },
		"rank": func(a *Area) { a.rank++ }, "size": func(a *Area) { a.size++ },
	} {
		var bad Area
		bad.magic, bad.comm, bad.rank, bad.size = good.magic, good.comm, good.rank, good.size
		change(&bad)
		require.ErrorIs(t, bad.check(5, 1, 4), fault.ErrStale, name)
	}
	require.ErrorIs(t, new(Area).check(0, 0, 0), fault.ErrStale, "an empty page")
}

func TestRefusalText(t *testing.T) {
	var r RefusalText
	for _, s := range []string{"", "short", strings.Repeat("x", TextBytes), strings.Repeat("y", 10*TextBytes)} {
		r.Set(s)
		require.Equal(t, s[:min(len(s), TextBytes)], r.Get())
	}
	for _, n := range []uint64{TextBytes + 1, 1 << 40, math.MaxUint64} {
		r.N = n
		require.Len(t, r.Get(), TextBytes, "a length of %d", n)
	}
}

func TestReached(t *testing.T) {
	random := testkit.Random(t)
	for range 1000 {
		target, near := random.Uint64(), random.Uint64()>>2
		require.True(t, Reached(target, target))
		require.True(t, Reached(target+near, target))
		require.False(t, Reached(target-1-near, target))
	}
}

// TestWorkLines checks that a call's wide stores to the running operation, and its clearing, cross no cache line. The
// team is the first field of a communicator, which the runtime puts 8 bytes after the start of a line.
func TestWorkLines(t *testing.T) {
	const header = 8
	require.EqualValues(t, 48, (unsafe.Offsetof(Team{}.Work)+header)%64)
}
