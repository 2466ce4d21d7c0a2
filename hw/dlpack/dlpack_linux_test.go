package dlpack_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/dlpack"
	"github.com/ubcoll/ubcoll/hw/dlpack/dlpacktest"
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(x *dlpacktest.Tensor)
		off    uintptr // of the data
		want   dlpack.Tensor
	}{
		{"a vector", nil, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"a scalar", func(x *dlpacktest.Tensor) { x.Dims, x.Shape = 0, 0 }, 0, dlpack.Tensor{Bytes: 4, Type: dtype.Float32}},
		{"a matrix", func(x *dlpacktest.Tensor) { x.Dims, x.Shape = 2, dlpacktest.Ints(t, 3, 4) }, 0,
			dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"compact strides", func(x *dlpacktest.Tensor) {
			x.Dims, x.Shape, x.Strides = 3, dlpacktest.Ints(t, 2, 3, 2), dlpacktest.Ints(t, 6, 2, 1)
		}, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"any stride of a dimension of size 1", func(x *dlpacktest.Tensor) {
			x.Dims, x.Shape, x.Strides = 4, dlpacktest.Ints(t, 1, 3, 1, 4), dlpacktest.Ints(t, -5, 4, 1<<40, 1)
		}, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"an offset", func(x *dlpacktest.Tensor) { x.ByteOffset, x.Shape = 8, dlpacktest.Ints(t, 10) }, 8,
			dlpack.Tensor{Bytes: 40, Type: dtype.Float32}},
		{"as many dimensions as may be", func(x *dlpacktest.Tensor) {
			x.Dims, x.Shape = dlpack.MaxDims, dlpacktest.Ints(t, append(ones(dlpack.MaxDims-1), 12)...)
		}, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"pinned", func(x *dlpacktest.Tensor) { x.DeviceType = dlpack.CUDAHost }, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
		{"of a device", func(x *dlpacktest.Tensor) { x.DeviceType, x.DeviceID = dlpack.CUDA, 3 }, 0,
			dlpack.Tensor{Device: hw.CUDA(3), Bytes: 48, Type: dtype.Float32}},
		{"no deleter", func(x *dlpacktest.Tensor) { x.Deleter = 0 }, 0, dlpack.Tensor{Bytes: 48, Type: dtype.Float32}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := dlpacktest.New(t, 12)
			if c.change != nil {
				c.change(x)
			}
			got, err := dlpack.Read(x.Pointer())
			require.NoError(t, err)
			require.Equal(t, [4]any{c.want.Device, x.Data + c.off, c.want.Bytes, c.want.Type},
				[4]any{got.Device, got.Data, got.Bytes, got.Type})
			require.Equal(t, x.Data+c.off, uintptr(got.Pointer()))
			require.Zero(t, x.Deleted())
		})
	}
}

