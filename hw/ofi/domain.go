//go:build linux && cgo && (amd64 || arm64)

package ofi

// #include "lib.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Domain is an open network device, by its provider.
type Domain struct {
	info   *Info
	fabric *C.uof_fabric
	domain *C.uof_domain
	keys   *keys // nil: the provider makes them

	serial sync.Mutex // held in every call, where the provider is not thread-safe

	mu            sync.Mutex // guards the fields below
	closed        bool
	ends, regions int // that are open
}

// Open opens the domain of one way. It may block. (fi_fabric, fi_domain)
func Open(i *Info) (*Domain, error) {
	d := &Domain{info: i}
	if !i.MRMode.Has(MRKey) {
		var err error
		if d.keys, err = newKeys(i.KeyBytes); err != nil {
			return nil, err
		}
	}
	var code C.int
	guard(func() { code = C.uof_open(i.raw, &d.fabric, &d.domain) })
	if err := d.check("fi_domain", "", code); err != nil {
		return nil, err
	}
	return d, nil
}

// Describe returns what fi_getinfo said of the domain. The caller must not change it.
func (d *Domain) Describe() *Description { return &d.info.Description }

// check makes an error of the result of a call.
func (d *Domain) check(call, what string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: call, On: d.info.String(), What: what, Code: Code(code), Text: text(code)}
}

// enter begins a call of the library, and leave ends it.
func (d *Domain) enter() {
	if d.info.serial {
		d.serial.Lock()
	}
}

func (d *Domain) leave() {
	if d.info.serial {
		d.serial.Unlock()
	}
}

// make counts an object in n, one of d's counters.
func (d *Domain) make(n *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%v: %w", d.info, fault.ErrClosed)
	}
	*n++
	return nil
}

func (d *Domain) unmake(n *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*n--
}

// Close closes the domain, unless something made from it is open. (fi_close)
func (d *Domain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return fmt.Errorf("%v: %w", d.info, fault.ErrClosed)
	case d.ends+d.regions > 0:
		return fmt.Errorf("%v still has endpoints (%d) or registrations (%d): close them first: %w", d.info, d.ends, d.regions,
			fault.ErrInUse)
	}
	if err := d.check("fi_close", "the domain", C.uof_close(unsafe.Pointer(d.domain))); err != nil {
		return err
	}
	d.closed = true
	return d.check("fi_close", "the fabric", C.uof_close(unsafe.Pointer(d.fabric)))
}
