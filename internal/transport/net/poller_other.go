//go:build !linux

package net

import (
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

type poll struct{}

func newPoll() (*poll, error) { return nil, fault.ErrNotSupported }

func (p *poll) add(*end) error { return fault.ErrNotSupported }

func (p *poll) want(*end, bool) {}

func (p *poll) remove(*end) {}

func (p *poll) queue(int, func() bool, func() bool) (func(), error) {
	return nil, fault.ErrNotSupported
}

func (p *poll) arm() bool { return false }

func (p *poll) progress() bool { return false }

func (p *poll) close() {}

func (p *poll) replace(*end) (int, int, error) { return -1, -1, fault.ErrNotSupported }

func unacknowledged(int) bool { return false }

func deaf(int) error { return fault.ErrNotSupported }

func mute(int) error { return fault.ErrNotSupported }

func deafListener(syscall.Conn) error { return fault.ErrNotSupported }

type waiter struct{}

func (p *poll) waiter() (*waiter, error) { return nil, fault.ErrNotSupported }

func (w *waiter) wait(time.Duration) {}

func (w *waiter) close() {}

func adopt(syscall.Conn) (int, error) { return 0, fault.ErrNotSupported }

func watch(int, bool, time.Duration) error { return fault.ErrNotSupported }

func probe(int) error { return fault.ErrNotSupported }

func limited(syscall.RawConn, time.Duration) error { return fault.ErrNotSupported }

func silent(int, time.Duration) bool { return false }

func sendTo(int, []byte) (int, error) { return 0, fault.ErrNotSupported }

func receiveFrom(int, []byte) (int, error) { return 0, fault.ErrNotSupported }

func shutdown(int) {}

func closeSocket(int) {}

func pathOf(int) (path, error) { return path{}, fault.ErrNotSupported }

func raiseLimit() {}

func descriptors() uint64 { return 0 }
