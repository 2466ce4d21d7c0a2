package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Accelerators makes the device sides of communicators; package gpu implements it.
type Accelerators interface {
	// Visible returns what a rank tells all others about the devices that its process may use, and why there is none,
	// or "". If the policy is off, it does not look for devices.
	Visible(policy team.DevicePolicy) (visible json.RawMessage, why string)
	// PCI returns the PCI address of the device that a rank of a host will use, this one, or "". all is what its ranks have told by
	// Visible.
	PCI(all []json.RawMessage, rank int) string
	// New makes c's side on this rank's device. all is what the ranks of its host have told, in the team's order; it
	// decides which device is whose. The error says why there is none.
	New(c *Comm, all []json.RawMessage) (Accelerator, error)
}

// Accelerator is the device side of a communicator, as the engine uses it. It belongs to the communicator's team.
type Accelerator interface {
	// Part makes the side of c, whose team consists of some of this side's ranks.
	Part(c *Comm, ranks []int) Accelerator
	// Card sets this rank's side up, and returns what the others need from it. It fails soon after ctx has ended.
	Card(ctx context.Context) (DeviceCard, error)
	// Meet connects to the others' sides; cards are in the team's order. It returns why devices cannot be used, or "".
	Meet(ctx context.Context, cards []DeviceCard) string
	// JoinMulticast returns operations of the communicator, once it is complete, by which its ranks set multicast up, as far
	// as they can; none if nobody asks for it. All ranks return as many.
	JoinMulticast(ctx context.Context) []*Gathering

	// Perform runs w, the communicator's own Work, and waits. It is called in the communicator's turn.
	Perform(ctx context.Context, w *team.Work) error
	// PerformSome runs the first of works, in a group with those that one kernel runs with it, and returns how many.
	PerformSome(ctx context.Context, works []team.Work, group bool) (n int, err error)
	// Busy reports whether any queued operation has not ended.
	Busy() bool
	// SetTimeout changes the deadline of later launches.
	SetTimeout(d time.Duration)
	// Abort ends all waits on the device.
	Abort()
	// Close ends this rank's side except for its memory, Allocations, which peers may still use. It first waits for
	// queued operations, which end by their deadline, or at once if the communicator is broken.
	Close() error
	Allocations() []*mem.Allocation

	// Carry begins to carry w's data between the device and the host, for a blocking call; see team.Comm. An error may also
	// be in w.Err, of a rank that cannot take part: then there is a carrier.
	Carry(ctx context.Context, w *team.Work) (team.Carrier, error)
}

// DomainDevice is what all communicators of a domain share on its device.
type DomainDevice interface {
	Device() hw.Device
	// Ranks returns the ranks of the domain's first communicator that have this device, in order, this one included. The
	// caller only reads them.
	Ranks() []int
	// Turns reports whether ranks of other processes have it, which run on it in turns.
	Turns() bool
	// Copy copies between b, which may be on the Go heap, and a, and waits.
	Copy(a cuda.Addr, b []byte, in bool) error
	// Unpin ends the use of the domain's host memory.
	Unpin() error
	// Close ends it, after the domain's memory has been freed.
	Close() error
}

// DeviceCard is what a rank tells about its device when a communicator is made, or why it cannot use it.
type DeviceCard struct {
	Extent  uint32 `json:"extent"` // the extent that has the area
	Offset  uint64 `json:"offset"`
	Threads int    `json:"threads"`
	Lines   bool   `json:"lines"` // its links carry lines of 128 bytes whole
	Why     string `json:"why,omitempty"`
}

// chooseDevice takes this rank's device, which follows from what the ranks of its host have told.
func (c *Comm) chooseDevice(all []json.RawMessage) {
	d, err := c.providers.Accelerators.New(c, all)
	if c.gpuWhy = err; err == nil {
		c.device = d
	}
}

// lacks returns the error of a rank that cannot use a device because of why, if devices are required; else nil.
func (o *Options) lacks(rank int, why string) error {
	if why == "" || o.Devices != team.DevicesRequired {
		return nil
	}
	return noDevices(fmt.Sprintf("rank %d uses no device, and Options.Devices is %v: %s", rank, o.Devices, why))
}

