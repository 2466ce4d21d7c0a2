package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/procs"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() {
	children["ps: Main"] = func() error { ubcoll.Main(ubcoll.Options{}, lateLast); return nil }
	children["ps: Run"] = func() error { return ubcoll.Run(context.Background(), ubcoll.Options{}, lateLast) }
	children["ps: broken"] = func() error { return ubcoll.Run(context.Background(), ubcoll.Options{}, broken) }
}

// lateLast is a job whose last rank calls no all-reduce before its standard input ends. It has an idle communicator too, and has
// closed another.
func lateLast(ctx context.Context, c *ubcoll.Comm) error {
	idle, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	closed, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	if err := closed.Close(); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	fmt.Println(`"ready"`)
	if c.Rank() == c.Size()-1 {
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
	}
	buf := make([]float32, 5)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(buf), ubcoll.Of(buf), ubcoll.Sum); err != nil {
		return err
	}
	return idle.Close()
}

// broken is a job whose last rank calls no barrier. The others keep their communicator open when theirs fails, until standard
// input ends.
func broken(ctx context.Context, c *ubcoll.Comm) error {
	fmt.Println(`"ready"`)
	if c.Rank() < c.Size()-1 {
		if err := coll.Barrier(ctx, c); err == nil {
			return fmt.Errorf("a barrier without the last rank")
		}
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startJob starts a process for each child, as the ranks of a job, and returns when each has said that it is ready.
func startJob(t *testing.T, environ []string, names ...string) (all []*testkit.Process) {
	t.Helper()
	meet := rand.Text()
	for r, name := range names {
		c := testkit.Child(name, append(bootstrap.EnvVars(r, len(names), "unix:@"+meet, meet), environ...)...)
		all = append(all, testkit.Start(t, c))
	}
	for _, p := range all {
		var said string
		p.Read(t, &said)
	}
	return all
}

// ps runs ps of the tool in this process.
func ps(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, showJobs(args, &out))
	return out.String()
}

func pid(p *testkit.Process) string { return strconv.Itoa(p.Cmd.Process.Pid) }

// Each rank shows what it is in and for whom it waits, also when one has not called, or is stopped. Dumps are asked for where a
// process takes the signal, and others go on.
func TestPS(t *testing.T) {
	folder := t.TempDir()
	all := startJob(t, []string{"UBCOLL_DUMP=" + folder}, "ps: Main", "ps: Run", "ps: Main")
	var text string
	shows := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, func() bool {
			text = ps(t, pid(all[0]))
			for _, w := range want {
				if !strings.Contains(text, w) {
					return false
				}
			}
			return true
		}, "%s", &text)
	}
	host, err := os.Hostname()
	require.NoError(t, err)
	shows(" on "+host+": 3 processes\n",
		"  all others wait for rank 2, which waits for nobody (pid "+pid(all[2])+"): it last was barrier #",
		"waits in all_reduce(count 5, float32, sum) #", ", for rank 2\n",
		", 3 ranks\n", "  1 more communicator in which nothing is under way (-v)\n")
	require.NotContains(t, text, "on other hosts")

	var report psJSON
	require.NoError(t, json.Unmarshal([]byte(ps(t, "-json", pid(all[1]))), &report))
	require.Len(t, report.Jobs, 1, "it has its own job alone")
	require.Len(t, report.Jobs[0].Waits, 1)
	require.Len(t, report.Jobs[0].Processes, 3)
	for _, p := range report.Jobs[0].Processes {
		require.Len(t, p.Ranks, 2, "the third communicator is closed")
		r := p.Ranks[0]
		require.Equal(t, all[r.Rank].Cmd.Process.Pid, p.PID)
		require.Equal(t, r.Rank != 1, p.Dumps, "whether it takes the signal")
		if r.Rank < 2 {
			require.Equal(t, &flight.Wait{Op: "all_reduce", Seq: r.Operations[len(r.Operations)-1].Seq, Peer: 2}, r.Waits)
		}
	}

	testkit.Stop(t, all[2].Cmd)
	shows("  all others wait for rank 2, which is stopped (pid "+pid(all[2])+")\n", "  stopped ")
	require.Equal(t, 2, strings.Count(ps(t, "-v", pid(all[0])), "  communicator "))

	// The one that takes it and goes on writes; so does the one that is stopped, later; the other one is left alone.
	var out bytes.Buffer
	err = showJobs([]string{"-dump", pid(all[0]), pid(all[1]), pid(all[2])}, &out)
	require.ErrorIs(t, err, procs.ErrSilent)
	require.ErrorContains(t, err, "ps: process "+pid(all[1])+" ")
	require.Equal(t, 2, strings.Count(out.String(), "sent SIGUSR2: it writes to "+folder), out.String())
	require.Contains(t, out.String(), ", once it goes on: it is stopped\n")
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(folder, "ubcoll-*.json"))
		require.NoError(t, err)
		return names
	}
	testkit.Eventually(t, func() bool { return len(files()) == 1 })
	require.NoError(t, all[2].Cmd.Process.Signal(syscall.SIGCONT))
	testkit.Eventually(t, func() bool { return len(files()) == 2 })

	require.NoError(t, all[2].In.Close())
	for i, p := range all {
		require.NoError(t, p.Cmd.Wait(), "rank %d", i)
	}
	err = showJobs([]string{pid(all[1])}, &out)
	require.ErrorContains(t, err, "ps: process "+pid(all[1])+" has no open communicator, is gone")
	require.Equal(t, 1, exitCode(err))
}

