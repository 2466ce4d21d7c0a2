package cuda

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Error is a failure that the CUDA driver reports.
type Error struct {
	Call string // the driver's call: "cuMemAlloc_v2"
	Code int    // its CUresult
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory"
	Log  string // what the driver's assembler says about a module, else ""
}

// Error reads "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Call)
	switch {
	case e.Code == closedCode:
		b.WriteString(": used after it was closed")
	case e.Name == "":
		fmt.Fprintf(&b, ": error %d, which the driver has no name for", e.Code)
	default:
		b.WriteString(": " + e.Name + ": " + e.Text)
	}
	if e.Log != "" {
		b.WriteString(": " + e.Log)
	}
	return b.String()
}

// closedCode is UBC_CLOSED of driver.h. The driver does not use it.
const closedCode = -1

// Unwrap returns the sentinel of the failure's class, or nil if it has no class.
func (e *Error) Unwrap() error {
	switch e.Code {
	case 2, // OUT_OF_MEMORY
		701, // LAUNCH_OUT_OF_RESOURCES
		711, // TOO_MANY_PEERS
		720: // COOPERATIVE_LAUNCH_TOO_LARGE
		return fault.ErrLimit
	case 34, // STUB_LIBRARY
		46,            // DEVICE_UNAVAILABLE
		100,           // NO_DEVICE
		209,           // NO_BINARY_FOR_GPU
		217,           // PEER_ACCESS_UNSUPPORTED
		221, 222, 223, // JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED
		800, 801, // NOT_PERMITTED, NOT_SUPPORTED
		802,      // SYSTEM_NOT_READY
		803, 804: // SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE
		return hw.ErrNotSupported
	case 1, // INVALID_VALUE
		101,      // INVALID_DEVICE
		200, 218, // INVALID_IMAGE, INVALID_PTX
		208, 712, 713, // ALREADY_MAPPED, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED
		400, 401, // INVALID_HANDLE, ILLEGAL_STATE
		500,                                         // NOT_FOUND
		900, 901, 902, 903, 904, 905, 906, 907, 908: // STREAM_CAPTURE_..., CAPTURED_EVENT
		return fault.ErrArgument
	case closedCode,
		4,   // DEINITIALIZED
		709: // CONTEXT_IS_DESTROYED
		return fault.ErrClosed
	case 201: // INVALID_CONTEXT: somebody reset the device, or this process opens its own export
		if e.Call == "cuIpcOpenMemHandle_v2" {
			return fault.ErrArgument
		}
		return fault.ErrClosed
	}
	return nil
}
