package ubcoll

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Vec is an untyped view of memory that operations read and write. It is a small value, made by [Of], by [Buffer.Vec],
// or from another Vec; making one is local, costs nothing and registers nothing. The memory stays its maker's. A Vec
// that could not be made (Slice out of range, say) is not valid: an operation that gets it reports the reason on all
// ranks.
type Vec vec

type vec = inside.Vec

// Of views a Go slice. It works with every operation, through staging memory. A slice is never registered, and peers
// never touch it. The caller must not change or read it while an operation that uses it runs. For the slice of a
// [Buffer], Of gives the same as [Buffer.Vec]. T is any type of [dtype.Elem], int and the program's own types included.
func Of[T dtype.Elem](s []T) (v Vec) {
	// This writes what v.team points to. Calling v.team would make Of too large to inline, and building a separate Vec
	// would copy it.
	*(*team.Vec)(unsafe.Pointer(&v)) = team.Vec{Ptr: unsafe.Pointer(unsafe.SliceData(s)), Len: len(s), Type: dtype.Of[T]()}
	return v
}

// Len is the number of elements.
func (v Vec) Len() int { return v.team().Len }

// Type is the element type.
func (v Vec) Type() dtype.Type { return v.team().Type }

// Slice views elements i to j-1, without a copy. A range out of bounds gives a Vec that is not valid.
func (v Vec) Slice(i, j int) Vec {
	x := v.team()
	if x.Err != nil {
		return v
	}
	if i < 0 || j < i || j > x.Len {
		return newVec(team.Vec{Type: x.Type, Err: fmt.Errorf("slice [%d:%d] of %d elements: %w", i, j, x.Len,
			fault.ErrArgument)})
	}
	if i < j { // an empty slice at the end must not point past the memory
		x.Ptr = unsafe.Add(x.Ptr, i*x.Type.Size())
	}
	x.Len = j - i
	return v
}

// As views the same bytes as elements of another type, without a copy. If the bytes are not a whole number of elements,
// the Vec is not valid.
func (v Vec) As(t dtype.Type) Vec {
	x := v.team()
	if x.Err != nil {
		return v
	}
	if !t.Valid() || x.Bytes()%t.Size() != 0 {
		return newVec(team.Vec{Type: t, Err: fmt.Errorf("view of %d bytes as %v: %w", x.Bytes(), t, fault.ErrArgument)})
	}
	x.Len, x.Type = x.Bytes()/t.Size(), t
	return v
}

func (v *Vec) team() *team.Vec { return (*inside.Vec)(v).Team() }

// newVec converts v to the exported type.
func newVec(v team.Vec) Vec { return Vec(inside.NewVec(v)) }
