//go:build linux && cgo && (amd64 || arm64)

package nvml

// Load loads another library than the system's, and returns FabricOf of it.
func Load(path string) func(pci string) (Fabric, bool) {
	n := load(path)
	return func(pci string) (Fabric, bool) { return of(n, pci) }
}