func ones(n int) []int64 {
	x := make([]int64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// Every element type has a tensor of its own.
func TestTypes(t *testing.T) {
	codes := map[string]uint8{"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
	for _, ty := range dtype.All() {
		x := dlpacktest.New(t, 8)
		x.Code, x.Bits, x.Shape = codes[strings.TrimRight(ty.String(), "0123456789")], uint8(8*ty.Size()), dlpacktest.Ints(t, 4)
		got, err := dlpack.Read(x.Pointer())
		require.NoError(t, err, ty)
		require.Equal(t, ty, got.Type)
		require.Equal(t, 4*ty.Size(), got.Bytes)
	}
}

// refusals are tensors that cannot be adopted, made of one of 12 float32, and what the error says.
var refusals = []struct {
	name   string
	change func(t *testing.T, x *dlpacktest.Tensor)
	says   string
}{
	{"OpenCL", device(4), "kDLOpenCL"}, {"Vulkan", device(7), "kDLVulkan"}, {"Metal", device(8), "kDLMetal"},
	{"VPI", device(9), "kDLVPI"}, {"ROCm", device(10), "kDLROCM:"}, {"pinned ROCm", device(11), "kDLROCMHost"},
	{"extension", device(12), "kDLExtDev"}, {"managed", device(13), "kDLCUDAManaged"}, {"oneAPI", device(14), "kDLOneAPI"},
	{"WebGPU", device(15), "kDLWebGPU"}, {"Hexagon", device(16), "kDLHexagon"}, {"MAIA", device(17), "kDLMAIA"},
	{"Trainium", device(18), "kDLTrn"}, {"no device", device(0), "device type 0"}, {"another device", device(99), "device type 99"},
	{"negative device", device(-1), "device type -1"},
	{"complex", elements(5, 64, 1), "complex64"}, {"handle", elements(3, 64, 1), "handle64"}, {"int128", elements(0, 128, 1), "int128"},
	{"uint4", elements(1, 4, 1), "uint4"}, {"float8", elements(2, 8, 1), "float8"}, {"bits of bool", elements(6, 1, 1), "bool1"},
	{"bfloat32", elements(4, 32, 1), "bfloat32"}, {"float8_e3m4", elements(7, 8, 1), "float8_e3m4"},
	{"float8_e4m3", elements(8, 8, 1), "float8_e4m3"}, {"float8_e4m3b11fnuz", elements(9, 8, 1), "float8_e4m3b11fnuz"},
	{"float8_e4m3fn", elements(10, 8, 1), "float8_e4m3fn"}, {"float8_e4m3fnuz", elements(11, 8, 1), "float8_e4m3fnuz"},
	{"float8_e5m2", elements(12, 8, 1), "float8_e5m2"}, {"float8_e5m2fnuz", elements(13, 8, 1), "float8_e5m2fnuz"},
	{"float8_e8m0fnu", elements(14, 8, 1), "float8_e8m0fnu"}, {"float6_e2m3fn", elements(15, 6, 1), "float6_e2m3fn"},
	{"float6_e3m2fn", elements(16, 6, 1), "float6_e3m2fn"}, {"float4_e2m1fn", elements(17, 4, 1), "float4_e2m1fn"},
	{"unknown code", elements(99, 16, 1), "type code 99 of 16 bits"}, {"four lanes", elements(2, 32, 4), "float32x4"},
	{"no lanes", elements(2, 32, 0), "float32x0"},
	{"negative ndim", func(_ *testing.T, x *dlpacktest.Tensor) { x.Dims = -1 }, "ndim -1"},
	{"too many dimensions", func(_ *testing.T, x *dlpacktest.Tensor) { x.Dims = dlpack.MaxDims + 1 }, "ndim 65, not 0 to 64"},
	{"absurd ndim", func(_ *testing.T, x *dlpacktest.Tensor) { x.Dims = math.MaxInt32 }, "ndim 2147483647"},
	{"nil shape", func(_ *testing.T, x *dlpacktest.Tensor) { x.Shape = 0 }, "ndim 1 and a nil shape"},
	{"misaligned shape", func(_ *testing.T, x *dlpacktest.Tensor) { x.Shape++ }, "shape at"},
	{"misaligned strides", func(_ *testing.T, x *dlpacktest.Tensor) { x.Strides = x.Shape + 1 }, "strides at"},
	{"negative shape", dims([]int64{3, -4}, nil), "negative shape [3 -4]"},
	{"nothing and negative", dims([]int64{0, -4}, nil), "negative shape [0 -4]"},
	{"no elements", dims([]int64{3, 0, 1 << 62}, nil), "shape [3 0 4611686018427387904]: no elements"},
	{"more than an int", dims([]int64{1 << 32, 1 << 31, 1}, nil), "more elements than the address space"},
	{"more than 64 bits", dims([]int64{math.MaxInt64, math.MaxInt64}, nil), "more elements than the address space"},
	{"too many bytes", dims([]int64{1 << 61}, nil), "elements of float32: more than the address space"},
	{"column-major", dims([]int64{3, 4}, []int64{1, 3}), "shape [3 4], strides [1 3]: not contiguous"},
	{"padded rows", dims([]int64{3, 4}, []int64{5, 1}), "shape [3 4], strides [5 1]: not contiguous"},
	{"every second element", dims([]int64{6}, []int64{2}), "strides [2]"},
	{"one element many times", dims([]int64{3, 4}, []int64{0, 0}), "strides [0 0]"},
	{"backwards", dims([]int64{12}, []int64{-1}), "strides [-1]"},
	{"nil data", func(_ *testing.T, x *dlpacktest.Tensor) { x.Data, x.ByteOffset = 0, 64 }, "nil data"},
	{"data of a byte too far", func(_ *testing.T, x *dlpacktest.Tensor) { x.Data++ }, "not aligned to the 4 bytes of float32"},
	{"an offset that is not aligned", func(_ *testing.T, x *dlpacktest.Tensor) { x.ByteOffset = 2 }, "byte_offset 2: not aligned"},
	{"an offset around the address space", func(_ *testing.T, x *dlpacktest.Tensor) { x.ByteOffset = -8 & math.MaxUint64 },
		"more than the address space"},
	{"bytes around the address space", func(_ *testing.T, x *dlpacktest.Tensor) { x.Data = math.MaxUint - 15 },
		"more than the address space"},
}

func device(kind int32) func(*testing.T, *dlpacktest.Tensor) {
	return func(_ *testing.T, x *dlpacktest.Tensor) { x.DeviceType = kind }
}

func elements(code, bits uint8, lanes uint16) func(*testing.T, *dlpacktest.Tensor) {
	return func(_ *testing.T, x *dlpacktest.Tensor) { x.Code, x.Bits, x.Lanes = code, bits, lanes }
}

func dims(shape, strides []int64) func(*testing.T, *dlpacktest.Tensor) {
	return func(t *testing.T, x *dlpacktest.Tensor) {
		x.Dims, x.Shape = int32(len(shape)), dlpacktest.Ints(t, shape...)
		if strides != nil {
			x.Strides = dlpacktest.Ints(t, strides...)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			x := dlpacktest.New(t, 12)
			c.change(t, x)
			_, err := dlpack.Read(x.Pointer())
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, x.Deleted())
		})
	}
	t.Run("nil", func(t *testing.T) {
		_, err := dlpack.Read(nil)
		require.ErrorIs(t, err, fault.ErrArgument)
		require.ErrorContains(t, err, "nil tensor")
	})
	t.Run("misaligned", func(t *testing.T) {
		_, err := dlpack.Read(unsafe.Add(dlpacktest.New(t, 1).Pointer(), 4))
		require.ErrorIs(t, err, fault.ErrArgument)
	})
}

func TestDelete(t *testing.T) {
	x := dlpacktest.New(t, 12)
	got, err := dlpack.Read(x.Pointer())
	require.NoError(t, err)
	got.Delete()
	if dlpacktest.Deletes {
		require.Equal(t, 1, x.Deleted())
	}
	y := dlpacktest.New(t, 12)
	y.Deleter = 0
	got, err = dlpack.Read(y.Pointer())
	require.NoError(t, err)
	got.Delete()
	require.Zero(t, y.Deleted())
}

// Without C no deleter can be called, so that tensors that have one are refused.
func TestNoDeleter(t *testing.T) {
	if dlpacktest.Deletes {
		t.Skip("this build can call deleters")
	}
	x := dlpacktest.New(t, 12)
	x.Deleter = 1
	_, err := dlpack.Read(x.Pointer())
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "deleter")
	x.Dims = -1
	_, err = dlpack.Read(x.Pointer())
	require.ErrorIs(t, err, fault.ErrArgument)
}

