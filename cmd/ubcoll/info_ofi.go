package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/env"
)

// longList is how long providers have to look for their devices.
const longList = 20 * time.Second

// libfabric lists the providers, each with its domains, and those that could not be used, with the reason.
func libfabric(line func(name, format string, args ...any)) {
	lib, err := ofi.Load()
	if err != nil {
		line("libfabric", "%v", err)
		return
	}
	text := lib.Version + " (" + lib.Path + "), used between hosts for fabrics that need it, and with " + env.OFI.Name + "=on"
	if lib.Shared {
		text += "; this process had loaded it before: its own cache of registrations may be on"
	}
	if lib.Signals > 0 {
		text += fmt.Sprintf("; signal handlers of its libraries taken away: %d", lib.Signals)
	}
	line("libfabric", "%s", text)
	ctx, cancel := context.WithTimeout(context.Background(), longList)
	defer cancel()
	infos, refused, err := ofi.List(ctx, "", "")
	if err != nil {
		line("", "%v", err)
		return
	}
	var names []string
	addresses := map[string][]string{}
	said := map[string]string{}
	for _, i := range infos {
		name := i.Provider + " " + i.Domain
		if said[name] == "" {
			names = append(names, name)
			said[name] = abilities(&i.Description)
		}
		if i.Address.IsValid() {
			addresses[name] = append(addresses[name], i.Address.String())
		}
	}
	for _, name := range names {
		text := said[name]
		if of := addresses[name]; of != nil {
			text += "; " + strings.Join(of, ", ")
		}
		line(name, "%s", text)
	}
	for _, r := range refused {
		line(r.Provider+" "+r.Domain, "cannot be used: it %v", r.Why)
	}
}

// abilities says what a provider can do in a domain.
func abilities(d *ofi.Description) string {
	can := []string{"messages"}
	for _, c := range []struct {
		cap  ofi.Caps
		name string
	}{{ofi.RMA, "RMA"}, {ofi.Atomics, "atomics"}, {ofi.Devices, "GPU memory"}} {
		if d.Caps.Has(c.cap) {
			can = append(can, c.name)
		}
	}
	text := strings.Join(can, ", ")
	if d.Manual {
		text += "; progress by polling"
	}
	if d.Gbits > 0 {
		text += fmt.Sprintf("; %g Gb/s", d.Gbits)
	}
	if d.Down {
		text += "; link down"
	}
	return text
}