// Ranks that are goroutines of one process are found, too.
func TestPSGoroutines(t *testing.T) {
	if race.Enabled {
		t.Skip("their memory is private then")
	}
	p := testkit.Start(t, testkit.Child("ps: Run", "NTHREADS=4"))
	var text string
	for range 4 {
		p.Read(t, &text)
	}
	want := "all others wait for rank 3, which waits for nobody (pid " + pid(p) + "): it last was barrier #"
	testkit.Eventually(t, func() bool { text = ps(t, pid(p)); return strings.Contains(text, want) }, "%s", &text)
	require.Contains(t, text, ": 1 process\n")
	require.Regexp(t, `(?m)^    0-2 +`+pid(p)+` +\w+ +\S+ ago +waits in all_reduce`, text)

	// Each look of -watch shows it again, until the signal.
	c := testkit.Command(t, nil, "ps", "-json", "-watch", "10ms", pid(p))
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	looks := json.NewDecoder(out)
	for range 3 {
		var report psJSON
		require.NoError(t, looks.Decode(&report))
		require.Len(t, report.Jobs[0].Processes[0].Ranks, 8)
	}
	require.NoError(t, c.Process.Signal(os.Interrupt))
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.NoError(t, c.Wait())
}

// A communicator that broke says why.
func TestPSBroken(t *testing.T) {
	all := startJob(t, nil, "ps: broken", "ps: broken")
	require.NoError(t, all[1].Cmd.Process.Kill())
	var text string
	says := regexp.MustCompile(`  broken: the process of rank 1 \(.*\) died: peer lost; has failed in barrier #`)
	testkit.Eventually(t, func() bool {
		text = ps(t, pid(all[0]))
		return says.MatchString(text)
	}, "%s", &text)
	require.Contains(t, text, ", 2 ranks: rank 0 here; others have ended, ")
	require.NotContains(t, text, "wait for", "it waits for nobody")
}

// Files of other programs are not taken for jobs, whatever they have.
func TestPSNothing(t *testing.T) {
	c := exec.Command("sleep", "600")
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	for _, args := range [][]string{{}, {"-dump"}, {"-json"}} {
		err := showJobs(append(args, strconv.Itoa(c.Process.Pid)), io.Discard)
		require.ErrorContains(t, err, "has no open communicator")
	}
	testkit.Eventually(t, func() bool { return procfs.StateOf(c.Process.Pid) == procfs.Sleeping }, "no signal came")
	require.Equal(t, "no job of this user on this host\n", psText(nil, 0, false, time.Now()))
	require.Equal(t, "no job of this user on this host\n2 processes could not be looked into\n", psText(nil, 2, false, time.Now()))
}

