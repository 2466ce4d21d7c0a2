package ipc

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// sameUser checks that the process at the other end runs as this one's user.
func sameUser(conn *net.UnixConn) error {
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
