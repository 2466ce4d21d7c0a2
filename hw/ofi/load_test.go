//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

const libraryVar = "UBCOLL_OFI_LIB"

// fake compiles a library that stands in for libfabric, which does what no real one here does.
func fake(t *testing.T, flags ...string) string {
	t.Helper()
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	path := filepath.Join(t.TempDir(), "libfabric.so.1")
	out, err := exec.Command(cc, append(flags, "-std=gnu11", "-shared", "-fPIC", "-o", path, "testdata/fake.c")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// TestNoLibrary loads what is no libfabric, or one of a version that nobody has tried.
func TestNoLibrary(t *testing.T) {
	for name, c := range map[string]struct{ path, want string }{
		"missing":        {"/nowhere/libfabric.so.1", "no libfabric: /nowhere/libfabric.so.1: cannot open shared object file"},
		"another's":      {"libc.so.6", "libc.so.6 has no fi_getinfo: it is no libfabric, or older than 1.9"},
		"older":          {fake(t, "-DFAKE_VERSION=UOF_VERSION(1,8)"), "is libfabric 1.8: want one of 1.9 to 2.x"},
		"newer":          {fake(t, "-DFAKE_VERSION=UOF_VERSION(3,0)"), "is libfabric 3.0: want one of 1.9 to 2.x"},
		"no name at all": {"/", "no libfabric: /: "},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.RunChild(t, "refused", libraryVar+"="+c.path, "WANT="+c.want)
		})
	}
}

// TestLoad: the library starts with its cache off, unless the user wants it, and without the signal handlers of what it brings
// along.
func TestLoad(t *testing.T) {
	path := fake(t)
	for name, c := range map[string]struct{ environ, first, second string }{
		"as it is":     {"NOTHING=", "cache off", "cache as it is"},
		"the user's":   {"FI_MR_CACHE_MAX_COUNT=5", "cache as the user wants", "cache as the user wants"},
		"the user's 0": {"FI_MR_CACHE_MAX_COUNT=0", "cache off", "cache off"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.RunChild(t, "loaded", libraryVar+"="+path, c.environ, "FIRST="+c.first, "SECOND="+c.second)
		})
	}
}

// TestSlow gives up on a library that does not answer.
func TestSlow(t *testing.T) {
	testkit.RunChild(t, "slow", libraryVar+"="+fake(t, "-DFAKE_SLOW=5"))
}

// TestSignals: the real library leaves Go's signal handlers alone, too.
func TestSignals(t *testing.T) {
	if p := ofi.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	testkit.RunChild(t, "signals")
}

func init() {
	children["refused"] = func() error {
		_, err := ofi.Load()
		_, _, err2 := ofi.List(context.Background(), "", "")
		return errors.Join(testkit.Wants(err, hw.ErrNotSupported), testkit.Wants(err2, hw.ErrNotSupported),
			contains(err, os.Getenv("WANT")), contains(ofi.Have().Err, os.Getenv("WANT")))
	}
	children["loaded"] = func() error {
		lib, err := ofi.Load()
		if err != nil || lib.Shared || lib.Signals != 2 || lib.Version != "1.17" {
			return fmt.Errorf("loaded %+v, %w", lib, err)
		}
		_, _, first := ofi.List(context.Background(), "", "")
		_, _, second := ofi.List(context.Background(), "", "")
		return errors.Join(contains(first, os.Getenv("FIRST")), contains(second, os.Getenv("SECOND")), signals(), undone())
	}
	children["slow"] = func() error {
		for range 2 {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, _, err := ofi.List(ctx, "", "")
			if took := time.Since(begin); took > 4*time.Second {
				return fmt.Errorf("List came back after %v", took)
			}
			if err := errors.Join(testkit.Wants(err, context.DeadlineExceeded), contains(err, "fi_getinfo")); err != nil {
				return err
			}
		}
		return nil
	}
	children["signals"] = func() error {
		infos, _, err := ofi.List(context.Background(), "", "")
		if len(infos) == 0 {
			return fmt.Errorf("no providers: %w", err)
		}
		return signals()
	}
}

// undone checks that Load tells of the handlers that the fake installed at its two questions, too.
func undone() error {
	if lib, err := ofi.Load(); lib.Signals != 4 {
		return fmt.Errorf("%d handlers were taken away, want 4: %w", lib.Signals, err)
	}
	return nil
}

func contains(err error, want string) error {
	if err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("%v: want %q in it", err, want)
	}
	return nil
}

// signals sends this process those signals that libraries take, and waits for Go to pass them on.
func signals() error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		c := make(chan os.Signal, 1)
		signal.Notify(c, s)
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			return err
		}
		select {
		case <-c:
		case <-time.After(limit):
			return fmt.Errorf("%v does not reach Go", s)
		}
		signal.Stop(c)
	}
	return nil
}
