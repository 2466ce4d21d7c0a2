package kernels

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// nvlsOf returns the kernel that does a kind through a multicast object, or "".
func nvlsOf(kind int) string {
	switch kind {
	case allReduce, reduceScatter:
		return NVLS
	case allGather, broadcast:
		return NVLSMove
	}
	return ""
}

// runNVLS runs the kernels for multicast for every operation, and every type that they have.
func (w *world) runNVLS(times int) {
	for _, typ := range dtype.All() {
		for _, kind := range []int{allReduce, reduceScatter, allGather, broadcast} {
			for op := sum; op <= premulsum; op++ {
				if kind > reduce && op > sum {
					break
				}
				if kind <= reduce && !NVLSReduces(typ, uint32(op)) {
					continue
				}
				for i := range times {
					o := w.pick(typ, kind, nvlsOf(kind), op)
					o.alike = i%2 == 0
					if i == 0 && !w.emulated {
						o.count = (1<<20 + 4) / typ.Size()
					}
					w.run(o)
				}
			}
		}
	}
}

// TestStandIn runs the stand-ins for the kernels for multicast on the devices that there are: the same source, except
// for the instructions.
func TestStandIn(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			w := newWorld(t, n)
			for _, m := range w.ranks {
				for name, kernel := range nvlsModules() {
					if m.set.modules[name] != nil {
						continue // ranks that share a device
					}
					module, err := m.ctx.LoadModule(assembly(standIn(t, name), m.ctx.Early()))
					require.NoError(t, err)
					m.set.modules[name] = module
					m.set.functions[kernel], err = module.Function(strings.Replace(kernel, "nvls", "stand_in", 1))
					require.NoError(t, err)
				}
			}
			times := 6
			if w.emulated && (race.Enabled || testing.Short()) {
				times = 1
			}
			w.runNVLS(times)
		})
	}
}

// TestNVLSAssembles lets a device's driver assemble the kernels for multicast. They run on the emulated one alone.
func TestNVLSAssembles(t *testing.T) {
	w := newWorld(t, 1)
	m := w.ranks[0]
	if !m.ctx.Early() {
		t.Skip("the device has no such instructions")
	}
	require.NoError(t, m.set.LoadNVLS(t.Context()))
	for name, k := range m.set.functions {
		fit, err := k.Resident(cuda.Launch{Grid: 1, Block: k.MaxThreads})
		require.NoError(t, err)
		t.Logf("%s: %d registers, %d on a multiprocessor", name, k.Registers, fit)
		require.Positive(t, fit, name)
	}
}

func TestNVLSReduces(t *testing.T) {
	var all []string
	names := []string{sum: "sum", prod: "prod", least: "min", most: "max", avg: "avg", premulsum: "premulsum"}
	for _, typ := range append(dtype.All(), dtype.Invalid) {
		for op := range uint32(8) {
			if NVLSReduces(typ, op) {
				all = append(all, fmt.Sprint(typ, " ", names[op]))
			}
		}
		_, kernel, err := entry(NVLS, typ, Narrow)
		if !NVLSReduces(typ, sum) {
			require.ErrorIs(t, err, fault.ErrNotSupported, typ)
			require.ErrorContains(t, err, `no kernel "nvls" for elements of `)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, nvlsModules(), strings.TrimPrefix(kernel, "ubc_"))
	}
	want := []string{"float32 sum", "float32 avg"}
	for _, typ := range []string{"int32", "uint32", "int64", "uint64", "float16", "bfloat16"} {
		want = append(want, typ+" sum", typ+" min", typ+" max")
	}
	slices.Sort(all)
	slices.Sort(want)
	require.Equal(t, want, all)
	for _, name := range []string{NVLS, NVLSMove} {
		_, _, err := entry(name, dtype.Float32, MaxRanks)
		require.ErrorIs(t, err, fault.ErrNotSupported)
		require.ErrorContains(t, err, "for more than 8 ranks")
		_, err = New(nil).Kernel(name, dtype.Float32, Narrow+1)
		require.ErrorIs(t, err, fault.ErrNotSupported)
	}
}

// TestLoadNVLS finds kernels that LoadNVLS leaves out, and that Load should.
func TestLoadNVLS(t *testing.T) {
	w := newWorld(t, 1)
	if !w.emulated {
		t.Skip("needs calls that fail")
	}
	s := New(w.ranks[0].ctx)
	defer s.Close()
	require.NoError(t, s.LoadNVLS(t.Context()))
	require.Len(t, s.modules, len(nvlsModules()))
	t.Setenv("UBCOLL_EMULATE_FAIL", "cuLibraryLoadData:1,cuLibraryGetKernel:1")
	require.NoError(t, s.LoadNVLS(t.Context()), "all is there")
	for ranks := 1; ranks <= Narrow; ranks++ {
		require.NoError(t, testkit.ErrOf(s.Kernel(NVLSMove, dtype.Invalid, ranks)))
		for _, typ := range dtype.All() {
			if NVLSReduces(typ, sum) {
				require.NoError(t, testkit.ErrOf(s.Kernel(NVLS, typ, ranks)), typ)
			}
		}
	}
}
