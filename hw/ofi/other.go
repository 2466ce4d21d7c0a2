//go:build !linux || !cgo || !(amd64 || arm64)

package ofi

import (
	"context"
	"fmt"
	"runtime"

	"github.com/ubcoll/ubcoll/hw"
)

var errOther = fmt.Errorf("libfabric in a build for %s/%s or without cgo: %w", runtime.GOOS, runtime.GOARCH, hw.ErrNotSupported)

// Load is not supported here.
func Load() (Library, error) { return Library{}, errOther }

// Have says that there is no libfabric here.
func Have() hw.Probe { return hw.Probe{Name: "libfabric", Err: errOther} }

// Info cannot be made here.
type Info struct{ Description }

// List is not supported here.
func List(context.Context, string, string) ([]*Info, []Refused, error) { return nil, nil, errOther }

// Open is not supported here, so none of the types below is ever made.
func Open(*Info) (*Domain, error) { return nil, errOther }

// Domain cannot be made here.
type Domain struct{ none }

// Endpoint cannot be made here.
type Endpoint struct{ none }

// MR cannot be made here.
type MR struct{ none }

type none struct{}

// Close is not supported here.
func (none) Close() error { return errOther }

// Describe is not supported here.
func (d *Domain) Describe() *Description { return nil }

// Register is not supported here.
func (d *Domain) Register(uintptr, int, Access, hw.Device, *Endpoint) (*MR, error) {
	return nil, errOther
}

// Endpoint is not supported here.
func (d *Domain) Endpoint(int) (*Endpoint, error) { return nil, errOther }

// Key is not supported here.
func (m *MR) Key() Key { return 0 }

// Desc is not supported here.
func (m *MR) Desc() Desc { return 0 }

// Remote is not supported here.
func (m *MR) Remote(int) uint64 { return 0 }

// Address is not supported here.
func (m *MR) Address() uint64 { return 0 }

// Bytes is not supported here.
func (m *MR) Bytes() int { return 0 }

// Access is not supported here.
func (m *MR) Access() Access { return 0 }

// Domain is not supported here.
func (e *Endpoint) Domain() *Domain { return nil }

// Name is not supported here.
func (e *Endpoint) Name() []byte { return nil }

// Atomics is not supported here.
func (e *Endpoint) Atomics() bool { return false }

// FD is not supported here.
func (e *Endpoint) FD() int { return -1 }

// MayWait is not supported here.
func (e *Endpoint) MayWait() (bool, error) { return false, errOther }

// Insert is not supported here.
func (e *Endpoint) Insert([]byte) (Peer, error) { return 0, errOther }

// Remove is not supported here.
func (e *Endpoint) Remove(Peer) error { return errOther }

// Post is not supported here.
func (e *Endpoint) Post([]Work) (int, error) { return 0, errOther }

// Poll is not supported here.
func (e *Endpoint) Poll([]Completion, int) (int, error) { return 0, errOther }

// Failure is not supported here.
func (e *Endpoint) Failure(*Completion) error { return errOther }
