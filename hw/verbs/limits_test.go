//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestMemoryLimit: if an ordinary user may lock 1 MiB only, the error names the limit and says what to do; less memory
// still registers.
func TestMemoryLimit(t *testing.T) {
	device(t)
	if overDouble() {
		t.Skip("the kernel's own limit; the double's is TestDoubleLimit's")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	c := testkit.Child("limit")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func init() {
	children["limit"] = func() error {
		const limit = 1 << 20
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
		names, err := verbs.Devices()
		if err != nil || len(names) == 0 {
			return fmt.Errorf("no device: %w", err)
		}
		d, err := verbs.Open(names[0])
		if err != nil {
			return err
		}
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		m, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		fits, err := pd.Register(address(m), limit/2, verbs.LocalWrite)
		if err != nil {
			return err
		}
		_, err = pd.Register(address(m), len(m), verbs.LocalWrite)
		fmt.Println(err)
		if !errors.Is(err, fault.ErrLimit) {
			return fmt.Errorf("no limit: %w", err)
		}
		want := fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, of which %d are pinned: raise it to %d or more (ulimit -l", limit, limit/2,
			len(m)+limit/2)
		if !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%w does not say %q", err, want)
		}
		_, err = pd.Register(address(m)+100, limit, verbs.LocalWrite) // this spans one page more
		want = fmt.Sprintf("raise it to %d or more", limit+os.Getpagesize()+limit/2)
		if err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%w does not say %q", err, want)
		}
		return errors.Join(fits.Close(), pd.Close(), d.Close())
	}
}
