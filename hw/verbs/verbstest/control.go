//go:build linux && cgo

package verbstest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void *of_double(const char *lib, const char *name) {
	void *h = dlopen(lib, RTLD_NOW | RTLD_LOCAL); // the same one that hw/verbs has, or will have
	return h ? dlsym(h, name) : 0;
}
static long count(void *f, const char *what) { return ((long (*)(const char *))f)(what); }
static int set(void *f, const char *name, const char *value) { return ((int (*)(const char *, const char *))f)(name, value); }
*/
import "C"

import (
	"os"
	"testing"
	"unsafe"
)

// function returns one of the double's own functions. Only processes over the double may call it.
func function(t testing.TB, name string) unsafe.Pointer {
	t.Helper()
	lib, call := C.CString(os.Getenv(libraryVar)), C.CString(name)
	defer C.free(unsafe.Pointer(lib))
	defer C.free(unsafe.Pointer(call))
	f := C.of_double(lib, call)
	if f == nil {
		t.Fatalf("this process is not over the double: %s=%q has no %s", libraryVar, os.Getenv(libraryVar), name)
	}
	return f
}

// Count is for processes over the double. It returns how often a function was called ("reg_mr", "post_send"), how much
// work there was ("work" for requests, "inline", "signaled", "receives"), or how many objects exist ("context", "pd",
// "mr", "qp", "cq", "srq", "channel"; "odp" for on-demand regions, and "pinned" for bytes).
func Count(t testing.TB, what string) int {
	t.Helper()
	f := function(t, "verbstest_count")
	s := C.CString(what)
	defer C.free(unsafe.Pointer(s))
	n := int(C.count(f, s))
	if n < 0 {
		t.Fatalf("the double does not count %q", what)
	}
	return n
}

// Set sets a knob of the double that this process runs over. The numbers in FAIL and STATUS count from this call on.
func Set(t testing.TB, knob, value string) {
	t.Helper()
	f := function(t, "verbstest_set")
	name, to := C.CString(knob), C.CString(value)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(to))
	if C.set(f, name, to) == 0 {
		t.Fatalf("the double has no knob %s that can be set to %q now", knob, value)
	}
}
