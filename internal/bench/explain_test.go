package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// explainedSample is a report about hosts, and about one.
func explainedSample(cfg *Config) *Report {
	r := sample(cfg)
	const kernel = "copied by the kernel"
	host := Level{Where: "in the host", Algorithm: "push", Transport: "shared memory", Source: "direct", Destination: "staged: a Go slice",
		Text: "in the host reduce-scatter and all-gather (push), shared memory"}
	between := Level{Where: "between hosts", Algorithm: "halving", Transport: "tcp eth0 (4 connections)", Lanes: 2, Hosts: 4,
		Source: "staged: " + kernel, Destination: "staged: " + kernel, Why: kernel, Text: "halving-doubling over 4 hosts, 2 lanes, tcp eth0"}
	small := between
	small.Algorithm, small.Source, small.Lanes = "exchange", "staged: small enough", 1
	set := func(v *Result, levels ...Level) {
		v.Levels = levels
		if l := levels[len(levels)-1]; l.Hosts > 0 {
			v.Way, v.Wire = l.Algorithm, l.Transport
		}
	}
	set(r.Results[0].Out, small)
	set(r.Results[0].In, small)
	set(r.Results[1].Out, host, between)
	r.Results[0].Model, r.Results[1].Model = 9.5, 12345.678
	*r.Results[0].In.Wrong = 0 // that number is too long for its column
	set(r.Results[2].Out, host)
	host.Algorithm = "two-shot"
	set(r.Results[2].In, host)
	last := r.Results[2]
	last.Out, last.In = &Result{Algorithm: "channel put", Source: "direct", Destination: "direct", Spread: last.Out.Spread}, nil
	r.Results = append(r.Results, last)
	return r
}

// TestExplain: -explain adds columns behind the others, and takes nothing from them.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
	}{
		{"explain", func(*Config) {}},
		{"explain-percall", func(c *Config) { c.PerCall = true }},
		{"explain-timestamps", func(c *Config) { c.Timestamps = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default("all_reduce")
			c.change(&cfg)
			r := explainedSample(&cfg)
			stamp := regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d`)
			without := stamp.ReplaceAllString(print(&cfg, r), time.DateTime)
			cfg.Explain = true
			got, file := stamp.ReplaceAllString(print(&cfg, r), time.DateTime), filepath.Join("testdata", c.name+".golden")
			if os.Getenv("UPDATE") != "" {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)

			lines, head := strings.Split(got, "\n"), ""
			for i, line := range strings.Split(without, "\n") {
				require.True(t, strings.HasPrefix(lines[i], line), "%q", lines[i])
				switch {
				case strings.Contains(lines[i], " destination "):
					head = lines[i]
				case head != "" && !strings.HasPrefix(line, "#") && line != "":
					for _, name := range []string{"  way", "  source", "  destination", "  model us", "  wire"} {
						at := strings.Index(head, name)
						require.Regexp(t, "^  [^ ]", lines[i][at:], "%s of %q", name, lines[i])
					}
				}
			}
		})
	}
}

// A communicator of one rank has no peers, and an operation that differs in place says both.
func TestExplainedCells(t *testing.T) {
	level := func(source string) *Result {
		return &Result{Levels: []Level{{Where: "in the host", Algorithm: "copy", Transport: "memory", Source: source}}}
	}
	row := Row{Out: level("this rank's alone, there are no peers")}
	require.Equal(t, "alone", explained[1].of(&row))
	require.Equal(t, "-", explained[2].of(&row))
	row.In = level("staged: a Go slice")
	require.Equal(t, "alone/staged", explained[1].of(&row))
	row.Out = level("staged: small")
	require.Equal(t, "staged", explained[1].of(&row))
}

// TestWayAndWire: files say which way data took between hosts, and over what.
func TestWayAndWire(t *testing.T) {
	cfg := Default("all_reduce")
	r, dir := explainedSample(&cfg), t.TempDir()
	require.NoError(t, r.Write(filepath.Join(dir, "x.csv"), false))
	b, err := os.ReadFile(filepath.Join(dir, "x.csv"))
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	require.NoError(t, err)
	at := slices.Index(rows[0], "levels")
	require.Equal(t, []string{"levels", "way", "wire", "model_us"}, rows[0][at:at+4])
	var got [][]string
	for _, row := range rows[1:] {
		got = append(got, row[at+1:at+4])
	}
	const tcp = "tcp eth0 (4 connections)"
	require.Equal(t, [][]string{{"exchange", tcp, "9.5"}, {"exchange", tcp, "9.5"}, {"halving", tcp, "12345.678"}, {"", "", ""}, {"", "", ""}, {"", "", ""}}, got)
	require.Equal(t, "in the host reduce-scatter and all-gather (push), shared memory; halving-doubling over 4 hosts, 2 lanes, tcp eth0", rows[3][at])

	text, err := json.Marshal(r.Results[1].Out)
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(text, &keys))
	require.Equal(t, []any{"halving", tcp, 4.0, 0.0}, []any{keys["way"], keys["wire"], keys["levels"].([]any)[1].(map[string]any)["hosts"],
		keys["levels"].([]any)[0].(map[string]any)["hosts"]})
}

// TestBenchHosts measures between hosts of one process, with the columns of -explain.
func TestBenchHosts(t *testing.T) {
	for _, k := range []struct {
		name      string
		ranks     conform.Layout
		op        string
		buffers   int
		bytes     int
		way, want string // the end of the row, a regular expression
	}{
		{"alone on their hosts", conform.Block(1, 1), "all_reduce", Registered, 1 << 20, "halving", "halving +direct  direct       [0-9.]+ +tcp "},
		{"small", conform.Block(1, 1), "all_reduce", Registered, 64, "exchange", "exchange +staged  staged       [0-9.]+ +tcp "},
		{"of several ranks", conform.Block(2, 2), "broadcast", GoSlices, 1 << 20, "tree", "tree +staged  -            [0-9.]+ +tcp "},
		{"a barrier", conform.Block(2, 1), "barrier", Registered, 8, "descriptors", "descriptors +-       -            [0-9.]+ +tcp "},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Setenv("UBCOLL_CUDA", "off")
			var out bytes.Buffer
			var rep *Report
			require.NoError(t, k.ranks.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit, Register: ubcoll.RegisterExplicit},
				func(ctx context.Context, c *ubcoll.Comm) error {
					cfg := Default(k.op)
					cfg.MinBytes, cfg.MaxBytes, cfg.Iterations, cfg.Warmup, cfg.Only, cfg.Buffers, cfg.Explain = k.bytes, k.bytes, 1, 0, OutOfPlace,
						k.buffers, true
					r, err := Run(ctx, c, cfg, Program{}, &out, nil)
					if c.Rank() == 0 {
						rep = r
					}
					return err
				}))
			require.Regexp(t, "(?m)^ .*  "+k.want+`\S+$`, out.String())
			v := rep.Results[0].Out
			require.Equal(t, k.way, v.Way)
			require.Regexp(t, "^tcp .", v.Wire)
			require.Equal(t, 2, v.Levels[len(v.Levels)-1].Hosts)
			require.Positive(t, rep.Results[0].Model)
		})
	}
}
