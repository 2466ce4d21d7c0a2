package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const pages = "../../docs/benchmarks/"

// published reads a page and what its samples, blocks and title say of how it was made.
func published(t *testing.T, name string) (text string, p page) {
	data, err := os.ReadFile(pages + name)
	require.NoError(t, err)
	text = string(data)
	blocks := regexp.MustCompile("(?ms)^```\n(.*?)\n```$").FindAllStringSubmatch(text, -1)
	require.GreaterOrEqual(t, len(blocks), 3, "command, machine, samples")
	p.Command, p.Machine, p.Samples = blocks[0][1], blocks[1][1], blocks[2][1]
	if len(blocks) > 3 {
		p.First = blocks[3][1]
	}
	find := func(pattern string) string { return regexp.MustCompile(pattern).FindStringSubmatch(text)[1] }
	p.Date, p.Commit = find(`(?m)^# .*(\d{4}-\d\d-\d\d)$`), find(`(?m)^Commit (.*)\.$`)
	return text, p
}

// write runs the program over the samples of p, and returns what it prints and the page it writes.
func write(t *testing.T, p page, args ...string) (shown, file string) {
	dir := t.TempDir()
	put := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		return name
	}
	out := filepath.Join(dir, "page")
	args = append(args, "-command", p.Command, "-commit", p.Commit, "-machine", put("machine", p.Machine), "-first", put("first", p.First),
		"-note", put("note", p.Note), "-date", p.Date, "-o", out, put("samples", p.Samples))
	var b strings.Builder
	require.NoError(t, run(args, &b))
	data, err := os.ReadFile(out)
	require.NoError(t, err)
	return b.String(), string(data)
}

// The pages that this form of bench-gpu has published come out of their own samples, letter by letter.
func TestPublished(t *testing.T) {
	for _, c := range []struct{ name, args string }{
		{"gpu-2026-11-23-all.md", "gpu -np 2 -rounds 3 -calls 20 -graphs 20 -registered -op all_reduce,all_gather,reduce_scatter,alltoall," +
			"broadcast,reduce,scatter,gather,sendrecv"},
		{"gpu-2026-11-23-all_reduce-eager.md", "gpu -np 2 -rounds 3 -calls 200 -registered -op all_reduce"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, p := published(t, c.name)
			shown, file := write(t, p, strings.Fields(c.args)...)
			require.Equal(t, want, file)
			tables, _, _ := strings.Cut(want, "## How\n")
			require.Equal(t, tables, shown)
		})
	}
}

// Every published page that compares with a peer on GPUs says, below what its columns mean, that the peer ran without NVLS.
func TestPublishedNVLS(t *testing.T) {
	files, err := filepath.Glob(pages + "gpu-*.md")
	require.NoError(t, err)
	compared := 0
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		text, _, _ := strings.Cut(string(data), "```\n") // what follows says how it was measured
		if !strings.Contains(text, "NCCL") && !strings.Contains(text, "MSCCL++") {
			continue
		}
		compared++
		parts := strings.Split(text, "\n\n") // title, columns, NVLS
		require.Greater(t, len(parts), 3, name)
		if strings.HasPrefix(parts[0], "# Memory channels") {
			require.Equal(t, channelNVLS, parts[2], name)
			continue
		}
		require.Equal(t, withoutNVLS, parts[2], name)
	}
	require.GreaterOrEqual(t, compared, 9)
}

// With NVLS the page says so, and leaves MSCCL++ out, whose known times are scaled by an NCCL without it.
func TestNVLS(t *testing.T) {
	p := page{Date: "2026-11-24", Machine: "m", Samples: "all_reduce nccl 2 1024 7 a\nall_reduce ours 2 1024 4 c\n"}
	args := strings.Fields("gpu -op all_reduce -np 2 -rounds 1 -graphs 1")
	without, _ := write(t, p, args...)
	require.Contains(t, without, withoutNVLS)
	require.Contains(t, without, "MSCCL++")
	require.Contains(t, without, "| 1024 | 7.00 | a | - | - | 5.34 |")
	with, _ := write(t, p, append(args, "-nvls", "1")...)
	require.Contains(t, with, "NCCL_NVLS_ENABLE=1")
	require.NotContains(t, with, withoutNVLS)
	require.NotContains(t, with, "MSCCL++")
	require.Contains(t, with, "| 1024 | 7.00 | a | - | - | 7.00 |")
}

