//go:build !linux || !cgo || !(amd64 || arm64)

package collnet

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/ubcoll/ubcoll/hw"
)

// Plugin cannot be loaded here.
type Plugin struct {
	Path, Name string
	Version    int
	Shared     bool
	Devices    []Device
}

// Load is not supported here.
func Load(context.Context, string, uint64, *slog.Logger) (*Plugin, error) {
	return nil, fmt.Errorf("CollNet plugins in a build for %s/%s or without cgo: %w", runtime.GOOS, runtime.GOARCH, hw.ErrNotSupported)
}
