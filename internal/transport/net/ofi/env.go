package ofi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/register"
)

// preferred are the providers to use of those that are not chosen by name: first those that drive fabrics of their own.
var preferred = []string{"cxi", "efa", "opx", "psm2", "verbs", "tcp"}

// root is where devices are looked for. Tests change it.
var root fs.FS = os.DirFS("/")

// option returns whether Options.Net asks for libfabric, and for which provider; "": any.
func option(wanted string) (provider string, ok bool) {
	provider, found := strings.CutPrefix(wanted, "ofi:")
	if found {
		return provider, true
	}
	return "", wanted == "ofi"
}

// Required is who says that no data of two hosts may go by TCP, or "". wanted is Options.Net.
func Required(wanted string) string {
	if _, ok := option(wanted); ok {
		return "Options.Net is " + wanted
	}
	if when, err := env.OFI.Get(); err == nil && when == "on" && wanted == "" && env.Requires("libfabric") {
		return fmt.Sprintf("%s=on, and %s lists libfabric", env.OFI.Name, env.Require.Name)
	}
	return ""
}

// Asked reports whether somebody asks for libfabric on any machine, and not just where there is a fabric that needs it. wanted
// is Options.Net.
func Asked(wanted string) bool {
	if wanted != "" {
		_, ok := option(wanted)
		return ok
	}
	when, err := env.OFI.Get()
	return err == nil && (when == "on" || when == "auto" && env.OFIProvider.IsSet())
}

// FromEnv opens the backend that the environment asks for, in a job of several hosts or of one; wanted is Options.Net, which
// counts more. local returns [Config.Local], and is called only if a provider may be used. If there is no backend, b is nil, and
// absent, a fault.ErrNotSupported, says why: all ranks are on one host, Options.Net is another network, UBCOLL_OFI=off, or auto
// and either no fabric is here that needs libfabric, or its provider fails, which log is told. If Options.Net or UBCOLL_OFI=on
// asks for libfabric, the latter is err, and so is what contradicts them. Malformed variables are err in any case. keep is
// [Config.Keep]. It may block: see [Open].
func FromEnv(log *slog.Logger, several bool, wanted string, local func() (func(netip.Addr) bool, error),
	keep func(register.Memory)) (b *Backend, absent, err error) {
	when, err1 := env.OFI.Get()
	provider, err2 := env.OFIProvider.Get()
	domain, err3 := env.OFIDomain.Get()
	rma, err4 := env.OFIRMA.Get()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, nil, err
	}
	of, ok := option(wanted)
	config := Config{Provider: provider, Domain: domain, Prefer: preferred, Messages: rma == "off", Keep: keep, Log: log}
	if of != "" {
		config.Provider = of
	}
	no := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), hw.ErrNotSupported)
	}
	verbs := env.Requires("verbs")
	var asks, without string // who asks for libfabric, and what does without it
	switch {
	case !several:
		return nil, no("libfabric is for data between hosts, and all ranks are on one host"), nil
	case ok:
		asks, without = "Options.Net is "+wanted, "NetAuto"
	case wanted != "":
		return nil, no("Options.Net is %s", wanted), nil
	case when == "off":
		return nil, no("%s=off", env.OFI.Name), nil
	case when == "on":
		asks, without = env.OFI.Name+"=on", env.OFI.Name+"=auto"
	}
	switch {
	case ok && when == "off":
		return nil, nil, no("%s, and %s=off: leave out one of them", asks, env.OFI.Name)
	case asks != "" && verbs:
		return nil, nil, no("%s, and %s lists verbs: leave out one of them", asks, env.Require.Name)
	case verbs:
		return nil, no("%s lists verbs", env.Require.Name), nil
	}
	try := []string{config.Provider}
	if asks == "" && provider == "" {
		if try = fabrics(); len(try) == 0 {
			return nil, no("%s=auto, and this host has no fabric that needs libfabric", env.OFI.Name), nil
		}
	}
	if config.Local, err = local(); err != nil {
		return nil, nil, err
	}
	var failed []error
	for _, config.Provider = range try {
		if b, err = Open(context.Background(), config); err == nil {
			return b, nil, nil
		}
		failed = append(failed, err)
	}
	err = errors.Join(failed...)
	if asks != "" {
		return nil, nil, fmt.Errorf("%s: %w (with %s the job would do without libfabric)", asks, err, without)
	}
	if provider != "" {
		err = fmt.Errorf("%s=%s: %w", env.OFIProvider.Name, provider, err)
	}
	log.Warn("ubcoll: libfabric does not carry the data between hosts, which go another way", "error", err)
	if !errors.Is(err, hw.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", err, hw.ErrNotSupported)
	}
	return nil, err, nil
}

// fabrics returns the providers of the devices that this host has and that need libfabric, best first. It loads no library.
func fabrics() (providers []string) {
	for _, h := range fabric.FindHardware(root) {
		providers = append(providers, h.Providers...)
	}
	slices.SortFunc(providers, func(x, y string) int { return slices.Index(preferred, x) - slices.Index(preferred, y) })
	return providers
}
