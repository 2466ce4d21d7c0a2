package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Config)
		want string
	}{
		{"less than a word", func(c *Config) { c.MinBytes = 4 }, "messages from 4 bytes (-b): want a multiple of 8"},
		{"not words", func(c *Config) { c.MinBytes = 12 }, "messages from 12 bytes (-b)"},
		{"nothing", func(c *Config) { c.MinBytes = 0 }, "messages from 0 bytes (-b)"},
		{"the wrong way round", func(c *Config) { c.MinBytes, c.MaxBytes = 64, 8 }, "messages from 64 to 8 bytes (-b, -e)"},
		{"more than a message", func(c *Config) { c.MaxBytes = mostBytes + 8 }, "1G at most"},
		{"negative calls", func(c *Config) { c.Iterations = -1 }, "-1 iterations (-n): want 1 to 1000000"},
		{"too many calls", func(c *Config) { c.Iterations = mostIterations + 1 }, "1000001 iterations (-n)"},
		{"a small region", func(c *Config) { c.MaxRegion = 4095 }, "regions of 4095 bytes (-max): want 4096 at least"},
		{"a huge region", func(c *Config) { c.MaxRegion = mostRegion + 1 }, "(-max)"},
		{"a GID", func(c *Config) { c.GID = -2 }, "row -2 of the table of GIDs (-gid)"},
		{"devices", func(c *Config) { c.Devices = "^" }, `"^" lists no device`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default()
			c.set(&cfg)
			err := cfg.Validate()
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, c.want)
		})
	}
	cfg := Default()
	require.NoError(t, cfg.Validate())
	cfg = Config{MinBytes: 4, MaxBytes: 2, Iterations: -3, GID: -7}
	for _, want := range []string{"-b", "-e", "-n", "-gid"} {
		require.ErrorContains(t, cfg.Validate(), want, "all faults are said at once")
	}
	require.Equal(t, []int{24, 48, 96}, (&Config{MinBytes: 24, MaxBytes: 191}).sizes())
}

// The fastest sequence is found as in perftest: of all consecutive operations, the ones with the least average time.
func TestShortest(t *testing.T) {
	us := func(times ...int) (d []time.Duration) {
		for _, n := range times {
			d = append(d, time.Duration(n)*time.Microsecond)
		}
		return d
	}
	for _, c := range []struct {
		name         string
		began, ended []time.Duration
		want         time.Duration
	}{
		{"one", us(5), us(9), 4 * time.Microsecond},
		{"one after the other", us(0, 10, 20), us(10, 20, 30), 10 * time.Microsecond},
		{"the last is quick", us(0, 10, 20), us(10, 20, 22), 2 * time.Microsecond},
		{"seen together", us(0, 1, 2, 3), us(8, 8, 8, 8), 2 * time.Microsecond},
		{"a stretch in the middle", us(0, 10, 11, 12, 40), us(9, 15, 15, 16, 60), 2 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, shortest(c.began, c.ended)) })
	}
	require.Zero(t, shortest(make([]time.Duration, mostPeak+1), make([]time.Duration, mostPeak+1)))
}

// Words that did not arrive as they were sent are counted.
func TestWrong(t *testing.T) {
	const n = 64
	fill := func(e *end) {
		for i := range e.destination() {
			e.destination()[i] = word(1-e.rank, i)
		}
	}
	for _, c := range []struct {
		name     string
		op       verbs.Op
		rank     int
		answered bool
		arrives  func(e *end)
		want     int
	}{
		{"put", verbs.Write, 1, false, fill, 0},
		{"put, nothing came", verbs.Write, 1, false, func(e *end) {}, n / 8},
		{"put, a bit", verbs.Write, 1, false, func(e *end) { fill(e); e.destination()[7] ^= 1 << 40 }, 1},
		{"put, own words", verbs.Write, 1, false, func(e *end) { copy(e.destination(), e.source()) }, n / 8},
		{"put, nobody puts here", verbs.Write, 0, false, func(e *end) {}, 0},
		{"answered", verbs.Write, 0, true, fill, 0},
		{"answered, nothing came", verbs.Write, 0, true, func(e *end) {}, n / 8},
		{"get", verbs.Read, 0, false, fill, 0},
		{"get, nothing came", verbs.Read, 0, false, func(e *end) {}, n / 8},
		{"get, nobody gets there", verbs.Read, 1, false, func(e *end) {}, 0},
		{"atomic", verbs.FetchAdd, 1, false, func(e *end) { e.destination()[0] = 11 }, 0},
		{"atomic, one is lost", verbs.FetchAdd, 1, false, func(e *end) { e.destination()[0] = 10 }, 1},
		{"atomic, what came back", verbs.CompareSwap, 0, false, func(e *end) { e.destination()[0] = 10 }, 0},
		{"atomic, one failed", verbs.CompareSwap, 0, false, func(e *end) { e.destination()[0] = 9 }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &end{rank: c.rank, half: n / 8, words: make([]uint64, n/4)}
			for i := range e.source() {
				e.words[i] = word(c.rank, i)
			}
			c.arrives(e)
			require.Equal(t, c.want, e.wrong(c.op, n, 11, c.answered))
		})
	}
}

