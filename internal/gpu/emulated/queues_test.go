//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

// TestQueues says how work of several streams shares the context's hardware queues, on a real device and on an emulated
// one. The driver reads their number when it starts, so each number has a process of its own.
func TestQueues(t *testing.T) {
	const connections = "CUDA_DEVICE_MAX_CONNECTIONS"
	const child = "UBCOLL_TEST_QUEUES"
	if s := os.Getenv(child); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		testQueues(t, n)
		return
	}
	emulated.Primary(t, 0) // skips without a device
	for _, x := range []struct {
		set string // by the user
		n   int    // how many there are then
	}{{"8", 8}, {"", 32}} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestQueues$", "-test.v")
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool {
			return strings.HasPrefix(s, connections+"=")
		}), child+"="+strconv.Itoa(x.n))
		if x.set != "" {
			cmd.Env = append(cmd.Env, connections+"="+x.set)
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestQueues/")
	}
}

func testQueues(t *testing.T, n int) {
	two := func(s *side, x *cuda.Stream) { s.wait(x); s.none(x) }
	for _, x := range []struct {
		name  string
		k     int                           // streams in use; one of them is for the last kernel
		runs  bool                          // whether that runs while the others wait
		each  func(s *side, x *cuda.Stream) // queues what is on one of the others
		graph func(s *side, x *cuda.Stream) // is captured before; each launches it
	}{
		{name: "two kernels, a queue for each", k: n, runs: true, each: two},
		{name: "two kernels, a queue too few", k: n + 1, each: two},
		{name: "one kernel", k: n + 1, runs: true, each: (*side).wait},
		{name: "an event behind the kernel", k: n + 1, runs: true, each: func(s *side, x *cuda.Stream) {
			s.wait(x)
			s.record(x, false)
		}},
		{name: "an event with time behind the kernel", k: n + 1, each: func(s *side, x *cuda.Stream) {
			s.wait(x)
			s.record(x, true)
		}},
		{name: "a fill behind the kernel", k: n + 1, each: func(s *side, x *cuda.Stream) { s.wait(x); s.fill(x) }},
		{name: "a copy behind the kernel", k: n + 1, each: func(s *side, x *cuda.Stream) { s.wait(x); s.copy(x) }},
		{name: "a graph behind the kernel", k: n + 1, each: (*side).wait, graph: (*side).none},
		{name: "graphs of two kernels", k: n + 1, runs: true, each: func(*side, *cuda.Stream) {}, graph: two},
		{name: "a wait for an event", k: n + 1, runs: true, each: (*side).await},
		{name: "a kernel behind a wait for an event", k: n + 1, each: func(s *side, x *cuda.Stream) {
			s.await(x)
			s.none(x)
		}},
		{name: "idle streams have no queue", k: n + 1, runs: true, each: func(s *side, x *cuda.Stream) {
			if x == s.streams[0] {
				two(s, x)
				return
			}
			s.none(x)
			require.NoError(s.t, x.Sync())
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newSide(t)
			for range x.k {
				s.stream()
			}
			all := slices.Clone(s.streams)
			graphs := map[*cuda.Stream]*cuda.Graph{}
			for _, each := range all {
				if x.graph != nil {
					graphs[each] = s.capture(each, x.graph)
				}
			}
			last, others := all[x.k-1], all[:x.k-1]
			s.begin()
			for _, other := range others {
				x.each(s, other)
				if g := graphs[other]; g != nil {
					require.NoError(t, g.Launch(other))
				}
			}
			require.NoError(t, s.add.Launch(last, one, bytesOf(addParams{s.at + 4, 1, 1})))
			if x.runs {
				require.NoError(t, last.Sync()) // at the latest when the kernels that wait have ended by themselves
				done, err := all[0].Done()
				require.NoError(t, err)
				require.False(t, done, "the last kernel ran behind those that wait")
			} else {
				time.Sleep(50 * time.Millisecond) // time to do what it must not do
				require.Zero(t, s.word(1).Load(), "the last kernel ran")
			}
			s.end()
			require.NoError(t, last.Sync())
			require.EqualValues(t, 1, s.word(1).Load())
		})
	}
}
