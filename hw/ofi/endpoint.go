//go:build linux && cgo && (amd64 || arm64)

package ofi

// #include "lib.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Endpoint exchanges messages with other endpoints, and reaches the memory that they have registered. It has a queue of
// completions.
type Endpoint struct {
	domain *Domain
	end    *C.uof_end
	name   []byte
	fd     int
	words  bool // has atomics

	mu     sync.RWMutex // held for reading in every call, for writing by Close
	closed bool

	bound atomic.Int32 // registrations
}

// Endpoint makes an endpoint for up to under operations under way, receives included. (fi_endpoint, fi_cq_open, fi_av_open,
// fi_enable)
func (d *Domain) Endpoint(under int) (*Endpoint, error) {
	if under < 1 || under > 1<<20 {
		return nil, fmt.Errorf("an endpoint of %d operations: want 1 to %d: %w", under, 1<<20, fault.ErrArgument)
	}
	if err := d.make(&d.ends); err != nil {
		return nil, err
	}
	e := &Endpoint{domain: d}
	err := e.open(under)
	if err != nil {
		d.unmake(&d.ends)
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) open(under int) error {
	d := e.domain
	var key Key
	if d.keys != nil {
		var err error
		if key, err = d.keys.make(); err != nil {
			return err
		}
	}
	d.enter()
	defer d.leave()
	// Not over ofi_rxd: its descriptor wakes nobody when it is time to send again what was lost. And each fi_trywait takes a packet
	// into a queue that may be full of sends, where udp, before 2.4, does not look (udpx_rx_comp): then packets come twice, also as
	// parts of others' messages, and receives are lost. Polling does so, too, but takes out as much.
	waits := C.int(1)
	if strings.HasSuffix(d.info.Provider, ";ofi_rxd") {
		waits = 0
	}
	var call *C.char
	var code C.int
	guard(func() {
		code = C.uof_endpoint(d.fabric, d.domain, d.info.raw, C.uint32_t(under), waits, C.uint64_t(key), &e.end, &call)
	})
	if err := d.check(C.GoString(call), fmt.Sprintf("an endpoint for %d operations", under), code); err != nil {
		return err
	}
	var name [512]byte
	n := C.size_t(len(name))
	if err := d.check("fi_getname", "", C.uof_name(e.end, unsafe.Pointer(&name[0]), &n)); err != nil {
		return errors.Join(err, d.check("fi_close", "the endpoint", C.uof_end_close(e.end)))
	}
	e.name = append(e.name, name[:n]...)
	e.fd = int(C.uof_end_fd(e.end))
	e.words = d.info.Caps.Has(Atomics) && C.uof_atomics(e.end) != 0
	return nil
}

// Domain is the endpoint's domain.
func (e *Endpoint) Domain() *Domain { return e.domain }

// Name is the endpoint's address, for peers' Insert. The caller must not change it. (fi_getname)
func (e *Endpoint) Name() []byte { return e.name }

// Atomics reports whether the endpoint has the atomic operations of 8 bytes that this package offers.
func (e *Endpoint) Atomics() bool { return e.words }

// FD is a descriptor that is readable when Poll may find something, for poll(2); -1 if the provider has none. It belongs to the
// endpoint. Ask MayWait before waiting.
func (e *Endpoint) FD() int { return e.fd }

// call calls do, unless the endpoint is closed, which cannot close meanwhile.
func (e *Endpoint) call(name string, do func() C.int) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return fmt.Errorf("endpoint of %v: %w", e.domain.info, fault.ErrClosed)
	}
	e.domain.enter()
	defer e.domain.leave()
	return e.domain.check(name, "", do())
}

// MayWait reports whether nothing has come yet, so that FD will become readable when something does. Otherwise poll first. It
// is never so without FD.
// (fi_trywait)
func (e *Endpoint) MayWait() (bool, error) {
	again := false
	err := e.call("fi_trywait", func() C.int {
		if again = e.fd < 0; again {
			return 0
		}
		code := C.uof_may_wait(e.end)
		if again = code == C.int(syscall.EAGAIN); again {
			return 0
		}
		return code
	})
	return err == nil && !again, err
}

// Insert makes the endpoint with that name a peer. The name has to be of the same provider; it is checked for its length alone.
// (fi_av_insert)
func (e *Endpoint) Insert(name []byte) (Peer, error) {
	if len(name) != len(e.name) {
		return 0, fmt.Errorf("an address of %d bytes: those of %v have %d: %w", len(name), e.domain.info, len(e.name), fault.ErrArgument)
	}
	var peer C.uof_addr
	err := e.call("fi_av_insert", func() C.int { return C.uof_insert(e.end, unsafe.Pointer(&name[0]), &peer) })
	return Peer(peer), err
}

