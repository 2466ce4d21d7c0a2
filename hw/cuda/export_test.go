//go:build linux && cgo && (amd64 || arm64)

package cuda

// SetLibrary sets the file that is loaded in place of the driver. Call it before anything else.
func SetLibrary(path string) { library = path }

// BeginGlobalCapture captures as other libraries do: on one thread, and unsafe calls fail on all others.
func (s *Stream) BeginGlobalCapture() error { return s.beginCapture(0) } // CU_STREAM_CAPTURE_MODE_GLOBAL

// Captured reports whether a capture that BeginCapture began is noted for a stream of that handle.
func Captured(handle uintptr) bool {
	_, noted := captures.Load(handle)
	return noted
}
