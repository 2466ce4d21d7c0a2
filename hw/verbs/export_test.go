//go:build linux && cgo && (amd64 || arm64)

package verbs

// SetLibrary names another library than the system's, before the first call.
func SetLibrary(path string) { library = path }
