//go:build linux && cgo && (amd64 || arm64)

package cuda

// SetLibrary names what is loaded in place of the driver. Only before the first call.
func SetLibrary(path string) { library = path }
