//go:build linux && cgo && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// On a real driver multicast objects are made only where two variables say so.
func TestMulticastPermitted(t *testing.T) {
	for _, c := range []struct {
		name         string
		emulated     bool
		ours, theirs string
		want         string
	}{
		{"emulated", true, "off", "0", ""},
		{"unset", false, "", "", "multicast is off unless UBCOLL_NVLS=on: not supported"},
		{"off", false, "off", "", "multicast is off unless UBCOLL_NVLS=on: not supported"},
		{"off, and on for NCCL", false, "off", "1", "multicast is off unless UBCOLL_NVLS=on: not supported"},
		{"on", false, "on", "", ""},
		{"on, and for NCCL", false, "on", "1", ""},
		{"on, and NCCL's default", false, "on", "2", ""},
		{"on, but off for NCCL", false, "on", "0", "NCCL_NVLS_ENABLE=0 forbids multicast: not supported"},
		{"off for NCCL, with spaces", false, "on", " 0 ", "NCCL_NVLS_ENABLE= 0  forbids multicast: not supported"},
		{"off for NCCL, in other digits", false, "on", "0x00", "NCCL_NVLS_ENABLE=0x00 forbids multicast: not supported"},
		{"no number", false, "on", "no", "NCCL_NVLS_ENABLE=no forbids multicast: not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := cuda.MulticastPermitted(c.emulated, c.ours, c.theirs, "")
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, hw.ErrNotSupported)
		})
	}
}

// NCCL's variables may stand in files.
func TestNCCLSetting(t *testing.T) {
	const name = "NCCL_NVLS_ENABLE"
	dir := t.TempDir()
	system, user, other := filepath.Join(dir, "nccl.conf"), filepath.Join(dir, ".nccl.conf"), filepath.Join(dir, "other")
	t.Setenv("HOME", dir)
	t.Setenv("NCCL_CONF_FILE", "")
	t.Setenv(name, "")
	require.NoError(t, os.Unsetenv(name))
	is := func(value, file string) {
		t.Helper()
		v, f := cuda.NCCLSetting(name, system)
		require.Equal(t, []string{value, file}, []string{v, f})
	}
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	is("", "")
	write(system, "# NCCL_NVLS_ENABLE=5\nNCCL_DEBUG=INFO\n NCCL_NVLS_ENABLE = 0 \nNCCL_NVLS_ENABLE=1")
	is("0", system)
	write(user, "NCCL_NVLS_ENABLED=3\nNCCL_NVLS_ENABLE=2\n")
	is("2", user)
	t.Setenv("NCCL_CONF_FILE", other)
	is("0", system)
	write(other, "NCCL_NVLS_ENABLE=")
	is("", other)
	t.Setenv(name, "1")
	is("1", "")
	require.EqualError(t, cuda.MulticastPermitted(false, "on", "0", "/etc/nccl.conf"),
		"NCCL_NVLS_ENABLE=0 in /etc/nccl.conf forbids multicast: not supported")
}

// The names of the calls stand where builds without tag nvls do not look: on a host that several use, an object can take
// all GPUs down.
func TestMulticastNames(t *testing.T) {
	allowed := map[string]bool{"multicast.c": true, "multicast.h": true}
	n := 0
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") || allowed[name] || filepath.Ext(name) == ".go" {
			return err
		}
		b, err := os.ReadFile(name)
		n++
		require.NotContains(t, string(b), "cu"+"Multicast", name)
		return err
	}))
	require.Greater(t, n, 8)
	b, err := os.ReadFile("multicast.c")
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(b), "\n")
	require.Equal(t, "//go:build nvls && linux && cgo && (amd64 || arm64)", first)
	for name, includes := range map[string]bool{"multicast.c": true, "multicast_without.c": false, "driver.c": false, "memory.c": false,
		"stream.c": false, "driver.h": false, "call.h": false} {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, includes, strings.Contains(string(b), `#include "multicast.h"`), name)
	}
}

// Where there is no driver, or this build has no multicast, or it is off, all calls say the same.
func TestMulticastRefused(t *testing.T) {
	p := cuda.HaveMulticast()
	require.Contains(t, p.String(), "NVLS")
	if p.Err == nil {
		t.Log("this build has it, and the driver is the emulated one")
		require.True(t, cuda.MulticastEmulated())
		return
	}
	require.ErrorIs(t, p.Err, hw.ErrNotSupported)
	if cuda.Have().Err != nil {
		if nvls || !errors.Is(p.Err, cuda.ErrBuiltWithout) {
			require.Equal(t, cuda.Have().Err, p.Err)
		}
		return
	}
	c := gpu(t)
	if !nvls {
		require.ErrorContains(t, p.Err, "this build has no multicast (make build NVLS=1, or -tags nvls, makes one that has)")
	}
	for name, err := range map[string]error{
		"granularity": func() error { _, _, err := c.MulticastGranularity(2, 2<<20); return err }(),
		"create":      testkit.ErrOf(c.CreateMulticast(2, 2<<20)),
		"import":      testkit.ErrOf(c.ImportMulticast(0, 2, 2<<20)),
	} {
		require.Equal(t, p.Err, err, name)
	}
	for name, err := range map[string]error{
		"no device": func() error { _, _, err := c.MulticastGranularity(0, 2<<20); return err }(),
		"no bytes":  testkit.ErrOf(c.CreateMulticast(2, 0)),
		"no file":   testkit.ErrOf(c.ImportMulticast(-1, 2, 2<<20)),
	} {
		require.ErrorIs(t, err, fault.ErrArgument, name)
	}
	for name, err := range map[string]error{
		"export": testkit.ErrOf(new(cuda.Multicast).Export()), "add": new(cuda.Multicast).AddDevice(),
		"bind": new(cuda.Multicast).Bind(0, 1, 0, 1), "bind address": new(cuda.Multicast).BindAddr(0, 1, 1),
		"unbind": new(cuda.Multicast).Unbind(0, 1), "map": testkit.ErrOf(new(cuda.Multicast).Map()), "unmap": new(cuda.Multicast).Unmap(),
	} {
		require.ErrorIs(t, err, fault.ErrClosed, name)
	}
	require.NoError(t, new(cuda.Multicast).Close())
}

func TestReserveAligned(t *testing.T) {
	c := gpu(t)
	const n, align = 2 << 20, 64 << 20
	for range 3 {
		p, err := c.ReserveAligned(n, align)
		require.NoError(t, err)
		require.Zero(t, p%align)
		defer func() { require.NoError(t, c.Unreserve(p, n)) }()
	}
	for _, bad := range []int{-1, 3, 3 << 20} {
		require.ErrorIs(t, testkit.ErrOf(c.ReserveAligned(n, bad)), fault.ErrArgument, bad)
	}
	require.ErrorIs(t, testkit.ErrOf(c.ReserveAligned(0, align)), fault.ErrArgument)
}
