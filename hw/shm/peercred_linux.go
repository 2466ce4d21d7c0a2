package shm

import (
	"fmt"
	"os"
	"syscall"
)

// SameUser checks that the process at the other end of a Unix socket runs as the same user as this one. If not, its
// error wraps os.ErrPermission.
func SameUser(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return cerr
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d, not %d: %w", cred.Uid, os.Geteuid(), os.ErrPermission)
	}
	return nil
}