// check reads a struct whose shape and strides are these, and compares the result with a naive one: the addresses of all
// elements are one after the other.
func check(t *testing.T, m dlpack.Managed, shape, strides []int64) {
	t.Helper()
	m.Dims = int32(len(shape))
	m.Shape = uintptr(unsafe.Pointer(unsafe.SliceData(shape)))
	m.Strides = uintptr(unsafe.Pointer(unsafe.SliceData(strides)))
	m.Deleter = 0
	got, err := dlpack.Read(unsafe.Pointer(&m))
	runtime.KeepAlive(shape)
	runtime.KeepAlive(strides)
	if err != nil {
		require.ErrorIs(t, err, fault.ErrArgument)
		require.Zero(t, got)
	} else {
		require.True(t, got.Type.Valid() && got.Bytes > 0 && got.Data != 0 && got.Data%uintptr(got.Type.Size()) == 0)
		require.Equal(t, m.Data+uintptr(m.ByteOffset), got.Data)
		require.LessOrEqual(t, got.Data, math.MaxUint-uintptr(got.Bytes))
	}
	if m.Data != 64 || m.ByteOffset != 0 || m.DeviceType != dlpack.CPU || m.Code != 2 || m.Bits != 32 || m.Lanes != 1 {
		return
	}
	n := int64(1)
	for _, k := range shape {
		if k < 0 || k > 100 || n*k > 10000 {
			return
		}
		n *= k
	}
	contiguous := n > 0
	for i := range n {
		at, rest := i, i
		if strides != nil {
			at = 0
			for d := len(shape) - 1; d >= 0; d-- {
				at += rest % shape[d] * strides[d]
				rest /= shape[d]
			}
		}
		contiguous = contiguous && at == i
	}
	require.Equal(t, contiguous, err == nil, "shape %d, strides %d: %v", shape, strides, err)
	if err == nil {
		require.Equal(t, int(4*n), got.Bytes)
	}
}

