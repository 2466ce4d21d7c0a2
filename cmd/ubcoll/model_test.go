package main

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/chart"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

func modelText(t *testing.T, args ...string) string {
	var out bytes.Buffer
	require.NoError(t, priceModel(args, &out))
	return out.String()
}

func TestModel(t *testing.T) {
	t.Setenv(env.Tuning.Name, "")
	require.Equal(t, `# by default costs; ubcoll tune measures those of your hosts
# a round of agreement 9500 ns, a message 16000 ns; a byte sent 165 ps, exchanged 250, combined 75, relayed 255, around a ring 293

all_reduce, 2 hosts
   size exchange doubling halving   ring
  65536    30.8*    46.8   60.34  63.16 
 524288            195.9   192.2* 214.8 
takes exchange, halving from 426848 bytes
`, modelText(t, "all_reduce", "-hosts", "2", "-b", "64K", "-e", "1M", "-f", "8"))
}

// Costs are those of the table, and a link's rate is shared by the lanes of a host.
func TestModelTable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "table.json")
	f := tuning.File{Version: tuning.Version}
	f.SetHosts("9 hosts", false, schedule.Model{Agree: 1000, Message: 1, Send: 1, Swap: 1000, Combine: 1, Relay: 1, Around: 1000})
	require.NoError(t, os.WriteFile(name, f.Bytes(), 0o644))
	t.Setenv(env.Tuning.Name, name)
	text := modelText(t, "alltoall", "-net", "verbs", "-hosts", "2", "-b", "16M", "-e", "16M")
	require.Contains(t, text, "# by default costs")
	text = modelText(t, "alltoall", "-hosts", "2", "-b", "16M", "-e", "16M")
	require.Contains(t, text, "# by the costs of 9 hosts")
	require.Contains(t, text, " 8390*")
	text = modelText(t, "alltoall", "-hosts", "2", "-ranks", "8", "-b", "16M", "-e", "16M", "-rate", "800mbit")
	require.Contains(t, text, "# links of 0.1 GB/s, which the ranks of a host share")
	require.Contains(t, text, "alltoall, 2 hosts of 8 ranks, 8 lanes\n")
	require.Contains(t, text, " 6.711e+05*") // 8 ranks send a half of 16 MiB each
}

// The file has each way's time, and ubcoll plot reads it. More ranks than a communicator has are the model's alone.
func TestModelFile(t *testing.T) {
	t.Setenv(env.Tuning.Name, "")
	name := filepath.Join(t.TempDir(), "model.csv")
	text := modelText(t, "-hosts", "3,4096", "-ranks", "8", "-b", "1K", "-e", "16M", "-f", "16", "-o", name)
	require.Equal(t, 8, strings.Count(text, ", 4096 hosts of 8 ranks, 8 lanes (the model's alone: a communicator has 4095 ranks at most)\n"))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	lines, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	require.NoError(t, err)
	chosen := map[string]int{}
	for _, l := range lines[1:] {
		require.Equal(t, l[1] == "4096", l[10] == "true", l)
		us, err := strconv.ParseFloat(l[6], 64)
		require.NoError(t, err)
		require.Positive(t, us)
		if l[9] == "true" {
			chosen[strings.Join([]string{l[0], l[1], l[5]}, " ")]++
		}
	}
	require.Len(t, chosen, 8*4+3*4+5*2, "sizes of less than an element for each rank are left out")
	for point, n := range chosen {
		require.Equal(t, 1, n, point)
	}
	r, err := chart.Read(name)
	require.NoError(t, err)
	figures, err := chart.Figures([]*chart.Run{r}, nil, nil)
	require.NoError(t, err)
	require.NotEmpty(t, figures)
}

func TestModelFaults(t *testing.T) {
	t.Setenv(env.Tuning.Name, "")
	for _, k := range []struct{ args, want string }{
		{"all_reduced", "did you mean all_reduce?"},
		{"barrier", `unknown operation "barrier"`},
		{"-hosts 1", `-hosts: "1": want numbers from 2 to 4096`},
		{"-hosts 2,4097", `-hosts: "4097": want numbers from 2 to 4096`},
		{"-hosts 2,,3", `-hosts: "": want numbers`},
		{"-ranks 0", "-ranks: 0: want 1 to 64"},
		{"-f 1", "-f: 1: want 2 or more"},
		{"-b 2K -e 1K", "-b 2K is more than -e 1K"},
		{"-b 0", `-b: "0": want 1 to 1024G`},
		{"-e 4X", `-e: `},
		{"-rate 10", `-rate: "10": want a rate as 25gbit or 800mbit`},
		{"-rate -1gbit", `-rate: "-1gbit": want a rate`},
		{"-rate 0gbit", `-rate: "0gbit": want a rate`},
		{"-o /nowhere/x.csv", "/nowhere/x.csv: no such file or directory"},
	} {
		t.Run(k.args, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorContains(t, priceModel(strings.Fields(k.args), &out), k.want)
		})
	}
}
