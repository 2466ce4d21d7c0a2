package kernels

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

const (
	room     = 96 << 20 // of each buffer
	poison   = 0xa5
	guard    = 64
	extentOf = 7 // of sources; destinations are in the next one, staging memory in the one after
)

// world is a number of ranks that share the devices in turn. One device is enough: the grids are small, and all run at
// once.
type world struct {
	t        *testing.T
	ranks    []*member
	emulated bool
	layout   Layout
	rand     *rand.Rand
}

type member struct {
	ctx                   *cuda.Context
	set                   *Set
	stream                *cuda.Stream
	area, table, src, dst cuda.Addr
	staging               cuda.Addr
	status                *Status
	statusAt              cuda.Addr
	input                 []byte
	srcOff, dstOff        int
	srcDirect, dstDirect  bool
	factor                float64
	own, multi            cuda.Addr // if multi is not 0: memory that is bound to an object, which is mapped there
}

// word returns a buffer's word: by its offset in an extent, or in a multicast object.
func (m *member) word(base cuda.Addr, extent uint32, offset int) uint64 {
	if m.multi != 0 {
		return Word(0, int(base-m.own)+offset)
	}
	return Word(extent, offset)
}

func newWorld(t *testing.T, n int) *world {
	if p := cuda.Have(); p.Err != nil {
		testkit.Missing(t, "cuda", p)
	}
	devices, err := cuda.Devices()
	require.NoError(t, err)
	seed := rand.Uint64()
	t.Logf("seed %d, on %d x %s", seed, len(devices), devices[0].Name)
	w := &world{t: t, emulated: strings.Contains(devices[0].Name, "Emulated"), layout: First(n), rand: rand.New(rand.NewPCG(seed, 0))}
	alloc := func(m *member, n int) cuda.Addr {
		a, err := m.ctx.Alloc(n)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.ctx.Free(a)) })
		return a
	}
	for r := range n {
		m := &member{}
		if r < len(devices) {
			m.ctx, err = cuda.Primary(hw.CUDA(r))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.ctx.Close()) })
			m.set = New(m.ctx)
			t.Cleanup(func() { require.NoError(t, m.set.Close()) })
		} else {
			first := w.ranks[r%len(devices)]
			m.ctx, m.set = first.ctx, first.set
		}
		m.stream, err = m.ctx.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.stream.Close()) })
		m.area, m.table = alloc(m, w.layout.Bytes()), alloc(m, n*MaxExtents*8)
		m.staging = alloc(m, StagingBytes)
		m.src, m.dst = alloc(m, room), alloc(m, room)
		if !w.emulated { // the emulated device's memory is zero, and should not be touched without need
			require.NoError(t, m.stream.Fill(m.area, 0, w.layout.Bytes()))
		}
		page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, syscall.Munmap(page)) })
		m.statusAt, err = m.ctx.HostRegister(unsafe.Pointer(&page[0]), len(page))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.ctx.HostUnregister(unsafe.Pointer(&page[0]))) })
		m.status = (*Status)(unsafe.Pointer(&page[0]))
		w.ranks = append(w.ranks, m)
	}
	for r, m := range w.ranks {
		if n > Narrow {
			areas, tables := make([]uint64, n), make([]uint64, n)
			for d := range n {
				q := (r + d) % n
				areas[d], tables[d] = uint64(w.ranks[q].area), uint64(m.table)+uint64(q*MaxExtents*8)
			}
			offset, b := w.layout.Peers(areas, tables)
			require.NoError(t, m.stream.Upload(m.area+cuda.Addr(offset), b))
		}
		table := make([]uint64, n*MaxExtents)
		for r, q := range w.ranks {
			table[r*MaxExtents+extentOf], table[r*MaxExtents+extentOf+1] = uint64(q.src), uint64(q.dst)
			table[r*MaxExtents+extentOf+2] = uint64(q.staging)
			if m.ctx.Device() != q.ctx.Device() {
				require.NoError(t, m.ctx.EnablePeer(q.ctx))
			}
		}
		b := unsafe.Slice((*byte)(unsafe.Pointer(&table[0])), 8*len(table))
		require.NoError(t, m.stream.Upload(m.table, b))
	}
	return w
}

