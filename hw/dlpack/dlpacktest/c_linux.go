//go:build cgo

package dlpacktest

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall
#include <stdint.h>
#include <sys/mman.h>

// The Go struct context, and the part of DLManagedTensor that the deleter reads.
struct context { int64_t calls; void *data; size_t n; };
struct managed { char tensor[48]; struct context *context; };

static void ubc_deleter(struct managed *t) {
	struct context *c = t->context;
	if (c->n)
		mprotect(c->data, c->n, PROT_NONE);
	__atomic_add_fetch(&c->calls, 1, __ATOMIC_SEQ_CST);
}
static uintptr_t ubc_deleter_address(void) { return (uintptr_t)ubc_deleter; }
*/
import "C"

// Deletes reports whether tensors have deleters.
const Deletes = true

func deleter() uintptr { return uintptr(C.ubc_deleter_address()) }
