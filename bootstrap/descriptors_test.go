package bootstrap_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// fewDescriptors is rank 0 of 6 with descriptors for two connections.
func fewDescriptors() error {
	l, err := net.Listen("unix", "") // the runtime's own descriptors are there from now on
	if err != nil {
		return err
	}
	l.Close()
	var rlimit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &rlimit); err != nil {
		return err
	}
	rlimit.Cur = min(rlimit.Cur, 1024)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &rlimit); err != nil {
		return err
	}
	var fds []int
	for err == nil {
		var fd int
		if fd, err = syscall.Dup(0); err == nil {
			fds = append(fds, fd)
		}
	}
	for _, fd := range fds[len(fds)-3:] {
		if err := syscall.Close(fd); err != nil {
			return err
		}
	}
	_, err = bootstrap.Join(0, 6, os.Getenv("WHERE"), secret, time.Hour)
	fmt.Printf("%q\n", fmt.Sprint(err))
	return nil
}

// If rank 0 has no descriptors left for the others, all ranks say so at once: those that have joined, and those that
// come later.
func TestFewDescriptors(t *testing.T) {
	testkit.LongOrRace(t)
	where := "unix:" + filepath.Join(t.TempDir(), "s")
	p := testkit.Start(t, testkit.Child("few descriptors", "WHERE="+where))
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for rank := 1; rank < 6; rank++ {
		wg.Go(func() { _, errs[rank] = bootstrap.Join(rank, 6, where, secret, time.Hour) })
	}
	var text string
	p.Read(t, &text)
	wg.Wait()
	require.Contains(t, text, "rank 0 needs a descriptor for each process of the job, and has none left (raise `ulimit -n`)")
	require.NotContains(t, text, "did not come")
	for rank, err := range errs[1:] {
		require.ErrorIs(t, err, fault.ErrLimit, "rank %d", rank+1)
		require.ErrorContains(t, err, "rank 0 says: rank 0 needs a descriptor", "rank %d", rank+1)
	}
}
