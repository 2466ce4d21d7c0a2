//go:build linux

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

// onSwitch returns the variables of a job whose collectives a switch does, as far as it can, and its command: the first rank's host
// has the switch.
func onSwitch(t *testing.T, command ...string) (variables, all []string) {
	t.Helper()
	if !collnet.Supported {
		t.Skip("this build loads no plugins")
	}
	variables = []string{env.CollNet.Name + "=" + switchtest.Plugin(t, "11"), env.Algorithm.Name + "=collnet"}
	const script = `export COLLNET_SWITCH=${UBCOLL_RENDEZVOUS%:*}:7777
		if [ "$UBCOLL_RANK" = 0 ]; then
			"$0" -p 7777 &
			switch=$!
			"$@"
			code=$?
			kill $switch
			wait $switch
			exit $code
		fi
		exec "$@"`
	return variables, append([]string{"sh", "-c", script, switchtest.Build(t, "ubcoll-switch", "switch.c")}, command...)
}

// TestHostsCollNet: a switch does the arithmetic of four hosts, for host memory and for that of GPUs.
func TestHostsCollNet(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := program(t)
	for _, k := range []struct {
		ranks  string
		suites []string
		extra  []string
	}{
		{"1,1,1,1", []string{"offload", "matrix"}, gpus(t)},
		{"2,1,2,1", []string{"random", "hosts"}, nil},
		{"2,2,2,2", []string{"device", "offload"}, gpus(t)},
	} {
		if k.ranks == "2,2,2,2" && !testkit.Full() { // as many processes take their time
			k.suites = k.suites[:1]
		}
		t.Run(k.ranks, func(t *testing.T) {
			variables, command := onSwitch(t, append([]string{bin}, k.suites...)...)
			h := across(t, 4, []string{"-ranks", k.ranks}, append(variables, k.extra...), command...)
			h.succeed(t)
			for _, s := range k.suites {
				require.Contains(t, h.out.String(), fmt.Sprintf("ok %s: ", s))
			}
			require.Regexp(t, `(?m)^ubcoll-switch: [1-9][0-9]* calls$`, h.out.String())
			t.Log(h.out.String())
		})
	}
}

// TestHostsDeathsCollNet kills ranks and hosts, and cuts links, while a switch does the collectives; and while a call of the plugin is
// never complete.
func TestHostsDeathsCollNet(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	for _, fault := range testkit.Turns(t, 3, []string{"test=never@20", ""}) {
		t.Run("fault "+fault, func(t *testing.T) {
			deaths(t, 2, collNet, "COLLNET_SWITCH_FAULT="+fault)
		})
	}
}

// TestHostsCollNetAbort: a plugin that ends its process is that rank's death, which the others name.
func TestHostsCollNetAbort(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	dir := t.TempDir()
	variables, command := onSwitch(t, program(t), "kill-hosts")
	h := across(t, 3, []string{"-set", "b:COLLNET_SWITCH_FAULT=test=abort@20"}, append(variables, conform.DirVar+"="+dir), command...)
	for _, r := range []int{0, 2} {
		var report endings.Report
		var err error
		if !testkit.Until(func() bool { report, err = endings.ReadReport(dir, r); return err == nil }) {
			t.Fatalf("rank %d says nothing: %v: %s", r, err, h.out.String())
		}
		require.True(t, report.Lost, report.Text)
		require.Equal(t, 1, report.About, report.Text)
	}
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	require.Error(t, h.wait(t), "a job that lost a rank must not exit 0")
}
