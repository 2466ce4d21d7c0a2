// Package dtype names the element types that collectives move and reduce, and converts the 16-bit floating-point
// ones. Everything here is local, never blocks and never allocates.
package dtype

import "fmt"

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
	numTypes
)

var names = [numTypes]string{"invalid", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
	"float16", "bfloat16", "float32", "float64"}

var sizes = [numTypes]int{0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8}

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

// String is the type's name as Parse reads it: "float32".
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
	return Invalid, fmt.Errorf("unknown element type %q (one of %v)", s, names[1:])
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

// Elem is the Go types that have a Type. They are exact types, not underlying ones, so that Float16 and uint16 stay
// apart.
type Elem interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | F16 | BF16 | float32 | float64
}

// Of is the Type of the Go type T.
func Of[T Elem]() Type {
	var z T
	switch any(z).(type) {
	case int8:
		return Int8
	case uint8:
		return Uint8
	case int16:
		return Int16
	case uint16:
		return Uint16
	case int32:
		return Int32
	case uint32:
		return Uint32
	case int64:
		return Int64
	case uint64:
		return Uint64
	case F16:
		return Float16
	case BF16:
		return BFloat16
	case float32:
		return Float32
	case float64:
		return Float64
	}
	return Invalid
}
