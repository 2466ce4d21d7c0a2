package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/fault"
)

func isReady(k *ticket) bool {
	select {
	case <-k.ready:
		return true
	default:
		return false
	}
}

func TestTurnScript(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		var u turn
		for range 3 {
			k, ok := u.enter()
			require.True(t, ok)
			require.Nil(t, k)
			require.False(t, u.tryBlock())
			u.leave()
		}
		require.True(t, u.tryBlock())
		u.leave()
		require.Zero(t, u.state.Load())
	})
	t.Run("a second blocking call is refused", func(t *testing.T) {
		var u turn
		u.enter()
		_, ok := u.enter()
		require.False(t, ok)
		u.leave()
		_, ok = u.enter()
		require.True(t, ok)
	})
	t.Run("a blocking call waits for what is queued, and only one does", func(t *testing.T) {
		var u turn
		a, b := u.take(), u.take()
		require.True(t, isReady(a))
		require.False(t, isReady(b))
		block, ok := u.enter()
		require.True(t, ok)
		require.False(t, isReady(block))
		_, ok = u.enter()
		require.False(t, ok, "one blocking call waits already")
		require.False(t, u.tryBlock())
		c := u.take() // queued behind the blocking call
		u.leave()
		require.True(t, isReady(b))
		require.False(t, isReady(block))
		u.leave()
		require.True(t, isReady(block))
		_, ok = u.enter()
		require.False(t, ok, "one blocking call runs")
		require.False(t, isReady(c))
		u.leave()
		require.True(t, isReady(c))
		u.leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("calls wait for Close to decide", func(t *testing.T) {
		var u turn
		k, ok := u.close()
		require.True(t, ok)
		require.Nil(t, k)
		again, ok := u.close()
		require.True(t, ok)
		block, ok := u.enter()
		require.True(t, ok)
		_, ok = u.close()
		require.False(t, ok, "a blocking call waits")
		_, ok = u.enter()
		require.False(t, ok, "one blocking call waits already")
		queued := u.take()
		u.leave()
		require.True(t, isReady(again))
		require.False(t, isReady(block))
		u.leave()
		require.True(t, isReady(block))
		_, ok = u.close()
		require.False(t, ok, "a blocking call runs")
		u.leave()
		require.True(t, isReady(queued))
		_, ok = u.close()
		require.False(t, ok, "a stream's operation runs")
		u.leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("a stream waits for a blocking call", func(t *testing.T) {
		var u turn
		u.enter()
		a := u.take()
		require.False(t, isReady(a))
		_, ok := u.enter()
		require.False(t, ok)
		u.leave()
		require.True(t, isReady(a))
		u.leave()
		require.Zero(t, u.state.Load())
	})
}

// Many goroutines: one runs at a time, and all that is admitted runs.
func TestTurnStress(t *testing.T) {
	var u turn
	var running, ran, busy atomic.Int32
	plain := 0 // under no lock but the turn: the race detector watches it
	op := func() {
		if n := running.Add(1); n != 1 {
			t.Errorf("%d operations run at once", n)
		}
		plain++
		runtime.Gosched()
		running.Add(-1)
		u.leave()
	}
	var wg sync.WaitGroup
	const each = 500
	for range 3 {
		wg.Go(func() {
			for range each {
				k, ok := u.enter()
				if !ok {
					busy.Add(1)
					runtime.Gosched()
					continue
				}
				if k != nil {
					<-k.ready
				}
				ran.Add(1)
				op()
			}
		})
		wg.Go(func() {
			for range each {
				k := u.take()
				<-k.ready
				ran.Add(1)
				op()
			}
		})
	}
	wg.Wait()
	require.Equal(t, int32(6*each), ran.Load()+busy.Load())
	require.Equal(t, int(ran.Load()), plain)
	require.GreaterOrEqual(t, ran.Load(), int32(3*each), "streams are never refused")
	require.Zero(t, u.state.Load())
	require.Empty(t, u.queue)
}

// What is taken in order runs in order, while blocking calls come and go.
func TestTurnOrder(t *testing.T) {
	var u turn
	const n = 300
	var order []int
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if k, ok := u.enter(); ok {
				if k != nil {
					<-k.ready
				}
				u.leave()
			}
			runtime.Gosched()
		}
	})
	var ops sync.WaitGroup
	for i := range n {
		k := u.take()
		ops.Go(func() {
			<-k.ready
			order = append(order, i)
			u.leave()
		})
	}
	ops.Wait()
	close(stop)
	wg.Wait()
	for i := range n {
		require.Equal(t, i, order[i])
	}
}

// unpack takes a signature apart by its layout, which other ranks rely on.
func unpack(sig uint64) (k Kind, d dtype.Type, r Reduction, root, count int) {
	return Kind(sig >> 59), dtype.Type(sig << 5 >> 60), Reduction(sig << 9 >> 61), int(sig << 12 >> 52), int(sig << 24 >> 24)
}