func plain() dlpack.Managed {
	return dlpack.Managed{Data: 64, DeviceType: dlpack.CPU, Code: 2, Bits: 32, Lanes: 1}
}

// Small shapes with strides of all kinds, most of them nearly compact.
func TestContiguous(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		shape := make([]int64, r.IntN(5))
		for i := range shape {
			shape[i] = int64(r.IntN(4))
			if r.IntN(4) > 0 {
				shape[i]++
			}
		}
		var strides []int64
		if r.IntN(8) > 0 {
			strides = make([]int64, len(shape))
			step := int64(1)
			for i := len(shape) - 1; i >= 0; i-- {
				strides[i] = step
				step *= shape[i]
				if r.IntN(6) == 0 {
					strides[i] += int64(r.IntN(5) - 2)
				}
			}
		}
		check(t, plain(), shape, strides)
	}
}

// FuzzRead reads structs of any contents but addresses, which are those of arrays.
func FuzzRead(f *testing.F) {
	f.Add(uint64(64), int32(1), int32(0), uint8(2), uint8(32), uint16(1), uint64(0), []byte{2, 0, 0, 0, 0, 0, 0, 0}, []byte{}, false)
	f.Add(uint64(64), int32(2), int32(-1), uint8(0), uint8(64), uint16(1), uint64(8), make([]byte, 16), make([]byte, 16), true)
	f.Add(uint64(math.MaxUint64), int32(13), int32(1), uint8(7), uint8(8), uint16(0), uint64(math.MaxUint64), []byte{}, []byte{}, true)
	f.Fuzz(func(t *testing.T, data uint64, device, id int32, code, bits uint8, lanes uint16, off uint64, shape, strides []byte,
		strided bool) {
		x := numbers(shape)
		x = x[:min(len(x), dlpack.MaxDims+2)]
		var y []int64
		if strided {
			y = append(numbers(strides), make([]int64, len(x))...)[:len(x)]
		}
		check(t, dlpack.Managed{Data: uintptr(data), DeviceType: device, DeviceID: id, Code: code, Bits: bits, Lanes: lanes,
			ByteOffset: off}, x, y)
		check(t, plain(), x, y)
	})
}

func numbers(b []byte) (x []int64) {
	for ; len(b) >= 8; b = b[8:] {
		x = append(x, int64(binary.LittleEndian.Uint64(b)))
	}
	return x
}
