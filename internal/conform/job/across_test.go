//go:build linux

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Jobs across several hosts that tools/hosts makes on this machine: real processes, real links.

// hostsTool builds the program that makes hosts, once, if this machine can run it.
var hostsTool = sync.OnceValues(func() (string, error) {
	if _, err := built(); err != nil { // makes the folder
		return "", err
	}
	bin := filepath.Join(programDir, "hosts")
	if out, err := exec.Command("go", "build", "-o", bin, "../../../tools/hosts").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	out, err := exec.Command(bin, "2", "-name", nextID(), "-mpi", "none", "--", "true").CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 77 {
		err = fmt.Errorf("%w: %s", errCannot, bytes.TrimSpace(out))
	}
	return bin, err
})

var errCannot = errors.New("this machine makes no hosts of itself")

var ids atomic.Int64

// nextID returns a name for a run that is unique on this machine, of at most 7 characters: process ids end at 2^22, and
// a process has fewer than 36 * 36 runs at a time.
func nextID() string {
	k := ids.Add(1)
	return strconv.FormatInt(int64(os.Getpid()), 36) + strconv.FormatInt(k/36%36, 36) + strconv.FormatInt(k%36, 36)
}

// hostsJob is a job across hosts.
type hostsJob struct {
	id, bin string
	cmd     *exec.Cmd
	out     lockedBuffer
	ended   chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// runFolder is the folder of a run of tools/hosts.
func runFolder(id string) string { return "/run/ubcoll-hosts/" + id }

// across starts a program with these options of tools/hosts and these environment variables. The job ends when this
// process ends, in any way.
func across(t *testing.T, n int, options, extra []string, command ...string) *hostsJob {
	t.Helper()
	testkit.LongOrRace(t)
	bin, err := hostsTool()
	if errors.Is(err, errCannot) && !env.Requires("hosts") {
		t.Skip(err)
	}
	require.NoError(t, err)
	h := &hostsJob{id: nextID(), bin: bin, ended: make(chan error, 1)}
	args := append([]string{fmt.Sprint(n), "-name", h.id}, options...)
	h.cmd = exec.Command(bin, append(append(args, "--"), command...)...)
	h.cmd.Env = append(os.Environ(), extra...)
	h.cmd.Stdout, h.cmd.Stderr = &h.out, &h.out
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when the thread that made the process ends
		err := h.cmd.Start()
		started <- err
		if err == nil {
			h.ended <- h.cmd.Wait()
			close(done)
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		h.cmd.Process.Signal(syscall.SIGTERM)
		<-done
		require.NoDirExists(t, runFolder(h.id), "what the hosts have left")
	})
	return h
}

// do runs a command of the tool on the job, for example to cut a link.
func (h *hostsJob) do(t *testing.T, words ...string) string {
	t.Helper()
	out, err := exec.Command(h.bin, append([]string{words[0], h.id}, words[1:]...)...).CombinedOutput()
	require.NoError(t, err, "%v: %s: %s", words, out, h.out.String())
	return string(out)
}

// wait returns how the job ended.
func (h *hostsJob) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-h.ended:
		return err
	case <-time.After(2 * testkit.Limit):
		t.Fatalf("the job does not end: %s", h.out.String())
		return nil
	}
}

func (h *hostsJob) succeed(t *testing.T) {
	t.Helper()
	if err := h.wait(t); err != nil {
		t.Fatalf("%v: %s", err, h.out.String())
	}
}

// place says how many ranks are on each host, and in which order.
type place struct {
	ranks   []int
	mapping string
}

func (p place) String() string { return p.list() + " " + p.mapping }

func (p place) list() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(p.ranks), "[]"), " ", ",")
}

func (p place) options() []string { return []string{"-ranks", p.list(), "-map", p.mapping} }

func (p place) size() (n int) {
	for _, k := range p.ranks {
		n += k
	}
	return n
}

