// Package dtype names the element types that collectives move and reduce, and converts the 16-bit floating-point
// ones:
//
//	Type                     Go type                       Bytes
//	int8 ... int64           int8 ... int64                1, 2, 4, 8
//	uint8 ... uint64         uint8 ... uint64              1, 2, 4, 8
//	int64, uint64            int, uint (32-bit machines: int32, uint32)
//	float16, bfloat16        F16, BF16                     2
//	float32, float64         float32, float64              4, 8
//	bool                     bool                          1
//
// Types defined on these have the same [Type]. Exceptions are types defined on uint16, F16 and BF16, which are not
// element types: see [Elem]. Everything here is local, never blocks and never allocates.
package dtype

import (
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Type is an element type. The zero Type is not valid, so that an unset field is noticed.
type Type uint8

// The element types, as in MPI-4.1 section 3.2.2 and NCCL's ncclDataType_t.
const (
	Invalid Type = iota
	Int8
	Uint8
	Int16
	Uint16
	Int32
	Uint32
	Int64
	Uint64
	Float16
	BFloat16
	Float32
	Float64
	Bool // a byte: 0 is false, any other value is true
	numTypes
)

var names = [numTypes]string{"invalid", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
	"float16", "bfloat16", "float32", "float64", "bool"}

var sizes = [numTypes]int{0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1}

// Valid reports whether t is one of the element types.
func (t Type) Valid() bool { return t > Invalid && t < numTypes }

// Size is the size of one element in bytes, which is also its alignment; 0 if t is not valid.
func (t Type) Size() int {
	if t >= numTypes {
		return 0
	}
	return sizes[t]
}

// Float reports whether t is a floating-point type.
func (t Type) Float() bool { return t >= Float16 && t <= Float64 }

// Signed reports whether t can hold negative values.
func (t Type) Signed() bool {
	switch t {
	case Int8, Int16, Int32, Int64:
		return true
	}
	return t.Float()
}

// String is the type's name as [Parse] reads it: "float32".
func (t Type) String() string {
	if t >= numTypes {
		return fmt.Sprintf("dtype(%d)", uint8(t))
	}
	return names[t]
}

// All lists the element types in order.
func All() []Type {
	var all []Type
	for t := Invalid + 1; t < numTypes; t++ {
		all = append(all, t)
	}
	return all
}

// Parse parses a type name: one that String returns, or nccl-tests' "half", "float" or "double". The error for any
// other name lists the names.
func Parse(s string) (Type, error) {
	switch s {
	case "half":
		return Float16, nil
	case "float":
		return Float32, nil
	case "double":
		return Float64, nil
	}
	for t := Invalid + 1; t < numTypes; t++ {
		if names[t] == s {
			return t, nil
		}
	}
	return Invalid, errors.New(nearest.Unknown("element type", s, append(slices.Clone(names[1:]), "half", "float", "double")))
}

// MarshalText and UnmarshalText make a Type readable in TOML and JSON.
func (t Type) MarshalText() ([]byte, error) {
	if !t.Valid() {
		return nil, fmt.Errorf("element type %v is not valid", t)
	}
	return []byte(t.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (t *Type) UnmarshalText(b []byte) error {
	p, err := Parse(string(b))
	if err == nil {
		*t = p
	}
	return err
}

// Elem is the set of Go types that have a [Type], and of types that programs define on them (type Celsius float32). It
// excludes types defined on uint16, F16 or BF16: these three have the same underlying type, and a float16 must not be
// summed as an integer. An int is an [Int64] and a uint a [Uint64], or the 32-bit types on a 32-bit machine. So ranks
// on the same machine may pass []int and []int64 to the same operation.
type Elem interface {
	~int8 | ~uint8 | ~int16 | uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint | ~bool |
		~float32 | ~float64 | F16 | BF16
}

// ofKind has the Type of each reflect.Kind, 4 bits each: a table that needs no memory.
const ofKind = uint64(Int8)<<(4*reflect.Int8) | uint64(Uint8)<<(4*reflect.Uint8) |
	uint64(Int16)<<(4*reflect.Int16) | uint64(Uint16)<<(4*reflect.Uint16) |
	uint64(Int32)<<(4*reflect.Int32) | uint64(Uint32)<<(4*reflect.Uint32) |
	uint64(Int64)<<(4*reflect.Int64) | uint64(Uint64)<<(4*reflect.Uint64) |
	uint64(Float32)<<(4*reflect.Float32) | uint64(Float64)<<(4*reflect.Float64) |
	uint64(Bool)<<(4*reflect.Bool) | uint64(Int32+ofWord)<<(4*reflect.Int) | uint64(Uint32+ofWord)<<(4*reflect.Uint)

// ofWord is the distance from the 32-bit integer's Type to the Type of a word-sized integer.
const ofWord = (Int64 - Int32) * (bits.UintSize / 64)

// Of is the [Type] of the Go type T.
func Of[T Elem]() Type {
	if unsafe.Sizeof(*new(T)) == 2 {
		switch any(*new(T)).(type) {
		case F16:
			return Float16
		case BF16:
			return BFloat16
		}
	}
	return Type(ofKind >> (4 * uint(reflect.TypeFor[T]().Kind())) & 15)
}
