package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
)

// page is how much memory each region has here. Any number of bytes at any address would do.
const page = 4096

// end is one process's end of the connection, and its memory.
type end struct {
	name   string // "A" or "B"
	out    io.Writer
	device *verbs.Device
	path   verbs.Path
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	memory []byte
	undo   []func() error // closes what has been opened, in reverse order
}

func (e *end) say(format string, args ...any) { fmt.Fprintf(e.out, e.name+": "+format+"\n", args...) }

// open opens a device, and makes the objects that connections and registrations need. It registers nothing yet.
func open(name string, o options, out io.Writer) (*end, error) {
	e := &end{name: name, out: out}
	if err := e.open(o); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *end) open(o options) (err error) {
	if o.device == "" {
		names, err := verbs.Devices()
		if err != nil {
			return err
		}
		o.device = names[0] // there is one: see run
	}
	if e.device, err = verbs.Open(o.device); err != nil {
		return err
	}
	e.undo = append(e.undo, e.device.Close)

	// A protection domain separates users of a device: a queue pair reaches only the regions of its own domain.
	if e.pd, err = e.device.AllocPD(); err != nil {
		return err
	}
	e.undo = append(e.undo, e.pd.Close)

	// Work completes in a completion queue. It must have room for all work that may be under way: 4 work requests, 4
	// receives.
	if e.cq, err = e.device.CreateCQ(8, nil); err != nil {
		return err
	}
	e.undo = append(e.undo, e.cq.Close)
	if e.qp, err = e.pd.CreateQP(verbs.QPConfig{Send: e.cq, Receive: e.cq, Work: 4, Receives: 4}); err != nil {
		return err
	}
	e.undo = append(e.undo, e.qp.Close)
	e.path = verbs.DefaultPath()
	e.path.GIDIndex, e.path.Timeout = o.gid, 14 // lost packets are sent again after 67 ms
	port, err := e.device.Port(e.path.Port)
	if err != nil {
		return err
	}
	e.say("opened %s, port %d (%v, %v)", e.device.Name(), port.Number, port.Link, port.State)

	// The device may write to the memory at any time, so it must not belong to Go's garbage collector: it comes from
	// the system.
	if e.memory, err = syscall.Mmap(-1, 0, 4*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE); err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	e.undo = append(e.undo, func() error { return syscall.Munmap(e.memory) })
	return nil
}

// register lets the device use page i of the memory, as far as access allows: this is ibv_reg_mr. The kernel pins the
// page, so that it stays in place, and tells the device where it is. The lkey is for this process's own work requests.
// A peer that knows the rkey and the address can do what the flags allow.
func (e *end) register(i int, access verbs.Access) (*verbs.MR, error) {
	mr, err := e.pd.Register(uintptr(unsafe.Pointer(&e.memory[i*page])), page, access)
	if err != nil {
		return nil, err
	}
	e.say("registered page %d with %v: address 0x%012x, lkey 0x%08x, rkey 0x%08x", i, access, mr.Address(), uint32(mr.LKey()),
		uint32(mr.RKey()))
	return mr, nil
}

// address prepares the queue pair to be connected, for the first time or again after a failure, and returns its
// address.
func (e *end) address() ([]byte, error) {
	if err := e.qp.Reset(); err != nil { // forgets all work under way
		return nil, err
	}
	var old [8]verbs.Completion
	for n := 1; n > 0; {
		var err error
		if n, err = e.cq.Poll(old[:], 1); err != nil {
			return nil, err
		}
	}
	// The queue pair allows everything here. Each region then allows what it was registered for.
	a, err := e.qp.Init(e.path, verbs.LocalWrite|verbs.Remote)
	if err != nil {
		return nil, err
	}
	return a.Append(nil), nil
}

// connect connects with the peer's queue pair.
func (e *end) connect(peer []byte, name string) error {
	a, err := verbs.ParseAddress(peer)
	if err != nil {
		return err
	}
	return e.qp.Connect(a, name)
}

// completion waits for the next completion. A failed completion is not an error of this function.
func (e *end) completion() (verbs.Completion, error) {
	var c [1]verbs.Completion
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(50 * time.Microsecond) {
		if n, err := e.cq.Poll(c[:], 1000); n == 1 || err != nil {
			return c[0], err
		}
	}
	return c[0], fmt.Errorf("%s: nothing completes within %v: is the peer's machine there still?: %w", e.name, patience, fault.ErrTimeout)
}

// text returns the text in page i, up to the first zero.
func (e *end) text(i int) string {
	s, _, _ := strings.Cut(string(e.memory[i*page:][:page]), "\x00")
	return s
}

func (e *end) close() error {
	var errs []error
	for _, undo := range slices.Backward(e.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
