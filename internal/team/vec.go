package team

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Vec is the untyped view of memory that operations read and write.
type Vec struct {
	Ptr   unsafe.Pointer
	Len   int // elements
	Type  dtype.Type
	Dev   hw.Device
	Alloc *mem.Allocation // the allocation it was made from, if that is known
	Err   error           // why the view is not valid
}

// Bytes is the view's size.
func (v *Vec) Bytes() int { return v.Len * v.Type.Size() }

// Check returns why v cannot be used, or nil.
func (v *Vec) Check() error {
	switch {
	case v.Err != nil:
		return v.Err
	case !v.Type.Valid():
		return fmt.Errorf("the zero Vec, or one of an unknown type, which views nothing (Of and Buffer.Vec make one): %w",
			fault.ErrArgument)
	case v.Len > 0 && v.Ptr == nil:
		return fmt.Errorf("nil memory of %d elements: %w", v.Len, fault.ErrArgument)
	case uintptr(v.Ptr)%uintptr(v.Type.Size()) != 0:
		return fmt.Errorf("memory at %p is not aligned to %v (%d bytes): %w", v.Ptr, v.Type, v.Type.Size(), fault.ErrArgument)
	case v.Alloc != nil && !v.Alloc.Live():
		return fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
	}
	return nil
}

// CheckAs returns why v cannot be read or, if destination is set, written to.
func (v *Vec) CheckAs(destination bool) error {
	if destination && v.Alloc != nil && v.Alloc.ReadOnly {
		return fmt.Errorf("the memory at %p is a read-only view of a peer's window: %w", v.Ptr, fault.ErrArgument)
	}
	return v.Check()
}
