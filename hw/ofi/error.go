package ofi

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Code is an error of libfabric: an errno, or one of those above 256 (fi_errno(3)).
type Code int

// Codes that have no errno.
const (
	Trunc   Code = 265 // a message is longer than its receive
	NoKey   Code = 266 // nothing is registered by that key
	Overrun Code = 268 // more came than a queue holds
)

// keyRejected is Linux's EKEYREJECTED, which not all systems have.
const keyRejected = syscall.Errno(129)

// unwrap returns the errno of c, if it is one, and the sentinel of its class, if it has one.
func (c Code) unwrap() []error {
	var errs []error
	if c < 256 {
		errs = append(errs, syscall.Errno(c))
	}
	switch syscall.Errno(c) {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.Errno(Overrun):
		errs = append(errs, fault.ErrLimit)
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT, syscall.ENODATA, syscall.ENOPROTOOPT:
		errs = append(errs, hw.ErrNotSupported)
	case syscall.EINVAL, syscall.EFAULT, syscall.EMSGSIZE, syscall.Errno(Trunc):
		errs = append(errs, fault.ErrArgument)
	case syscall.EBUSY:
		errs = append(errs, fault.ErrInUse)
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.ECONNREFUSED,
		syscall.ECONNRESET, syscall.ECONNABORTED, syscall.ENOTCONN, syscall.ESHUTDOWN, syscall.EPIPE:
		errs = append(errs, fault.ErrPeerLost)
	}
	return errs
}

// Error is the failure of a call of libfabric.
type Error struct {
	Call string // "fi_mr_regattr"
	On   string // "tcp;ofi_rxm eth0 (10.0.0.1)", "" if none is open yet
	What string // what the call was to do, and, where known, what the user can do about it
	Code Code
	Text string // libfabric's words for Code
}

// Error reads "fi_mr_regattr on efa rdmap0s6: 1048576 bytes at 0x7f00: Cannot allocate memory".
func (e *Error) Error() string {
	s := e.Call
	if e.On != "" {
		s += " on " + e.On
	}
	if e.What != "" {
		s += ": " + e.What
	}
	return s + ": " + e.Text
}

// Unwrap returns the errno, and the sentinel of its class if it has one.
func (e *Error) Unwrap() []error {
	errs := e.Code.unwrap()
	if e.Code == Code(syscall.EPERM) { // how the kernel refuses to pin memory where the limit is 0
		errs = append(errs, fault.ErrLimit)
	}
	return errs
}

// CompletionError is an operation that failed. errors.Is matches it with [fault.ErrStale] if the peer's side says that it
// refused the access, and with [fault.ErrPeerLost] if the peer cannot be reached. Many providers do not tell these apart:
// tcp ends the connection without a reason, and everything under way to that peer is canceled; udp;ofi_rxd says nothing at
// all of what a peer refuses.
type CompletionError struct {
	Completion
	On       string // the endpoint's domain
	Text     string // libfabric's words for the code
	Provider string // the provider's own
}

// Error reads "write 7 on tcp;ofi_rxm eth0 (10.0.0.1): Input/output error (provider's code 5: ...)".
func (e *CompletionError) Error() string {
	what := "an operation without a completion"
	if e.ours != 0 {
		what = fmt.Sprintf("%v %d", e.Op, e.ID)
	}
	s := fmt.Sprintf("%s on %s: %s", what, e.On, e.Text)
	if e.prov != 0 || e.Provider != "" {
		s += fmt.Sprintf(" (provider's code %d: %s)", e.prov, e.Provider)
	}
	return s
}

// Unwrap returns the errno, and the sentinel of its class if it has one.
func (e *CompletionError) Unwrap() []error {
	errs := Code(e.code).unwrap()
	switch syscall.Errno(e.code) {
	case syscall.EACCES, syscall.EPERM, keyRejected, syscall.Errno(NoKey):
		errs = append(errs, fault.ErrStale)
	}
	if strings.HasPrefix(e.On, "verbs") { // the provider's code is that of the completion: enum ibv_wc_status
		switch e.prov {
		case 10: // remote access error
			errs = append(errs, fault.ErrStale)
		case 12: // retries exceeded
			errs = append(errs, fault.ErrPeerLost)
		}
	}
	return errs
}
