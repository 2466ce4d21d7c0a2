package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The tests run the program as users do: this test binary is started again, and there runs main instead of its tests.
func TestMain(m *testing.M) {
	if testkit.IsProgram() {
		main()
		os.Exit(0)
	}
	os.Exit(testkit.Main(m))
}

// need skips t if there is no RDMA device, unless one is required.
func need(t *testing.T) {
	t.Helper()
	if p := verbs.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
}

// lines returns the transcript's lines, without what differs between machines and runs.
func lines(transcript string) []string {
	for _, c := range []struct{ what, by string }{
		{`0x[0-9a-f]+`, "0x..."},
		{`opened .*`, "opened a device"},
	} {
		transcript = regexp.MustCompile(c.what).ReplaceAllString(transcript, c.by)
	}
	return strings.SplitAfter(transcript, "\n")
}

func golden(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/transcript.golden")
	require.NoError(t, err)
	return strings.SplitAfter(string(b), "\n")
}

func TestWalk(t *testing.T) {
	need(t)
	stdout, stderr, code := testkit.Program(t, nil)
	require.Equal(t, 0, code, "%s%s", stdout, stderr)
	require.Empty(t, stderr)
	require.Equal(t, golden(t), lines(stdout))
}

// If two processes are started separately, each prints its own part.
func TestApart(t *testing.T) {
	need(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	require.NoError(t, l.Close())
	type result struct {
		stdout, stderr string
		code           int
	}
	done := make(chan result, 1)
	go func() {
		stdout, stderr, code := testkit.Program(t, nil, "-connect", at) // may start first
		done <- result{stdout, stderr, code}
	}()
	stdout, stderr, code := testkit.Program(t, nil, "-listen", at)
	b := <-done
	require.Equal(t, []int{0, 0}, []int{code, b.code}, "%s%s", stderr, b.stderr)
	require.Equal(t, part(golden(t), "A: "), part(lines(stdout), ""))
	require.Equal(t, part(golden(t), "B: "), part(lines(b.stdout), ""))
}

// part returns the lines that begin with prefix.
func part(lines []string, prefix string) (some []string) {
	for _, l := range lines {
		if l != "" && strings.HasPrefix(l, prefix) {
			some = append(some, l)
		}
	}
	return some
}

// Without a device the program says so, and does nothing.
func TestNoDevice(t *testing.T) {
	if verbs.Have().Err == nil {
		t.Skip("there is an RDMA device")
	}
	for _, args := range [][]string{nil, {"-listen", "127.0.0.1:0"}, {"-connect", "127.0.0.1:1"}} {
		stdout, stderr, code := testkit.Program(t, nil, args...)
		require.Equal(t, 5, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "this walk needs an RDMA device")
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name, args, want string
	}{
		{"both sides", "-listen :1 -connect localhost:1", "want one of them, or neither"},
		{"an argument", "x", `unexpected argument "x"`},
		{"an unknown flag", "-port 1", "not defined: -port"},
		{"no row", "-gid -2", "-gid -2: want a row of the table, or -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, nil, strings.Fields(c.args)...)
			require.Equal(t, 6, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, c.want)
		})
	}
	stdout, _, code := testkit.Program(t, nil, "-h")
	require.Equal(t, 0, code)
	require.Contains(t, stdout, "Usage: verbs_mr ")
}

// A bad address, and a device that does not exist, are bad usage.
func TestBadValues(t *testing.T) {
	need(t)
	for _, args := range []string{"-listen here", "-connect there", "-dev none0"} {
		_, stderr, code := testkit.Program(t, nil, strings.Fields(args)...)
		require.Equal(t, 6, code, stderr)
	}
}

// If the peer goes away in the middle, either side says so, and does not wait for it.
func TestPeerGone(t *testing.T) {
	need(t)
	t.Run("A", func(t *testing.T) {
		here, there := net.Pipe()
		go func() { // asks B to open, then leaves
			l := newLink(there)
			_ = l.send(request{Do: "open"})
			_ = l.receive(&reply{})
			there.Close()
		}()
		var out bytes.Buffer
		require.ErrorContains(t, serve(newLink(here), options{gid: -1}, &out), "A is gone")
		require.Contains(t, out.String(), "B: deregistered what was left, and closed all", "it cleans up")
		here.Close()
	})
	t.Run("B", func(t *testing.T) {
		var out bytes.Buffer
		o := options{gid: -1}
		err := beA(o, "127.0.0.1:0", func(at net.Addr) (func() error, error) {
			c, err := net.Dial("tcp", at.String())
			if err == nil {
				go func() { // is asked to open, then leaves
					_ = newLink(c).receive(&request{})
					c.Close()
				}()
			}
			return func() error { return nil }, err
		}, &out)
		require.ErrorContains(t, err, "B, asked to open, is gone")
		require.Contains(t, out.String(), "A: deregistered its page, and closed all", "it cleans up")
	})
}

// A request that B does not know is an error on both sides.
func TestUnknownRequest(t *testing.T) {
	need(t)
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	failed := make(chan error, 1)
	go func() { failed <- serve(newLink(there), options{gid: -1}, io.Discard) }()
	a := walker{link: newLink(here)}
	require.ErrorContains(t, a.ask("jump"), `B does not know how to "jump"`)
	require.ErrorContains(t, <-failed, "jump")
}
