//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

// TestInfoCollNet: info says what a CollNet plugin can do, or why it cannot be loaded.
func TestInfoCollNet(t *testing.T) {
	path := switchtest.Plugin(t, "11")
	for _, k := range []struct {
		name, want string
		env        []string
	}{
		{"none", "", nil},
		{"a plugin", `(?m)^CollNet +plugin switch, version 11 of the interface \(/.*libnccl-net-test11.so\)\n0 switch0 +host memory; 10000 Mb/s; up to 1024 groups; 67108864 bytes a call$`,
			[]string{"UBCOLL_COLLNET_PLUGIN=" + path, "COLLNET_SWITCH=127.0.0.1:1"}},
		{"no switch", `(?m)^CollNet +init of the CollNet plugin "switch": invalid usage \(5\)$`, []string{"UBCOLL_COLLNET_PLUGIN=" + path}},
		{"no plugin", `(?m)^CollNet +no CollNet plugin "nowhere": `, []string{"UBCOLL_COLLNET_PLUGIN=nowhere"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, k.env, "info")
			require.Equal(t, 0, code, stderr)
			if k.want == "" {
				require.NotContains(t, stdout, "CollNet")
				return
			}
			require.Regexp(t, k.want, stdout)
		})
	}
}
