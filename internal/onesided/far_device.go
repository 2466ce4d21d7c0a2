package onesided

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/gpuend"
)

// farHost does on the host what ends on devices do with a rank of another host. Implements gpuend.Host. What is queued ends
// before the end is closed, but waits end with e, which has the signals.
type farHost struct {
	e      *Side
	remote *Remote // nil: there is no memory
}

func (h farHost) Live() error { return h.e.far.good(h.remote) }

func (h farHost) Put(ctx context.Context, off int, from unsafe.Pointer, n int) error {
	return h.e.far.put(ctx, "put", nil, h.remote, off, from, n, nil)
}

func (h farHost) Get(ctx context.Context, off int, to unsafe.Pointer, n int) error {
	return h.e.far.get(ctx, "get", nil, h.remote, off, to, n)
}

func (h farHost) PutDevice(ctx context.Context, off int, from unsafe.Pointer, n int) (bool, error) {
	return h.e.far.writeDevice(ctx, "put", nil, h.remote, off, from, n)
}

func (h farHost) GetDevice(ctx context.Context, off int, to unsafe.Pointer, n int) (bool, error) {
	return h.e.far.readDevice(ctx, "get", nil, h.remote, off, to, n)
}

func (h farHost) Signal(context.Context) error {
	h.e.Signal()
	return nil
}

func (h farHost) Wait(ctx context.Context) error { return h.e.Wait(ctx) }

func (h farHost) Flush(ctx context.Context) error {
	if err := h.e.far.flush(ctx, nil); err != nil || h.remote == nil {
		return err
	}
	return h.e.far.live(h.remote.Grant)
}

// farPart is farHost for a window's rank on another host.
type farPart struct {
	w *Window
	k *windowRank
}

func (p farPart) Live() error {
	m, err := p.k.remote()
	if err == nil {
		err = m.Live()
	}
	return err
}

func (p farPart) Put(ctx context.Context, off int, from unsafe.Pointer, n int) error {
	return p.w.copyFar(ctx, "put", p.k, off, from, n, true)
}

func (p farPart) Get(ctx context.Context, off int, to unsafe.Pointer, n int) error {
	return p.w.copyFar(ctx, "get", p.k, off, to, n, false)
}

func (p farPart) PutDevice(ctx context.Context, off int, from unsafe.Pointer, n int) (bool, error) {
	return p.w.copyFarDevice(ctx, "put", p.k, off, from, n, true)
}

func (p farPart) GetDevice(ctx context.Context, off int, to unsafe.Pointer, n int) (bool, error) {
	return p.w.copyFarDevice(ctx, "get", p.k, off, to, n, false)
}

func (p farPart) Signal(ctx context.Context) error { return p.w.signalFar(ctx, p.k) }
func (p farPart) Wait(ctx context.Context) error   { return p.w.waitFar(ctx, p.k) }
func (p farPart) Flush(ctx context.Context) error  { return p.w.flushRank(ctx, p.k) }

// deviceEnd returns the end towards k, which is `peer`.
func (w *Window) deviceEnd(k *windowRank, peer int) (gpuend.WindowEnd, error) {
	if k.far == nil {
		return w.device.End(w.sp.local(peer)), nil
	}
	e, err := w.device.Far(gpuend.FarConfig{Owner: w, Op: "window", Name: "the window " + between(w.c, peer), Rank: peer, Host: farPart{w, k}},
		gpuend.Memory{Local: w.reg, Remote: &k.far.part.Load().Import})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// stopper is what calls to ranks of other hosts end with, but waits for signals, which end with w. What is queued on a device ends
// before w does.
func (w *Window) stopper() closable {
	if w.device != nil {
		return nil
	}
	return w
}
