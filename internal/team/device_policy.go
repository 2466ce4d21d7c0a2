package team

import "fmt"

// DevicePolicy decides whether a communicator uses devices: the root package's DevicePolicy.
type DevicePolicy int

// The policies.
const (
	DevicesAuto     DevicePolicy = iota // if each rank has one
	DevicesOff                          // never
	DevicesRequired                     // always; otherwise the communicator is not made
)

// String is "auto", "off" or "required".
func (p DevicePolicy) String() string {
	if p < DevicesAuto || p > DevicesRequired {
		return fmt.Sprintf("DevicePolicy(%d)", int(p))
	}
	return [...]string{"auto", "off", "required"}[p]
}
