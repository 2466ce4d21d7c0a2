package ofi

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// TestErrors: what the library and providers return is of a class, and says what was to be done.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		code       int32
		call, done error // as the failure of a call, and of an operation
	}{
		{int32(syscall.ENOMEM), fault.ErrLimit, fault.ErrLimit},
		{int32(syscall.EPERM), fault.ErrLimit, fault.ErrStale},
		{int32(syscall.EACCES), syscall.EACCES, fault.ErrStale},
		{int32(NoKey), nil, fault.ErrStale},
		{int32(keyRejected), keyRejected, fault.ErrStale},
		{int32(syscall.ENOSYS), hw.ErrNotSupported, hw.ErrNotSupported},
		{int32(syscall.EINVAL), fault.ErrArgument, fault.ErrArgument},
		{int32(Trunc), fault.ErrArgument, fault.ErrArgument},
		{int32(Overrun), fault.ErrLimit, fault.ErrLimit},
		{int32(syscall.EBUSY), fault.ErrInUse, fault.ErrInUse},
		{int32(syscall.ECONNRESET), fault.ErrPeerLost, fault.ErrPeerLost},
		{int32(syscall.ECANCELED), syscall.ECANCELED, syscall.ECANCELED},
	} {
		err := &Error{Call: "fi_x", On: "tcp eth0", What: "8 bytes", Code: Code(c.code), Text: "words"}
		require.EqualError(t, err, "fi_x on tcp eth0: 8 bytes: words")
		done := &CompletionError{Completion: Completion{ID: 7, Op: OpWrite, ours: 1, code: c.code, prov: 5}, On: "tcp eth0", Text: "words",
			Provider: "its own"}
		require.EqualError(t, done, "write 7 on tcp eth0: words (provider's code 5: its own)")
		if c.call != nil {
			require.ErrorIs(t, err, c.call)
		}
		require.ErrorIs(t, done, c.done)
		if c.done == fault.ErrStale {
			require.NotErrorIs(t, err, fault.ErrStale)
		}
	}
	require.EqualError(t, &CompletionError{On: "tcp eth0", Text: "words"}, "an operation without a completion on tcp eth0: words")
	for code, want := range map[int32]error{10: fault.ErrStale, 12: fault.ErrPeerLost, 5: syscall.EIO} {
		require.ErrorIs(t, &CompletionError{Completion: Completion{code: int32(syscall.EIO), prov: code}, On: "verbs;ofi_rxm mlx5_0"}, want)
	}
}
