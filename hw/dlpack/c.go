//go:build cgo

package dlpack

/*
#cgo CFLAGS: -std=c11 -O2 -Wall
#include <stddef.h>
#include <stdint.h>

// DLManagedTensor of DLPack 1.0, field by field, the structs in it included.
typedef struct ubc_managed {
	void *data;
	struct { int32_t type, id; } device;
	int32_t dims;
	struct { uint8_t code, bits; uint16_t lanes; } dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
	void *context;
	void (*deleter)(struct ubc_managed *);
} ubc_managed;

enum {
	UBC_SHAPE = offsetof(ubc_managed, shape),
	UBC_BYTE_OFFSET = offsetof(ubc_managed, byte_offset),
	UBC_DELETER = offsetof(ubc_managed, deleter),
};

static void ubc_delete(void *t) { ((ubc_managed *)t)->deleter(t); }
*/
import "C"

import "unsafe"

const canDelete = true

// The Go struct is the C struct: else an index is out of range.
var (
	_ = [1]int{}[unsafe.Sizeof(Managed{})-C.sizeof_ubc_managed]
	_ = [1]int{}[unsafe.Offsetof(Managed{}.Shape)-C.UBC_SHAPE]
	_ = [1]int{}[unsafe.Offsetof(Managed{}.ByteOffset)-C.UBC_BYTE_OFFSET]
	_ = [1]int{}[unsafe.Offsetof(Managed{}.Deleter)-C.UBC_DELETER]
)

func callDeleter(t unsafe.Pointer) { C.ubc_delete(t) }
