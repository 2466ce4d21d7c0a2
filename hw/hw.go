// Package hw names devices and says what the hardware of this host can do. Its sub-packages are the bindings. Only what
// the root package re-exports, [Device], is promised to stay, and nothing of the sub-packages.
package hw

import (
	"errors"
	"fmt"
)

// ErrNotSupported is wrapped by every error that says that this machine, build or backend lacks something. The
// wrapping error says what is missing.
var ErrNotSupported = errors.New("not supported")

// Device is where memory lives: the host or a CUDA device. The zero Device is the host.
type Device struct{ cuda int } // 0 is the host, i+1 is CUDA device i, a negative number is no device

// Host is host memory.
var Host Device

// CUDA is the i-th CUDA device of this process, in the driver's order. A negative i gives no device, which every
// function that takes a Device refuses.
func CUDA(i int) Device {
	if i < 0 {
		return Device{cuda: i}
	}
	return Device{cuda: i + 1}
}

// Valid reports whether d can be a device: CUDA(-1) cannot.
func (d Device) Valid() bool { return d.cuda >= 0 }

// IsHost reports whether d is host memory.
func (d Device) IsHost() bool { return d.cuda == 0 }

// Index is the number that CUDA was given, or -1 for the host.
func (d Device) Index() int {
	if d.cuda < 0 {
		return d.cuda
	}
	return d.cuda - 1
}

// String is "host" or "cuda:0".
func (d Device) String() string {
	if d.cuda == 0 {
		return "host"
	}
	return fmt.Sprintf("cuda:%d", d.Index())
}

// Probe is the answer to "can this machine do it". A nil Err means yes. An Err that wraps ErrNotSupported means no, and
// says what is missing. Any other Err means that the probe could not tell, and says why.
type Probe struct {
	Name string
	Err  error
}

// String is one line, such as "memfd: available".
func (p Probe) String() string {
	switch {
	case p.Err == nil:
		return p.Name + ": available"
	case errors.Is(p.Err, ErrNotSupported):
		return p.Name + ": " + p.Err.Error()
	}
	return p.Name + ": could not tell: " + p.Err.Error()
}
