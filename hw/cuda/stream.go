//go:build linux && cgo && (amd64 || arm64)

package cuda

/*
#include "driver.h"
#cgo noescape ubc_upload
#cgo nocallback ubc_upload
#cgo noescape ubc_download
#cgo nocallback ubc_download
#cgo noescape ubc_event_elapsed
#cgo nocallback ubc_event_elapsed
*/
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// bytes returns a typed pointer: behind an unsafe.Pointer, cgo would search the whole object for Go pointers, and panic
// if there are some beside the bytes.
func bytes(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

// NewStream makes a stream that does not wait for the default stream. The caller closes it.
func (c *Context) NewStream() (*Stream, error) {
	r := C.ubc_stream_create(C.uintptr_t(c.h))
	if err := check(r); err != nil {
		return nil, err
	}
	return &Stream{c: c, h: uintptr(r.a), device: c.device}, nil
}

// StreamFrom borrows a stream that someone else made in c, by its CUstream (0 is the default stream). That stream must
// outlive the Stream; Close does not close it. StreamFrom refuses a stream of another device. The driver may crash on a
// number that is no stream.
func (c *Context) StreamFrom(cuStream uintptr) (*Stream, error) {
	r := C.ubc_stream_check(C.uintptr_t(c.h), C.uintptr_t(cuStream))
	if err := check(r); err != nil {
		return nil, fmt.Errorf("stream %#x: %w", cuStream, err)
	}
	if r.a == 0 {
		return nil, fmt.Errorf("stream %#x is not of the primary context of %v: %w", cuStream, c.device, fault.ErrArgument)
	}
	return &Stream{c: c, h: cuStream, device: c.device, borrowed: true}, nil
}

// Close closes the stream. Work queued on it still runs.
func (s *Stream) Close() error {
	c := s.c
	s.c = nil
	if c == nil || s.borrowed {
		return nil
	}
	captures.Delete(s.h) // the next stream may get the handle
	return check(C.ubc_stream_destroy(C.uintptr_t(c.handle()), C.uintptr_t(s.h)))
}

// Done reports whether all work queued on the stream is done, without waiting. The error is of that work.
func (s *Stream) Done() (bool, error) {
	r := C.ubc_stream_query(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h))
	return r.a != 0, check(r)
}

// Sync waits, without a limit, until all work queued on the stream is done. The error is of that work.
func (s *Stream) Sync() error {
	return check(C.ubc_stream_sync(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h)))
}

// Wait queues a wait for the work that e has recorded, perhaps on another stream or device.
func (s *Stream) Wait(e *Event) error {
	return check(C.ubc_stream_wait(C.uintptr_t(both(s.c, e.c).handle()), C.uintptr_t(s.h), C.uintptr_t(e.h)))
}

// Copy queues a copy of n bytes between any two addresses that the device can access. Host memory must not be on the Go
// heap; it should be page-locked, else the call may wait.
func (s *Stream) Copy(dst, src Addr, n int) error {
	if n < 0 {
		return size("a copy", n)
	}
	return check(C.ubc_copy(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h), C.uintptr_t(dst), C.uintptr_t(src), C.size_t(n)))
}

// Fill queues setting n bytes at dst to b.
func (s *Stream) Fill(dst Addr, b byte, n int) error {
	if n < 0 {
		return size("a fill", n)
	}
	return check(C.ubc_fill(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h), C.uintptr_t(dst), C.int(b), C.size_t(n)))
}

// Upload copies src to the device, in the stream's order, and waits for the copy. src may be on the Go heap.
func (s *Stream) Upload(dst Addr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return check(C.ubc_upload(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h), C.uintptr_t(dst),
		bytes(src), C.size_t(len(src))))
}

// Download copies from the device, in the stream's order, and waits for the copy. dst may be on the Go heap.
func (s *Stream) Download(dst []byte, src Addr) error {
	if len(dst) == 0 {
		return nil
	}
	return check(C.ubc_download(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h),
		bytes(dst), C.uintptr_t(src), C.size_t(len(dst))))
}

// NewEvent makes an event. With timing it records times, which costs a little. The caller closes it.
func (c *Context) NewEvent(timing bool) (*Event, error) {
	var t C.int
	if timing {
		t = 1
	}
	r := C.ubc_event_create(C.uintptr_t(c.h), t)
	if err := check(r); err != nil {
		return nil, err
	}
	return &Event{c, uintptr(r.a)}, nil
}

// Close closes the event.
func (e *Event) Close() error {
	c := e.c
	e.c = nil
	if c == nil {
		return nil
	}
	return check(C.ubc_event_destroy(C.uintptr_t(c.handle()), C.uintptr_t(e.h)))
}