// Older pages had samples of another form; their tables are the same.
func TestPublishedBefore(t *testing.T) {
	samples := func(p *page, form string, order ...int) {
		var b strings.Builder
		for line := range strings.Lines(p.Samples) {
			f := strings.Fields(line)
			cells := make([]any, len(order))
			for i, o := range order {
				cells[i] = f[o]
			}
			fmt.Fprintf(&b, form+"\n", cells...)
		}
		p.Samples = b.String()
	}
	t.Run("channel", func(t *testing.T) {
		want, p := published(t, "gpu-2026-11-20-channel.md")
		samples(&p, "%s ours %s %s %s channel", 0, 1, 2, 3)
		shown, _ := write(t, p, strings.Fields("channel -op channel -np 2 -rounds 3 -calls 1000 -graphs 2")...)
		want, _, _ = strings.Cut(want, "## How\n")
		require.Equal(t, strings.ReplaceAll(want, "5.0 us", "5 us"), shown)
	})
	for _, c := range []struct{ name, op, args string }{
		{"broadcast", "broadcast", "-np 2 -rounds 3"},
		{"all_reduce", "all_reduce", "-np 2 -rounds 5"},
		{"all_reduce-np4-8-16", "all_reduce", "-np 4,8,16 -rounds 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, p := published(t, "host-2026-11-20-"+c.name+".md")
			samples(&p, c.op+" %s %s %s %s", 0, 1, 2, 3)
			shown, _ := write(t, p, append(strings.Fields("peers "+c.args), "-cores", "2", "-registered", "-op", c.op)...)
			want, _, _ = strings.Cut(want, "## How\n")
			want = regexp.MustCompile(`(?m)\| [a-z-]*[a-z] \|$`).ReplaceAllString(want, "| - |") // these samples have no path
			require.Equal(t, want, shown)
		})
	}
}

func TestHosts(t *testing.T) {
	p := page{Date: "2026-11-27", Note: "The link has sent 100 bytes:\n- ours: 200 or more\n", Command: "scripts/bench-hosts", Commit: "abc",
		Machine: "go: go1.26", Samples: `all_reduce ours 2x1 8 9.5 eager
all_reduce openmpi 2x1 8 10
all_reduce mpich 2x1 8 8
half_trip sockets 2x1 8 5
all_reduce ours 2x1 1024 200 share
all_reduce openmpi 2x1 1024 100
all_reduce ours 2x1 8 8.5 eager
all_reduce openmpi 2x1 8 12
broadcast ours 2x4 64 10 tree
broadcast openmpi 2x4 64 20
broadcast mpich 2x4 64 40
broadcast gloo 2x4 64 5
broadcast ours 8x1 64 10 tree
broadcast gloo 8x1 64 80
`}
	_, file := write(t, p, "hosts", "-rounds", "2")
	want, err := os.ReadFile("testdata/hosts.md")
	require.NoError(t, err)
	require.Equal(t, string(want), file)
}

// A page of messages says what their times are, and compares the smallest with two sockets.
func TestHostsMessages(t *testing.T) {
	const pair, window = "pingpong: half a round trip.\n", "mbw_mr: 64 messages in flight"
	for _, c := range []struct {
		name, samples, head string
		with, without       []string
	}{
		{"messages", "pingpong ours 2x1 8 10 eager\nmbw_mr ours 2x4 8 1 eager\nhalf_trip sockets 2x1 8 5", "# Messages between hosts, ",
			[]string{pair, window, "Microseconds, float32; medians", "Our pingpong of 8 bytes between 2 x 1 takes 2.00 times that."}, []string{"sum"}},
		{"puts", "put_bw ours 2x1 8 1 put_bw\nput_bw sockets 2x1 8 2", "# put_bw between hosts, ",
			[]string{"put_bw: 64 puts", "A program that polls two sockets", "| 2 x 1 | put_bw | 8 | 1.00 | 2.00 | 2.00 | put_bw |"}, []string{"sum", "Half the round trip"}},
		{"one", "mbw_mr ours 2x1 8 1 eager", "# mbw_mr between hosts, ", []string{window, "Microseconds, float32; medians"}, []string{pair, "sum"}},
		{"both", "all_reduce ours 2x1 8 10 eager\npingpong ours 2x1 8 10 eager", "# Collectives and messages between hosts, ",
			[]string{pair, "float32 (sum), out of place"}, []string{window}},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown, _ := write(t, page{Samples: c.samples}, "hosts", "-rounds", "1")
			require.Contains(t, shown, c.head)
			for _, want := range c.with {
				require.Contains(t, shown, want)
			}
			for _, other := range c.without {
				require.NotContains(t, shown, other)
			}
		})
	}
}

