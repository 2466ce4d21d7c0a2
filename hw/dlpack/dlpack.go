// Package dlpack reads tensors of other libraries, which they hand over as DLPack's C struct DLManagedTensor, and deletes
// them. The struct is the one without a version of dlpack.h, DLPack 1.0.
package dlpack

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Managed is the C struct DLManagedTensor. Addresses are numbers, because the memory is not Go's.
type Managed struct {
	Data       uintptr
	DeviceType int32
	DeviceID   int32
	Dims       int32
	Code, Bits uint8
	Lanes      uint16
	Shape      uintptr // int64 [Dims]
	Strides    uintptr // int64 [Dims], in elements; or 0, for row-major order
	ByteOffset uint64
	Context    uintptr
	Deleter    uintptr // void (*)(DLManagedTensor *), or 0
}

// Types of devices (DLDeviceType) whose memory can be adopted.
const (
	CPU      = 1
	CUDA     = 2
	CUDAHost = 3
)

// MaxDims is the most dimensions that a tensor may have, as in NumPy and PyTorch. More are taken for a struct that is no
// DLManagedTensor.
const MaxDims = 64

var devices = map[int32]string{CPU: "kDLCPU", CUDA: "kDLCUDA", CUDAHost: "kDLCUDAHost", 4: "kDLOpenCL", 7: "kDLVulkan",
	8: "kDLMetal", 9: "kDLVPI", 10: "kDLROCM", 11: "kDLROCMHost", 12: "kDLExtDev", 13: "kDLCUDAManaged", 14: "kDLOneAPI",
	15: "kDLWebGPU", 16: "kDLHexagon", 17: "kDLMAIA", 18: "kDLTrn"}

// codes are the names of DLDataTypeCode, to which the number of bits is appended.
var codes = map[uint8]string{0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}

// small are those that have the number of bits in their name, since DLPack 1.1.
var small = map[uint8]string{7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn",
	11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 15: "float6_e2m3fn",
	16: "float6_e3m2fn", 17: "float4_e2m1fn"}

type kind struct{ code, bits uint8 }

var types = map[kind]dtype.Type{
	{0, 8}: dtype.Int8, {0, 16}: dtype.Int16, {0, 32}: dtype.Int32, {0, 64}: dtype.Int64,
	{1, 8}: dtype.Uint8, {1, 16}: dtype.Uint16, {1, 32}: dtype.Uint32, {1, 64}: dtype.Uint64,
	{2, 16}: dtype.Float16, {2, 32}: dtype.Float32, {2, 64}: dtype.Float64, {4, 16}: dtype.BFloat16, {6, 8}: dtype.Bool,
}

// Tensor is what a struct says of its memory.
type Tensor struct {
	Device hw.Device
	Data   uintptr // of the first element
	Bytes  int
	Type   dtype.Type

	managed unsafe.Pointer
	deleter bool
}

