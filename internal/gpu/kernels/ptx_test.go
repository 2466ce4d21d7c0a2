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
	"slices"
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
		"broadcast": {"ubc_broadcast"}, "carry": {"ubc_carry", "ubc_carry_step"}, "copier": {"ubc_copier"}, "channel": {"ubc_channel"}, "messages": {"ubc_messages"},
		"wide_move":   {"ubc_wide_move", "ubc_wide_move_packets", "ubc_wide_barrier"},
		"wide_move_v": {"ubc_wide_move_v"}, "wide_broadcast": {"ubc_wide_broadcast"}, "wide_messages": {"ubc_wide_messages"}}
	for name, kernel := range nvlsModules() {
		m[name] = []string{kernel}
	}
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

// nvlsModules returns the modules that LoadNVLS loads, each with its kernel.
func nvlsModules() map[string]string {
	m := map[string]string{"nvls_move": "ubc_nvls_move"}
	for _, t := range nvlsTypes {
		m[fmt.Sprintf("nvls_%v", t)] = fmt.Sprintf("ubc_nvls_%v", t)
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
			flags[regexp.MustCompile(`( -D\w+(=\w+)?|=sm_[89]0|\+ptx8[12])`).ReplaceAllString(
				regexp.MustCompile(`(?s)^.*?// flags: [^\n]*`).FindString(text), "")] = true
			upToDate(t, header)

			if nvlsModules()[name] == "" {
				require.Regexp(t, `(?m)^\.version (7\.[0-9]+|8\.[01])$`, text)
				require.Regexp(t, `(?m)^\.target sm_80$`, text)
			} else { // multimem needs 8.1 and sm_90, .acc::f32 needs 8.2
				require.Equal(t, strings.Contains(text, ".acc::f32"), strings.Contains(text, "\n.version 8.2\n"))
				require.Regexp(t, `(?m)^\.version 8\.[12]$`, text)
				require.Regexp(t, `(?m)^\.target sm_90$`, text)
			}
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

// upToDate compares the hash in a module's header, its sources and their hash, with the files.
func upToDate(t *testing.T, header []string) {
	h := sha256.New()
	for _, f := range strings.Fields(header[1]) {
		source, err := os.ReadFile(filepath.Join("src", f))
		require.NoError(t, err)
		h.Write(source)
	}
	require.Equal(t, hex.EncodeToString(h.Sum(nil)), header[2], "run scripts/kernels")
}

// TestMultimem looks for the instructions in the modules for multicast: those that a type has, and no others. Nothing
// else may use any, and the stand-ins for them are of the same sources.
func TestMultimem(t *testing.T) {
	const load, store = "multimem.ld_reduce.relaxed.sys.global.", "multimem.st.relaxed.sys.global.v4.f32"
	integers := func(bits string) []string {
		return []string{load + "add.u" + bits, load + "min.u" + bits, load + "max.u" + bits, load + "min.s" + bits,
			load + "max.s" + bits, store}
	}
	halves := func(typ string) []string {
		return []string{load + "add.acc::f32.v4." + typ, load + "min.v4." + typ, load + "max.v4." + typ, store}
	}
	want := map[string][]string{"nvls_move": {store}, "nvls_float32": {load + "add.v4.f32", store},
		"nvls_float16": halves("f16x2"), "nvls_bfloat16": halves("bf16x2"), "nvls_uint32": integers("32"),
		"nvls_uint64": integers("64")}
	instruction := regexp.MustCompile(`(?m)^multimem\S+`)
	for name := range modules() {
		text, err := decompress(ptx, file(name))
		require.NoError(t, err)
		found := instruction.FindAllString(text, -1)
		slices.Sort(found)
		require.ElementsMatch(t, want[name], slices.Compact(found), name)
		if want[name] == nil {
			continue
		}
		// Between accesses by different addresses: at the beginning, after the descriptors, before signals, and after waits.
		require.GreaterOrEqual(t, strings.Count(text, "fence.proxy.alias;"), 4, name)
		text = standIn(t, name)
		require.Empty(t, instruction.FindAllString(text, -1))
		require.Contains(t, text, ".visible .entry ubc_stand_in_"+strings.TrimPrefix(name, "nvls_")+"(")
		require.Regexp(t, `(?m)^\.target sm_80$`, text)
		upToDate(t, regexp.MustCompile(`(?m)^// sources: (.*)\n// sha256: (.*)$`).FindStringSubmatch(text))
	}
	require.Len(t, want, len(nvlsModules()))
}

// standIn returns the PTX of the stand-in for a module for multicast.
func standIn(t *testing.T, module string) string {
	text, err := decompress(os.DirFS("testdata"), strings.Replace(module, "nvls", "stand_in", 1)+".ptx.gz")
	require.NoError(t, err)
	return text
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
	names := []string{"move", "move_v", "broadcast", "wide_move", "wide_move_v", "nvls_move", "nvls_float16"}
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
