package shm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

var children = map[string]func() error{
	"own":      childOwn,
	"sleep":    childSleep,
	"nofile":   childNoFile,
	"fsize":    childFileSize,
	"nomemory": childNoMemory,
	"group":    childGroup,
	"large":    childLarge,
	"headless": childHeadless,
}

func init() {
	if os.Getenv(testkit.ChildVar) == "headless" {
		runtime.LockOSThread() // the main goroutine to the first thread
	}
}

func TestMain(m *testing.M) {
	testkit.Children(children)
	os.Exit(m.Run())
}

func say(v any) { json.NewEncoder(os.Stdout).Encode(v) }

// childGroup prints its group.
func childGroup() error {
	_, err := fmt.Print(shm.Group())
	return err
}

// childLarge owns a memory file, and another one, which the system needs long to free.
func childLarge() error {
	f, err := shm.Create("child", 100)
	if err != nil {
		return err
	}
	if _, err := shm.Create("large", 128<<20); err != nil {
		return err
	}
	say(f.Ref())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childHeadless owns a memory file and ends its first thread: nobody can look at its descriptors any more, while the
// process goes on.
func childHeadless() error {
	f, err := shm.Create("child", 100)
	if err != nil {
		return err
	}
	go func() {
		var st unix.Stat_t
		for unix.Stat(fmt.Sprintf("/proc/self/fd/%d", f.FD()), &st) == nil {
			time.Sleep(time.Millisecond)
		}
		say(f.Ref())
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	return errors.New("the first thread goes on")
}

// childOwn owns a memory file. Its process name is hard to skip when parsing /proc/PID/stat.
func childOwn() error {
	f, err := shm.Create("child", 100)
	if err != nil {
		return err
	}
	p, err := f.Map(0, f.Size(), false)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(p), f.Size()), "from the child")
	if err := os.WriteFile("/proc/self/comm", []byte("a) S 1 (b"), 0); err != nil {
		return err
	}
	say(f.Ref())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childSleep sleeps on a word of the file that it is given, and prints how long that took.
func childSleep() error {
	var r shm.Ref
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	f, err := shm.Open(r)
	if err != nil {
		return err
	}
	p, err := f.Map(0, f.Size(), true)
	if err != nil {
		return err
	}
	word := (*uint32)(p)
	say("ready")
	t := time.Now()
	for atomic.LoadUint32(word) == 0 && time.Since(t) < 2*testkit.Limit {
		shm.FutexWait(word, 0, int64(2*testkit.Limit))
	}
	say(time.Since(t))
	return nil
}

// childNoFile runs out of file descriptors.
func childNoFile() error {
	other, err := shm.Create("other", 1)
	if err != nil {
		return err
	}
	self, err := shm.Self()
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	for i := 0; err == nil; i++ {
		if i == 40 {
			return errors.New("40 files below a limit of 40")
		}
		_, err = shm.Create("many", 1)
	}
	_, openErr := shm.Open(other.Ref())
	_, watchErr := new(shm.Watch).Add(self)
	for what, err := range map[string]error{"create": err, "open": openErr, "watch": watchErr, "check": self.Check(),
		"probe": shm.Have().Err} {
		if !errors.Is(err, fault.ErrLimit) || !strings.Contains(err.Error(), "ulimit -n") {
			return fmt.Errorf("%s without descriptors: %w", what, err)
		}
	}
	return nil
}

// childFileSize may write small files only.
func childFileSize() error {
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	if _, err := shm.Create("small", 1<<20); err != nil {
		return err
	}
	_, err := shm.Create("big", 1<<20+1)
	if !errors.Is(err, fault.ErrLimit) || !strings.Contains(err.Error(), "ulimit -f") {
		return fmt.Errorf("a file above the limit: %w", err)
	}
	return nil
}

// childNoMemory asks for more memory than there is. If it got that far, the kernel should kill it and no other process.
func childNoMemory() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	for _, n := range []int{1 << 44, 1 << 50, 1 << 62} {
		_, err := shm.Create("much", n)
		if !errors.Is(err, fault.ErrLimit) || !strings.Contains(err.Error(), "no memory left") {
			return fmt.Errorf("a file of %d bytes: %w", n, err)
		}
	}
	return nil
}