// Remove forgets a peer. (fi_av_remove)
func (e *Endpoint) Remove(p Peer) error {
	return e.call("fi_av_remove", func() C.int { return C.uof_remove(e.end, C.uof_addr(p)) })
}

// The layouts that lib.h declares.
var (
	_ [unsafe.Sizeof(Work{})]byte       = [C.sizeof_uof_work]byte{}
	_ [unsafe.Sizeof(Completion{})]byte = [C.sizeof_uof_done]byte{}
)

// Post hands operations to the provider, in order, and returns how many it has taken; the error says why it did not take the
// next one. [ErrAgain] is what a full queue gives. Post does not wait, but a provider may copy a short message at once. It
// allocates nothing. (fi_sendmsg, fi_recvmsg, fi_writemsg, fi_readmsg, fi_inject, fi_atomic)
func (e *Endpoint) Post(work []Work) (int, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return 0, fmt.Errorf("endpoint of %v: %w", e.domain.info, fault.ErrClosed)
	}
	for i := range work {
		w := &work[i]
		if err := w.check(&e.domain.info.Description); err != nil {
			return 0, fmt.Errorf("%v: %w", e.domain.info, err)
		}
		if w.Op > OpRead && !e.words {
			return 0, fmt.Errorf("%v: %v: the provider has no such atomics: %w", e.domain.info, w.Op, fault.ErrArgument)
		}
	}
	if len(work) == 0 {
		return 0, nil
	}
	e.domain.enter()
	defer e.domain.leave()
	for i := range work { // a call each: the runtime gives a processor away whose call lasts 20 us, although nobody needs it
		switch code := C.uof_post(e.end, (*C.uof_work)(unsafe.Pointer(&work[i]))); code {
		case 0:
		case C.int(syscall.EAGAIN):
			return i, ErrAgain
		default:
			return i, e.domain.check("fi_"+work[i].Op.String(), fmt.Sprintf("%d bytes", work[i].Length), code)
		}
	}
	return len(work), nil
}

// Poll makes progress, takes completions, and returns how many of done it has filled. It looks up to tries times, at least
// once, before it returns 0. Failed operations are among them. Poll allocates nothing. (fi_cq_read, fi_cq_readerr)
func (e *Endpoint) Poll(done []Completion, tries int) (int, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	switch {
	case e.closed:
		return 0, fmt.Errorf("endpoint of %v: %w", e.domain.info, fault.ErrClosed)
	case len(done) == 0:
		return 0, fmt.Errorf("endpoint of %v: no room for completions: %w", e.domain.info, fault.ErrArgument)
	}
	e.domain.enter()
	defer e.domain.leave()
	var n C.int
	code := C.uof_poll(e.end, (*C.uof_done)(unsafe.Pointer(&done[0])), C.int(len(done)), C.int(tries), &n)
	return int(n), e.domain.check("fi_cq_read", "", code)
}

// Failure returns nil for a completion that succeeded, else a *[CompletionError].
func (e *Endpoint) Failure(c *Completion) error {
	if !c.Failed() {
		return nil
	}
	return &CompletionError{Completion: *c, On: e.domain.info.String(), Text: text(C.int(c.code)), Provider: c.words()}
}

// bind calls register with the endpoint. If that succeeds, the endpoint does not close before unbind.
func (e *Endpoint) bind(register func(*C.uof_end) C.int) (C.int, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return 0, fmt.Errorf("endpoint of %v: %w", e.domain.info, fault.ErrClosed)
	}
	code := register(e.end)
	if code == 0 {
		e.bound.Add(1)
	}
	return code, nil
}

func (e *Endpoint) unbind() { e.bound.Add(-1) }

// Close closes the endpoint, unless registrations belong to it. Operations under way are lost, without completions; peers see
// failures, or nothing. (fi_close)
func (e *Endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("endpoint of %v: %w", e.domain.info, fault.ErrClosed)
	}
	if bound := e.bound.Load(); bound > 0 {
		return fmt.Errorf("endpoint of %v: %d registrations belong to it: close them first: %w", e.domain.info, bound, fault.ErrInUse)
	}
	e.domain.enter()
	code := C.uof_end_close(e.end)
	e.domain.leave()
	if err := e.domain.check("fi_close", "the endpoint", code); err != nil {
		return err
	}
	e.closed = true
	e.domain.unmake(&e.domain.ends)
	return nil
}
