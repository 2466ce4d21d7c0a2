//go:build !linux || !cgo || !(amd64 || arm64)

package collnet

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
)

var errOther = fmt.Errorf("CollNet plugins in a build for %s/%s or without cgo: %w", runtime.GOOS, runtime.GOARCH, hw.ErrNotSupported)

// Supported reports whether this build can load plugins.
const Supported = false

// Plugin cannot be loaded here. Nothing else in this file is reached.
type Plugin struct {
	Path, Name string
	Version    int
	Shared     bool
	Devices    []Device
}

// Listener cannot exist here.
type Listener struct{ Handle [HandleBytes]byte }

// Group cannot exist here.
type Group struct {
	Ranks, Rank int
	Device      Device
}

// Handle cannot exist here.
type Handle struct{}

// Memory is registered memory of a call.
type Memory struct {
	At     unsafe.Pointer
	Handle Handle
}

// Load is not supported here.
func Load(context.Context, string, uint64, *slog.Logger) (*Plugin, error) { return nil, errOther }

// Reductions is not supported here.
func (p *Plugin) Reductions(context.Context) (Reductions, error) { return Reductions{}, errOther }

// Listen is not supported here.
func (p *Plugin) Listen(context.Context, int) (*Listener, error) { return nil, errOther }

// Close is not supported here.
func (l *Listener) Close(context.Context) error { return errOther }

// Connect is not supported here.
func (l *Listener) Connect(context.Context, [][HandleBytes]byte, int) (*Group, error) {
	return nil, errOther
}

// Register is not supported here.
func (g *Group) Register(context.Context, uintptr, int) (Handle, error) {
	return Handle{}, errOther
}

// Deregister is not supported here.
func (g *Group) Deregister(context.Context, Handle) error { return errOther }

// AllReduce is not supported here.
func (g *Group) AllReduce(context.Context, Memory, Memory, int, int, dtype.Type, Op) error {
	return errOther
}

// AllGather is not supported here.
func (g *Group) AllGather(context.Context, Memory, Memory, int, Window) error { return errOther }

// ReduceScatter is not supported here.
func (g *Group) ReduceScatter(context.Context, Memory, Memory, int, Window, dtype.Type, Op) error {
	return errOther
}

// Close is not supported here.
func (g *Group) Close(context.Context) error { return errOther }