// host returns the host of a rank.
func (p place) host(rank int) int {
	layout := conform.Block(p.ranks...)
	if p.mapping == "cyclic" {
		layout = conform.Cyclic(p.ranks...)
	}
	return layout[rank]
}

func places() (all []place) {
	for _, ranks := range [][]int{{2, 2}, {3, 1}, {1, 1, 1}, {2, 2, 1}} {
		for _, mapping := range []string{"block", "cyclic"} {
			all = append(all, place{ranks, mapping})
		}
	}
	return all
}

// some returns those places in full runs, and else the ones with these indices.
func some(indices ...int) (some []place) {
	all := places()
	if testkit.Full() {
		return all
	}
	for _, i := range indices {
		some = append(some, all[i])
	}
	return some
}

// TestHostsBootstrap runs the suite of bootstraps on Env, over TCP.
func TestHostsBootstrap(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := filepath.Join(t.TempDir(), "bootstrap")
	out, err := exec.Command("go", "build", "-o", bin, "../bootstraps/job").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p := place{[]int{2, 2, 1}, "cyclic"}
	for _, name := range []string{"healthy", "missing", "abort", "killed", "killed-root"} {
		t.Run(name, func(t *testing.T) {
			h := across(t, len(p.ranks), p.options(), nil, bin, "env", name)
			killed := strings.HasPrefix(name, "killed")
			require.Equal(t, killed, h.wait(t) != nil, h.out.String())
			require.NotContains(t, h.out.String(), "conform ", "a rank complains")
			require.Equal(t, p.size(), strings.Count(h.out.String(), fmt.Sprintf(" of %d\n", p.size())), h.out.String())
		})
	}
}

// acrossSuites run across hosts, in each layout. "matrix" and "sums" take longest: they run in only one layout, in two in full runs.
// Those of oneSided are in their order.
var acrossSuites = append([]string{"random", "moves", "order", "bad", "imports", "mixed", "hosts", "p2p", "programs"}, oneSided...)

// acrossVars are their variables. Between hosts each atomic is a round trip.
func acrossVars() []string {
	if testkit.Full() || os.Getenv("CONFORM_ATOMICS") != "" {
		return nil
	}
	return []string{"CONFORM_ATOMICS=200"}
}

// TestHosts runs everything that works across hosts, without MPI.
func TestHosts(t *testing.T) {
	t.Parallel()
	testkit.Long(t) // internal/conform/hosts has the suites for the race detector
	bin := program(t)
	for i, p := range some(6, 1, 2) { // internal/conform/hosts and TestMPIHosts have others
		t.Run(p.String(), func(t *testing.T) {
			all := acrossSuites
			if s := p.String(); s == "2,2 cyclic" || s == "2,2,1 block" && testkit.Full() {
				all = append([]string{"matrix", "sums"}, all...)
			}
			var suites []string
			for j, s := range all {
				if testkit.InTurn(i+j, 3) || s == "programs" { // of everything, at random
					suites = append(suites, s)
				}
			}
			t.Logf("%d of %d suites: the others are other commits' turn", len(suites), len(all))
			h := across(t, len(p.ranks), p.options(), acrossVars(), append([]string{bin}, suites...)...)
			h.succeed(t)
			for _, s := range suites {
				require.Contains(t, h.out.String(), fmt.Sprintf("ok %s: %d ranks", s, p.size()))
			}
		})
	}
}

// TestHostsProgress: a rank's memory is accessed while it computes, although its process has one processor.
func TestHostsProgress(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := program(t)
	h := across(t, 2, []string{"-ranks", "2,1"}, []string{"GOMAXPROCS=1"}, bin, "progress")
	h.succeed(t)
	require.Contains(t, h.out.String(), "ok progress: 3 ranks")
}

