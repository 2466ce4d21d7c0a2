//go:build !linux || !cgo || !(amd64 || arm64)

package signals

// Guard runs f. This build loads no libraries.
func Guard(f func()) int {
	f()
	return 0
}
