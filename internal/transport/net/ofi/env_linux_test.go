package ofi_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
)

func loopback() (func(netip.Addr) bool, error) { return netip.Addr.IsLoopback, nil }

// TestFromEnv: off, auto and on, in each of the ways to ask, over tcp on lo. Devices that this host does not have stand in for
// a fabric whose provider cannot be used.
func TestFromEnv(t *testing.T) {
	have(t)
	devices := fstest.MapFS{"sys/class/cxi/cxi0/device": &fstest.MapFile{}}
	for _, k := range []struct {
		name, when, provider, domain, rma, require, wanted string
		devices, single                                    bool
		rails, absent, err, warns                          string
	}{
		{name: "auto", absent: "UBCOLL_OFI=auto, and this host has no fabric that needs libfabric"},
		{name: "auto, with devices", devices: true, absent: `unknown provider "cxi"`, warns: `unknown provider \"cxi\"`},
		{name: "auto, with devices, one host", devices: true, single: true, absent: "all ranks are on one host"},
		{name: "auto, a provider", provider: "tcp", rails: "tcp lo"},
		{name: "auto, no such provider", provider: "nothing", absent: `UBCOLL_OFI_PROVIDER=nothing: libfabric: unknown provider "nothing"`,
			warns: "unknown provider"},
		{name: "auto, a domain", domain: "lo", absent: "no fabric that needs libfabric"},
		{name: "on", when: "on", rails: "tcp lo"},
		{name: "on, one host", when: "on", single: true, absent: "all ranks are on one host"},
		{name: "on, a provider", when: "on", provider: "TCP;ofi_rxm", domain: "lo", rails: "tcp lo"},
		{name: "on, another provider", when: "on", provider: "udp", rails: "udp lo"},
		{name: "on, no such provider", when: "on", provider: "tpc", err: `UBCOLL_OFI=on: libfabric: unknown provider "tpc"`},
		{name: "on, no such domain", when: "on", domain: "ol", err: `UBCOLL_OFI=on: libfabric: unknown domain "ol"`},
		{name: "on, without RMA", when: "on", rma: "off", rails: "tcp lo"},
		{name: "on, with RMA", when: "on", rma: "auto", rails: "tcp lo"},
		{name: "off", when: "off", provider: "tcp", devices: true, absent: "UBCOLL_OFI=off"},
		{name: "option", wanted: "ofi", rails: "tcp lo"},
		{name: "option, provider by variable", wanted: "ofi", provider: "udp", rails: "udp lo"},
		{name: "option with provider", wanted: "ofi:tcp", provider: "udp", rails: "tcp lo"},
		{name: "option without such a provider", wanted: "ofi:tpc", err: `Options.Net is ofi:tpc: libfabric: unknown provider "tpc"`},
		{name: "option, one host", wanted: "ofi:tpc", single: true, absent: "all ranks are on one host"},
		{name: "option and off", when: "off", wanted: "ofi", err: "Options.Net is ofi, and UBCOLL_OFI=off"},
		{name: "option and off, one host", when: "off", wanted: "ofi", single: true, absent: "all ranks are on one host"},
		{name: "another option", when: "on", wanted: "tcp", absent: "Options.Net is tcp"},
		{name: "verbs", when: "on", wanted: "verbs", absent: "Options.Net is verbs"},
		{name: "verbs required", require: "verbs", devices: true, absent: "UBCOLL_REQUIRE lists verbs"},
		{name: "verbs required, and on", when: "on", require: "verbs", err: "UBCOLL_OFI=on, and UBCOLL_REQUIRE lists verbs"},
		{name: "verbs required, and the option", wanted: "ofi:tcp", require: "verbs", err: "Options.Net is ofi:tcp, and UBCOLL_REQUIRE lists verbs"},
		{name: "malformed", when: "maybe", single: true, err: `UBCOLL_OFI="maybe"`},
		{name: "malformed", rma: "on", single: true, err: `UBCOLL_OFI_RMA="on"`},
	} {
		t.Run(k.name, func(t *testing.T) {
			for name, value := range map[string]string{"OFI": k.when, "OFI_PROVIDER": k.provider, "OFI_DOMAIN": k.domain,
				"OFI_RMA": k.rma, "REQUIRE": k.require} {
				t.Setenv("UBCOLL_"+name, value)
			}
			here := fstest.MapFS{}
			if k.devices {
				here = devices
			}
			defer ofi.SetRoot(here)()
			log, said := testkit.Logs(slog.LevelDebug)
			b, absent, err := ofi.FromEnv(log, !k.single, k.wanted, loopback, nil)
			switch {
			case k.err != "":
				require.ErrorContains(t, err, k.err)
				require.True(t, errors.Is(err, fault.ErrNotSupported) || k.name == "malformed" && errors.Is(err, fault.ErrArgument), err)
			case k.absent != "":
				require.NoError(t, err)
				require.ErrorIs(t, absent, fault.ErrNotSupported)
				require.ErrorContains(t, absent, k.absent)
			default:
				require.NoError(t, err)
				require.NoError(t, absent)
				require.Equal(t, []string{k.rails}, names(b))
				require.Equal(t, k.rma == "off", b.Rails()[0].Messages)
			}
			require.Equal(t, k.rails != "", b != nil)
			require.NoError(t, b.Close())
			if k.warns == "" {
				require.Empty(t, said.String())
			} else {
				require.Regexp(t, `^[^\n]*level=WARN[^\n]*\n$`, said.String())
				require.Contains(t, said.String(), k.warns)
			}
		})
	}
	for wanted, want := range map[string]string{"": "", "tcp": "", "verbs": "", "ofi": "Options.Net is ofi", "ofi:tcp": "Options.Net is ofi:tcp"} {
		require.Equal(t, want, ofi.Required(wanted))
	}
}

