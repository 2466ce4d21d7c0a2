//go:build linux && cgo && (amd64 || arm64)

package cuda

// SetLibrary names what is loaded in place of the driver. Only before the first call.
func SetLibrary(path string) { library = path }

// BeginGlobalCapture is as other libraries capture: on one thread, and calls that are unsafe fail on all others.
func (s *Stream) BeginGlobalCapture() error { return s.beginCapture(0) } // CU_STREAM_CAPTURE_MODE_GLOBAL
