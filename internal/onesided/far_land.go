package onesided

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Longer puts into memory of a device land in page-locked memory of its host, which the owner takes when it is first asked. It has a few
// slots; the peer's answer to a put says that the slot is free again. Where the owner has no such memory, the data go through the
// staging memory of other calls, as shorter ones do.

const (
	landSlot  = 1<<32 - 3 // of targets there; the key is the slot's number, from 1 on
	landPiece = 256 << 10
	landSlots = 4
)

// landings are the slots at the peer, as this rank uses them.
type landings struct {
	mu    sync.Mutex
	known bool // the peer has been asked
	there bool // it has memory
	slots [landSlots]landingSlot
}

type landingSlot struct {
	taken bool
	r     *request // about the data there; nil before they are sent
}

// landed are the slots at this rank.
type landed struct {
	memory atomic.Pointer[gpu.Pinned]
	came   [landSlots]int // bytes, since the write's beginning; for those who serve the peer
}

// putDevice puts n bytes into a peer's memory on a device.
func (f *far) putDevice(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int) error {
	k, err := f.callAt(callPut, m, off, n, engine.RemoteWrite)
	if err != nil {
		return err
	}
	if n > dataBytes { // in one piece it is sooner there by the staging memory, without an answer
		if there, err := f.lands(ctx, op, of); err != nil {
			return err
		} else if there {
			return f.land(ctx, op, of, m, k, local, n)
		}
	}
	return f.sendData(ctx, op, of, m, k, local, n, 1, 1)
}

// lands asks the peer for slots, the first time, and reports whether there are.
func (f *far) lands(ctx context.Context, op string, of closable) (there bool, err error) {
	l := &f.landings
	l.mu.Lock()
	known, there := l.known, l.there
	l.mu.Unlock()
	if known {
		return there, nil
	}
	_, err = f.result(ctx, op, of, &call{Kind: callLand})
	if there = err == nil; errors.Is(err, fault.ErrLimit) || errors.Is(err, fault.ErrNotSupported) {
		err = nil
	}
	if err == nil {
		l.mu.Lock()
		l.known, l.there = true, there
		l.mu.Unlock()
	}
	return there, err
}

// land puts n bytes through the slots.
func (f *far) land(ctx context.Context, op string, of closable, m *Remote, k *call, local unsafe.Pointer, n int) (err error) {
	l := &f.landings
	var sent [landSlots]*request
	for done := 0; done < n; done += landPiece {
		if err = f.good(m); err != nil {
			break
		}
		slot := 0
		if err = f.wait(ctx, op, "the data before", of, func() (free bool) {
			slot, free = l.take()
			return free
		}); err != nil {
			break
		}
		piece, r := min(landPiece, n-done), &request{}
		f.pair.Write(transport.Target{Slot: landSlot, Key: uint64(slot) + 1}, unsafe.Add(local, done), piece, true)
		f.given.Add(1)
		k.A, k.C = uint64(slot)+1, uint64(piece)
		f.ask(k, r)
		k.Offset += uint64(piece)
		l.mu.Lock()
		l.slots[slot].r = r
		l.mu.Unlock()
		sent[slot] = r
	}
	if queued := f.pair.Queued(); err == nil && f.pair.Sent() < queued {
		err = f.wait(ctx, op, "its kernel takes the data", of, func() bool { return f.pair.Sent() >= queued })
	}
	if err == nil {
		return nil
	}
	l.mu.Lock() // so that nobody else takes a slot meanwhile
	defer l.mu.Unlock()
	for slot, r := range sent { // the caller's memory must not be read any more
		if r != nil && l.slots[slot].r == r {
			f.pair.Withdraw(transport.Target{Slot: landSlot, Key: uint64(slot) + 1})
		}
	}
	return err
}

// take takes a slot, if one is free.
func (l *landings) take() (slot int, free bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.slots {
		s := &l.slots[i]
		if s.r != nil && s.r.over.Load() { // a refused grant is told besides
			*s = landingSlot{}
		}
		if !s.taken {
			s.taken = true
			return i, true
		}
	}
	return 0, false
}

// serveLand makes the slots of this rank.
func (f *far) serveLand(k *call) {
	var err error
	if f.landed.memory.Load() == nil {
		var m *gpu.Pinned
		if m, err = f.pinned(landSlots * landPiece); err == nil {
			f.landed.memory.Store(m)
		}
	}
	f.done(k.ID, err, 0)
}

// landAt returns where n bytes go that the peer writes to a slot.
func (f *far) landAt(t transport.Target, n int) unsafe.Pointer {
	m := f.landed.memory.Load()
	if m == nil || t.Key == 0 || t.Key > landSlots || n > landPiece || t.Offset > uint64(landPiece-n) {
		return nil
	}
	slot := int(t.Key) - 1
	if t.Offset == 0 {
		f.landed.came[slot] = 0
	}
	f.landed.came[slot] += n
	return unsafe.Add(m.Ptr(), slot*landPiece+int(t.Offset))
}

// landedData returns the data in the slot of a put, if all have come.
func (f *far) landedData(k *call) (data []byte, whole bool) {
	m := f.landed.memory.Load()
	if m == nil || k.A > landSlots || k.C == 0 || uint64(f.landed.came[k.A-1]) != k.C {
		return nil, false
	}
	f.landed.came[k.A-1] = 0
	return unsafe.Slice((*byte)(unsafe.Add(m.Ptr(), int(k.A-1)*landPiece)), k.C), true
}
