//go:build linux && cgo && (amd64 || arm64)

package collnet

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "lib.h"
*/
import "C"

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/signals"
)

// Supported reports whether this build can load plugins.
const Supported = true

// Plugin is a loaded plugin.
type Plugin struct {
	Path    string // as it was found
	Name    string
	Version int  // of the interface
	Shared  bool // the process had loaded it already
	Devices []Device

	raw *C.cn_plugin // of C's memory, for good
	log *slog.Logger
}

// Load loads a plugin: the library at a path, or what NCCL_NET_PLUGIN calls NAME, libnccl-net-NAME.so. It may block until ctx
// ends. id is a number of the job, the same on all members. The error is hw.ErrNotSupported if there is no such plugin, or if it
// is of another version, and else what is wrong with it.
func Load(ctx context.Context, name string, id uint64, log *slog.Logger) (*Plugin, error) {
	p := &Plugin{log: log, raw: (*C.cn_plugin)(C.calloc(1, C.sizeof_cn_plugin))}
	t := newThread(name)
	var err error
	undone := 0
	if late := t.do(ctx, "loading", nil, func() { undone = signals.Guard(func() { err = p.load(name, id) }) }); late != nil {
		return nil, late
	}
	t.end()
	p.tell()
	if undone > 0 {
		log.Warn("ubcoll: signal handlers of a CollNet plugin, which would crash the process, are taken away", "plugin", name, "handlers", undone)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Plugin) load(name string, id uint64) error {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	var found, why [1024]C.char
	var others, before C.int
	if C.cn_load(c, p.raw, &found[0], &why[0], C.size_t(len(why)), &others, &before) == 0 {
		return fmt.Errorf("no CollNet plugin %q: %s: %w", name, C.GoString(&why[0]), hw.ErrNotSupported)
	}
	p.Path, p.Shared, p.Version = C.GoString(&found[0]), before != 0, int(p.raw.version)
	if p.Version == 0 {
		if others == 0 {
			return fmt.Errorf("%s is no CollNet plugin: it has no ncclCollNetPlugin_v10 or _v11: %w", p.Path, hw.ErrNotSupported)
		}
		newest := bits.Len32(uint32(others)) - 1
		return fmt.Errorf("%s is a CollNet plugin of version %d, want 10 or 11: %w", p.Path, newest, hw.ErrNotSupported)
	}
	p.Name = C.GoString(C.cn_name(p.raw))
	var missing *C.char
	if C.cn_missing(p.raw, &missing) != 0 {
		return fmt.Errorf("the CollNet plugin %q of %s has no %s: %w", p.Name, p.Path, C.GoString(missing), hw.ErrNotSupported)
	}
	if r := C.cn_init(p.raw, C.uint64_t(id)); r != 0 {
		return p.failed("init", r)
	}
	var n C.int
	if r := C.cn_devices(p.raw, &n); r != 0 {
		return p.failed("devices", r)
	}
	if n <= 0 {
		return fmt.Errorf("the CollNet plugin %q has no devices (%d): %w", p.Name, n, hw.ErrNotSupported)
	}
	for i := range n {
		d, err := p.device(i)
		if err != nil {
			return err
		}
		p.Devices = append(p.Devices, d)
	}
	return nil
}

// device asks for a device's properties.
func (p *Plugin) device(i C.int) (Device, error) {
	var c C.cn_device
	if r := C.cn_device_of(p.raw, i, &c); r != 0 {
		return Device{}, p.failed("getProperties", r)
	}
	d := Device{Name: C.GoString(&c.name[0]), PCI: C.GoString(&c.pci[0]), Speed: int(c.speed), Port: int(c.port), Groups: int(c.max_comms),
		Bytes: int(min(uint64(c.max_bytes), 1<<40)), CUDA: c.pointers&C.CN_PTR_CUDA != 0}
	bad := func(what string, v any) (Device, error) {
		return d, fmt.Errorf("device %d of the CollNet plugin %q says %s is %v: %w", i, p.Name, what, v, hw.ErrNotSupported)
	}
	switch {
	case c.pointers&C.CN_PTR_HOST == 0:
		return bad("ptrSupport", int(c.pointers))
	case d.Groups < 1:
		return bad("maxComms", d.Groups)
	case d.Bytes < leastBytes:
		return bad("maxCollBytes", d.Bytes)
	}
	return d, nil
}

// leastBytes is the least of a call that makes sense.
const leastBytes = 4 << 10

func (p *Plugin) failed(call string, code C.int) error {
	return &Error{Plugin: p.Name, Call: call, Code: int(code)}
}

// tell passes on what the plugin has logged.
func (p *Plugin) tell() {
	var line [512]C.char
	for {
		var lost C.uint64_t
		level := C.cn_logged(&line[0], C.size_t(len(line)), &lost)
		if lost > 0 {
			p.log.Warn("ubcoll: lines of a CollNet plugin's log are lost", "plugin", p.Name, "lines", uint64(lost))
		}
		if level == 0 {
			return
		}
		to := slog.LevelInfo
		if level == C.CN_LOG_WARN {
			to = slog.LevelWarn
		}
		p.log.Log(context.Background(), to, "ubcoll: CollNet plugin: "+C.GoString(&line[0]), "plugin", p.Name)
	}
}

// Reductions asks which types the fabric reduces, by which operations. It may block until ctx ends.
func (p *Plugin) Reductions(ctx context.Context) (all Reductions, err error) {
	t := newThread(p.Name)
	late := t.do(ctx, "reduceSupport", nil, func() {
		for typ, n := range types {
			for op := Sum; op <= Min; op++ {
				var supported C.int
				if r := C.cn_supports(p.raw, C.int(n), C.int(op), &supported); r != 0 {
					err = p.failed("reduceSupport", r)
					return
				}
				if supported == 1 {
					all[typ] |= 1 << op
				}
			}
		}
	})
	if late != nil {
		return Reductions{}, late
	}
	t.end()
	p.tell()
	return all, err
}

// Listener is what a member's group begins with. Connect or Close ends it.
type Listener struct {
	p      *Plugin
	t      *thread
	raw    *unsafe.Pointer // of C's memory
	device int
	Handle [HandleBytes]byte // which all members must have
}

// Listen begins a group on a device.
func (p *Plugin) Listen(ctx context.Context, device int) (*Listener, error) {
	l := &Listener{p: p, t: newThread(p.Name), device: device, raw: (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))}
	handle := C.calloc(1, HandleBytes)
	var r C.int
	if err := l.t.do(ctx, "listen", nil, func() {
		signals.Guard(func() { r = C.cn_listen(p.raw, C.int(device), handle, l.raw) })
	}); err != nil {
		return nil, err
	}
	p.tell()
	copy(l.Handle[:], unsafe.Slice((*byte)(handle), HandleBytes))
	C.free(handle)
	if r != 0 {
		l.t.end()
		C.free(unsafe.Pointer(l.raw))
		return nil, p.failed("listen", r)
	}
	return l, nil
}

