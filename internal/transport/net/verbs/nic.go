// Package verbs carries frames over queue pairs of an RDMA device. What is short travels in messages, which land in slots
// that this process has registered. The bytes of a long put go straight from the sender's registered memory to the
// place that the receiver has granted, if that is registered, too; if one of the two is not, they travel in messages.
//
// No message is sent before the peer has a receive for it: each connection may have so many under way as its peer has
// granted receives, its credits. So no peer is ever found not ready.
package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

const (
	slotBytes = (frame.HeaderSize + frame.Short + 63) &^ 63 // a whole number of cache lines
	credits   = 32                                          // messages and chunks that a peer may have under way on a connection
	mostShare = 1 << 14                                     // receives of a NIC
)

// NIC is an RDMA device as this process's connections share it: one queue of receives, and the memory of their slots.
// Its methods are safe for concurrent use.
type NIC struct {
	pd     *ib.PD
	path   ib.Path
	index  int // of this NIC's keys in those of a region, also of the peer's: rail i talks to rail i
	shared *ib.SRQ

	mu     sync.Mutex
	failed []error // of connections' ends
	gid    ib.GID  // of the port, as peers know it; zero before the first connection
	slots  []slots // those of receives
	spare  int     // receives that are posted, and no connection has
}

// slots is memory of some messages, side by side.
type slots struct {
	memory []byte
	region *ib.MR
}

// Open makes what connections of a NIC share, the one of that index in its backend. path says how their packets travel.
func Open(pd *ib.PD, index int, path ib.Path) (*NIC, error) {
	n := &NIC{pd: pd, path: path, index: index}
	var err error
	n.shared, err = pd.CreateSRQ(min(mostShare, pd.Device().Limits().SRQWork), 0)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// Index is the NIC's in its backend.
func (n *NIC) Index() int { return n.index }

// Name is like "mlx5_0:1".
func (n *NIC) Name() string { return fmt.Sprintf("%s:%d", n.pd.Device().Name(), n.path.Port) }

// Watch returns why nothing goes through this NIC any more: its port is down, has lost its address, or the device is broken.
// It blocks until then; nil: ctx has ended, or the device tells no events.
func (n *NIC) Watch(ctx context.Context) error {
	for {
		e, err := n.pd.Device().NextEvent(ctx)
		switch {
		case err != nil:
			return nil
		case e.Type == ib.EventDevice, e.Type == ib.EventPortDown && e.Port == n.path.Port:
			return fmt.Errorf("RDMA device %s: %v", n.Name(), e)
		case e.Type == ib.EventGIDs && !n.has():
			return fmt.Errorf("RDMA device %s has lost its address, GID %v", n.Name(), n.gid)
		}
	}
}

// has reports whether the port has its address still, as far as it is known.
func (n *NIC) has() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	table, err := n.pd.Device().GIDs(n.path.Port)
	return err != nil || n.gid.Zero() || slices.ContainsFunc(table, func(e ib.GIDEntry) bool { return e.GID == n.gid })
}

// fail keeps an error of a connection's end, which nobody waits for, until Close.
func (n *NIC) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = append(n.failed, err)
}

// Close frees what Open and connections have made. All connections must be closed. Errors are also those of their ends.
func (n *NIC) Close() error {
	errs := append(n.failed, n.shared.Close())
	for _, s := range n.slots {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// lay makes room for count messages, where the device may write.
func (n *NIC) lay(count int) (slots, error) {
	b, err := unix.Mmap(-1, 0, count*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return slots{}, fmt.Errorf("memory of %d messages: %w", count, err)
	}
	r, err := n.pd.Register(uintptr(unsafe.Pointer(unsafe.SliceData(b))), len(b), ib.LocalWrite)
	if err != nil {
		_ = unix.Munmap(b)
		return slots{}, err
	}
	return slots{b, r}, nil
}

// close frees the memory. If the device does not let go of it, it stays mapped.
func (s slots) close() error {
	if err := s.region.Close(); err != nil {
		return err
	}
	return unix.Munmap(s.memory)
}

// at is the address of a message.
func (s slots) at(i int) unsafe.Pointer { return unsafe.Pointer(&s.memory[i*slotBytes]) }

// take makes sure that there are receives for one more connection.
func (n *NIC) take() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.spare >= credits {
		n.spare -= credits
		return nil
	}
	if (len(n.slots)+1)*credits > n.shared.Size() {
		return fmt.Errorf("%s has receives for %d connections: %w", n.Name(), len(n.slots), fault.ErrLimit)
	}
	s, err := n.lay(credits)
	if err != nil {
		return err
	}
	n.slots = append(n.slots, s)
	ids := make([]uint64, credits)
	for i := range ids {
		ids[i] = uint64((len(n.slots)-1)*credits + i)
	}
	return n.post(ids)
}

// give returns the receives of a connection that has ended, with those whose messages came to it.
func (n *NIC) give(used []uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spare += credits
	return n.post(used)
}

// again posts receives whose messages have been handled.
func (n *NIC) again(used []uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.post(used)
}

// post posts receives. The caller holds mu.
func (n *NIC) post(ids []uint64) error {
	var work [credits]ib.Receive
	for len(ids) > 0 {
		k := min(len(ids), len(work))
		for i, id := range ids[:k] {
			s := &n.slots[id/credits]
			work[i] = ib.Receive{ID: id, Local: uint64(uintptr(s.at(int(id % credits)))), Length: slotBytes, Key: s.region.LKey()}
		}
		if _, err := n.shared.Post(work[:k]...); err != nil {
			return err
		}
		ids = ids[k:]
	}
	return nil
}

// slot is the memory of a receive.
func (n *NIC) slot(id uint64) unsafe.Pointer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.slots[id/credits].at(int(id % credits))
}

// keys returns the keys of a claim's memory on all NICs, if peers and this process may do there what access says; else nil.
func keys(cl *register.Claim, access ib.Access) []mr.Key {
	h, err := cl.Handle(register.NET)
	if err != nil {
		return nil
	}
	keys, err := h.(*mr.Region).For(access)
	if err != nil {
		return nil
	}
	return keys
}

// Landing returns what a peer needs to write to the n bytes at p, by any NIC, and the claim on them, to be released after that; nil
// if they are not registered.
func (c *Conn) Landing(p unsafe.Pointer, n int) (frame.Landing, *register.Claim) {
	cl := c.find(uintptr(p), n)
	if cl == nil {
		return frame.Landing{}, nil
	}
	all := keys(cl, ib.LocalWrite|ib.RemoteWrite)
	if all == nil {
		cl.Release()
		return frame.Landing{}, nil
	}
	l := frame.Landing{Address: uint64(uintptr(p))}
	for i, key := range all {
		l.Keys[i] = uint64(key.Remote)
	}
	return l, cl
}

// NIC is what the connection shares with others.
func (c *Conn) NIC() *NIC { return c.nic }

// Index is the NIC's in its backend.
func (c *Conn) Index() int { return c.nic.index }

// Device is the NIC's name.
func (c *Conn) Device() string { return c.nic.Name() }

// Meet is Connect with the address as Append makes it.
func (c *Conn) Meet(addr []byte, name string) error {
	if len(addr) < ib.AddressSize {
		return fmt.Errorf("%s gives %d bytes as its address: %w", name, len(addr), fault.ErrMismatch)
	}
	a, err := ib.ParseAddress(addr[:ib.AddressSize])
	if err != nil {
		return err
	}
	return c.Connect(a, name)
}
