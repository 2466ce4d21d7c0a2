package procs_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/procs"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"rank": rank, "files": files})
	os.Exit(testkit.Main(m))
}

// rank is a job of one rank, which ends with its standard input. It takes no signal.
func rank() error {
	return ubcoll.Run(context.Background(), ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		return wait()
	})
}

// files has memory files with an arena's name, and with anything in them.
func files() error {
	magic := binary.LittleEndian.AppendUint64(nil, 0x75622d6172656108)
	zeros := make([]byte, 1<<20)
	for _, content := range [][]byte{nil, magic[:3], magic, append(magic, make([]byte, 200)...), append(magic, zeros...),
		slices.Repeat(magic, 1<<16)} {
		fd, err := unix.MemfdCreate("ubcoll-arena", 0)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, content); err != nil {
			return err
		}
		if err := unix.Ftruncate(fd, int64(len(content))+1<<50); err != nil { // mostly a hole
			return err
		}
	}
	return wait()
}

func wait() error {
	fmt.Println(`"ready"`)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// start starts a child, and returns when it is ready.
func start(t *testing.T, name string) *testkit.Process {
	t.Helper()
	p := testkit.Start(t, testkit.Child(name, "NTHREADS=1", "UBCOLL_DUMP=dumps"))
	var said string
	p.Read(t, &said)
	return p
}

// A process is found while it runs, also stopped, with the descriptors of its children and peers counted once.
func TestFind(t *testing.T) {
	if race.Enabled {
		t.Skip("the memory of goroutine ranks is private then")
	}
	p := start(t, "rank")
	pid := p.Cmd.Process.Pid
	look := func() *procs.Process {
		t.Helper()
		all, _, err := procs.Find(pid)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	got := look()
	require.Equal(t, pid, got.PID)
	require.Equal(t, uint32(os.Geteuid()), got.UID)
	require.Len(t, got.Ranks, 1)
	require.Equal(t, pid, got.Ranks[0].PID)
	require.Equal(t, 1, got.Ranks[0].Size)
	require.Regexp(t, `^last was barrier #\d+$`, procs.Jobs([]*procs.Process{got})[0].Comms[0].Ranks[0].Doing())
	require.Equal(t, "dumps", got.Variable("UBCOLL_DUMP"))
	require.Empty(t, got.Variable("UBCOLL_DUM"))
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, dir+"/dumps", got.Path("dumps"))
	require.Equal(t, "/dumps", got.Path("/dumps"))

	all, _, err := procs.Find()
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(all, func(q *procs.Process) bool { return q.PID == pid }), "among all")

	// One that has the arena open, too, is not the one that it is of.
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	var held []*os.File
	for _, n := range names {
		path := fmt.Sprintf("/proc/%d/fd/%s", pid, n.Name())
		if link, _ := os.Readlink(path); link == "/memfd:ubcoll-arena (deleted)" {
			f, err := os.Open(path)
			require.NoError(t, err)
			held = append(held, f)
		}
	}
	require.NotEmpty(t, held, "by the name that arenas have")
	other := exec.Command("sleep", "600")
	other.ExtraFiles = held
	require.NoError(t, other.Start())
	t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	all, _, err = procs.Find(other.Process.Pid, os.Getpid(), pid)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, pid, all[0].PID)
	for _, f := range held {
		require.NoError(t, f.Close())
	}

	// A signal would end it, and it gets none.
	require.False(t, got.Writes())
	require.ErrorIs(t, got.Dump(), procs.ErrSilent)
	testkit.Stop(t, p.Cmd)
	got = look()
	require.Equal(t, procfs.Halted, got.State)
	require.True(t, got.Halted())
	require.NoError(t, p.Cmd.Process.Signal(unix.SIGCONT))
	require.NoError(t, p.In.Close())
	require.NoError(t, p.Cmd.Wait())
	all, _, err = procs.Find(pid, other.Process.Pid)
	require.NoError(t, err)
	require.Empty(t, all)
	require.Error(t, got.Dump())
}

// Files of an arena's name that are none are left out, and reading them takes no memory.
func TestFindNone(t *testing.T) {
	p := start(t, "files")
	pid := p.Cmd.Process.Pid
	blocks := func() (n int64) {
		for fd := range 64 {
			var st unix.Stat_t
			if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				n += st.Blocks
			}
		}
		return n
	}
	before := blocks()
	require.NotZero(t, before)
	all, _, err := procs.Find(pid)
	require.NoError(t, err)
	require.Empty(t, all)
	require.Equal(t, before, blocks())
}
