//go:build linux

// Package dlpacktest has tensors for tests: DLPack's structs in memory that is not Go's, with a deleter in C that counts
// its calls.
package dlpacktest

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/dlpack"
)

// Tensor is a tensor with its memory. Tests change Managed before they hand Pointer over.
type Tensor struct {
	*dlpack.Managed
	Bytes []byte // its memory, if it is the host's

	calls *context
}

// context is what the deleter in C reads and writes.
type context struct {
	calls atomic.Int64
	data  uintptr
	n     uintptr // bytes that it makes inaccessible
}

// New makes a tensor of float32 of that shape in host memory of its own, without strides. Its deleter, which it has in
// builds with cgo, makes the memory inaccessible, so that whoever uses it later faults. All is unmapped when t ends.
func New(t testing.TB, shape ...int64) *Tensor {
	t.Helper()
	n := 4
	for _, k := range shape {
		n *= int(k)
	}
	data := mapped(t, max(n, 1))
	x := newTensor(t, uintptr(unsafe.Pointer(&data[0])), shape)
	x.Bytes = data[:n]
	x.calls.data, x.calls.n = x.Data, uintptr(len(data))
	return x
}

// On makes a tensor of float32 of that shape in memory of a CUDA device, which its deleter leaves alone.
func On(t testing.TB, device int, data uintptr, shape ...int64) *Tensor {
	t.Helper()
	x := newTensor(t, data, shape)
	x.DeviceType, x.DeviceID = dlpack.CUDA, int32(device)
	return x
}

func newTensor(t testing.TB, data uintptr, shape []int64) *Tensor {
	page := mapped(t, 1)
	at := func(off int) unsafe.Pointer { return unsafe.Pointer(&page[off]) }
	x := &Tensor{Managed: (*dlpack.Managed)(at(0)), calls: (*context)(at(256))}
	*x.Managed = dlpack.Managed{Data: data, DeviceType: dlpack.CPU, Dims: int32(len(shape)), Code: 2, Bits: 32, Lanes: 1,
		Context: uintptr(at(256)), Deleter: deleter()}
	if shape != nil {
		x.Shape = Ints(t, shape...)
	}
	return x
}

// Ints returns the address of an array of numbers, a shape or strides.
func Ints(t testing.TB, x ...int64) uintptr {
	page := mapped(t, 8*len(x))
	copy(unsafe.Slice((*int64)(unsafe.Pointer(&page[0])), len(x)), x)
	return uintptr(unsafe.Pointer(&page[0]))
}

// Pointer is the struct's address.
func (x *Tensor) Pointer() unsafe.Pointer { return unsafe.Pointer(x.Managed) }

// Deleted is how often the deleter has been called.
func (x *Tensor) Deleted() int { return int(x.calls.calls.Load()) }

// mapped returns at least n bytes in pages of their own.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, (n+unix.Getpagesize()-1)/unix.Getpagesize()*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}