// Record marks the end of the work queued on s so far. s is a stream of the event's device.
func (e *Event) Record(s *Stream) error {
	return check(C.ubc_event_record(C.uintptr_t(both(e.c, s.c).handle()), C.uintptr_t(e.h), C.uintptr_t(s.h)))
}

// Done reports whether the recorded work is done, without waiting. It is true if nothing was recorded.
func (e *Event) Done() (bool, error) {
	r := C.ubc_event_query(C.uintptr_t(e.c.handle()), C.uintptr_t(e.h))
	return r.a != 0, check(r)
}

// Sync waits until the recorded work is done.
func (e *Event) Sync() error {
	return check(C.ubc_event_sync(C.uintptr_t(e.c.handle()), C.uintptr_t(e.h)))
}

// Since returns the device's time from start, an earlier event, to e. Both must be done and made with timing.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms C.float
	err := check(C.ubc_event_elapsed(C.uintptr_t(both(e.c, start.c).handle()), C.uintptr_t(start.h), C.uintptr_t(e.h), &ms))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// BeginCapture records work queued on the stream from now on, instead of running it, until EndCapture. Any thread may
// call either; other goroutines must not use the stream meanwhile.
func (s *Stream) BeginCapture() error {
	// A goroutine may move to another thread before it ends the capture; only relaxed captures allow that.
	err := s.beginCapture(C.UBC_CAPTURE_RELAXED)
	if err == nil {
		captures.Store(s.h, true)
	}
	return err
}

func (s *Stream) beginCapture(mode C.int) error {
	return check(C.ubc_capture_begin(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h), mode))
}

// captures has the handles of streams with a capture from BeginCapture.
var captures sync.Map

// OwnCapture reports whether the stream's capture was begun by BeginCapture, by this Stream or another one that borrows
// the same stream. Such a capture ends with EndCapture, and may contain kernels launched with Launch.Early.
func (s *Stream) OwnCapture() bool {
	_, own := captures.Load(s.h)
	return own
}

// EndCapture ends the capture and makes a graph from it, which the caller closes. The stream is usable again, even
// after an error.
func (s *Stream) EndCapture() (*Graph, error) {
	captures.Delete(s.h)
	var keep C.int
	if s.nodes {
		keep, s.nodes = 1, false
	}
	r := C.ubc_capture_end(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h), keep)
	if err := check(r); err != nil {
		return nil, err
	}
	return &Graph{s.c, uintptr(r.a), uintptr(r.b)}, nil
}

// Last returns the place of the work queued last, which must be one kernel, in the capture that BeginCapture began. It
// is valid for the graph that EndCapture of the same Stream makes.
func (s *Stream) Last() (Node, error) {
	r := C.ubc_capture_last(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h))
	if err := check(r); err != nil {
		return Node{}, err
	}
	s.nodes = true
	return Node{uintptr(r.a)}, nil
}

// Capture returns the number of the capture that the stream takes part in, whoever began it; 0 is none. If an error has
// ended the capture, that is an error.
func (s *Stream) Capture() (uint64, error) {
	r := C.ubc_capture_info(C.uintptr_t(s.c.handle()), C.uintptr_t(s.h))
	return uint64(r.a), check(r)
}

// Launch queues the graph on s, a stream in any context of its device. Launches of a graph run one after the other.
func (g *Graph) Launch(s *Stream) error {
	return check(C.ubc_graph_launch(C.uintptr_t(both(g.c, s.c).handle()), C.uintptr_t(g.h), C.uintptr_t(s.h)))
}

// SetKernel gives the kernel f at n other parameters, and another shape if l has one, in later launches; launches
// already queued do not change. l.Early must stay the same. See Function.Launch.
func (g *Graph) SetKernel(n Node, f *Function, l Launch, params []byte) error {
	if err := f.shape(l); err != nil {
		return err
	}
	return f.check(C.ubc_graph_set(C.uintptr_t(both(g.c, f.module.c).handle()), C.uintptr_t(g.h), C.uintptr_t(n.h),
		C.uintptr_t(f.h), C.uint(l.Grid), C.uint(l.Block), C.uint(l.Shared), (*C.uint8_t)(unsafe.SliceData(params)),
		C.size_t(len(params))))
}

// Close closes the graph. A running launch ends first.
func (g *Graph) Close() error {
	c := g.c
	g.c = nil
	if c == nil {
		return nil
	}
	return check(C.ubc_graph_destroy(C.uintptr_t(c.handle()), C.uintptr_t(g.h), C.uintptr_t(g.kept)))
}
