//go:build linux && cgo && (amd64 || arm64)

package cuda

// MulticastPermitted returns why multicast objects may not be made, or nil.
var MulticastPermitted = multicastPermitted

// MulticastEmulated reports whether this build has multicast, and the driver is the emulated one.
func MulticastEmulated() bool { return multicastDriver().emulated }

// Trust makes m leave all checks to the driver, and forget what it has bound.
func (m *Multicast) Trust() *Multicast {
	m.added, m.grain, m.bound = true, 1, nil
	return m
}

// UnbindAny unbinds what m may not know.
func (m *Multicast) UnbindAny(at, n int) error {
	m.bound = append(m.bound, extent{at, n})
	err := m.Unbind(at, n)
	m.bound = nil
	return err
}

// NCCLSetting returns the value that NCCL would have for a variable, and the file it is from.
var NCCLSetting = ncclSetting