// values returns elements that suit all reductions, and some hard ones. They repeat after a prime number of elements,
// because drawing takes time.
func (w *world) values(t dtype.Type, n int) []byte {
	const period = 65521
	b := make([]byte, n*t.Size())
	defer func() {
		for done := period * t.Size(); done < len(b); done *= 2 {
			copy(b[done:], b[:done])
		}
	}()
	for i := range min(n, period) {
		x, at := float64(w.rand.IntN(4001)-2000)/16, unsafe.Pointer(&b[i*t.Size()])
		if w.rand.IntN(50) == 0 {
			x = []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0, 1e-40}[w.rand.IntN(6)]
		}
		switch t {
		case dtype.Float16:
			*(*dtype.F16)(at) = dtype.ToF16(float32(x))
		case dtype.BFloat16:
			*(*dtype.BF16)(at) = dtype.ToBF16(float32(x))
		case dtype.Float32:
			*(*float32)(at) = float32(x)
		case dtype.Float64:
			*(*float64)(at) = x
		case dtype.Bool:
			if w.rand.IntN(2) == 0 {
				b[i] = byte(w.rand.Uint32())
			}
		default:
			for j := range t.Size() {
				b[i*t.Size()+j] = byte(w.rand.Uint32())
			}
		}
	}
	return b
}

// prepare fills rank r's buffers, which have random alignment and poison around them.
func (w *world) prepare(o operation, r int) {
	m, size := w.ranks[r], o.t.Size()
	src, dst, apart := o.lens(r, len(w.ranks))
	m.input = w.values(o.t, src)
	m.srcDirect, m.dstDirect = w.rand.IntN(3) > 0, w.rand.IntN(3) > 0
	m.srcOff, m.dstOff = guard, guard
	if w.rand.IntN(2) == 0 {
		m.srcOff += size * w.rand.IntN(16/size)
		m.dstOff += size * w.rand.IntN(16/size)
	}
	if o.alike {
		m.srcDirect, m.dstDirect, m.srcOff, m.dstOff = true, true, guard, guard
	}
	m.factor = float64(w.rand.IntN(64))/4 - 8
	require.NoError(w.t, m.stream.Fill(m.dst, poison, 2*guard+max(src, dst)*size+16))
	if o.inPlace && src > 0 && dst > 0 {
		m.srcOff = m.dstOff
		if apart > 0 {
			m.dstOff += apart * size
		} else {
			m.srcOff -= apart * size
		}
		m.srcDirect = m.dstDirect
		require.NoError(w.t, m.stream.Upload(m.dst+cuda.Addr(m.srcOff), m.input))
	} else if src > 0 {
		require.NoError(w.t, m.stream.Upload(m.src+cuda.Addr(m.srcOff), m.input))
	}
}