// Read reads the struct at p, which stays its owner's. The error is fault.ErrArgument for a tensor that is no contiguous,
// aligned memory of the host or a CUDA device with elements of a dtype.Type, and fault.ErrNotSupported for one that this
// build cannot delete.
func Read(p unsafe.Pointer) (Tensor, error) {
	if p == nil {
		return Tensor{}, wrong("nil tensor")
	}
	if uintptr(p)%unsafe.Alignof(Managed{}) != 0 {
		return Tensor{}, wrong("tensor at %p, which is not aligned", p)
	}
	m := *(*Managed)(p)
	t := Tensor{managed: p, deleter: m.Deleter != 0}
	switch m.DeviceType {
	case CPU, CUDAHost:
	case CUDA:
		t.Device = hw.CUDA(int(m.DeviceID))
	default:
		return Tensor{}, wrong("tensor on %s: only memory of kDLCPU, kDLCUDAHost and kDLCUDA can be adopted", m.deviceType())
	}
	t.Type = types[kind{m.Code, m.Bits}]
	if !t.Type.Valid() || m.Lanes != 1 {
		return Tensor{}, wrong("tensor of %s, which is no element type of this library", m.elements())
	}
	n, err := m.count()
	if err != nil {
		return Tensor{}, err
	}
	size := t.Type.Size()
	if n > math.MaxInt/size {
		return Tensor{}, wrong("tensor of %d elements of %v: more than the address space", n, t.Type)
	}
	t.Bytes, t.Data = n*size, m.Data+uintptr(m.ByteOffset)
	switch {
	case m.Data == 0:
		return Tensor{}, wrong("nil data")
	case uint64(uintptr(m.ByteOffset)) != m.ByteOffset || t.Data < m.Data || t.Data+uintptr(t.Bytes) < t.Data:
		return Tensor{}, wrong("%d bytes at %#x, byte_offset %d: more than the address space", t.Bytes, m.Data, m.ByteOffset)
	case t.Data%uintptr(size) != 0:
		return Tensor{}, wrong("data at %#x, byte_offset %d: not aligned to the %d bytes of %v", m.Data, m.ByteOffset, size, t.Type)
	case t.deleter && !canDelete:
		return Tensor{}, fmt.Errorf("tensor with a deleter, which a build without cgo cannot call: %w", fault.ErrNotSupported)
	}
	return t, nil
}

// Pointer is Data as the form in which Go code has pointers.
func (t Tensor) Pointer() unsafe.Pointer { return pointer(t.Data) }

// Delete calls the tensor's deleter, if it has one. After that its struct and memory are gone.
func (t Tensor) Delete() {
	if t.deleter {
		callDeleter(t.managed)
	}
}

func wrong(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, fault.ErrArgument)...)
}

func pointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// deviceType is such as "kDLROCM".
func (m *Managed) deviceType() string {
	if s := devices[m.DeviceType]; s != "" {
		return s
	}
	return fmt.Sprintf("device type %d", m.DeviceType)
}

// elements is such as "complex64" or "float32x4".
func (m *Managed) elements() string {
	s := small[m.Code]
	switch {
	case codes[m.Code] != "":
		s = fmt.Sprint(codes[m.Code], m.Bits)
	case s == "":
		s = fmt.Sprintf("type code %d of %d bits", m.Code, m.Bits)
	}
	if m.Lanes != 1 {
		s = fmt.Sprintf("%sx%d", s, m.Lanes)
	}
	return s
}

// count returns the number of elements, unless they are none, or not contiguous in row-major order.
func (m *Managed) count() (int, error) {
	if m.Dims < 0 || m.Dims > MaxDims {
		return 0, wrong("ndim %d, not 0 to %d", m.Dims, MaxDims)
	}
	shape, err := m.ints("shape", m.Shape)
	if err != nil {
		return 0, err
	}
	if m.Dims > 0 && shape == nil {
		return 0, wrong("ndim %d and a nil shape", m.Dims)
	}
	strides, err := m.ints("strides", m.Strides)
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(shape, func(k int64) bool { return k < 0 }) {
		return 0, wrong("negative shape %d", shape)
	}
	if slices.Contains(shape, 0) {
		return 0, wrong("shape %d: no elements", shape)
	}
	n := int64(1)
	for _, k := range shape {
		if n > math.MaxInt/k {
			return 0, wrong("shape %d: more elements than the address space", shape)
		}
		n *= k
	}
	step := int64(1)
	for i := len(strides) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != step { // a dimension of size 1 may have any stride
			return 0, wrong("shape %d, strides %d: not contiguous in row-major order", shape, strides)
		}
		step *= shape[i]
	}
	return int(n), nil
}

// ints returns a copy of the array at a, which has an element for each dimension; nil if a is 0, or there are none.
func (m *Managed) ints(what string, a uintptr) ([]int64, error) {
	if a == 0 || m.Dims == 0 {
		return nil, nil
	}
	if a%unsafe.Alignof(int64(0)) != 0 {
		return nil, wrong("%s at %#x, which is not aligned", what, a)
	}
	return slices.Clone(unsafe.Slice((*int64)(pointer(a)), m.Dims)), nil
}
