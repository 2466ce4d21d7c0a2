package kernels

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// kernelsOf returns the kernels that can do a kind with that many ranks.
func kernelsOf(kind, ranks int) []string {
	if ranks > Narrow {
		return slices.DeleteFunc(kernelsOf(kind, Narrow), func(name string) bool {
			return name == Packets || name == Lines || name == MoveLines
		})
	}
	switch kind {
	case barrier:
		return []string{Barrier}
	case allReduce:
		return []string{OneShot, Packets, Lines, TwoShot, Ring}
	case broadcast:
		return []string{Move, MovePackets, MoveLines, Broadcast}
	case allGatherV, gatherV, scatterV, allToAllV:
		return []string{MoveV}
	case reduce:
		return []string{OneShot, Packets, Lines, TwoShot}
	case reduceScatter:
		return []string{Packets, Lines, TwoShot}
	}
	return []string{Move, MovePackets, MoveLines}
}

// TestDevice runs every kernel for every type, operation and number of ranks on the devices that there are.
func TestDevice(t *testing.T) {
	for _, n := range testkit.Sample(6, []int{3, 1, 2, 4, 8, 16}) {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			w := newWorld(t, n)
			for _, typ := range dtype.All() { // before any kernel runs, since loading may wait for kernels
				for kind := allReduce; kind <= allToAllV; kind++ {
					for _, k := range kernelsOf(kind, n) {
						for _, m := range w.ranks {
							_, err := m.set.Kernel(k, typ, n)
							require.NoError(t, err)
						}
					}
				}
			}
			rounds := 2
			if w.emulated {
				rounds = 1
			}
			for _, typ := range testkit.Sample(6, dtype.All()) {
				if w.emulated && (n > 4 || race.Enabled && n != 2) && typ != dtype.BFloat16 && typ != dtype.Bool {
					continue // to save time
				}
				for kind := allReduce; kind <= allToAllV; kind++ {
					for _, k := range kernelsOf(kind, n) {
						for op := sum; op <= premulsum; op++ {
							if kind > reduce && op > sum {
								break
							}
							if typ == dtype.Bool && kind <= reduce && (op != least && op != most || k == Ring && n == 1) {
								continue
							}
							for range rounds {
								w.run(w.pick(typ, kind, k, op))
							}
						}
					}
				}
			}
		})
	}
}

func (w *world) pick(typ dtype.Type, kind int, kernel string, op int) operation {
	n := len(w.ranks)
	o := operation{kernel: kernel, kind: kind, op: op, t: typ, odd: -1, from: -1, push: w.rand.IntN(2) == 0,
		inPlace: kind != allToAll && kind != allToAllV && kind != broadcast && w.rand.IntN(2) == 0,
		blocks:  1 + w.rand.IntN(4), threads: 128}
	if kind > reduce || kind == barrier {
		o.op = 0
	}
	if kind != barrier {
		o.count = []int{w.rand.IntN(20), w.rand.IntN(2000), 16 * w.rand.IntN(200), w.rand.IntN(40000)}[w.rand.IntN(4)]
		if w.emulated {
			o.count %= 3000
		}
		if kernel == OneShot || kernel == Packets || kernel == MovePackets { // rows must hold both steps
			o.count = min(o.count, w.layout.Data()/2/typ.Size())
		}
	}
	if kind == reduce || kind == broadcast || kind == gather || kind == scatter {
		o.root = w.rand.IntN(n)
	}
	if kind == gatherV || kind == scatterV {
		o.root = w.rand.IntN(n)
	}
	if kind >= allGatherV {
		o.counts, o.count = w.counts(kind, o.root, o.count), 0
	}
	if n > 1 && w.rand.IntN(8) == 0 {
		o.odd = w.rand.IntN(n)
		o.inPlace = false
		if kind >= allGatherV && w.rand.IntN(2) == 0 {
			o.from = w.rand.IntN(n)
			switch kind {
			case gatherV:
				o.odd = o.root
			case scatterV:
				o.from = o.root
			}
		}
	}
	return o
}

// counts draws how much each rank sends to each, at most `most`.
func (w *world) counts(kind, root, most int) [][]int {
	n := len(w.ranks)
	counts := make([][]int, n)
	for from := range n {
		counts[from] = make([]int, n)
		same := w.rand.IntN(most + 1)
		for to := range n {
			switch {
			case kind == allGatherV, kind == gatherV && to == root:
				counts[from][to] = same
			case kind == allToAllV, kind == scatterV && from == root:
				counts[from][to] = max(0, w.rand.IntN(most+1+most/4)-most/4) // sometimes nothing
			}
		}
	}
	return counts
}

// TestDeviceLarge moves data both through several rounds of staging memory and directly.
func TestDeviceLarge(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			w := newWorld(t, n)
			if w.emulated {
				t.Skip("too slow emulated, whose staging memory is small besides")
			}
			for _, k := range []string{Lines, TwoShot, Ring, Move, MoveLines, Broadcast, MoveV} {
				for _, typ := range []dtype.Type{dtype.Float32, dtype.BFloat16} {
					if typ == dtype.BFloat16 && k != Lines && k != TwoShot && k != Ring {
						continue // bytes are bytes
					}
					for _, m := range w.ranks {
						_, err := m.set.Kernel(k, typ, n)
						require.NoError(t, err)
					}
					for _, push := range []bool{false, true} {
						if push && k != TwoShot {
							continue
						}
						bytes := 80<<20 + 4
						o := operation{kernel: k, kind: allReduce, op: sum, t: typ, count: bytes / typ.Size(), push: push,
							odd: -1, from: -1, blocks: 24, threads: 512}
						switch k {
						case Move, MoveLines:
							o.kind, o.op, o.count = allGather, 0, o.count/n
						case Broadcast:
							o.kind, o.op, o.root = broadcast, 0, n-1
						case MoveV:
							o.kind, o.op, o.counts, o.count = allToAllV, 0, w.counts(allToAllV, 0, o.count/n), 0
						}
						w.run(o)
					}
				}
			}
		})
	}
}

