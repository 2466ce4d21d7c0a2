package ubcoll

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// Options configure a communicator. All ranks must give the same, except for the Logger; [Open] compares them. The zero
// Options are the defaults, which the variables UBCOLL_TIMEOUT, UBCOLL_NET_TIMEOUT, UBCOLL_REGISTER, UBCOLL_PIN,
// UBCOLL_ALGO and UBCOLL_CUDA change.
type Options struct {
	Timeout   time.Duration // longest wait inside one operation; 0 = 10 minutes
	Register  Policy        // which buffers the library registers
	Pin       Pin           // whether registered host memory must be locked in memory
	Algorithm Algorithm     // of all-reduces on one host, where it is possible, or of operations between hosts
	Devices   DevicePolicy  // whether the ranks use GPUs, and may share them

	// NetTimeout is how long another host may leave what was sent to it unanswered before the connection to it counts as
	// cut, which is [ErrPeerLost] and breaks the communicators on it: from one second to one hour, 0 = 5 seconds. Longer
	// lets a link be away for that long, in the failover of a bond for example. A process that ends is seen at once,
	// whatever it is, and a process that is stopped is not lost: its host answers.
	NetTimeout time.Duration
	Net        Net // what carries data between hosts

	// Logger takes the log of this rank for this communicator and for those that Split and Dup make of it. Its handler
	// alone decides what is written, whatever UBCOLL_LOG says. Nil logs text to standard error, from UBCOLL_LOG's level
	// on. Warn has what no call can return as an error, and long waits; Info has what was opened, found, broken and
	// closed; Debug has how each collective went, if it is enabled when the communicator is made. Open does not compare
	// Loggers. The library calls the handler from any goroutine, while it holds locks: the handler must not call the
	// library.
	Logger *slog.Logger `toml:"-"`
}

// Policy decides which buffers operations use directly through a registration; all others are staged. It has the
// methods String, MarshalText and UnmarshalText, whose words are "auto", "explicit" and "off".
type Policy = register.Policy

// The policies.
const (
	RegisterAuto     = register.Auto     // what the user registered, and memory of Alloc at its first use
	RegisterExplicit = register.Explicit // what the user registered
	RegisterOff      = register.Off      // none
)

// Pin says whether host memory must be locked in memory while it is registered, so that it cannot be paged out. Device
// memory always is; adopted host memory is its owner's to lock. It has the methods String, MarshalText and
// UnmarshalText, whose words are "auto" and "required".
type Pin = register.Pin

// The values of Pin. With UBCOLL_PIN=required in the environment, auto means required.
const (
	// PinAuto locks memory as far as RLIMIT_MEMLOCK (ulimit -l) allows. What cannot be locked is registered all the same.
	PinAuto = register.PinAuto
	// PinRequired registers only what can be locked. RegisterBuffer, RegisterWindow and graph captures of other memory
	// return [ErrLimit], which names the limit, its value and how to raise it; where an operation would have registered a
	// buffer by itself, it copies the buffer, and LastOp has that error's text. Later calls try again, operations on a
	// buffer once a second.
	PinRequired = register.PinRequired
)

// Algorithm is how the data of an all-reduce travels on one host, or how those of an all-reduce or a broadcast travel
// between hosts. An algorithm that is not for the operation at hand has no effect: the library chooses, and LastOp says
// what it chose. So it does within the hosts of a communicator of several.
type Algorithm string

