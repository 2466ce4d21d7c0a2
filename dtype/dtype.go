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
// Types defined on these have the same [Type], but for those on uint16, F16 and BF16, which are not element types: see
// [Elem]. Everything here is local, never blocks and never allocates.
package dtype

import (
	"fmt"
	"math/bits"
	"reflect"
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
	Bool // a byte: 0 is false, what is not 0 true
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

// Parse reads a type name. Beside the names that String gives it takes those of nccl-tests: "half", "float",
// "double". The error of any other name lists them.
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
	return Invalid, fmt.Errorf("unknown element type %q (one of %v)%s", s, names[1:],
		nearest.Hint(s, append([]string{"half", "float", "double"}, names[1:]...)))
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

// Elem is the Go types that have a [Type], and the types that programs define on them (type Celsius float32). Not those
// defined on uint16, F16 or BF16: underneath these three are the same, and a float16 must not be summed as an integer.
// An int is an [Int64] and a uint a [Uint64], or those of 32 bits on a machine of 32 bits: ranks of the same machine
// may pass []int and []int64 to the same operation.
type Elem interface {
	~int8 | ~uint8 | ~int16 | uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint | ~bool |
		~float32 | ~float64 | F16 | BF16
}

// ofKind has the Type of each kind of Go types, 4 bits each: a table that needs no memory.
const ofKind = uint64(Int8)<<(4*reflect.Int8) | uint64(Uint8)<<(4*reflect.Uint8) |
	uint64(Int16)<<(4*reflect.Int16) | uint64(Uint16)<<(4*reflect.Uint16) |
	uint64(Int32)<<(4*reflect.Int32) | uint64(Uint32)<<(4*reflect.Uint32) |
	uint64(Int64)<<(4*reflect.Int64) | uint64(Uint64)<<(4*reflect.Uint64) |
	uint64(Float32)<<(4*reflect.Float32) | uint64(Float64)<<(4*reflect.Float64) |
	uint64(Bool)<<(4*reflect.Bool) | uint64(Int32+ofWord)<<(4*reflect.Int) | uint64(Uint32+ofWord)<<(4*reflect.Uint)

// ofWord is how far an integer as large as a word is behind that of 32 bits.
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