// TestRoom looks at the registers that the driver's assembler gives the kernels: those that must fit twice on a
// multiprocessor do.
func TestRoom(t *testing.T) {
	w := newWorld(t, 1)
	if w.emulated {
		t.Skip("registers are a device's")
	}
	for _, ranks := range []int{2, 4, Narrow} {
		for _, typ := range dtype.All() {
			for _, name := range []string{OneShot, Packets, Lines, TwoShot, Group, Ring, Move, MovePackets, MoveLines,
				Broadcast, MoveV, Barrier, Carry, CarryStep, Copier, Channel, Messages} {
				f, err := w.ranks[0].set.Kernel(name, typ, ranks)
				require.NoError(t, err)
				fit, err := f.Resident(cuda.Launch{Grid: 1, Block: MaxThreads})
				require.NoError(t, err)
				t.Logf("%s, %d ranks, %v: %d registers, %d on a multiprocessor", name, ranks, typ, f.Registers, fit)
				twice := name == Carry || name == CarryStep || name == Copier || name == Channel || name == Messages || name == MoveLines || ranks <= 4 && (name == OneShot || name == Packets) ||
					ranks <= 2 && name == Lines
				if twice {
					require.GreaterOrEqual(t, fit, 2, "%s, %d ranks, %v", name, ranks, typ)
				}
			}
		}
	}
}

// loaded returns all modules that Load loads for that many ranks.
func loaded(t *testing.T, ranks int, rings bool) (names []string) {
	for name := range modules() {
		if strings.HasPrefix(name, "nvls") || strings.HasPrefix(name, "wide") && ranks <= Narrow {
			continue
		}
		up := strings.HasSuffix(name, fmt.Sprint("_", upTo(ranks)))
		if up || !strings.HasPrefix(name, "reduce") && (rings || !strings.HasPrefix(name, "ring")) {
			names = append(names, name)
		}
	}
	return names
}

// TestLoad finds kernels that have to be loaded after Load.
func TestLoad(t *testing.T) {
	w := newWorld(t, 1)
	if !w.emulated {
		t.Skip("needs calls that fail")
	}
	s := New(w.ranks[0].ctx)
	defer s.Close()
	require.NoError(t, s.Load(t.Context(), 3, true, false))
	require.ElementsMatch(t, loaded(t, 3, true), slices.Collect(maps.Keys(s.modules)))
	t.Setenv("UBCOLL_EMULATE_FAIL", "cuLibraryLoadData:1,cuLibraryGetKernel:1")
	require.NoError(t, s.Load(t.Context(), 4, true, false), "all is there")
	for ranks := 1; ranks <= 4; ranks++ { // communicators made from this one have fewer ranks
		for _, typ := range dtype.All() {
			for _, name := range []string{OneShot, Packets, Lines, TwoShot, Group, Ring, Move, MovePackets, MoveLines,
				Broadcast, MoveV, Barrier, Carry, CarryStep, Copier, Channel, Messages} {
				_, err := s.Kernel(name, typ, ranks)
				require.NoError(t, err, "%s, %d ranks, %v", name, ranks, typ)
			}
		}
	}
	_, err := s.Kernel(OneShot, dtype.Int8, 5)
	require.Error(t, err, "that is not loaded")
}

// TestLoadFails lets one of the modules fail, or the caller give up; the next Load must work.
func TestLoadFails(t *testing.T) {
	w := newWorld(t, 1)
	if !w.emulated {
		t.Skip("needs calls that fail")
	}
	s := New(w.ranks[0].ctx)
	defer s.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no more time"))
	require.ErrorContains(t, s.Load(ctx, 2, false, false), "no more time")
	require.Empty(t, s.modules)
	all := len(loaded(t, 2, false))
	for k := 1; k <= all; k++ {
		t.Setenv("UBCOLL_EMULATE_FAIL", fmt.Sprintf("cuLibraryLoadData:%d=218", k)) // bad PTX
		s := New(w.ranks[0].ctx)
		err := s.Load(t.Context(), 2, false, false)
		require.ErrorContains(t, err, "kernels of ")
		require.ErrorIs(t, err, fault.ErrArgument)
		require.Less(t, len(s.modules), all)
		require.NoError(t, s.Load(t.Context(), 2, false, false), "only that call failed")
		require.Len(t, s.modules, all)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Load(t.Context(), 2, false, false), fault.ErrClosed)
	}
}

// TestLoadTogether lets several goroutines load at the same time, on two devices; nothing may be loaded twice.
func TestLoadTogether(t *testing.T) {
	w := newWorld(t, 2)
	if !w.emulated {
		t.Skip("counts calls")
	}
	sets := []*Set{New(w.ranks[0].ctx), New(w.ranks[1].ctx)}
	t.Setenv("UBCOLL_EMULATE_FAIL", fmt.Sprintf("cuLibraryLoadData:%d", 2*len(loaded(t, 2, true))+1))
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			s := sets[i%2]
			if i >= 4 {
				_, errs[i] = s.Kernel(TwoShot, dtype.Int32, 2)
				return
			}
			errs[i] = s.Load(t.Context(), 2, true, false)
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	for _, s := range sets {
		require.ElementsMatch(t, loaded(t, 2, true), slices.Collect(maps.Keys(s.modules)))
		require.NoError(t, s.Close())
	}
}
