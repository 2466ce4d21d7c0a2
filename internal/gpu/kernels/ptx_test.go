package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// modules returns the modules, with the kernels that each must have.
func modules() map[string][]string {
	m := map[string][]string{"move": {"ubc_move", "ubc_move_packets", "ubc_move_lines", "ubc_barrier"}, "move_v": {"ubc_move_v"},
		"broadcast": {"ubc_broadcast"}, "channel": {"ubc_channel"}, "messages": {"ubc_messages"},
		"wide_move":   {"ubc_wide_move", "ubc_wide_move_packets", "ubc_wide_barrier"},
		"wide_move_v": {"ubc_wide_move_v"}, "wide_broadcast": {"ubc_wide_broadcast"}, "wide_messages": {"ubc_wide_messages"}}
	for _, t := range dtype.All() {
		if t != kernelType(t) {
			continue // another type's kernels reduce it
		}
		m[fmt.Sprintf("group_%v", t)] = []string{fmt.Sprintf("ubc_group_%v", t)}
		m[fmt.Sprintf("ring_%v", t)] = []string{fmt.Sprintf("ubc_ring_%v", t)}
		for _, k := range []string{OneShot, TwoShot, Ring} {
			m[fmt.Sprintf("wide_%v", t)] = append(m[fmt.Sprintf("wide_%v", t)], fmt.Sprintf("ubc_wide_%s_%v", k, t))
		}
		for _, ranks := range []int{2, 4, Narrow} {
			module := fmt.Sprintf("reduce_%v_%d", t, ranks)
			for _, k := range []string{OneShot, Packets, Lines, TwoShot} {
				m[module] = append(m[module], fmt.Sprintf("ubc_%s_%v_%d", k, t, ranks))
			}
		}
	}
	return m
}

// TestPTX finds PTX that was not built from these sources, or that older drivers and devices would reject.
func TestPTX(t *testing.T) {
	testkit.SkipRace(t)
	entries, err := ptx.ReadDir("ptx")
	require.NoError(t, err)
	require.Len(t, entries, len(modules()))
	total, flags := int64(0), map[string]bool{}
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		total += info.Size()
	}
	for name, kernels := range modules() {
		t.Run(name, func(t *testing.T) {
			text, err := decompress(ptx, file(name))
			require.NoError(t, err)
			header := regexp.MustCompile(`(?m)^// sources: (.*)\n// sha256: (.*)$`).FindStringSubmatch(text)
			require.NotNil(t, header)
			flags[regexp.MustCompile(` -D\w+(=\w+)?`).ReplaceAllString(
				regexp.MustCompile(`(?s)^.*?// flags: [^\n]*`).FindString(text), "")] = true
			h := sha256.New()
			for _, f := range strings.Fields(header[1]) {
				source, err := os.ReadFile(filepath.Join("src", f))
				require.NoError(t, err)
				h.Write(source)
			}
			require.Equal(t, hex.EncodeToString(h.Sum(nil)), header[2], "run scripts/kernels")

			require.Regexp(t, `(?m)^\.version (7\.[0-9]+|8\.[01])$`, text)
			require.Regexp(t, `(?m)^\.target sm_80$`, text)
			early := assembly(text, true)
			require.Equal(t, text, assembly(text, false))
			require.Regexp(t, `(?m)^\.target sm_90$`, early)
			require.NotContains(t, early, "sm_80\n")
			require.NotContains(t, early, "/*")
			for _, wait := range []string{"griddepcontrol.wait;", "griddepcontrol.launch_dependents;"} {
				require.Len(t, regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(wait)+`$`).FindAllString(early, -1), len(kernels))
			}
			require.NotContains(t, text, ".local", "the stack of a thread is slow memory")
			require.NotContains(t, text, ".extern", "nothing to link it with")
			var found []string
			for _, m := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\($`).FindAllStringSubmatch(text, -1) {
				found = append(found, m[1])
			}
			require.ElementsMatch(t, kernels, found)
		})
	}
	require.Len(t, flags, 1, "built by one compiler, alike: run scripts/kernels")
	require.Less(t, total, int64(5<<19), "bytes of PTX in every program")
}

// TestRebuild builds some PTX again if that compiler is installed: the kernels that move data, one module for each
// number of ranks, and a ring, of types drawn at random, because all types together take half a minute. TestPTX checks
// that the others have the same sources and flags.
func TestRebuild(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("the compiler's work is the same in the plain run")
	}
	t.Parallel()
	clang := os.Getenv("CLANG")
	if clang == "" {
		clang = "clang-19"
	}
	version, err := exec.Command(clang, "--version").Output()
	if err != nil {
		t.Skipf("no %s: %v", clang, err)
	}
	committed, err := decompress(ptx, file("move"))
	require.NoError(t, err)
	builder := regexp.MustCompile(`with clang ([0-9.]+):`).FindStringSubmatch(committed)
	require.NotNil(t, builder)
	if !strings.Contains(string(version), "version "+builder[1]) {
		t.Skipf("built with clang %s, not with %s", builder[1], strings.SplitN(string(version), "\n", 2)[0])
	}
	dir := t.TempDir()
	names := []string{"move", "move_v", "broadcast", "wide_move", "wide_move_v"}
	for _, module := range []string{"reduce_%v_2", "reduce_%v_4", "reduce_%v_8", "group_%v", "ring_%v", "wide_%v"} {
		names = append(names, fmt.Sprintf(module, kernelType(dtype.Int8+dtype.Type(rand.IntN(int(dtype.Float64))))))
	}
	t.Log(names)
	out, err := exec.Command("../../../scripts/kernels", append([]string{dir}, names...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range names {
		require.Contains(t, modules(), name)
		want, err := decompress(ptx, file(name))
		require.NoError(t, err)
		got, err := decompress(os.DirFS(dir), filepath.Base(file(name))) // another gzip may have compressed it
		require.NoError(t, err)
		require.True(t, want == got, "%s differs: run scripts/kernels", name)
	}
}
