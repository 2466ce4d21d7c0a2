package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/flight"
)

// hungJob writes the dumps of a job in which rank 1 has not called an all-reduce.
func hungJob(t *testing.T, folder, job string, at time.Time) {
	for r := range 3 {
		d := flight.Dump{Version: flight.Version, Job: job, Rank: r, Size: 3, Host: "a", PID: 100 + r, Program: "prog", Time: at, Why: "SIGUSR2"}
		c := flight.Comm{ID: job, Rank: r, Size: 3, State: "open", Peer: -1}
		for pos, call := range []string{"barrier", "all_reduce(count 4, float32, sum)"} {
			o := flight.Op{Pos: uint32(pos + 1), Seq: uint64(pos + 1), Call: call, State: flight.Done.String()}
			if pos == 1 {
				o.State = flight.Entered.String()
			}
			if pos == 0 || r != 1 {
				c.Operations = append(c.Operations, o)
			}
		}
		d.Comms = []flight.Comm{c}
		require.NoError(t, d.Write(folder))
	}
}

func TestDump(t *testing.T) {
	folder, at := t.TempDir(), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	hungJob(t, folder, "7a01", at)
	hungJob(t, folder, "7a02", at.Add(time.Minute))
	for _, c := range []struct {
		name string
		args []string
		want []string
		not  string
	}{
		{"the latest", nil, []string{"job 7a02 (prog): 3 ranks, 3 dumps of 2026-11-30 12:01:00.000",
			"first difference (not called): ranks 0, 2 wait in all_reduce #2 for rank 1 (host a, pid 101)",
			"which has 1 other: -job 7a01"}, "not called on"},
		{"one of them", []string{"-job", "7a01"}, []string{"job 7a01 (prog)"}, "other"},
		{"operations", []string{"-ops", "1"}, []string{"#2 all_reduce(count 4, float32, sum), 0 bytes: entered on ranks 0, 2, not called on rank 1"},
			"#1 barrier, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(append([]string{"dump", folder}, c.args...), &out))
			for _, want := range c.want {
				require.Contains(t, out.String(), want)
			}
			require.NotContains(t, out.String(), c.not)
		})
	}
	var out bytes.Buffer
	require.NoError(t, run([]string{"dump", "-json", folder, "-job=7a01"}, &out))
	var f struct {
		Job      string
		Findings []struct {
			Kind  string
			Ranks []int
		}
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &f))
	require.Equal(t, "7a01 [{not called [1]}]", fmt.Sprint(f.Job, " ", f.Findings))
}
