//go:build !linux

package bootstrap

import (
	"errors"
	"net"
	"time"
)

// seesSilence says whether unanswered can tell.
const seesSilence = false

func unanswered(net.Conn) (asked, sent bool, last time.Duration, err error) {
	return false, false, 0, errors.ErrUnsupported
}

func askOften(net.Conn, time.Duration) {}
