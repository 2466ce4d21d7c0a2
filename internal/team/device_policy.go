package team

import "fmt"

// DevicePolicy decides whether a communicator uses devices: the root package's DevicePolicy.
type DevicePolicy int

// The policies.
const (
	DevicesAuto     DevicePolicy = iota // if each rank has one
	DevicesOff                          // never
	DevicesRequired                     // always; otherwise the communicator is not made
	DevicesShare                        // if each rank has one, which may be others' as well
)

// String is "auto", "off", "required" or "share".
func (p DevicePolicy) String() string {
	if p < DevicesAuto || p > DevicesShare {
		return fmt.Sprintf("DevicePolicy(%d)", int(p))
	}
	return [...]string{"auto", "off", "required", "share"}[p]
}
