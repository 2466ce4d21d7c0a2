package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/logs"
)

// collNet says what the CollNet plugin is that the user names, and what its devices can do.
func collNet(line func(name, format string, args ...any)) {
	name, err := env.CollNet.Get()
	switch {
	case err != nil:
		line("CollNet", "%v", err)
		return
	case name == "":
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), longList)
	defer cancel()
	p, err := collnet.Load(ctx, name, 0, logs.Or(nil))
	if err != nil {
		line("CollNet", "%v", err)
		return
	}
	text := fmt.Sprintf("plugin %s, version %d of the interface (%s)", p.Name, p.Version, p.Path)
	if p.Shared {
		text += "; this process had loaded it before"
	}
	line("CollNet", "%s", text)
	for i, d := range p.Devices {
		what := "host memory"
		if d.CUDA {
			what += " and GPU memory"
		}
		line(fmt.Sprintf("%d %s", i, d.Name), "%s; %d Mb/s; up to %d groups; %d bytes a call", what, d.Speed, d.Groups, d.Bytes)
	}
}