// A page has columns for those peers that were measured, and ratios for points that both have.
func TestHostsPeers(t *testing.T) {
	for _, c := range []struct {
		name, samples, head, row, mean, slower string
	}{
		{"one MPI has no best", "reduce ours 2x1 64 4 w\nreduce mpich 2x1 64 8", "ours | MPICH | MPICH / ours | our way |", "4.00 | 8.00 | 2.00 | w |",
			"2 x 1 | reduce | 2.00 |", "- Slower than MPICH: 0 of 1 points."},
		{"gloo is no MPI", "reduce ours 2x1 64 4 w\nreduce gloo 2x1 64 2\nreduce openmpi 2x1 64 4",
			"ours | Open MPI | gloo | Open MPI / ours | gloo / ours | our way |", "4.00 | 4.00 | 2.00 | 1.00 | 0.50 | w |",
			"2 x 1 | reduce | 1.00 | 0.50 |", "- Slower than Open MPI: 0 of 1 points.\n- Slower than gloo: 1 of 1 points."},
		{"the best of each point", "reduce ours 2x2 64 4 w\nreduce mpich 2x2 64 2\nreduce openmpi 2x2 64 8\nreduce ours 2x2 128 4\nreduce mpich 2x2 128 8",
			"MPICH / ours | best MPI / ours | our way |", "4.00 | 8.00 | 2.00 | 2.00 | 0.50 | 0.50 | w |", "2 x 2 | reduce | 2.00 | 1.00 | 1.00 |",
			"- Slower than Open MPI: 0 of 1 points.\n- Slower than MPICH: 1 of 2 points.\n- Slower than the best MPI: 1 of 2 points."},
		{"ours is missing", "reduce mpich 2x1 64 2", "ours | MPICH | MPICH / ours | our way |", "- | 2.00 | - | - |", "2 x 1 | reduce | - |",
			"- Slower than MPICH: 0 of 0 points."},
		{"other layouts of as many ranks", "reduce ours 4x1 64 4 w\nreduce mpich 4x1 64 2\nreduce ours 2x2 64 4 w\nreduce mpich 2x2 64 8",
			"ours | MPICH | MPICH / ours | our way |", "4 x 1 | reduce | 64 | 4.00 | 2.00 | 0.50 | w |", "2 x 2 | reduce | 2.00 |\n| 4 x 1 | reduce | 0.50 |",
			"- Slower than MPICH: 1 of 2 points."},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown, _ := write(t, page{Samples: c.samples}, "hosts", "-rounds", "1")
			for _, want := range []string{c.head, c.row, c.mean, c.slower} {
				require.Contains(t, shown, want+"\n")
			}
			require.NotContains(t, shown, "polling")
		})
	}
}

// What some contenders lack leaves the rest of a row, and is in no mean.
func TestMissing(t *testing.T) {
	const first = "| 64 | "
	for _, c := range []struct {
		name, samples, row, summary string
	}{
		{"nothing", "all_reduce other 2 64 1 x", first + "- | - | - | - | - | - | - | - | - | - |", "0 | - | - | - | - |"},
		{"us", "all_reduce nccl 2 64 3 a\nall_reduce symm-mem 2 64 2 b", first + "3.00 | a | 2.00 | b | 2.00 | - | - | - | - | - |", "0 | - | - | - | - |"},
		{"NCCL", "all_reduce ours 2 64 4 c\nall_reduce symm-mem 2 64 2 b", first + "- | - | 2.00 | b | 2.00 | 4.00 | - | 0.500 | 0.02 | c |",
			"1 | - | 0.500 | 0.500 | 64 |"},
		{"both peers", "all_reduce ours 2 64 4 c\nall_reduce in-place 2 64 5 c", first + "- | - | - | - | - | 4.00 | 5.00 | - | 0.02 | c |", "0 | - | - | - | - |"},
		{"our time", "all_reduce ours 2 64 0 c\nall_reduce nccl 2 64 1 a", first + "1.00 | a | - | - | 1.00 | - | - | - | - | c |", "0 | - | - | - | - |"},
		{"nothing: the frontier is NCCL's of old", "all_reduce ours 2 1024 4 c\nall_reduce nccl 2 1024 7 a",
			"| 1024 | 7.00 | a | - | - | 5.34 | 4.00 | - | 1.335 | 0.26 | c |", "1 | 1.750 | 1.335 | 1.335 | 1024 |"},
		{"a time: the median of two is between them", "all_reduce ours 2 64 4 c\nall_reduce ours 2 64 8 d\nall_reduce nccl 2 64 3 a",
			first + "3.00 | a | - | - | 3.00 | 6.00 | - | 0.500 | 0.01 | d |", "1 | 0.500 | 0.500 | 0.500 | 64 |"},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown, _ := write(t, page{Samples: c.samples}, strings.Fields("gpu -op all_reduce -np 2 -graphs 1")...)
			require.Contains(t, shown, "\n"+c.row+"\n")
			require.Contains(t, shown, "\n| 2 | all_reduce | "+c.summary+"\n")
		})
	}
}

