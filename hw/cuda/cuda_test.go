package cuda_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

func TestError(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   cuda.Error
		text  string
		class error
	}{
		{"memory", cuda.Error{Call: "cuMemAlloc_v2", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY", Text: "out of memory"},
			"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory", fault.ErrLimit},
		{"not supported", cuda.Error{Call: "a", Code: 801, Name: "N", Text: "t"}, "a: N: t", hw.ErrNotSupported},
		{"argument", cuda.Error{Call: "a", Code: 1, Name: "N", Text: "t"}, "a: N: t", fault.ErrArgument},
		{"destroyed", cuda.Error{Call: "a", Code: 709, Name: "N", Text: "t"}, "a: N: t", fault.ErrClosed},
		{"no context", cuda.Error{Call: "cuCtxPushCurrent_v2", Code: 201, Name: "N", Text: "t"},
			"cuCtxPushCurrent_v2: N: t", fault.ErrClosed},
		{"another context", cuda.Error{Call: "cuIpcOpenMemHandle_v2", Code: 201, Name: "N", Text: "t"},
			"cuIpcOpenMemHandle_v2: N: t", fault.ErrArgument},
		{"closed", cuda.Error{Call: "a", Code: -1}, "a: used after it was closed", fault.ErrClosed},
		{"log", cuda.Error{Call: "a", Code: 218, Name: "N", Text: "t", Log: "line 3"}, "a: N: t: line 3", fault.ErrArgument},
		{"no class", cuda.Error{Call: "a", Code: 700, Name: "N", Text: "t"}, "a: N: t", nil},
		{"no name", cuda.Error{Call: "a", Code: 9999}, "a: error 9999, which the driver has no name for", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.text, c.err.Error())
			require.Equal(t, c.class, errors.Unwrap(&c.err))
		})
	}
}

// On a machine without a GPU every call says so, in the same words.
func TestAbsent(t *testing.T) {
	p := cuda.Have()
	if p.Err == nil {
		t.Skip("there is a CUDA device")
	}
	require.ErrorIs(t, p.Err, hw.ErrNotSupported)
	require.Contains(t, p.String(), "CUDA")
	_, err := cuda.Devices()
	require.Equal(t, p.Err, err)
	_, err = cuda.Primary(hw.CUDA(0))
	require.Equal(t, p.Err, err)
	_, err = cuda.Inspect(0)
	require.Equal(t, p.Err, err)
	_, _, err = cuda.Version()
	require.Equal(t, p.Err, err)
	_, err = cuda.P2P(hw.CUDA(0), hw.CUDA(1))
	require.Equal(t, p.Err, err)
}

// Both builds of the package export the same API.
func TestTwins(t *testing.T) {
	face := func(files ...string) []string {
		var all []string
		fset := token.NewFileSet()
		for _, name := range files {
			f, err := parser.ParseFile(fset, name, nil, 0)
			require.NoError(t, err)
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Name.IsExported() {
					d.Body = nil
					var b strings.Builder
					require.NoError(t, printer.Fprint(&b, fset, d))
					all = append(all, b.String())
				}
			}
		}
		slices.Sort(all)
		return all
	}
	require.Equal(t, face("driver.go", "memory.go", "multicast.go", "stream.go", "module.go"), face("other.go"))
}
