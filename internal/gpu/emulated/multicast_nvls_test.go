//go:build nvls && linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/cuda"
)

// What is not defined on a device at a multicast address breaks the context here.
func TestMulticastFaults(t *testing.T) {
	const (
		grain    = 2 << 20
		touch    = "CUDA_ERROR_ILLEGAL_ADDRESS"
		trap     = "CUDA_ERROR_LAUNCH_FAILED"
		st, load = "multimem_st", "multimem_ld_reduce"
	)
	// rank is one of two; the object has two granules, and memory is bound in the first one alone.
	type rank struct {
		t       *testing.T
		c       *cuda.Context
		s       *cuda.Stream
		at, own cuda.Addr
	}
	launch := func(r rank, kernel string, dst, src cuda.Addr) error {
		m, err := r.c.LoadModule(".version 8.1\n.visible .entry multimem_st() {}\n.visible .entry multimem_ld_reduce() {}\n")
		require.NoError(r.t, err)
		k, err := m.Function(kernel)
		require.NoError(r.t, err)
		p := struct {
			dst, src cuda.Addr
			n        uint32
		}{dst, src, 16}
		return k.Launch(r.s, cuda.Launch{Grid: 1, Block: 1}, unsafe.Slice((*byte)(unsafe.Pointer(&p)), unsafe.Sizeof(p)))
	}
	for _, x := range []struct {
		name  string
		bound int // ranks that have memory bound
		do    func(r rank) error
		want  string // the error's name
	}{
		{"a store", 2, func(r rank) error { return launch(r, st, r.at, r.own) }, ""},
		{"a load", 2, func(r rank) error { return launch(r, load, r.own, r.at) }, ""},
		{"a fill", 2, func(r rank) error { return r.s.Fill(r.at, 0, grain) }, ""},
		{"a plain store", 2, func(r rank) error { return add(r.t, r.c, r.s, r.at) }, touch},
		{"a store where not all have memory", 1, func(r rank) error { return launch(r, st, r.at, r.own) }, touch},
		{"a load where not all have memory", 1, func(r rank) error { return launch(r, load, r.own, r.at) }, touch},
		{"a fill where not all have memory", 1, func(r rank) error { return r.s.Fill(r.at, 1, grain) }, touch},
		{"zeros where not all have memory", 1, func(r rank) error { return r.s.Fill(r.at, 0, grain) }, touch},
		{"a store beyond what is bound", 2, func(r rank) error { return launch(r, st, r.at+grain-32, r.own) }, touch},
		{"a fill beyond what is bound", 2, func(r rank) error { return r.s.Fill(r.at, 1, grain+1) }, touch},
		{"not aligned", 2, func(r rank) error { return launch(r, st, r.at+2, r.own) }, trap},
		{"no multicast address", 2, func(r rank) error { return launch(r, st, r.own, r.own) }, touch},
		{"a copy from it", 2, func(r rank) error { return r.s.Copy(r.own, r.at, 64) }, touch},
	} {
		t.Run(x.name, func(t *testing.T) {
			var ranks []rank
			var objects []*cuda.Multicast
			for i := range 2 {
				c, s := device(t, i)
				_, own, n := mapped(t, c)
				require.NoError(t, c.Access(own, n, c.Device()))
				require.NoError(t, s.Fill(own, 0, n))
				require.NoError(t, s.Sync())
				var m *cuda.Multicast
				var err error
				if i == 0 {
					m, err = c.CreateMulticast(2, 2*grain)
				} else {
					fd, errExport := objects[0].Export()
					require.NoError(t, errExport)
					m, err = c.ImportMulticast(fd, 2, 2*grain)
					require.NoError(t, unix.Close(fd))
				}
				require.NoError(t, err)
				require.NoError(t, m.AddDevice())
				ranks, objects = append(ranks, rank{t: t, c: c, s: s, own: own}), append(objects, m)
			}
			for i, m := range objects[:x.bound] {
				require.NoError(t, m.BindAddr(0, ranks[i].own, grain))
			}
			r := ranks[0]
			var err error
			r.at, err = objects[0].Map()
			require.NoError(t, err)
			require.NoError(t, x.do(r))
			if x.want == "" {
				require.NoError(t, r.s.Sync())
				return
			}
			var e *cuda.Error
			require.ErrorAs(t, r.s.Sync(), &e)
			require.Equal(t, x.want, e.Name)
		})
	}
}