func TestKnown(t *testing.T) {
	for _, c := range []struct {
		name        string
		op          string
		at          machine
		bytes       int64
		nccl, wants float64
	}{
		{"the first", "all_reduce", machine{2, true, false}, 16, 3.4, 3.4},
		{"the last", "all_reduce", machine{4, true, false}, 1 << 30, 9142, 9090},
		{"one that MSCCL++ won", "all_reduce", machine{2, false, false}, 1024, 6.84, 5.61},
		{"not measured", "all_reduce", machine{2, true, false}, 64, 1, math.NaN()},
		{"between sizes", "all_reduce", machine{2, true, false}, 2 << 20, 1, math.NaN()},
		{"ranks", "all_reduce", machine{3, true, false}, 16, 1, math.NaN()},
		{"NVLS", "all_reduce", machine{2, true, true}, 16, 3.4, math.NaN()},
		{"another operation", "broadcast", machine{2, true, false}, 16, 1, math.NaN()},
		{"no NCCL", "all_reduce", machine{2, true, false}, 16, math.NaN(), math.NaN()},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.InDelta(t, c.wants, scaled(c.op, c.at, c.bytes, c.nccl), 1e-9)
		})
	}
	for at, times := range known {
		require.Len(t, times, 14, "%v: to 1 GiB", at)
	}
}

func TestBest(t *testing.T) {
	m, err := parse(`
all_reduce nccl 2 64 5 registered
all_reduce nccl 2 64 4 symmetric
all_reduce nccl 2 64 4 unregistered
all_reduce nccl 2 16 4 symmetric
all_reduce nccl 2 1024 3 registered
broadcast nccl 2 64 3 symmetric
all_reduce nccl 4 64 1 registered
all_reduce symm-mem 2 64 1 one_shot
`)
	require.NoError(t, err)
	require.Equal(t, "registered:all_reduce:1024 symmetric:all_reduce:16,64 symmetric:broadcast:64", best(m, "nccl", 2))
	require.Equal(t, "registered:all_reduce:64", best(m, "nccl", 4))
	require.Empty(t, best(m, "nccl", 3))

	// A published first round, and what then ran.
	_, p := published(t, "gpu-2026-11-23-all.md")
	first, err := parse(p.First)
	require.NoError(t, err)
	ran, err := parse(p.Samples)
	require.NoError(t, err)
	for _, contender := range []string{"nccl", "symm-mem"} {
		require.NotEmpty(t, best(first, contender, 2))
		require.Equal(t, best(ran, contender, 2), best(first, contender, 2))
	}
}

func TestOurs(t *testing.T) {
	const head = "operation,ranks,size,redop,in_place,time,algorithm\n"
	for _, c := range []struct{ name, text, want, err string }{
		{"a row", head + "all_reduce,2,64,sum,false,1.23456,one-shot packets\n", "all_reduce ours 2 64 1.235 one-shot-packets\n", ""},
		{"in place, a comma", head + "gather,4,8,none,true,2,\"a, b\"\n", "gather in-place 4 8 2.000 a-b\n", ""},
		{"a channel", head + "channel,2,1024,put,false,4.8,put\n", "put ours 2 1024 4.800 channel\n", ""},
		{"no way", head + "barrier,2,0,none,false,4.8,\n", "barrier ours 2 0 4.800 \n", ""},
		{"another order", "time,algorithm,operation,ranks,size,redop,in_place\n3,x,reduce,2,4,sum,false\n", "reduce ours 2 4 3.000 x\n", ""},
		{"no column", "operation,ranks\n", "", "no column size"},
		{"empty", "", "", "is empty"},
		{"no time", head + "all_reduce,2,64,sum,false,soon,x\n", "", `line 2: "soon" is no time`},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "ours.csv")
			require.NoError(t, os.WriteFile(name, []byte(c.text), 0o644))
			var b strings.Builder
			err := run([]string{"ours", name}, &b)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, b.String())
			_, err = parse(b.String())
			require.NoError(t, err, "they are samples")
		})
	}
}

func TestRefused(t *testing.T) {
	samples := filepath.Join(t.TempDir(), "samples")
	for _, c := range []struct{ name, args, samples, want string }{
		{"a word more", "gpu", "a b 2 64 1 x y", "line 1:"},
		{"ranks", "gpu", "a b 0 64 1", `"0" is no number of ranks`},
		{"hosts", "hosts", "a b 0x2 64 1", `"0" is no number of hosts`},
		{"ranks of a host", "hosts", "a b 2x 64 1", `"" is no number of ranks`},
		{"bytes", "gpu", "a b 2 64 1\na b 2 -1 1", `line 2: "-1" is no number of bytes`},
		{"time", "gpu", "a b 2 64 NaN", `"NaN" is no time`},
		{"kind", "gpus", "", "gpus with 1 arguments"},
		{"ranks of a page", "gpu -np 2,x", "", `"x" is no number of ranks`},
		{"plan", "best nccl two", "", "two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(samples, []byte(c.samples), 0o644))
			var b strings.Builder
			require.ErrorContains(t, run(append(strings.Fields(c.args), samples), &b), c.want)
		})
	}
}