// TestMPIHosts is TestHosts under the MPI that scripts/conform-jobs sets.
func TestMPIHosts(t *testing.T) {
	mpiJob(t, 1) // skips without one
	bin, mpi := os.Getenv(programVar), os.Getenv("MPI_NAME")
	all := some(0, 3, 4, 7)
	if mpi == "mpich" { // the library is the same
		all = some(1, 6)
	}
	for i, p := range all {
		t.Run(p.String(), func(t *testing.T) {
			suites := acrossSuites
			if i < len(all)-1 && !testkit.Full() { // the launcher places and starts the ranks; TestHosts has the rest without it
				suites = []string{"order", "hosts", "p2p", "channels"}
			}
			h := across(t, len(p.ranks), append(p.options(), "-mpi", mpi), acrossVars(), append([]string{bin}, suites...)...)
			said := func() bool {
				for _, s := range suites {
					if !strings.Contains(h.out.String(), fmt.Sprintf("ok %s: %d ranks", s, p.size())) {
						return false
					}
				}
				return true
			}
			if mpi == "mpich" && testkit.UntilFor(testkit.Limit, func() bool { return said() || len(h.ended) > 0 }) && said() {
				// MPI_Finalize of MPICH before 4.2 sometimes hangs between hosts, in any program (its pull request
				// 6596).
				testkit.UntilFor(2*time.Second, func() bool { return len(h.ended) > 0 })
				if len(h.ended) == 0 {
					t.Log("MPI_Finalize hangs: the suites have passed")
					return
				}
			}
			h.succeed(t)
			require.True(t, said(), h.out.String())
		})
	}
}

// TestHostsDeaths kills a rank or a host or cuts a link at a random moment: every survivor must say which.
func TestHostsDeaths(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	deaths(t, 5)
}

// TestHostsDeathsDevice does so while device memory travels, too.
func TestHostsDeathsDevice(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the processes would be slow, and share what the detector does not see")
	}
	deaths(t, 3, gpus(t)...)
}

// collNet, in place of a variable, has a switch do the collectives of a job.
const collNet = "a switch"

// deaths has n deaths of a fixed seed, or as many as the environment says, and one of a fresh seed, in jobs with these
// environment variables besides.
func deaths(t *testing.T, n int, extra ...string) {
	n, err := conform.Number("CONFORM_KILLS", n)
	require.NoError(t, err)
	if testing.Short() || race.Enabled {
		n = min(n, 2)
	}
	const fixed = 1
	seeds := []uint64{fixed, rand.Uint64()}
	if s := os.Getenv("TEST_SEED"); s != "" {
		seeds = []uint64{testkit.Seed(t)}
	}
	for i, seed := range seeds {
		pick := rand.New(rand.NewPCG(seed, 0))
		if i > 0 {
			n = 1
		}
		for k := range n {
			own := rand.New(rand.NewPCG(pick.Uint64(), 0))
			kind := []int{cutLink, killRank, killHost}[k%3] // the first two differ most: silence, and news of a death
			if seed != fixed {
				kind = own.IntN(3)
			}
			t.Run(fmt.Sprintf("seed=%d/%d", seed, k), func(t *testing.T) { death(t, kind, own, extra...) })
		}
	}
}

// The kinds of death.
const (
	killRank = iota
	killHost
	cutLink
)

// busy is how much later errors may come where other work keeps the processors busy.
const busy = 30 * time.Second

// unreached matches the error about a cut link.
var unreached = regexp.MustCompile(`hosts (\S+) and (\S+) do not reach each other`)