// TestAsked: who asks for libfabric wherever it may be.
func TestAsked(t *testing.T) {
	for _, k := range []struct {
		when, provider, wanted string
		want                   bool
	}{
		{"", "", "", false}, {"auto", "tcp", "", true}, {"on", "", "", true}, {"off", "tcp", "", false}, {"on", "", "tcp", false},
		{"", "", "ofi", true}, {"off", "", "ofi:tcp", true},
	} {
		t.Setenv("UBCOLL_OFI", k.when)
		t.Setenv("UBCOLL_OFI_PROVIDER", k.provider)
		require.Equal(t, k.want, ofi.Asked(k.wanted), k)
	}
}

// TestInterfaces: if it is not known which interfaces are in use, that is the error, and nobody asks unless libfabric may be
// used.
func TestInterfaces(t *testing.T) {
	defer ofi.SetRoot(fstest.MapFS{})()
	unknown := errors.New("no interface")
	local := func() (func(netip.Addr) bool, error) { return nil, unknown }
	t.Setenv("UBCOLL_REQUIRE", "")
	t.Setenv("UBCOLL_OFI", "on")
	_, _, err := ofi.FromEnv(slog.Default(), true, "", local, nil)
	require.ErrorIs(t, err, unknown)
	t.Setenv("UBCOLL_OFI", "auto")
	_, _, err = ofi.FromEnv(slog.Default(), true, "", local, nil)
	require.NoError(t, err)
}

// TestUnloaded: a host without a fabric that needs libfabric does not load it.
func TestUnloaded(t *testing.T) {
	testkit.RunChild(t, "unloaded", "UBCOLL_OFI=auto", "UBCOLL_OFI_PROVIDER=")
}

func unloaded() error {
	defer ofi.SetRoot(fstest.MapFS{})()
	_, absent, err := ofi.FromEnv(slog.Default(), true, "", loopback, nil)
	if absent == nil || err != nil {
		return fmt.Errorf("absent because of %v: %w", absent, err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if strings.Contains(string(maps), "libfabric") {
		return errors.New("libfabric is loaded")
	}
	return err
}
