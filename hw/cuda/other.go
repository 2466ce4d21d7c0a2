//go:build !linux || !cgo || !(amd64 || arm64)

package cuda

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
)

var errOther = fmt.Errorf("CUDA in a build for %s/%s or without cgo: %w", runtime.GOOS, runtime.GOARCH,
	hw.ErrNotSupported)

// Have says that CUDA is not supported here.
func Have() hw.Probe { return hw.Probe{Name: "CUDA", Err: errOther} }

// Version is not supported here.
func Version() (major, minor int, err error) { return 0, 0, errOther }

// Devices is not supported here.
func Devices() ([]Info, error) { return nil, errOther }

// Describe is not supported here.
func Describe(d hw.Device) (Info, error) { return Info{}, errOther }

// P2P is not supported here.
func P2P(from, to hw.Device) (Link, error) { return Link{}, errOther }

// Primary is not supported here.
func Primary(d hw.Device) (*Context, error) {
	if err := isDevice(d); err != nil {
		return nil, err
	}
	return nil, errOther
}

// Close is not supported here.
func (c *Context) Close() error { return errOther }

// EnablePeer is not supported here.
func (c *Context) EnablePeer(peer *Context) error { return errOther }

// Inspect is not supported here.
func Inspect(a Addr) (Memory, error) { return Memory{}, errOther }

// Available is not supported here.
func (c *Context) Available() (free, total int, err error) { return 0, 0, errOther }

// Alloc is not supported here.
func (c *Context) Alloc(n int) (Addr, error) { return 0, errOther }

// Free is not supported here.
func (c *Context) Free(a Addr) error { return errOther }

// HostRegister is not supported here.
func (c *Context) HostRegister(p unsafe.Pointer, n int) (Addr, error) { return 0, errOther }

// HostUnregister is not supported here.
func (c *Context) HostUnregister(p unsafe.Pointer) error { return errOther }

// IPCHandle is not supported here.
func (c *Context) IPCHandle(a Addr) (IPCHandle, error) { return IPCHandle{}, errOther }

// OpenIPC is not supported here.
func (c *Context) OpenIPC(h IPCHandle) (Addr, error) { return 0, errOther }

// CloseIPC is not supported here.
func (c *Context) CloseIPC(a Addr) error { return errOther }

// Granularity is not supported here.
func (c *Context) Granularity() (int, error) { return 0, errOther }

// Create is not supported here.
func (c *Context) Create(n int) (Allocation, error) { return 0, errOther }

// DMABuf is not supported here.
func (c *Context) DMABuf(a Addr, n int) (fd int, err error) { return -1, errOther }

// FlushRDMAWrites is not supported here.
func (c *Context) FlushRDMAWrites() error { return errOther }

// Release is not supported here.
func (c *Context) Release(m Allocation) error { return errOther }

// Retain is not supported here.
func (c *Context) Retain(a Addr) (Allocation, error) { return 0, errOther }

// Export is not supported here.
func (c *Context) Export(m Allocation) (fd int, err error) { return 0, errOther }

// Import is not supported here.
func (c *Context) Import(fd int) (Allocation, error) { return 0, errOther }

// Reserve is not supported here.
func (c *Context) Reserve(n int) (Addr, error) { return 0, errOther }

// Unreserve is not supported here.
func (c *Context) Unreserve(a Addr, n int) error { return errOther }

// Map is not supported here.
func (c *Context) Map(a Addr, n int, m Allocation) error { return errOther }

// Unmap is not supported here.
func (c *Context) Unmap(a Addr, n int) error { return errOther }

// Access is not supported here.
func (c *Context) Access(a Addr, n int, d hw.Device) error { return errOther }

// ReserveAligned is not supported here.
func (c *Context) ReserveAligned(n, align int) (Addr, error) { return 0, errOther }

// HaveMulticast says that CUDA is not supported here.
func HaveMulticast() hw.Probe { return hw.Probe{Name: "NVLS", Err: errOther} }

// MulticastGranularity is not supported here.
func (c *Context) MulticastGranularity(devices, n int) (least, best int, err error) {
	return 0, 0, errOther
}

