package ubcoll

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// Options are what all ranks of a communicator agree on, but for the Logger; [Open] compares them. The zero Options are
// the defaults, which the variables UBCOLL_TIMEOUT, UBCOLL_REGISTER, UBCOLL_ALGO and UBCOLL_CUDA change.
type Options struct {
	Timeout   time.Duration // longest wait inside one operation; 0 = 10 minutes
	Register  Policy        // which buffers the library registers
	Algorithm Algorithm     // of all-reduces on one host, where it can be had
	Devices   DevicePolicy  // whether the ranks use their GPUs

	// Logger takes this rank's messages of the communicator, and of those that Split and Dup make of it; what its handler
	// leaves out is not written, whatever UBCOLL_LOG says. Nil: text on standard error, from UBCOLL_LOG's level on. At
	// Warn: what no call can return as an error, and long waits; at Info: what was opened, found, broken and closed; at
	// Debug: how each collective went, if it is enabled when the communicator is made. It is not compared. Its handler is
	// called from any goroutine, while the library holds locks: it must call nothing of this library.
	Logger *slog.Logger `toml:"-"`
}

// Policy is which buffers operations use directly by their registration; all others are staged. It has the methods
// String, MarshalText and UnmarshalText, whose words are "auto", "explicit" and "off".
type Policy = register.Policy

// The policies.
const (
	RegisterAuto     = register.Auto     // what the user registered, and memory of Alloc at its first use
	RegisterExplicit = register.Explicit // what the user registered
	RegisterOff      = register.Off      // none
)

// Algorithm is how the data of an all-reduce travels on one host. On a communicator of several hosts none can be asked
// for, neither between them nor within them: the library chooses, and LastOp says what.
type Algorithm string

// The algorithms. The two-shot works with every mix of buffers, and stands in where another cannot be had; what is
// small enough to travel with the agreement does so, unless the ring is asked for.
const (
	// AlgorithmAuto has the library choose.
	AlgorithmAuto Algorithm = ""
	// AlgorithmRing goes around all ranks.
	AlgorithmRing Algorithm = "ring"
	// AlgorithmOneShot has every rank combine everything; on devices up to 1 MiB.
	AlgorithmOneShot Algorithm = "one-shot"
	// AlgorithmTwoShot has every rank combine its part and read the others'.
	AlgorithmTwoShot Algorithm = "two-shot"
	// AlgorithmPush has every rank combine its part and write it to the others; on devices it is a two-shot that reads no
	// peer's memory.
	AlgorithmPush Algorithm = "push"
)

// Algorithms are those that can be asked for by name: all but [AlgorithmAuto]. The caller owns the slice.
func Algorithms() []Algorithm {
	return []Algorithm{AlgorithmRing, AlgorithmOneShot, AlgorithmTwoShot, AlgorithmPush}
}

// DevicePolicy is whether the ranks of a communicator, and of those that Split and Dup make of it, use their GPUs.
type DevicePolicy int

// The policies of devices. With UBCOLL_CUDA=off in the environment auto is off, and none can be required.
const (
	// DevicesAuto uses them where each rank has one of its own: see Comm.GPU.
	DevicesAuto DevicePolicy = iota
	// DevicesOff takes no device memory and does not load the driver. What asks for a device is ErrNotSupported.
	DevicesOff
	// DevicesRequired has Open, Split and Dup fail on all ranks, with ErrNotSupported that names the rank and what is in
	// the way, where they could not be used.
	DevicesRequired
)

func (p DevicePolicy) known() bool { return p >= DevicesAuto && p <= DevicesRequired }

// String is "auto", "off" or "required".
func (p DevicePolicy) String() string { return team.DevicePolicy(p).String() }

// MarshalText is String for a known policy, and else [ErrArgument].
func (p DevicePolicy) MarshalText() ([]byte, error) {
	if !p.known() {
		return nil, fmt.Errorf("device policy %d is unknown: %w", int(p), ErrArgument)
	}
	return []byte(p.String()), nil
}

// UnmarshalText knows "auto", "off" and "required"; all else is [ErrArgument], which names the nearest.
func (p *DevicePolicy) UnmarshalText(text []byte) error {
	var names []string
	for q := DevicesAuto; q.known(); q++ {
		if q.String() == string(text) {
			*p = q
			return nil
		}
		names = append(names, q.String())
	}
	return fmt.Errorf("device policy %q is unknown, use auto, off or required%s: %w", text,
		nearest.Hint(string(text), names), ErrArgument)
}

// Validate reports everything that is wrong with o, as [ErrArgument]. Local.
func (o Options) Validate() error {
	var errs []error
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %v is negative: %w", o.Timeout, ErrArgument))
	}
	if o.Register < RegisterAuto || o.Register > RegisterOff {
		errs = append(errs, fmt.Errorf("registration policy %v: %w", o.Register, ErrArgument))
	}
	if !o.Devices.known() {
		errs = append(errs, fmt.Errorf("device policy %v: %w", o.Devices, ErrArgument))
	}
	if o.Algorithm != AlgorithmAuto && !slices.Contains(Algorithms(), o.Algorithm) {
		var names []string
		for _, a := range Algorithms() {
			names = append(names, string(a))
		}
		errs = append(errs, fmt.Errorf("algorithm %q (empty or one of %v)%s: %w", o.Algorithm, names,
			nearest.Hint(string(o.Algorithm), names), ErrArgument))
	}
	return errors.Join(errs...)
}

// fromEnvironment fills what o leaves open from UBCOLL_TIMEOUT, UBCOLL_REGISTER, UBCOLL_ALGO and UBCOLL_CUDA. Values
// that are malformed are left: the engine's Open has an error for all variables.
func (o Options) fromEnvironment() Options {
	if o.Timeout == 0 {
		o.Timeout, _ = env.Timeout.Get()
	}
	if o.Register == RegisterAuto {
		name, _ := env.Register.Get()
		_ = o.Register.UnmarshalText([]byte(name))
	}
	if o.Algorithm == AlgorithmAuto {
		name, _ := env.Algorithm.Get()
		o.Algorithm = Algorithm(name)
	}
	if mode, _ := env.CUDA.Get(); o.Devices == DevicesAuto && mode == "off" {
		o.Devices = DevicesOff
	}
	return o
}

func (o Options) engine() engine.Options {
	return engine.Options{Timeout: o.Timeout, Register: o.Register, Algorithm: string(o.Algorithm),
		Devices: team.DevicePolicy(o.Devices), Logger: o.Logger}
}
