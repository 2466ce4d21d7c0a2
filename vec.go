package ubcoll

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Vec is an untyped view of memory: what operations read and write. It is a small value, made by Of, by Buffer.Vec, or
// from another Vec; making one is local, costs nothing and registers nothing. The memory stays the maker's. A
// Vec that could not be made (Slice out of range, say) is not valid, and the operation that it is given to says why, on
// all ranks.
type Vec struct{ v team.Vec }

// Of views a Go slice. It works with every operation, through staging memory; a slice is never registered, peers never
// touch it, and it must not be changed or read by the caller while an operation that uses it runs. Of the slice of a
// Buffer it is the same as Buffer.Vec.
func Of[T dtype.Elem](s []T) Vec {
	return Vec{team.Vec{Ptr: unsafe.Pointer(unsafe.SliceData(s)), Len: len(s), Type: dtype.Of[T]()}}
}

// Len is the number of elements.
func (v Vec) Len() int { return v.v.Len }

// Type is the element type.
func (v Vec) Type() dtype.Type { return v.v.Type }

// Slice views elements i to j-1, without a copy. Out of range, it gives a Vec that is not valid.
func (v Vec) Slice(i, j int) Vec {
	if v.v.Err != nil {
		return v
	}
	if i < 0 || j < i || j > v.v.Len {
		return Vec{team.Vec{Type: v.v.Type, Err: fmt.Errorf("slice [%d:%d] of %d elements: %w", i, j, v.v.Len,
			fault.ErrArgument)}}
	}
	if i < j { // else keep the pointer inside the memory
		v.v.Ptr = unsafe.Add(v.v.Ptr, i*v.v.Type.Size())
	}
	v.v.Len = j - i
	return v
}

// As views the same bytes as elements of another type, without a copy. Their number must come out even, or it gives a
// Vec that is not valid.
func (v Vec) As(t dtype.Type) Vec {
	if v.v.Err != nil {
		return v
	}
	if !t.Valid() || v.v.Bytes()%t.Size() != 0 {
		return Vec{team.Vec{Type: t, Err: fmt.Errorf("view of %d bytes as %v: %w", v.v.Bytes(), t, fault.ErrArgument)}}
	}
	v.v.Len, v.v.Type = v.v.Bytes()/t.Size(), t
	return v
}

// Engine is for the packages of this module.
func (v Vec) Engine() team.Vec { return v.v }
