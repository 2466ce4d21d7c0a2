//go:build !linux || !cgo || !(amd64 || arm64)

package nvml

func fabricOf(string) (f Fabric, ok bool) { return f, false }