// CreateMulticast is not supported here.
func (c *Context) CreateMulticast(devices, n int) (*Multicast, error) { return nil, errOther }

// ImportMulticast is not supported here.
func (c *Context) ImportMulticast(fd, devices, n int) (*Multicast, error) { return nil, errOther }

// Export is not supported here.
func (m *Multicast) Export() (fd int, err error) { return 0, errOther }

// AddDevice is not supported here.
func (m *Multicast) AddDevice() error { return errOther }

// Bind is not supported here.
func (m *Multicast) Bind(at int, a Allocation, from, n int) error { return errOther }

// BindAddr is not supported here.
func (m *Multicast) BindAddr(at int, p Addr, n int) error { return errOther }

// Unbind is not supported here.
func (m *Multicast) Unbind(at, n int) error { return errOther }

// Map is not supported here.
func (m *Multicast) Map() (Addr, error) { return 0, errOther }

// Unmap is not supported here.
func (m *Multicast) Unmap() error { return errOther }

// Close is not supported here.
func (m *Multicast) Close() error { return errOther }

// NewStream is not supported here.
func (c *Context) NewStream() (*Stream, error) { return nil, errOther }

// StreamFrom is not supported here.
func (c *Context) StreamFrom(cuStream uintptr) (*Stream, error) { return nil, errOther }

// Close is not supported here.
func (s *Stream) Close() error { return errOther }

// Done is not supported here.
func (s *Stream) Done() (bool, error) { return false, errOther }

// Sync is not supported here.
func (s *Stream) Sync() error { return errOther }

// Wait is not supported here.
func (s *Stream) Wait(e *Event) error { return errOther }

// Copy is not supported here.
func (s *Stream) Copy(dst, src Addr, n int) error { return errOther }

// Fill is not supported here.
func (s *Stream) Fill(dst Addr, b byte, n int) error { return errOther }

// Upload is not supported here.
func (s *Stream) Upload(dst Addr, src []byte) error { return errOther }

// Download is not supported here.
func (s *Stream) Download(dst []byte, src Addr) error { return errOther }

// NewEvent is not supported here.
func (c *Context) NewEvent(timing bool) (*Event, error) { return nil, errOther }

// Close is not supported here.
func (e *Event) Close() error { return errOther }

// Record is not supported here.
func (e *Event) Record(s *Stream) error { return errOther }

// Done is not supported here.
func (e *Event) Done() (bool, error) { return false, errOther }

// Sync is not supported here.
func (e *Event) Sync() error { return errOther }

// Since is not supported here.
func (e *Event) Since(start *Event) (time.Duration, error) { return 0, errOther }

// BeginCapture is not supported here.
func (s *Stream) BeginCapture() error { return errOther }

// EndCapture is not supported here.
func (s *Stream) EndCapture() (*Graph, error) { return nil, errOther }

// OwnCapture is not supported here.
func (s *Stream) OwnCapture() bool { return false }

// Capture is not supported here.
func (s *Stream) Capture() (uint64, error) { return 0, errOther }

// Last is not supported here.
func (s *Stream) Last() (Node, error) { return Node{}, errOther }

// SetKernel is not supported here.
func (g *Graph) SetKernel(n Node, f *Function, l Launch, params []byte) error { return errOther }

// Launch is not supported here.
func (g *Graph) Launch(s *Stream) error { return errOther }

// Close is not supported here.
func (g *Graph) Close() error { return errOther }

// LoadModule is not supported here.
func (c *Context) LoadModule(ptx string) (*Module, error) { return nil, errOther }

// Close is not supported here.
func (m *Module) Close() error { return errOther }

// Function is not supported here.
func (m *Module) Function(name string) (*Function, error) { return nil, errOther }

// AllowShared is not supported here.
func (f *Function) AllowShared(n int) error { return errOther }

// Resident is not supported here.
func (f *Function) Resident(l Launch) (int, error) { return 0, errOther }

// Launch is not supported here.
func (f *Function) Launch(s *Stream, l Launch, params []byte) error { return errOther }