// lackOf is err's text for other ranks, as the reason for which this rank has no device.
func lackOf(err error) string {
	if errors.Is(err, fault.ErrLimit) {
		return reason.As(err.Error(), fault.ErrLimit).Error()
	}
	return err.Error()
}

// noDevices is the error of that reason, the same on all ranks: it is fault.ErrLimit if the text ends in that, as lackOf's
// does, or else fault.ErrNotSupported.
func noDevices(why string) error {
	if strings.HasSuffix(why, fault.ErrLimit.Error()) {
		return reason.As(why, fault.ErrLimit)
	}
	return reason.As(why, fault.ErrNotSupported)
}

// deviceCard makes this rank's side and its card. The card also tells failures: the ranks of a host use their devices
// together or not at all, and the communicator works without them.
func (c *Comm) deviceCard(ctx context.Context) DeviceCard {
	if c.gpuWhy != nil {
		return DeviceCard{Why: lackOf(c.gpuWhy)}
	}
	card, err := c.device.Card(ctx)
	if err != nil {
		return DeviceCard{Why: lackOf(fmt.Errorf("rank %d could not set its device up: %w", c.rank, err))}
	}
	return card
}

// meetDevices connects to the devices of the host's other ranks. It returns why devices cannot be used, or "".
func (c *Comm) meetDevices(ctx context.Context, cards []DeviceCard) string {
	for r := range cards {
		if cards[r].Why != "" {
			return cards[r].Why
		}
	}
	return c.device.Meet(ctx, cards)
}

// agreeOnDevice ends the setup. whys has what meetDevices returned on each rank of the host.
func (c *Comm) agreeOnDevice(whys []string) error {
	for _, why := range whys {
		if why == "" {
			continue
		}
		if !errors.Is(c.gpuWhy, fault.ErrNotSupported) { // otherwise all ranks have found the same reason
			c.gpuWhy = noDevices(why)
		}
		return c.dropDevice()
	}
	return nil
}

// joinMulticast sets multicast up. Collective; it is a new communicator's first call.
func (c *Comm) joinMulticast(ctx context.Context) error {
	if c.device == nil {
		return nil
	}
	if steps := c.device.JoinMulticast(ctx); len(steps) > 0 {
		return c.Gather(ctx, steps...)
	}
	return nil
}

// dropDevice gives up a device that is not used after all. Its memory is freed with the communicator's.
func (c *Comm) dropDevice() error {
	d := c.device
	if d == nil {
		return nil
	}
	c.device = nil
	err := d.Close()
	for _, a := range d.Allocations() {
		c.RetireAtClose(a)
	}
	return err
}

// GPU returns this rank's device, or why it has none.
func (c *Comm) GPU() (hw.Device, error) {
	if c.gpuWhy != nil {
		return hw.Host, c.gpuWhy
	}
	return c.dom.device.Device(), nil
}

// WhyNoGPU is why this rank has no device; it is an error even if the rank has one.
func (c *Comm) WhyNoGPU() error {
	if c.gpuWhy != nil {
		return c.gpuWhy
	}
	return fmt.Errorf("that rank uses none: %w", fault.ErrNotSupported)
}

// noDevice returns why d cannot be a device, or nil.
func noDevice(d hw.Device) error {
	if d.Valid() {
		return nil
	}
	return fmt.Errorf("%v is no device: they count from 0: %w", d, fault.ErrArgument)
}

// CheckDevice returns why this communicator cannot use memory or streams of d, or nil.
func (c *Comm) CheckDevice(d hw.Device) error {
	if err := noDevice(d); err != nil {
		return err
	}
	mine, err := c.GPU()
	if err == nil && d != mine {
		err = fmt.Errorf("it is on %v, and this rank's device is %v: %w", d, mine, fault.ErrArgument)
	}
	return err
}

// Copy copies between b and the start of a, on a device, and waits. The caller holds a.
func (c *Comm) Copy(op string, a *mem.Allocation, b []byte, in bool) error {
	if c.dom.device == nil {
		return c.LocalError(op, c.gpuWhy)
	}
	if err := c.dom.device.Copy(cuda.Addr(a.Base()), b, in); err != nil {
		return c.LocalError(op, err)
	}
	return nil
}
