package sweep

import (
	"bytes"
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestHosts: a run between hosts measures every way, and its files say which was taken, over what. On one host ways between
// hosts are left out.
func TestHosts(t *testing.T) {
	const text = `[sweep]
operation = ["all_reduce", "broadcast", "barrier"]
bytes     = "256K"
algorithm = ["auto", "ring", "doubling", "chain"]
[run]
iterations = 1
`
	for _, k := range []struct {
		name  string
		ranks conform.Layout
		want  []string // operation, algorithm that was asked for, way
		left  []string // what is skipped
	}{
		{"two hosts", conform.Block(1, 1), []string{"all_reduce auto doubling", "all_reduce ring ring", "all_reduce doubling doubling",
			"broadcast  tree", "broadcast chain chain", "barrier  descriptors"}, nil},
		{"one host", conform.Block(2), []string{"all_reduce auto ", "all_reduce ring ", "broadcast  ", "barrier  "},
			[]string{"skipped all_reduce 256K float32 sum doubling ", "skipped broadcast 256K float32 chain ", ": doubling is between hosts, and these ranks are on one"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Setenv("UBCOLL_CUDA", "off")
			s, err := Parse("x.toml", []byte(text))
			require.NoError(t, err)
			dir := t.TempDir()
			var out bytes.Buffer // rank 0 alone writes
			require.NoError(t, k.ranks.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
				return Measure(ctx, c, &Job{Spec: s, Config: text, Dir: dir, Out: &out})
			}))
			for _, text := range k.left {
				require.Contains(t, out.String(), text)
			}
			b, err := os.ReadFile(filepath.Join(dir, CSVFile))
			require.NoError(t, err)
			rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
			require.NoError(t, err)
			at := func(name string) int { return slices.Index(rows[0], name) }
			require.Equal(t, at("levels")+1, at("way"))
			require.Equal(t, at("levels")+2, at("wire"))
			var got []string
			for _, r := range rows[1:] {
				way := r[at("way")]
				got = append(got, r[at("operation")]+" "+r[at("requested_algorithm")]+" "+way)
				require.Regexp(t, map[bool]string{true: "^$", false: "^tcp [^ ]+$"}[way == ""], r[at("wire")])
			}
			require.Equal(t, k.want, got)
			_, records, err := Read(dir)
			require.NoError(t, err)
			require.Len(t, records, len(got))
			for _, r := range records {
				require.Equal(t, r.Way == "", r.Wire == "")
			}
		})
	}
}

// TestPairsBetweenHosts: messages, channels and windows are operations of an experiment, and ranks, where hosts have one each, its
// hosts. What has one size or type has one point of it.
func TestPairsBetweenHosts(t *testing.T) {
	const text = `[sweep]
operation = ["pingpong", "channel", "put_bw", "accumulate", "fetch_add"]
bytes     = ["8", "8K"]
type      = ["float32", "int8"]
variant   = ["put"]
ranks     = [2, 3, 4]
[run]
iterations = 2
`
	t.Setenv("UBCOLL_CUDA", "off")
	s, err := Parse("x.toml", []byte(text))
	require.NoError(t, err)
	dir := t.TempDir()
	var out bytes.Buffer // rank 0 alone writes
	require.NoError(t, conform.Block(1, 1, 1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		return Measure(ctx, c, &Job{Spec: s, Config: text, Dir: dir, Out: &out})
	}))
	require.Contains(t, out.String(), "skipped 2: put_bw has rank i send to rank i+n/2: want an even number of ranks, not 3")
	_, records, err := Read(dir)
	require.NoError(t, err)
	points := map[string]int{}
	for _, r := range records {
		require.Equal(t, r.Ranks, r.Hosts(), r)
		require.Regexp(t, "^tcp ", r.Wire)
		require.Zero(t, *r.Wrong, r)
		points[r.Operation+" "+r.Type]++
	}
	require.Equal(t, map[string]int{"pingpong float32": 6, "pingpong int8": 6, "channel uint8": 6, "put_bw uint8": 4, "accumulate float32": 6,
		"fetch_add uint64": 3}, points)
}
