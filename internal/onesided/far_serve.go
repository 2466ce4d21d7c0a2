package onesided

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// deferred is the calls of a peer that a goroutine serves: those about memory of a device, because the driver may block, and
// whatever comes while it runs, because all are served in their order.
type deferred struct {
	busy  atomic.Bool // the goroutine runs
	mu    sync.Mutex
	queue []deferredCall
	runs  sync.WaitGroup

	copying atomic.Pointer[mem.Location] // the grant whose memory is used just now; or nil
	answers *gpu.Pinned                  // for data of gets, in answerSlots pieces; nil until it is needed
	until   [answerSlots]uint64          // what the pair has sent once a slot is free
	next    int                          // slot
}

type deferredCall struct {
	call
	data []byte
}

const (
	devicePiece = 64 << 10 // bytes of a device that one request asks for
	answerSlots = 4
)

// defers leaves a call to the goroutine, if it is for that.
func (f *far) defers(k *call, data []byte) bool {
	d := &f.deferred
	if !d.busy.Load() && k.Kind != callPut && k.Kind != callLand && (k.Kind != callGet || !f.onDevice(k.grant())) {
		return false
	}
	if k.Kind != callPut || k.A == 0 { // else they stay where they are until this rank answers
		data = bytes.Clone(data)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, deferredCall{*k, data})
	if !d.busy.Swap(true) {
		d.runs.Add(1)
		go f.serveDeferred()
	}
	return true
}

// serveDeferred serves what was left to it.
func (f *far) serveDeferred() {
	d := &f.deferred
	defer d.runs.Done()
	linger := lingers
	if f.sp.c.Team().Crowded {
		linger = 0
	}
	for last := time.Now(); ; {
		d.mu.Lock()
		if len(d.queue) == 0 {
			if time.Since(last) < linger { // to start a goroutine takes as long as a small copy
				d.mu.Unlock()
				runtime.Gosched()
				continue
			}
			d.queue = nil
			d.busy.Store(false)
			d.mu.Unlock()
			return
		}
		k := d.queue[0]
		d.queue[0].data = nil
		d.queue = d.queue[1:]
		d.mu.Unlock()
		f.serve(&k.call, k.data)
		f.heard.Add(1)
		last = time.Now()
	}
}

// lingers is how long the goroutine waits for more before it ends.
const lingers = 200 * time.Microsecond

// pinned returns page-locked memory of this rank's device.
func (f *far) pinned(n int) (*gpu.Pinned, error) {
	on, ok := f.sp.c.Domain().Device().(*gpu.Domain)
	if !ok {
		return nil, fault.ErrNotSupported
	}
	return on.TakePinned(n)
}

// onDevice reports whether a grant's memory is on this rank's device.
func (f *far) onDevice(g mem.Location) bool {
	r := f.sp.c.Domain().Served(g)
	return r != nil && r.OnDevice()
}

// copyDevice copies between b and a grant's memory, which is on the device.
func (f *far) copyDevice(k *call, b []byte, in bool) error {
	g, need := k.grant(), engine.RemoteRead
	if in {
		need = engine.RemoteWrite
	}
	f.deferred.copying.Store(&g) // before it looks whether the grant is good: see stopCopy
	defer f.deferred.copying.Store(nil)
	r, p, err := f.served(g, k.Offset, len(b), need)
	switch {
	case err != nil:
		return err
	case !r.OnDevice():
		return fault.ErrArgument
	}
	dom := f.sp.c.Domain()
	if err = dom.Device().Copy(cuda.Addr(uintptr(p)), b, in); err != nil {
		if d := gpu.DeviceOf(f.sp.c); d != nil {
			d.FailDevice("serve", err)
		}
	}
	return err
}

// stopCopy waits until the memory of a grant, which has been revoked, is not used any more.
func (f *far) stopCopy(g mem.Location) {
	if at := f.deferred.copying.Load(); at != nil && *at == g {
		team.PauseUntil(func() bool { return f.deferred.copying.Load() != at })
	}
}

// servePut puts data into memory of the device. A slot is free then.
func (f *far) servePut(k *call, data []byte) {
	err := f.copyDevice(k, data, true)
	if err != nil {
		f.refuses(k.grant())
	}
	if k.A != 0 {
		f.done(k.ID, err, 0)
	}
}

// serveDeviceGet is serveGet for memory of the device.
func (f *far) serveDeviceGet(k *call) {
	d := &f.deferred
	n := int(min(k.A, devicePiece))
	slot := d.next % answerSlots
	p, err := f.answerSlot(slot)
	if err == nil && n > 0 {
		err = f.copyDevice(k, unsafe.Slice((*byte)(p), n), false)
	}
	if err == nil && n > 0 {
		d.next++
		f.pair.Write(transport.Target{Slot: answerSlot, Key: k.ID}, p, n, true)
		d.until[slot] = f.pair.Queued()
	}
	f.done(k.ID, err, 0)
}

// answerSlot returns memory for an answer's data, once what was there has been sent.
func (f *far) answerSlot(slot int) (unsafe.Pointer, error) {
	d := &f.deferred
	if d.answers == nil {
		var err error
		if d.answers, err = f.pinned(answerSlots * devicePiece); err != nil {
			return nil, err
		}
	}
	team.PauseUntil(func() bool {
		f.pair.Poll()
		return f.pair.Sent() >= d.until[slot] || f.pair.Err() != nil
	})
	return unsafe.Add(d.answers.Ptr(), slot*devicePiece), nil
}

// closeServing ends it, once the pair has ended.
func (f *far) closeServing() {
	f.deferred.runs.Wait()
	for _, m := range []*gpu.Pinned{f.deferred.answers, f.landed.memory.Load()} {
		if m != nil {
			f.sp.c.Domain().Device().(*gpu.Domain).GivePinned(m)
		}
	}
}