func TestSignature(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Kind(rapid.IntRange(0, 31).Draw(t, "kind"))
		d := dtype.Type(rapid.IntRange(0, 15).Draw(t, "type"))
		r := Reduction(rapid.IntRange(0, 7).Draw(t, "reduction"))
		root := rapid.IntRange(0, 1<<12-1).Draw(t, "root")
		count := rapid.OneOf(rapid.IntRange(0, MaxCount), rapid.Just(MaxCount), rapid.IntRange(0, 3)).Draw(t, "count")
		sig := signature(k, d, r, root, count)
		k2, d2, r2, root2, count2 := unpack(sig)
		require.Equal(t, []int{int(k), int(d), int(r), root, count}, []int{int(k2), int(d2), int(r2), root2, count2})
		require.Equal(t, fmt.Sprintf("%v(count %d, %v, %v, root %d)", k, count, d, r, root), Describe(sig))
	})
	require.Equal(t, uint64(math.MaxUint64), signature(31, 15, 7, 1<<12-1, MaxCount))
	require.LessOrEqual(t, int(numKinds), 32, "a kind has 5 bits")
	require.LessOrEqual(t, int(numReductions), 8, "a reduction has 3")
}

func TestNames(t *testing.T) {
	for k := range numKinds {
		require.NotEmpty(t, k.String(), "kind %d", uint8(k))
	}
	for r := range numReductions {
		require.NotEmpty(t, r.String(), "reduction %d", uint8(r))
	}
	require.Equal(t, "operation(200)", Kind(200).String())
	require.Equal(t, "reduction(200)", Reduction(200).String())
	require.Equal(t, "all_reduce", KindAllReduce.String())
	require.False(t, NoReduction.Valid())
	require.True(t, Sum.Valid())
	require.False(t, numReductions.Valid())
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name string
		op   OpInfo
		want string
	}{
		{"nothing yet", OpInfo{}, "no operation yet"},
		{"both direct", OpInfo{Op: "all_reduce", Seq: 7, Algorithm: "ring", Bytes: 4096,
			Src: BufferInfo{Used: true, Direct: true}, Dst: BufferInfo{Used: true, Direct: true}},
			"all_reduce #7: ring, 4096 bytes; source: direct; destination: direct"},
		{"staged", OpInfo{Op: "all_reduce", Seq: 1, Algorithm: "ring", Bytes: 8,
			Src: BufferInfo{Used: true, Why: "Go memory"}, Dst: BufferInfo{Used: true, Direct: true}},
			"all_reduce #1: ring, 8 bytes; source: staged: Go memory; destination: direct"},
		{"one buffer", OpInfo{Op: "broadcast", Seq: 2, Algorithm: "flat", Bytes: 8, Dst: BufferInfo{Used: true, Direct: true}},
			"broadcast #2: flat, 8 bytes; destination: direct"},
		{"no buffer", OpInfo{Op: "barrier", Seq: 3, Algorithm: "barrier"}, "barrier #3: barrier, 0 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.op.Explain()) })
	}
}

// The layout is what keeps each line with one writer, and what ranks of two builds share.
func TestLayout(t *testing.T) {
	const line, pair = 64, 128
	var a area
	require.Equal(t, uintptr(pair), unsafe.Sizeof(descriptor{}))
	require.Equal(t, uintptr(line), unsafe.Offsetof(a.desc[0].refusal), "the first line ends with the payload")
	require.Zero(t, unsafe.Offsetof(a.desc)%pair)
	require.Zero(t, unsafe.Offsetof(a.progress)%pair)
	require.Zero(t, unsafe.Offsetof(a.state)%pair)
	require.GreaterOrEqual(t, unsafe.Offsetof(a.state)-unsafe.Offsetof(a.progress), uintptr(pair))
	require.GreaterOrEqual(t, unsafe.Offsetof(a.refusals)-unsafe.Offsetof(a.state), uintptr(pair))
	require.LessOrEqual(t, unsafe.Sizeof(a), uintptr(areaBytes))
	require.Zero(t, areaBytes%4096)
	require.Zero(t, EagerBytes%4096)
	var p peer
	shared := make([]byte, sharedBytes)
	p.lay(unsafe.Pointer(&shared[0]))
	require.Equal(t, uintptr(sharedBytes), uintptr(p.staging)-uintptr(unsafe.Pointer(p.area))+StagingBytes)
	require.Equal(t, uintptr(2*EagerBytes), uintptr(p.staging)-uintptr(p.eager))
}

func TestAreaCheck(t *testing.T) {
	good := area{magic: areaMagic, comm: 5, rank: 1, size: 4}
	require.NoError(t, good.check(5, 1, 4))
	for name, change := range map[string]func(*area){
		"magic": func(a *area) { a.magic++ }, "communicator": func(a *area) { a.comm++ },
		"rank": func(a *area) { a.rank++ }, "size": func(a *area) { a.size++ },
	} {
		var bad area
		bad.magic, bad.comm, bad.rank, bad.size = good.magic, good.comm, good.rank, good.size
		change(&bad)
		require.ErrorIs(t, bad.check(5, 1, 4), fault.ErrStale, name)
	}
	require.ErrorIs(t, new(area).check(0, 0, 0), fault.ErrStale, "an empty page")
}

func TestRefusalText(t *testing.T) {
	var r refusalText
	for _, s := range []string{"", "short", strings.Repeat("x", textBytes), strings.Repeat("y", 10*textBytes)} {
		r.set(s)
		require.Equal(t, s[:min(len(s), textBytes)], r.get())
	}
	for _, n := range []uint64{textBytes + 1, 1 << 40, math.MaxUint64} {
		r.n = n
		require.Len(t, r.get(), textBytes, "a length of %d", n)
	}
}

func TestReached(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		target, near := random.Uint64(), random.Uint64()>>2
		require.True(t, reached(target, target))
		require.True(t, reached(target+near, target))
		require.False(t, reached(target-1-near, target))
	}
}
