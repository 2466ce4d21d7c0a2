package shm_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// The test program runs itself as another process: what the variable names is what that process does.
const childVar = "UBCOLL_TEST_CHILD"

var children = map[string]func() error{
	"own":      childOwn,
	"sleep":    childSleep,
	"nofile":   childNoFile,
	"fsize":    childFileSize,
	"nomemory": childNoMemory,
	"group":    childGroup,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVar); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a running child; it ends when its standard input does, or with the test.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, name string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVar+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &child{cmd, in, bufio.NewScanner(out)}
}

// read reads the child's next line.
func (c *child) read(t *testing.T, v any) {
	t.Helper()
	require.True(t, c.out.Scan(), "the child ended early")
	require.NoError(t, json.Unmarshal(c.out.Bytes(), v), "%s", c.out.Bytes())
}

func say(v any) { json.NewEncoder(os.Stdout).Encode(v) }

// childGroup says which group it is in.
func childGroup() error {
	_, err := fmt.Print(shm.Group())
	return err
}

// childOwn owns a memory file, under a name that is hard to read past in /proc/PID/stat.
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

// childSleep sleeps on a word of the file that it is told, and says how long that took.
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
	for atomic.LoadUint32(word) == 0 && time.Since(t) < 2*await.Limit {
		shm.FutexWait(word, 0, int64(2*await.Limit))
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

// childNoMemory asks for more memory than there is. Should it get that far, it is the process to kill, none of the
// machine's others.
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

// limited runs a child that checks itself.
func limited(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVar+"="+name)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// descriptors is the number of open descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}
