//go:build linux && cgo && (amd64 || arm64)

package ofi

// Serialized is i as if its provider were not thread-safe, as none of those for tests is.
func (i *Info) Serialized() *Info {
	s := *i
	s.serial = true
	return &s
}
