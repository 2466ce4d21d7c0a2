package onesided

import (
	"bytes"
	"context"
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
	landing *gpu.Pinned                  // where data of several puts become one copy; nil until it is needed
	few     bool                         // there is no memory for that
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
	if !d.busy.Load() && k.Kind != callPut && (k.Kind != callGet || !f.onDevice(k.grant())) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, deferredCall{*k, bytes.Clone(data)})
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
		n := d.run()
		calls := d.queue[:n:n]
		d.queue = d.queue[n:]
		d.mu.Unlock()
		data := calls[0].data
		if n > 1 {
			data = f.together(calls)
		}
		if data == nil {
			for i := range calls {
				f.serve(&calls[i].call, calls[i].data)
			}
		} else {
			f.serve(&calls[0].call, data)
		}
		clear(calls)
		f.heard.Add(uint64(n))
		last = time.Now()
	}
}

// lingers is how long the goroutine waits for more before it ends.
const lingers = 200 * time.Microsecond

// landingBytes is how much is put into memory of a device at once. The driver takes some 10 us for each copy.
const landingBytes = 1 << 20

// run returns how many of the calls, from the first on, are puts of bytes that follow each other, which are done as one; or 1.
func (d *deferred) run() int {
	first := &d.queue[0]
	n, end := 1, first.call.Offset+uint64(len(first.data))
	for ; first.call.Kind == callPut && n < len(d.queue); n++ {
		k := &d.queue[n]
		if k.call.Kind != callPut || k.call.grant() != first.call.grant() || k.call.Offset != end ||
			end+uint64(len(k.data))-first.call.Offset > landingBytes {
			break
		}
		end += uint64(len(k.data))
	}
	return n
}

// together returns the data of calls in one piece, or nil if there is no memory for that.
func (f *far) together(calls []deferredCall) []byte {
	d := &f.deferred
	if d.landing == nil && !d.few {
		var err error
		if d.landing, err = f.pinned(landingBytes); err != nil {
			d.few = true
			f.sp.c.Log().Debug("one-sided: puts into memory of a device go one by one", "error", err)
		}
	}
	if d.few {
		return nil
	}
	all := unsafe.Slice((*byte)(d.landing.Ptr()), landingBytes)
	n := 0
	for i := range calls {
		n += copy(all[n:], calls[i].data)
	}
	return all[:n]
}

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

// servePut puts data into memory of the device.
func (f *far) servePut(k *call, data []byte) {
	if f.copyDevice(k, data, true) != nil {
		f.refuses(k.grant())
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

// close ends it, once the pair has ended.
func (d *deferred) close(dom *engine.Domain) {
	d.runs.Wait()
	for _, m := range []*gpu.Pinned{d.answers, d.landing} {
		if m != nil {
			dom.Device().(*gpu.Domain).GivePinned(m)
		}
	}
}

// putDevice puts n bytes into a peer's memory on a device.
func (f *far) putDevice(ctx context.Context, op string, of closable, m *Remote, off int, local unsafe.Pointer, n int) error {
	k, err := f.callAt(callPut, m, off, n, engine.RemoteWrite)
	if err != nil {
		return err
	}
	return f.sendData(ctx, op, of, m, k, local, n, 1, 1)
}
