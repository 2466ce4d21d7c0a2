//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// A link with a delay is a pair of TAP devices with this process between them, since a kernel may lack netem.

// waiting is how many frames a direction of a link holds. More are lost, as in a switch.
const waiting = 4096

type frame struct {
	due  time.Time
	data []byte
}

func (n *node) makeRelay(net, h int) error {
	inner, err := tap(port(net, h))
	if err != nil {
		return err
	}
	const aside = "relay"
	outer, err := tap(aside)
	if err != nil {
		return err
	}
	if err := n.ip(loginHost, "link set %s netns %d\n", aside, n.holders[h].Process.Pid); err != nil {
		return err
	}
	if err := n.ip(h, "link set %s name %s\n", aside, eth(net)); err != nil {
		return err
	}
	go n.forward(outer, inner)
	go n.forward(inner, outer)
	return nil
}

// forward passes frames on, each some time after it came.
func (n *node) forward(from, to *os.File) {
	frames := make(chan frame, waiting)
	go func() {
		for f := range frames {
			time.Sleep(time.Until(f.due))
			_, _ = to.Write(f.data) // fails if that end is down
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		k, err := from.Read(buf)
		if err != nil { // down for now, or gone with its host
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if n.Loss > 0 && rand.Float64() < n.Loss {
			continue
		}
		select {
		case frames <- frame{time.Now().Add(n.Delay), append([]byte(nil), buf[:k]...)}:
		default:
		}
	}
}

// tap makes a TAP device that lives as long as the file is open.
func tap(name string) (*os.File, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:15], name)
	request.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&request))); e != 0 {
		syscall.Close(fd)
		return nil, fmt.Errorf("TAP device %s: %w", name, e)
	}
	return os.NewFile(uintptr(fd), name), nil
}