// Close ends a listener that no group has come of.
func (l *Listener) Close(ctx context.Context) error {
	var r C.int
	if err := l.t.do(ctx, "closeListen", nil, func() { r = C.cn_close_listen(l.p.raw, *l.raw) }); err != nil {
		return err
	}
	l.t.end()
	C.free(unsafe.Pointer(l.raw))
	if r != 0 {
		return l.p.failed("closeListen", r)
	}
	return nil
}

// Group is a group of members. Its methods may be called from any goroutine, and run one after the other; all members must make
// the same calls in the same order.
type Group struct {
	p      *Plugin
	t      *thread
	raw    *unsafe.Pointer // of C's memory, as is cancel
	cancel *C.int
	Ranks  int
	Rank   int
	Device Device

	mu     sync.Mutex // held during a collective
	failed error      // of the first that failed: no other is begun
}

// Connect makes a group of the members with these handles; rank is this one's number. It blocks until all members have called it,
// and ends l.
func (l *Listener) Connect(ctx context.Context, handles [][HandleBytes]byte, rank int) (*Group, error) {
	p, n := l.p, len(handles)
	g := &Group{p: p, t: l.t, Ranks: n, Rank: rank, Device: p.Devices[l.device]}
	g.raw = (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	g.cancel = (*C.int)(C.calloc(1, C.sizeof_int))
	all := C.calloc(C.size_t(n), HandleBytes)
	for i := range handles {
		copy(unsafe.Slice((*byte)(unsafe.Add(all, i*HandleBytes)), HandleBytes), handles[i][:])
	}
	var r C.int
	err := l.t.do(ctx, "connect", nil, func() {
		signals.Guard(func() { r = C.cn_connect(p.raw, all, C.int(n), C.int(rank), *l.raw, g.raw) })
	})
	if err != nil {
		return nil, err
	}
	p.tell()
	C.free(all)
	if r != 0 || *g.raw == nil {
		C.free(unsafe.Pointer(g.raw))
		C.free(unsafe.Pointer(g.cancel))
		if r == 0 {
			err = fmt.Errorf("connect of the CollNet plugin %q gave no group: %w", p.Name, fault.ErrAborted)
		} else {
			err = p.failed("connect", r)
		}
		l.Close(ctx)
		return nil, err
	}
	if err := l.t.do(ctx, "closeListen", nil, func() { r = C.cn_close_listen(p.raw, *l.raw) }); err != nil {
		return nil, err
	}
	C.free(unsafe.Pointer(l.raw))
	if r != 0 {
		p.log.Warn("ubcoll: a CollNet plugin's listener did not close", "error", p.failed("closeListen", r))
	}
	return g, nil
}

// Handle is a registration of memory with a group.
type Handle struct{ raw unsafe.Pointer }

// Register registers n bytes of the host's memory at an address, which stay the caller's, and must stay until Deregister. Local; it blocks behind
// a collective that runs. Not memory of the Go heap.
func (g *Group) Register(ctx context.Context, at uintptr, n int) (Handle, error) {
	var r C.int
	to := (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	if err := g.t.do(ctx, "regMr", nil, func() { r = C.cn_reg(g.p.raw, *g.raw, C.uintptr_t(at), C.size_t(n), to) }); err != nil {
		return Handle{}, err
	}
	h := Handle{*to}
	C.free(unsafe.Pointer(to))
	if r != 0 {
		return Handle{}, g.p.failed("regMr", r)
	}
	return h, nil
}

// Deregister gives a registration back.
func (g *Group) Deregister(ctx context.Context, h Handle) error {
	var r C.int
	if err := g.t.do(ctx, "deregMr", nil, func() { r = C.cn_dereg(g.p.raw, *g.raw, h.raw) }); err != nil {
		return err
	}
	if r != 0 {
		return g.p.failed("deregMr", r)
	}
	return nil
}

// Memory is registered memory of a call.
type Memory struct {
	At     unsafe.Pointer
	Handle Handle
}

func (m Memory) add(n int) unsafe.Pointer { return unsafe.Add(m.At, n) }

// most is how many calls are under way at most: the interface allows as many requests of a group as 32.
const most = 8

// AllReduce combines count elements of all members, in calls of up to step bytes, which must be the same on all members, and
// Device.Bytes at most. As all collectives it blocks until it is done or ctx ends; the memory is the caller's again when it
// returns, unless it is an error: then a fabric may use it until Close has returned, and longer if that is stuck (see Stuck). A type
// or operation that Reductions lacks must not be asked for.
func (g *Group) AllReduce(ctx context.Context, dst, src Memory, count, step int, t dtype.Type, op Op) error {
	size := t.Size()
	step /= size
	return g.calls(ctx, (count+step-1)/step, func(i int, c *C.cn_call) {
		from, n := i*step, min(step, count-i*step)
		c.kind, c._type, c.op = C.CN_CALL_ALL_REDUCE, C.int(types[t]), C.int(op)
		c.send, c.receive = src.add(from*size), dst.add(from*size)
		c.send_handle, c.receive_handle = src.Handle.raw, dst.Handle.raw
		c.count, c.bytes = C.uint64_t(n), C.uint64_t(n*size)
	})
}

// AllGather gathers n bytes of each member, in the order of members: those of w. dst begins with the first of them, and src with
// the first of this member's own block.
func (g *Group) AllGather(ctx context.Context, dst, src Memory, n int, w Window) error {
	return g.windows(ctx, w, func(from, bytes int, c *C.cn_call) {
		at, _ := w.own(g.Rank*n, n, from, bytes)
		c.kind = C.CN_CALL_ALL_GATHER
		c.send, c.receive = src.add(at), dst.add(from-w.From)
		c.send_handle, c.receive_handle = src.Handle.raw, dst.Handle.raw
		c.bytes_per_rank, c.window, c.window_bytes, c.bytes = C.uint64_t(n), C.uint64_t(from), C.uint64_t(bytes), C.uint64_t(bytes)
	})
}

// ReduceScatter combines n bytes of all members for each member, in the order of members: those of w. src begins with the first of
// them, and dst with the first of this member's own block.
func (g *Group) ReduceScatter(ctx context.Context, dst, src Memory, n int, w Window, t dtype.Type, op Op) error {
	w.Step = w.Step / t.Size() * t.Size()
	return g.windows(ctx, w, func(from, bytes int, c *C.cn_call) {
		at, own := w.own(g.Rank*n, n, from, bytes)
		c.kind, c._type, c.op = C.CN_CALL_REDUCE_SCATTER, C.int(types[t]), C.int(op)
		c.send, c.receive = src.add(from-w.From), dst.add(at)
		c.send_handle, c.receive_handle = src.Handle.raw, dst.Handle.raw
		c.bytes_per_rank, c.window, c.window_bytes, c.bytes = C.uint64_t(n), C.uint64_t(from), C.uint64_t(bytes), C.uint64_t(own)
	})
}

// windows makes a call for each Step of w.
func (g *Group) windows(ctx context.Context, w Window, fill func(from, bytes int, c *C.cn_call)) error {
	return g.calls(ctx, (w.To-w.From+w.Step-1)/w.Step, func(i int, c *C.cn_call) {
		from := w.From + i*w.Step
		fill(from, min(w.Step, w.To-from), c)
	})
}

// calls makes n calls. After an error no other is made: members' calls would not match up any more.
func (g *Group) calls(ctx context.Context, n int, fill func(i int, c *C.cn_call)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed != nil || n == 0 {
		return g.failed
	}
	raw := C.calloc(C.size_t(n), C.sizeof_cn_call)
	all := unsafe.Slice((*C.cn_call)(raw), n)
	for i := range all {
		fill(i, &all[i])
	}
	step := (**C.char)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	var how C.int
	err := g.t.do(ctx, "a collective", func() { *g.cancel = 1 }, func() {
		how = C.cn_run(g.p.raw, *g.raw, &all[0], C.int(n), most, g.cancel, step)
	})
	g.p.tell()
	if err == nil && how != C.CN_RAN {
		err = g.outcome(all, how, C.GoString(*step))
	}
	if g.failed = err; g.t.gone() != "" { // which still uses the memory
		return err
	}
	C.free(unsafe.Pointer(step))
	C.free(raw)
	return err
}

// outcome is the error of calls of which one has failed.
func (g *Group) outcome(all []C.cn_call, how C.int, step string) error {
	for i := range all {
		c := &all[i]
		switch {
		case c.error != 0:
			return g.p.failed(step, c.error)
		case how == C.CN_SHORT && c.got >= 0 && uint64(c.got) != uint64(c.bytes):
			return fmt.Errorf("the CollNet plugin %q says that %d of %d bytes have come: %w", g.p.Name, c.got, uint64(c.bytes), fault.ErrAborted)
		}
	}
	return fmt.Errorf("a call of the CollNet plugin %q ended early: %w", g.p.Name, fault.ErrAborted)
}

// Close ends the group, and its thread. Registrations must have been given back.
func (g *Group) Close(ctx context.Context) error {
	var r C.int
	if err := g.t.do(ctx, "closeColl", nil, func() { r = C.cn_close(g.p.raw, *g.raw) }); err != nil {
		return err
	}
	g.t.end()
	C.free(unsafe.Pointer(g.raw))
	C.free(unsafe.Pointer(g.cancel))
	if r != 0 {
		return g.p.failed("closeColl", r)
	}
	return nil
}