// The algorithms. On one host the two-shot works with every mix of buffers and replaces another algorithm that is not
// possible. Data small enough to travel with the agreement does so, on one host unless the ring is asked for.
const (
	// AlgorithmAuto lets the library choose.
	AlgorithmAuto Algorithm = ""
	// AlgorithmRing goes around all ranks, or all hosts.
	AlgorithmRing Algorithm = "ring"
	// AlgorithmOneShot has every rank combine everything. On devices that is up to 256 KiB with 2 ranks, 172 KiB with 3,
	// 128 KiB with 4 to 8, and 32 KiB with more; after Split and Dup up to 64 KiB with 2 ranks, and 32 KiB with more.
	AlgorithmOneShot Algorithm = "one-shot"
	// AlgorithmTwoShot has every rank combine its part and read the others'.
	AlgorithmTwoShot Algorithm = "two-shot"
	// AlgorithmPush has every rank combine its part and write it to the others. On devices it is a two-shot without
	// reads of peers' memory.
	AlgorithmPush Algorithm = "push"

	// AlgorithmDoubling, of all-reduces and all-gathers between hosts, has each host exchange all that it has with log2 of
	// the hosts.
	AlgorithmDoubling Algorithm = "doubling"
	// AlgorithmHalving, of all-reduces and reduce-scatters between hosts, has each host exchange half of the data with another
	// one, then a quarter, and so on, and of an all-reduce then the results in the other order.
	AlgorithmHalving Algorithm = "halving"
	// AlgorithmChain, of broadcasts and reduces between hosts, passes the data on from host to host, in pieces.
	AlgorithmChain Algorithm = "chain"
	// AlgorithmTree, of broadcasts, reduces, gathers and scatters between hosts, passes the data on to, or from, up to log2
	// of the hosts each.
	AlgorithmTree Algorithm = "tree"
	// AlgorithmScatter, of broadcasts between hosts, gives each host a part of the data, and each collects the others.
	AlgorithmScatter Algorithm = "scatter"
	// AlgorithmPairwise, of all-gathers, reduce-scatters, gathers, scatters and all-to-alls between hosts, has each host send
	// its data straight to each other one.
	AlgorithmPairwise Algorithm = "pairwise"
	// AlgorithmCollNet, of all-reduces, all-gathers and reduce-scatters between hosts, has the CollNet plugin that
	// UBCOLL_COLLNET_PLUGIN names do them in the network, for the types and reductions that it declares.
	AlgorithmCollNet Algorithm = "collnet"
)

// Algorithms returns the algorithms that can be asked for by name: all but [AlgorithmAuto]. The caller owns the slice.
func Algorithms() []Algorithm {
	return []Algorithm{AlgorithmRing, AlgorithmOneShot, AlgorithmTwoShot, AlgorithmPush, AlgorithmDoubling, AlgorithmHalving,
		AlgorithmChain, AlgorithmTree, AlgorithmScatter, AlgorithmPairwise, AlgorithmCollNet}
}

// Net is what carries the data between the hosts of a communicator, and of those that Split and Dup make of it. On one host it
// has no effect.
type Net string

// The networks. An option counts more than UBCOLL_IB and UBCOLL_OFI, but that verbs with UBCOLL_IB=off, ofi with UBCOLL_OFI=off,
// or another than verbs with UBCOLL_REQUIRE=verbs, is [ErrNotSupported].
const (
	// NetAuto does as UBCOLL_OFI and UBCOLL_IB say: by default libfabric where a fabric needs it, else RDMA where both ends have a
	// device and it works, and TCP elsewhere.
	NetAuto Net = ""
	// NetTCP opens no RDMA device, and does not load libfabric.
	NetTCP Net = "tcp"
	// NetVerbs makes it an error if a rank has no RDMA device, or the data of two ranks cannot go by RDMA: [ErrNotSupported], or
	// [ErrLimit] for want of memory or room there.
	NetVerbs Net = "verbs"
	// NetOFI is libfabric: the best provider that a rank has, or the one that UBCOLL_OFI_PROVIDER names. "ofi:PROVIDER", as
	// "ofi:efa" or "ofi:tcp;ofi_rxm", is that provider. It is an error if a rank has none, or the data of two ranks cannot go by
	// it: [ErrNotSupported], or [ErrLimit] for want of memory or room there.
	NetOFI Net = "ofi"
)

// Nets returns the networks that can be asked for by name: all but [NetAuto], and without the providers of [NetOFI]. The caller
// owns the slice.
func Nets() []Net { return []Net{NetTCP, NetVerbs, NetOFI} }

// known reports whether n is a network, or a provider of NetOFI.
func (n Net) known() bool {
	provider, ok := strings.CutPrefix(string(n), string(NetOFI)+":")
	return n == NetAuto || slices.Contains(Nets(), n) || ok && strings.TrimSpace(provider) != ""
}

// DevicePolicy decides whether the ranks of a communicator, and of those that Split and Dup make of it, use their GPUs.
type DevicePolicy int

// The policies for devices. With UBCOLL_CUDA=off in the environment, auto means off, and requiring devices fails. With
// UBCOLL_CUDA=share, auto means share, and where devices are required ranks may share them.
const (
	// DevicesAuto uses devices if each rank has one of its own: see Comm.GPU.
	DevicesAuto DevicePolicy = iota
	// DevicesOff takes no device memory and does not load the driver. Calls that need a device return ErrNotSupported.
	DevicesOff
	// DevicesRequired makes Open, Split and Dup fail on all ranks if devices cannot be used: ErrNotSupported, or
	// ErrLimit for want of memory or room there, names the rank and the obstacle.
	DevicesRequired
	// DevicesShare is DevicesAuto, but where a host has more ranks than devices, they are dealt to the devices in turn.
	// Ranks that are goroutines of one process divide a device's multiprocessors among them, and run at the same time.
	// Processes take turns on it, which takes milliseconds for each step of a call, unless NVIDIA's MPS runs. A device has
	// room for a limited number of such communicators ([Comm.GPU]) and streams ([NewStream]). Calls of CUDA that wait until
	// no kernel of the process runs, as cudaFree and cudaDeviceSynchronize, make ranks of one process wait for each other
	// until the timeout if a rank makes one while another rank's kernel waits for it.
	DevicesShare
)

