//go:build linux && cgo && (amd64 || arm64)

package nvml

/*
#cgo CFLAGS: -std=c11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

var system = sync.OnceValue(func() *C.ubc_nvml { return load("libnvidia-ml.so.1") })

func load(name string) *C.ubc_nvml {
	path := C.CString(name)
	defer C.free(unsafe.Pointer(path))
	return C.ubc_nvml_load(path)
}

func fabricOf(pci string) (Fabric, bool) { return of(system(), pci) }

func of(n *C.ubc_nvml, pci string) (f Fabric, ok bool) {
	if n == nil {
		return f, false
	}
	address := C.CString(pci)
	defer C.free(unsafe.Pointer(address))
	var c C.ubc_nvml_fabric
	if C.ubc_nvml_fabric_of(n, address, &c) == 0 {
		return f, false
	}
	return Fabric{*(*[16]byte)(unsafe.Pointer(&c.cluster)), uint32(c.clique)}, true
}