// death kills something in a job with these environment variables besides.
func death(t *testing.T, kind int, pick *rand.Rand, extra ...string) {
	all := places()
	p := all[pick.IntN(len(all))]
	within := []time.Duration{2 * time.Second, 5 * time.Second, 5 * time.Second}[kind] // docs/clusters.md
	bin := program(t)
	dir, tmp := t.TempDir(), t.TempDir()
	command := []string{bin, "kill-hosts"}
	if slices.Contains(extra, collNet) {
		var variables []string
		variables, command = onSwitch(t, command...)
		extra = append(variables, slices.DeleteFunc(slices.Clone(extra), func(s string) bool { return s == collNet })...)
	}
	h := across(t, len(p.ranks), p.options(), append(extra, conform.DirVar+"="+dir, "TMPDIR="+tmp), command...)
	awaitReady(t, dir, p.size(), func(int) string { return h.out.String() })
	most := 100 * time.Millisecond
	if len(extra) > 0 { // what these ranks do takes longer
		most = time.Second
	}
	time.Sleep(time.Duration(pick.Int64N(int64(most))))
	victim := pick.IntN(p.size())
	host := p.host(victim)
	letter := string(rune('a' + host))
	var pid int
	b, err := os.ReadFile(endings.ReadyFile(dir, victim))
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &pid)
	require.NoError(t, err)
	dead := func(rank int) bool { return rank == victim }
	other := -1 // the link to this host is cut; -1: all links
	switch kind {
	case killRank:
		h.do(t, "signal", letter, "KILL", fmt.Sprint(pid))
	case killHost:
		dead = func(rank int) bool { return p.host(rank) == host }
		h.do(t, "kill", letter)
	case cutLink:
		dead = func(int) bool { return false }
		if other = pick.IntN(len(p.ranks)); other == host {
			other = -1
			h.do(t, "cut", letter)
		} else {
			h.do(t, "cut", letter, string(rune('a'+other)))
		}
	}
	at := time.Now()
	what := []string{"rank", "host", "link"}[kind]
	t.Logf("%v: %s, rank %d on host %s, %d", p, what, victim, letter, other)
	var late time.Duration
	var pair []string
	for r := range p.size() {
		if dead(r) {
			continue
		}
		var report endings.Report
		if !testkit.Until(func() (ok bool) { report, err = endings.ReadReport(dir, r); return err == nil }) {
			t.Fatalf("rank %d says nothing: %v: %s", r, err, h.out.String())
		}
		require.True(t, report.Lost, report.Text)
		t.Logf("rank %d: %s", r, report.Text)
		late = max(late, report.At.Sub(at))
		switch kind {
		case killRank:
			require.Equal(t, victim, report.About, report.Text)
		case killHost:
			require.Equal(t, host, p.host(report.About), report.Text)
		case cutLink: // any rank may report it from its side: it must name both ends of the link
			ends := unreached.FindStringSubmatch(report.Text)
			require.NotNil(t, ends, report.Text)
			require.NotEqual(t, ends[1], ends[2], report.Text)
			require.Contains(t, ends[1:], fmt.Sprintf("%s-host%s", h.id, letter), report.Text)
			require.GreaterOrEqual(t, report.About, 0, report.Text)
			require.Contains(t, ends[1:], fmt.Sprintf("%s-host%c", h.id, 'a'+p.host(report.About)), report.Text)
			if other >= 0 || len(p.ranks) == 2 { // else there are several such pairs, and hosts that are cut off learn of no other
				if pair == nil {
					pair = ends
				}
				require.Equal(t, pair, ends, report.Text)
			}
			if other >= 0 {
				require.Contains(t, ends[1:], fmt.Sprintf("%s-host%c", h.id, 'a'+other), report.Text)
			}
		}
	}
	t.Logf("%s: all know after %v", what, late)
	require.Less(t, late, within+busy, "and within %v on a machine that has nothing else to do", within)
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	require.Error(t, h.wait(t), "a job that lost a rank must not exit 0")
	require.NotContains(t, h.out.String(), "panic")
	require.Empty(t, leftovers(t, tmp))
}

// TestHostsStopped stops a host's processes for a while, which must kill no rank.
func TestHostsStopped(t *testing.T) {
	seconds, err := conform.Number("CONFORM_STOPPED", 6)
	require.NoError(t, err)
	outlast(t, nil, func(h *hostsJob) {
		h.do(t, "signal", "b", "STOP")
		time.Sleep(time.Duration(seconds) * time.Second)
		h.do(t, "signal", "b", "CONT")
	})
}

