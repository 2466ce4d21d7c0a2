//go:build !linux

package ipc

import (
	"fmt"
	"net"

	"github.com/ubcoll/ubcoll/hw"
)

func sameUser(*net.UnixConn) error { return fmt.Errorf("peer credentials: %w", hw.ErrNotSupported) }
