package team

import "fmt"

// DevicePolicy is whether a communicator uses devices, as the root has it.
type DevicePolicy int

// The policies.
const (
	DevicesAuto     DevicePolicy = iota // where each rank has one
	DevicesOff                          // it does not
	DevicesRequired                     // it does, or is not made
)

// String is "auto", "off" or "required".
func (p DevicePolicy) String() string {
	if p < DevicesAuto || p > DevicesRequired {
		return fmt.Sprintf("DevicePolicy(%d)", int(p))
	}
	return [...]string{"auto", "off", "required"}[p]
}
