//go:build linux && cgo && (amd64 || arm64)

package verbs

// SetLibrary names the library to load instead of the system's. Call it before the first use.
func SetLibrary(path string) { library = path }
