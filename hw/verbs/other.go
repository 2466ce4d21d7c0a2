//go:build !linux || !cgo || !(amd64 || arm64)

package verbs

import (
	"context"
	"fmt"
	"runtime"

	"github.com/ubcoll/ubcoll/hw"
)

var errOther = fmt.Errorf("RDMA verbs in a build for %s/%s or without cgo: %w", runtime.GOOS, runtime.GOARCH, hw.ErrNotSupported)

// Have says that there is no RDMA here.
func Have() hw.Probe { return hw.Probe{Name: "RDMA verbs", Err: errOther} }

// Devices is not supported here.
func Devices() ([]string, error) { return nil, errOther }

// Open is not supported here, so none of the types below is ever made.
func Open(string) (*Device, error) { return nil, errOther }

// Device cannot be made here.
type Device struct{ none }

// PD cannot be made here.
type PD struct{ none }

// MR cannot be made here.
type MR struct{ none }

// Channel cannot be made here.
type Channel struct{ none }

// CQ cannot be made here.
type CQ struct{ none }

// SRQ cannot be made here.
type SRQ struct{ none }

// QP cannot be made here.
type QP struct{ none }

type none struct{}

// Close is not supported here.
func (none) Close() error { return errOther }

// Name is not supported here.
func (d *Device) Name() string { return "" }

// Limits is not supported here.
func (d *Device) Limits() Limits { return Limits{} }

// Port is not supported here.
func (d *Device) Port(int) (Port, error) { return Port{}, errOther }

// GIDs is not supported here.
func (d *Device) GIDs(int) ([]GIDEntry, error) { return nil, errOther }

// PKey is not supported here.
func (d *Device) PKey(int, int) (uint16, error) { return 0, errOther }

// Counters is not supported here.
func (d *Device) Counters(int) (map[string]uint64, error) { return nil, errOther }

// NextEvent is not supported here.
func (d *Device) NextEvent(context.Context) (Event, error) { return Event{}, errOther }

// AllocPD is not supported here.
func (d *Device) AllocPD() (*PD, error) { return nil, errOther }

// CreateChannel is not supported here.
func (d *Device) CreateChannel() (*Channel, error) { return nil, errOther }

// CreateCQ is not supported here.
func (d *Device) CreateCQ(int, *Channel) (*CQ, error) { return nil, errOther }

// Device is not supported here.
func (p *PD) Device() *Device { return nil }

// Register is not supported here.
func (p *PD) Register(uintptr, int, Access) (*MR, error) { return nil, errOther }

// CreateSRQ is not supported here.
func (p *PD) CreateSRQ(int, int) (*SRQ, error) { return nil, errOther }

// CreateQP is not supported here.
func (p *PD) CreateQP(QPConfig) (*QP, error) { return nil, errOther }

// RegisterDMABuf is not supported here.
func (p *PD) RegisterDMABuf(int, uint64, uintptr, int, Access) (*MR, error) {
	return nil, errOther
}

// Address is not supported here.
func (m *MR) Address() uint64 { return 0 }

// Bytes is not supported here.
func (m *MR) Bytes() int { return 0 }

// Access is not supported here.
func (m *MR) Access() Access { return 0 }

// LKey is not supported here.
func (m *MR) LKey() LKey { return 0 }

// RKey is not supported here.
func (m *MR) RKey() RKey { return 0 }

// PD is not supported here.
func (m *MR) PD() *PD { return nil }

// Rereg is not supported here.
func (m *MR) Rereg(Access) error { return errOther }

// FD is not supported here.
func (c *Channel) FD() int { return -1 }

// Take is not supported here.
func (c *Channel) Take() (bool, error) { return false, errOther }

// Wait is not supported here.
func (c *Channel) Wait(context.Context) error { return errOther }

// Entries is not supported here.
func (c *CQ) Entries() int { return 0 }

// Poll is not supported here.
func (c *CQ) Poll([]Completion, int) (int, error) { return 0, errOther }

// Failure is not supported here.
func (c *CQ) Failure(*Completion) error { return errOther }

// Notify is not supported here.
func (c *CQ) Notify(bool) error { return errOther }

// Size is not supported here.
func (s *SRQ) Size() int { return 0 }

// Post is not supported here.
func (s *SRQ) Post(...Receive) (int, error) { return 0, errOther }

// String is not supported here.
func (q *QP) String() string { return "" }

// Number is not supported here.
func (q *QP) Number() uint32 { return 0 }

// Inline is not supported here.
func (q *QP) Inline() int { return 0 }

// Posted is not supported here.
func (q *QP) Posted() PostCounts { return PostCounts{} }

// Init is not supported here.
func (q *QP) Init(Path, Access) (Address, error) { return Address{}, errOther }

// Connect is not supported here.
func (q *QP) Connect(Address, string) error { return errOther }

// Post is not supported here.
func (q *QP) Post(...Work) (int, error) { return 0, errOther }

// PostReceive is not supported here.
func (q *QP) PostReceive(...Receive) (int, error) { return 0, errOther }

// State is not supported here.
func (q *QP) State() (QPState, error) { return 0, errOther }

// Fail is not supported here.
func (q *QP) Fail() error { return errOther }

// Reset is not supported here.
func (q *QP) Reset() error { return errOther }

// InOrder is not supported here.
func (q *QP) InOrder(Op) bool { return false }