// A wait ends with its context, by itself after a while, and when the other rank fails.
func TestWait(t *testing.T) {
	gone := errors.New("gone")
	for _, c := range []struct {
		name  string
		wait  func(ctx context.Context, e *end) error
		other error // of rank 1
		is    error
	}{
		{"too long", func(ctx context.Context, e *end) error {
			if err := e.wait(ctx, "put", false); err != nil {
				return err
			}
			e.since -= stall
			return e.wait(ctx, "put", true)
		}, nil, fault.ErrTimeout},
		{"context", func(ctx context.Context, e *end) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return e.waits(ctx)
		}, nil, context.Canceled},
		{"the other rank failed", func(ctx context.Context, e *end) error { return e.waits(ctx) }, gone, fault.ErrAborted},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got error
			err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, comm *ubcoll.Comm) error {
				if comm.Rank() == 1 {
					return c.other
				}
				got = c.wait(ctx, newEnd(comm, &Config{MaxBytes: 8}))
				return nil
			})
			require.ErrorIs(t, got, c.is)
			require.ErrorIs(t, err, c.other)
		})
	}
}

// waits waits for what never comes.
func (e *end) waits(ctx context.Context) error {
	for long := false; ; long = true {
		if err := e.wait(ctx, "put", long); err != nil {
			return err
		}
	}
}

func measure(t *testing.T, n int, cfg Config) (rep *Report, table string, err error) {
	var out bytes.Buffer
	o := ubcoll.Options{Timeout: testkit.Limit, Devices: ubcoll.DevicesOff, Register: ubcoll.RegisterExplicit}
	err = ubcoll.Local(t.Context(), n, o, func(ctx context.Context, c *ubcoll.Comm) error {
		mine, err := Run(ctx, c, cfg, bench.Program{Version: "test"}, &out)
		if c.Rank() == 0 {
			rep = mine
		}
		return err
	})
	return rep, out.String(), err
}

func TestRanks(t *testing.T) {
	for _, n := range []int{1, 3} {
		_, _, err := measure(t, n, Default())
		require.ErrorIs(t, err, fault.ErrArgument)
		require.ErrorContains(t, err, fmt.Sprintf("measures between 2 ranks, and the job has %d", n))
	}
}

func TestNoDevice(t *testing.T) {
	if verbs.Have().Err == nil {
		t.Skip("there is an RDMA device")
	}
	_, table, err := measure(t, 2, Default())
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.Empty(t, table)
}

func need(t *testing.T) {
	t.Helper()
	if p := verbs.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
}

// Every row of every table exists, and every number in it is plausible.
func TestRun(t *testing.T) {
	need(t)
	rep, table, err := measure(t, 2, Config{MinBytes: 8, MaxBytes: 4096 << 4, Iterations: 10, MaxRegion: 1 << 20, GID: -1})
	require.NoError(t, err)
	require.Zero(t, rep.Wrong)
	require.Empty(t, rep.Errors)
	require.Len(t, rep.Ranks, 2)
	require.Len(t, rep.Registration, 5) // 4 KiB to 1 MiB
	for _, r := range rep.Registration {
		for _, c := range []Cost{r.Resident, r.Untouched} {
			require.Equal(t, 10, c.Register.Calls)
			require.Positive(t, c.Register.Min)
			require.Positive(t, c.Deregister.Min)
		}
		require.Positive(t, r.Hit.P50)
		require.Less(t, r.Hit.P50/1e3, r.Resident.Register.Median, "a hit is what the cache is for")
	}
	const sizes = 14 // 8 to 64 KiB
	require.Len(t, rep.Latency, 2*sizes+2)
	for _, l := range rep.Latency {
		require.Equal(t, 10, l.Calls)
		require.Positive(t, l.Min)
	}
	require.Len(t, rep.Bandwidth, 2*sizes+2)
	for _, b := range rep.Bandwidth {
		require.Equal(t, []int{10, 16}, []int{b.Iterations, b.Outstanding})
		require.Positive(t, b.Average)
		require.GreaterOrEqual(t, b.Peak, b.Average*0.999, "the whole run is a stretch, too")
	}
	columns := map[int]int{}
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); f[0] != "#" {
			columns[len(f)]++
			require.Regexp(t, regexp.MustCompile(`^( +[0-9]+(\.[0-9]+)?)+\n$`), line)
		}
	}
	require.Equal(t, map[int]int{7: 5, 9: 2*sizes + 2, 5: 2*sizes + 2}, columns)
	for _, want := range []string{"# put latency, as ib_write_lat\n", "#bytes  #iterations  t_min[usec]",
		"# get bandwidth, 16 outstanding, as ib_read_bw -t 16\n", "BW average[MB/sec]", "# Wrong words          : 0 OK\n"} {
		require.Contains(t, table, want)
	}
}

// All ranks report a message that is longer than the port allows, a device that does not exist, and an empty row of
// GIDs. Nothing is left behind.
func TestRefused(t *testing.T) {
	need(t)
	for _, c := range []struct {
		name string
		set  func(*Config)
		is   error
		want string
	}{
		{"device", func(c *Config) { c.Devices = "=none0" }, fault.ErrNotSupported, "is not selected"},
		{"GID", func(c *Config) { c.GID = 200 }, fault.ErrArgument, "nothing at index 200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default()
			c.set(&cfg)
			_, table, err := measure(t, 2, cfg)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, table)
		})
	}
}