func (w *world) launch(o operation, r int) {
	m, n := w.ranks[r], len(w.ranks)
	f, err := m.set.Kernel(o.kernel, o.t, n)
	require.NoError(w.t, err)
	threads := min(o.threads, f.MaxThreads)
	src, dst, _ := o.lens(r, n)
	p := Params{Status: uint64(m.statusAt), Signature: o.signature(), Count: uint64(o.count), Timeout: uint64(testkit.Limit),
		Factor: m.factor, Rank: uint32(r), Op: uint32(o.op), Root: uint32(o.root),
		Size: uint32(o.t.Size())}
	w.layout.Fill(&p)
	if w.rand.IntN(4) > 0 {
		p.Stage, p.StageWord = uint64(m.staging), Word(extentOf+2, 0)
	}
	if m.multi != 0 {
		p.Stage, p.StageWord, p.Multi = uint64(m.staging), 0, uint64(m.multi)
	}
	for q := range n {
		d := (q - r + n) % n
		if n > Narrow && d > 0 {
			continue
		}
		p.Area[d], p.Table[d] = uint64(w.ranks[q].area), uint64(m.table)+uint64(q*MaxExtents*8)
	}
	if o.push {
		p.Push = 1
	}
	if o.kernel == Lines || o.kernel == MoveLines {
		bytes := o.count * o.t.Size()
		if n > 2 && (o.kind == allReduce || o.kind == reduce) {
			bytes = ((bytes+n-1)/n + 15) &^ 15
		}
		p.SetLines(bytes, o.blocks, threads)
	}
	base, extent := m.src, uint32(extentOf)
	if o.inPlace && src > 0 && dst > 0 {
		base, extent = m.dst, extentOf+1
	}
	p.Src, p.Dst = uint64(base)+uint64(m.srcOff), uint64(m.dst)+uint64(m.dstOff)
	if m.srcDirect {
		p.SrcWord = m.word(base, extent, m.srcOff)
	}
	if m.dstDirect {
		p.DstWord = m.word(m.dst, extentOf+1, m.dstOff)
	}
	if r == o.odd && o.from < 0 {
		p.Signature++
	}
	params := Bytes(&p)
	if o.kind >= allGatherV {
		v := VectorParams{Params: p}
		for q := range n {
			v.Counts[q].Send, v.Counts[q].Recv = uint64(o.counts[r][q]), uint64(o.counts[q][r])
			if r == o.odd && q == o.from {
				v.Counts[q].Recv++
			}
		}
		params = v.Bytes(n)
	}
	l := cuda.Launch{Grid: o.blocks, Block: threads, Early: m.ctx.Early() && w.rand.IntN(2) == 0}
	require.NoError(w.t, f.Launch(m.stream, l, params))
}

func (w *world) run(o operation) {
	for r := range w.ranks {
		w.prepare(o, r)
	}
	for r := range w.ranks {
		w.launch(o, r)
	}
	var first []byte
	for r, m := range w.ranks {
		require.NoError(w.t, m.stream.Sync(), "%v", o)
		if o.odd >= 0 && o.from >= 0 {
			require.EqualValues(w.t, Counts, m.status.Error.Swap(OK), "rank %d: %v", r, o)
			expected, from, sent := m.status.CountsOf()
			require.Equal(w.t, []int{o.odd, o.from, o.counts[o.from][o.odd], o.counts[o.from][o.odd] + 1},
				[]int{int(m.status.Peer), from, sent, expected}, "rank %d: %v", r, o)
			continue
		}
		if o.odd >= 0 {
			require.EqualValues(w.t, Mismatch, m.status.Error.Swap(OK), "rank %d: %v", r, o)
			require.Equal(w.t, r == o.odd, int(m.status.Peer) != o.odd, "rank %d blames %d: %v", r, m.status.Peer, o)
			continue
		}
		require.Zero(w.t, m.status.Error.Load(), "rank %d, of %d: %v", r, m.status.Peer, o)
		want := w.want(o, r)
		got := make([]byte, len(want)+2*guard)
		require.NoError(w.t, m.stream.Download(got, m.dst+cuda.Addr(m.dstOff-guard)))
		inner := got[guard : len(got)-guard]
		if a, b := quiet(o.t, want), quiet(o.t, inner); !bytes.Equal(a, b) {
			i := 0
			for a[i] == b[i] {
				i++
			}
			i -= i % o.t.Size()
			w.t.Fatalf("rank %d byte %d of %d: % x, want % x: %v", r, i, len(a), b[i:][:o.t.Size()], a[i:][:o.t.Size()], o)
		}
		if r == 0 {
			first = inner
		}
		if o.kernel == NVLS && o.kind == allReduce {
			require.Equal(w.t, first, inner, "rank %d has other bits: %v", r, o)
		}
		if o.kernel == NVLSMove && o.kind == broadcast && r == o.root {
			continue // it may get the data, too
		}
		if !o.inPlace {
			outer := append(bytes.Clone(got[:guard]), got[len(got)-guard:]...)
			require.Equal(w.t, bytes.Repeat([]byte{poison}, 2*guard), outer, "rank %d wrote outside: %v", r, o)
		}
	}
}