func (p DevicePolicy) known() bool { return p >= DevicesAuto && p <= DevicesShare }

// String is "auto", "off", "required" or "share".
func (p DevicePolicy) String() string { return team.DevicePolicy(p).String() }

// MarshalText returns String of a known policy, and [ErrArgument] for any other.
func (p DevicePolicy) MarshalText() ([]byte, error) {
	if !p.known() {
		return nil, fmt.Errorf("device policy %d is unknown: %w", int(p), ErrArgument)
	}
	return []byte(p.String()), nil
}

// UnmarshalText accepts "auto", "off", "required" and "share"; anything else is [ErrArgument], which names the nearest.
func (p *DevicePolicy) UnmarshalText(text []byte) error {
	var names []string
	for q := DevicesAuto; q.known(); q++ {
		if q.String() == string(text) {
			*p = q
			return nil
		}
		names = append(names, q.String())
	}
	return fmt.Errorf("%s: %w", nearest.Unknown("device policy", string(text), names), ErrArgument)
}

// Validate reports everything that is wrong with o, as [ErrArgument]. Local.
func (o Options) Validate() error {
	var errs []error
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %v is negative: want more, or 0 for the default: %w", o.Timeout, ErrArgument))
	}
	if o.NetTimeout != 0 && (o.NetTimeout < time.Second || o.NetTimeout > time.Hour) {
		errs = append(errs, fmt.Errorf("net timeout %v: want 1s to 1h, or 0 for the default: %w", o.NetTimeout, ErrArgument))
	}
	if o.Register < RegisterAuto || o.Register > RegisterOff {
		errs = append(errs, fmt.Errorf("registration policy %v: %w", o.Register, ErrArgument))
	}
	if _, err := o.Pin.MarshalText(); err != nil {
		errs = append(errs, err)
	}
	if !o.Devices.known() {
		errs = append(errs, fmt.Errorf("device policy %v: %w", o.Devices, ErrArgument))
	}
	if o.Algorithm != AlgorithmAuto && !slices.Contains(Algorithms(), o.Algorithm) {
		var names []string
		for _, a := range Algorithms() {
			names = append(names, string(a))
		}
		errs = append(errs, fmt.Errorf("%s: %w", nearest.Unknown("algorithm", string(o.Algorithm), names), ErrArgument))
	}
	if !o.Net.known() {
		var names []string
		for _, n := range Nets() {
			names = append(names, string(n))
		}
		errs = append(errs, fmt.Errorf("%s: %w", nearest.Unknown("network", string(o.Net), names), ErrArgument))
	}
	return errors.Join(errs...)
}

// fromEnvironment sets the fields that o leaves open from UBCOLL_TIMEOUT, UBCOLL_NET_TIMEOUT, UBCOLL_REGISTER,
// UBCOLL_PIN, UBCOLL_ALGO and UBCOLL_CUDA. It ignores malformed values: the engine's Open reports those of all variables.
func (o Options) fromEnvironment() Options {
	if o.Timeout == 0 {
		o.Timeout, _ = env.Timeout.Get()
	}
	if o.NetTimeout == 0 {
		o.NetTimeout, _ = env.NetTimeout.Get()
	}
	if o.Register == RegisterAuto {
		name, _ := env.Register.Get()
		_ = o.Register.UnmarshalText([]byte(name))
	}
	if o.Pin == PinAuto {
		name, _ := env.Pin.Get()
		_ = o.Pin.UnmarshalText([]byte(name))
	}
	if o.Algorithm == AlgorithmAuto {
		name, _ := env.Algorithm.Get()
		o.Algorithm = Algorithm(name)
	}
	switch mode, _ := env.CUDA.Get(); {
	case o.Devices == DevicesAuto && mode == "off":
		o.Devices = DevicesOff
	case o.Devices == DevicesAuto && mode == "share":
		o.Devices = DevicesShare
	}
	return o
}

func (o Options) engine() engine.Options {
	return engine.Options{Timeout: o.Timeout, NetTimeout: o.NetTimeout, Register: o.Register, Pin: o.Pin,
		Algorithm: string(o.Algorithm), Net: string(o.Net), Devices: team.DevicePolicy(o.Devices), Logger: o.Logger}
}