// What ps says of jobs that are made up.
func TestPSText(t *testing.T) {
	now := time.Now()
	rank := func(comm uint64, rank, size int, op *flight.Op, waits *flight.Wait) team.Found {
		f := team.Found{Comm: comm, Rank: rank, Size: size, Side: flight.Side{Waits: waits}}
		if op != nil {
			f.Operations = []flight.Op{*op}
		}
		return f
	}
	op := func(seq uint64, s flight.State, ago time.Duration) *flight.Op {
		return &flight.Op{Seq: seq, Call: "all_reduce(count 5, float32, sum)", State: s.String(), Began: now.Add(-ago)}
	}
	waits := func(peer int) *flight.Wait { return &flight.Wait{Op: "all_reduce", Seq: 7, Peer: peer} }
	process := func(pid int, s procfs.State, ranks ...team.Found) *procs.Process {
		return &procs.Process{PID: pid, State: s, Program: "prog", UID: uint32(os.Geteuid()), Ranks: ranks}
	}
	long := op(7, flight.Entered, 12300*time.Millisecond)
	broken := rank(1, 0, 2, op(7, flight.Failed, time.Minute), nil)
	broken.Broken, broken.Why = true, "rank 1 died\x1b[2J"
	for _, c := range []struct {
		name string
		all  []*procs.Process
		want []string // in this order
		not  string
	}{
		{"others are elsewhere", []*procs.Process{
			process(10, procfs.Sleeping, rank(1, 0, 8, long, waits(1))), process(11, procfs.Sleeping, rank(1, 1, 8, long, waits(5)))},
			[]string{"  all here wait for rank 5, which has no process here: it is on another host, or has ended\n",
				"communicator 1, 8 ranks: ranks 0-1 here; others have ended, or are on other hosts: run ubcoll ps there\n"}, ""},
		{"each other", []*procs.Process{
			process(10, procfs.Sleeping, rank(1, 0, 3, long, waits(1))), process(11, procfs.Sleeping, rank(1, 1, 3, long, waits(0))),
			process(12, procfs.Sleeping, rank(1, 2, 3, long, waits(1)))},
			[]string{"  rank 0, rank 1 wait for each other; all wait for them\n"}, ""},
		{"by two communicators", []*procs.Process{
			process(10, procfs.Sleeping, rank(1, 0, 2, long, waits(1)), rank(2, 1, 2, nil, nil)),
			process(11, procfs.Sleeping, rank(1, 1, 2, op(6, flight.Done, time.Minute), nil), rank(2, 0, 2, long, waits(1)))},
			[]string{"  rank 0 of communicator 1, rank 0 of communicator 2 wait for each other; rank 0 of communicator 1 waits for them\n"}, ""},
		{"a chain to a stopped one", []*procs.Process{
			process(10, procfs.Sleeping, rank(1, 0, 4, long, waits(1))), process(11, procfs.Sleeping, rank(1, 1, 4, long, waits(3))),
			process(12, procfs.Running, rank(1, 2, 4, op(6, flight.Done, time.Millisecond), nil)),
			process(13, procfs.Traced, rank(1, 3, 4, long, waits(0)))},
			[]string{"  ranks 0-1 wait for rank 3, which a debugger has stopped (pid 13)\n",
				"    RANK  PID  STATE     BEGAN      IN\n",
				"    0     10   sleeping  12.3s ago  waits in all_reduce(count 5, float32, sum) #7, for rank 1\n",
				"    2     12   running   1ms ago    last was all_reduce(count 5, float32, sum) #6\n",
				"    3     13   traced "}, "other hosts"},
		{"not for long", []*procs.Process{process(10, procfs.Running, rank(1, 0, 2, op(7, flight.Entered, time.Millisecond), waits(1))),
			process(11, procfs.Running, rank(1, 1, 2, op(6, flight.Done, time.Millisecond), nil))},
			[]string{"prog on ", ": 2 processes\n  communicator 1, 2 ranks\n"}, "others"},
		{"broken", []*procs.Process{process(10, procfs.Running, broken, rank(2, 0, 2, nil, nil)), process(11, procfs.Running, rank(1, 1, 2, nil, nil))},
			[]string{"  communicator 1, 2 ranks\n", "1m0s ago  broken: rank 1 died?[2J; has failed in all_reduce", "-         no operation yet\n",
				"1 more communicator"}, ""},
		{"two jobs", []*procs.Process{process(10, procfs.Running, rank(1, 0, 1, nil, nil)), process(11, procfs.Running, rank(2, 0, 1, nil, nil))},
			[]string{": 1 process\n  communicator 1, 1 rank\n", "\n\nprog on ", "communicator 2, 1 rank\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := psText(procs.Jobs(c.all), 0, false, now)
			rest := text
			for _, w := range c.want {
				_, after, ok := strings.Cut(rest, w)
				require.True(t, ok, "%q in\n%s", w, text)
				rest = after
			}
			if c.not != "" {
				require.NotContains(t, text, c.not)
			}
		})
	}
}