// TestHostsAway takes a host's link away for less than the net timeout, which must kill no rank.
func TestHostsAway(t *testing.T) {
	outlast(t, nil, func(h *hostsJob) {
		h.do(t, "cut", "b")
		time.Sleep(4 * time.Second)
		h.do(t, "restore", "b")
	}, env.NetTimeout.Name+"=10s")
}

// outlast runs a job of two hosts that reduces large data, and checks it, before, during and after what disturbs it.
func outlast(t *testing.T, options []string, disturb func(h *hostsJob), variables ...string) {
	t.Parallel()
	if testing.Short() || race.Enabled {
		t.Skip("takes long")
	}
	bin := program(t)
	dir := t.TempDir()
	h := across(t, 2, options, append(variables, conform.DirVar+"="+dir), bin, "stopped")
	rounds := func() (k int) {
		b, _ := os.ReadFile(endings.RoundsFile(dir))
		_, _ = fmt.Sscan(string(b), &k)
		return k
	}
	beyond := func(k int) {
		testkit.Eventually(t, func() bool { return len(h.ended) > 0 || rounds() > k })
	}
	beyond(1)
	disturb(h)
	beyond(rounds() + 1)
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	h.succeed(t)
}

// TestHostsCloseStopped: a rank that closes its Comm while another host is stopped says so, and the job ends when that
// host continues.
func TestHostsCloseStopped(t *testing.T) {
	t.Parallel()
	if testing.Short() || race.Enabled {
		t.Skip("takes long")
	}
	bin := program(t)
	dir := t.TempDir()
	h := across(t, 2, nil, []string{conform.DirVar + "=" + dir}, bin, "close-stopped")
	awaitReady(t, dir, 2, func(int) string { return h.out.String() })
	h.do(t, "signal", "b", "STOP")
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	var report endings.Report
	var err error
	testkit.Eventually(t, func() bool { report, err = endings.ReadReport(dir, 0); return err == nil })
	h.do(t, "signal", "b", "CONT")
	require.Regexp(t, `close: rank 0 \(host \S+-hosta\): .*rank 1 .* within 4\.5s: timed out`, report.Text)
	h.succeed(t)
}

// TestHostsCaller: hosts end with the test that made them, even if that is killed.
func TestHostsCaller(t *testing.T) {
	const as = "CONFORM_CALLER"
	if os.Getenv(as) != "" {
		h := across(t, 2, nil, nil, "sleep", "3600")
		if testkit.Until(func() bool { _, err := os.Stat(filepath.Join(runFolder(h.id), "control")); return err == nil }) {
			fmt.Println("made", h.id, programDir)
		}
		select {}
	}
	across(t, 1, nil, nil, "true").succeed(t) // skips if hosts cannot be made
	c := exec.Command(os.Args[0], "-test.run=^TestHostsCaller$")
	c.Env = append(os.Environ(), as+"=1")
	said, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var id, dir string
	_, err = fmt.Fscanf(said, "made %s %s\n", &id, &dir)
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.DirExists(t, runFolder(id))
	require.NoError(t, c.Process.Kill())
	require.Error(t, c.Wait())
	testkit.Eventually(t, func() bool { _, err := os.Stat(runFolder(id)); return errors.Is(err, os.ErrNotExist) })
}

