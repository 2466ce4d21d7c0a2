package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Accelerators makes the device sides of communicators: package gpu's.
type Accelerators interface {
	// Visible is what a rank tells all others of the devices that its process may use, and why there is none, or "". If
	// they are off it does not look.
	Visible(off bool) (told json.RawMessage, why string)
	// New is c's side, on the device that is this rank's by what the ranks of its host have told, in the team's order. The
	// error is why there is none.
	New(c *Comm, all []json.RawMessage) (Accelerator, error)
}

// Accelerator is the device side of a communicator, as the engine asks for it: that of its team, whose ranks it knows.
type Accelerator interface {
	// Part is the side of c, whose team are some of this one's ranks.
	Part(c *Comm, ranks []int) Accelerator
	// Card sets this rank's side up, and says what the others need of it. It fails soon once ctx has ended.
	Card(ctx context.Context) (DeviceCard, error)
	// Meet reaches the others' sides, whose cards are in the team's order. It returns why devices cannot be used, or "".
	Meet(ctx context.Context, cards []DeviceCard) string

	// Perform does w, the communicator's own, and waits. It is the communicator's turn.
	Perform(ctx context.Context, w *team.Work) error
	// PerformSome does the first of works and, in a group, those behind it that go with it as one. It is how many.
	PerformSome(ctx context.Context, works []team.Work, group bool) (n int, err error)
	// Busy reports whether something that was queued has not ended.
	Busy() bool
	// SetTimeout changes the deadline of what is launched from now on.
	SetTimeout(d time.Duration)
	// Abort ends all waits on the device.
	Abort()
	// Close ends this rank's side but for its memory, Allocations, which peers may still use. What is queued ends first:
	// before its deadline, or at once if the communicator is broken.
	Close() error
	Allocations() []*mem.Allocation
}

// DomainDevice is what a domain has once on its device.
type DomainDevice interface {
	Device() hw.Device
	// Copy copies between b, which may be on the Go heap, and a, and waits.
	Copy(a cuda.Addr, b []byte, in bool) error
	// Close ends it, after the domain's memory there.
	Close() error
}

// DeviceCard is what a rank tells of its device when a communicator is made, or why it cannot use it.
type DeviceCard struct {
	Extent  uint32 `json:"extent"` // that the area is in
	Offset  uint64 `json:"offset"`
	Threads int    `json:"threads"`
	Lines   bool   `json:"lines"` // its links carry lines of 128 bytes whole
	Why     string `json:"why,omitempty"`
}

// chooseDevice takes the device that is this rank's, by what the ranks of its host have told.
func (c *Comm) chooseDevice(all []json.RawMessage) {
	d, err := c.rooms.Accelerators.New(c, all)
	if c.gpuWhy = err; err == nil {
		c.device = d
	}
}

// lacks is what is wrong where devices are required and why says why this rank cannot use one; nil if that is "".
func (o *Options) lacks(rank int, why string) error {
	if why == "" || o.Devices != team.DevicesRequired {
		return nil
	}
	return fmt.Errorf("rank %d uses no device, and Options.Devices is %v: %s: %w", rank, o.Devices, why, fault.ErrNotSupported)
}

// deviceCard makes this rank's side, and its card. Failures are told in the card: the ranks of a host use their devices
// together or not at all, and the communicator works without.
func (c *Comm) deviceCard(ctx context.Context) DeviceCard {
	if c.gpuWhy != nil {
		return DeviceCard{Why: c.gpuWhy.Error()}
	}
	card, err := c.device.Card(ctx)
	if err != nil {
		return DeviceCard{Why: fmt.Sprintf("rank %d could not set its device up: %v", c.rank, err)}
	}
	return card
}

// meetDevices reaches the devices of the others of the host, whose cards are in the team's order. It returns why devices cannot be used,
// or "".
func (c *Comm) meetDevices(ctx context.Context, cards []DeviceCard) string {
	for r := range cards {
		if cards[r].Why != "" {
			return cards[r].Why
		}
	}
	return c.device.Meet(ctx, cards)
}

// settleDevice ends the setting up: whys are what meetDevices returned on each rank of the host.
func (c *Comm) settleDevice(whys []string) error {
	for _, why := range whys {
		if why == "" {
			continue
		}
		if !errors.Is(c.gpuWhy, fault.ErrNotSupported) { // else all ranks have found it out alike
			c.gpuWhy = fmt.Errorf("%s: %w", why, fault.ErrNotSupported)
		}
		return c.dropDevice()
	}
	return nil
}

// dropDevice gives up the device of a communicator that does not use it after all; its memory goes with the
// communicator's.
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

// GPU is this rank's device, or why it has none.
func (c *Comm) GPU() (hw.Device, error) {
	if c.gpuWhy != nil {
		return hw.Host, c.gpuWhy
	}
	return c.dom.device.Device(), nil
}

// WhyNoGPU is why this rank has no device, as an error even if it has one.
func (c *Comm) WhyNoGPU() error {
	if c.gpuWhy != nil {
		return c.gpuWhy
	}
	return fmt.Errorf("that rank uses none: %w", fault.ErrNotSupported)
}

// noDevice is why there cannot be a device d, or nil.
func noDevice(d hw.Device) error {
	if d.Valid() {
		return nil
	}
	return fmt.Errorf("%v is no device: they count from 0: %w", d, fault.ErrArgument)
}

// CheckDevice is why memory or streams of d are none of this communicator's, or nil.
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

// Copy copies between b and a's start, on a device, and waits.
func (c *Comm) Copy(op string, a *mem.Allocation, b []byte, in bool) error {
	if !a.Hold() {
		return c.LocalError(op, fmt.Errorf("freed buffer: %w", fault.ErrStale))
	}
	defer a.Release()
	if c.dom.device == nil {
		return c.LocalError(op, c.gpuWhy)
	}
	if err := c.dom.device.Copy(cuda.Addr(a.Base()), b, in); err != nil {
		return c.LocalError(op, err)
	}
	return nil
}
