package verbs

import (
	"fmt"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Error is the failure of a call of libibverbs.
type Error struct {
	Call   string // "ibv_reg_mr"
	Device string // "mlx5_0", "" if none is open yet
	What   string // what the call was to do, and, where known, what the user can do about it
	Errno  syscall.Errno
}

// Error reads "ibv_reg_mr on rxe0: 1 MiB at 0x7f00: cannot allocate memory".
func (e *Error) Error() string {
	s := e.Call
	if e.Device != "" {
		s += " on " + e.Device
	}
	if e.What != "" {
		s += ": " + e.What
	}
	return s + ": " + e.Errno.Error()
}

// Unwrap returns the errno, and the sentinel of its class if it has one.
func (e *Error) Unwrap() []error {
	errs := []error{e.Errno}
	switch e.Errno {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE:
		errs = append(errs, fault.ErrLimit)
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT:
		errs = append(errs, hw.ErrNotSupported)
	case syscall.EINVAL, syscall.EFAULT, syscall.EMSGSIZE:
		errs = append(errs, fault.ErrArgument)
	case syscall.EBUSY:
		errs = append(errs, fault.ErrInUse)
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		errs = append(errs, fault.ErrPeerLost)
	}
	return errs
}

// CompletionError is a work request that failed. errors.Is matches it with fault.ErrStale if the peer's memory refused
// it (RemoteAccess): the region was deregistered, or never allowed it.
type CompletionError struct {
	Status Status
	Text   string // libibverbs' words for it
	Vendor uint32
	Device string
	QP     uint32
	Peer   string // the name that [QP.Connect] was given
	ID     uint64
	// Work is the last work request that was posted with ID; nil if there was none, or too long ago. A failed
	// completion does not say whether it is of work or of a receive: if both complete in one queue, give them different
	// IDs.
	Work *Work
}

// Error reads "remote access error (status 10, vendor code 0x88) of work request 7, write of ..., on queue pair 17 of rxe0
// to rank 1 on node2".
func (e *CompletionError) Error() string {
	s := fmt.Sprintf("%s (status %d, vendor code %#x) of work request %d", e.Text, e.Status, e.Vendor, e.ID)
	if e.Work != nil {
		s += fmt.Sprintf(", %v,", *e.Work)
	}
	s += fmt.Sprintf(" on queue pair %d of %s", e.QP, e.Device)
	if e.Peer != "" {
		s += " to " + e.Peer
	}
	if hint := e.Status.hint(); hint != "" {
		s += ": " + hint
	}
	return s
}

// Unwrap returns the sentinel of the failure's class, nil if it has none.
func (e *CompletionError) Unwrap() error {
	switch e.Status {
	case RemoteAccess:
		return fault.ErrStale
	case RetryExceeded:
		return fault.ErrPeerLost
	case LocalLength, LocalOperation, LocalProtection, RemoteInvalid:
		return fault.ErrArgument
	case NotReady:
		return fault.ErrLimit
	}
	return nil
}

func (s Status) hint() string {
	switch s {
	case RemoteAccess:
		return "the peer's memory there is not registered with that rkey, is shorter, has been deregistered, or does not allow this"
	case LocalProtection:
		return "the memory here is not registered with that lkey, is shorter, or lacks LOCAL_WRITE"
	case RetryExceeded:
		return "the peer does not answer: it is gone, or the network between lost every retry"
	case NotReady:
		return "the peer has no receive posted"
	case Flushed:
		return "the queue pair had failed before"
	}
	return ""
}