// TestHostsBad: every mistake with hosts and their network is an error of Open on all ranks.
func TestHostsBad(t *testing.T) {
	t.Parallel()
	bin := program(t)
	apart := func(before string) []string { return []string{"-nets", "2", "-mtu", "9000", "-before", before} }
	eth1 := []string{env.Net.Name + "=eth1"}
	cases := []struct {
		name    string
		slow    bool // takes as long as a missing rank or packet is waited for
		options []string
		extra   []string
		command []string
		want    string // each rank must say one of these, separated by |
	}{
		{"no such interface", false, nil, []string{env.Net.Name + "=eth7"}, nil, "UBCOLL_NET: no interface eth7"},
		{"no port left", false, []string{"-ranks", "2,1"}, []string{env.Ports.Name + "=7100-7100"}, nil,
			"UBCOLL_PORTS=7100-7100: every port of it is in use"},
		{"other options", false, []string{"-set", "b:UBCOLL_REGISTER=off"}, nil, nil,
			`UBCOLL_REGISTER is "auto" on rank 0 and "off" on rank 1`},
		{"too few descriptors", false, nil, nil, []string{"sh", "-c", `ulimit -n 12; exec "$0" random`, bin}, "too many open files|descriptors"},
		{"a host without the network", true, apart("cut b 1"), eth1, nil, "-hosta to host |-hostb to host "},
		{"one direction lost", true, apart("cut b in 1"), eth1, nil, "no answer for 5s (UBCOLL_NET_TIMEOUT)"},
		{"a host without the second network", true, apart("cut b 1"), []string{env.Net.Name + "=eth0,eth1"}, nil,
			"and UBCOLL_NET names it on both: name fewer interfaces there"},
		{"smaller packets on the way", true, apart("mtu b 1500 1"), eth1, nil, "is the MTU the same on the whole way?"},
		{"the rendezvous is elsewhere", true, []string{"-resolve", "a=10.77.0.9"}, nil, nil, "10.77.0.9|-hosta:7077"},
		{"the rendezvous is loopback", true, []string{"-resolve", "a=127.0.1.1"}, nil, nil,
			"-hosta resolves to loopback on this host, which no other reaches"},
	}
	jobs := make([]*hostsJob, len(cases)) // all start now, since they mostly wait
	for i, k := range cases {
		if k.slow && (testing.Short() || race.Enabled) {
			continue
		}
		command := k.command
		if command == nil {
			command = []string{bin, "random"}
		}
		jobs[i] = across(t, 2, k.options, k.extra, command...)
	}
	for i, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			h := jobs[i]
			if h == nil {
				t.Skip("takes long")
			}
			require.Error(t, h.wait(t), h.out.String())
			t.Log(h.out.String())
			said, ranks := map[string]bool{}, 2
			if k.options != nil && k.options[0] == "-ranks" {
				ranks = 3
			}
			for line := range strings.Lines(h.out.String()) {
				for want := range strings.SplitSeq(k.want, "|") {
					if strings.Contains(line, want) {
						said[cmp.Or(regexp.MustCompile(`\brank \d+`).FindString(line), line)] = true // who says it comes first
					}
				}
			}
			require.GreaterOrEqual(t, len(said), ranks, h.out.String())
		})
	}
}

// TestHostsDeathInOpen kills a host while the others wait in Open for a rank that does not come: they must not wait for
// that rank to time out.
func TestHostsDeathInOpen(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := program(t)
	for _, k := range []struct{ dies, tells int }{{1, 0}, {0, 1}} {
		t.Run(fmt.Sprint("rank ", k.dies), func(t *testing.T) {
			h := across(t, 3, nil, nil, "sh", "-c", `[ $UBCOLL_RANK = 2 ] && exec sleep 3600
				"$0" order & p=$!
				until grep -q ' 01 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done
				echo rank $UBCOLL_RANK has met; wait $p`, bin)
			for r := range 2 {
				testkit.Eventually(t, func() bool { return strings.Contains(h.out.String(), fmt.Sprintf("rank %d has met", r)) })
			}
			time.Sleep(2 * time.Second) // meanwhile they prove their identities to each other
			h.do(t, "kill", string(rune('a'+k.dies)))
			at := time.Now()
			want := regexp.MustCompile(fmt.Sprintf(`bootstrap: rank %d: .*\brank %d\b.*: peer lost`, k.tells, k.dies))
			testkit.Eventually(t, func() bool { return want.MatchString(h.out.String()) }, "%v", &h.out)
			t.Logf("known after %v: %s", time.Since(at), h.out.String())
			require.Less(t, time.Since(at), 5*time.Second+busy)
		})
	}
}
