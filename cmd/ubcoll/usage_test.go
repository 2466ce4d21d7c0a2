package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What is used wrongly is told with the nearest right thing.
func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("prog", nil, 0o755))
	for _, c := range []struct {
		name, args string
		want       string // in the error
	}{
		{"launch: no program", "launch -np 2", "which program? ubcoll launch -np 4 -- ./prog"},
		{"launch: how many", "launch -- true", "how many ranks? -np 4"},
		{"launch: none", "launch -np 0 -- true", "--np 0: want a number of ranks from 1"},
		{"launch: no number", "launch -np four -- true", `invalid value "four" for flag -np`},
		{"launch: mpirun's flag", "launch -n 4 -- true", "unknown flag -n: did you mean --np?"},
		{"launch: Open MPI's flag", "launch --host a -- true", "unknown flag --host: did you mean --hosts?"},
		{"launch: misspelt flag", "launch -perfix -np 1 -- true", "unknown flag --perfix: did you mean --prefix?"},
		{"launch: not in PATH, but here", "launch -np 1 -- prog", "prog is not in PATH: did you mean ./prog?"},
		{"launch: not in PATH", "launch -np 1 -- no-such-program", "no-such-program is not in PATH"},
		{"launch: slots", "launch -hosts a:x -- true", `host "a:x": want a number of ranks from 1 behind the colon, as a:2`},
		{"launch: no host", "launch -hosts a, -- true", "has no name: want names with commas between"},
		{"launch: too many", "launch -np 1000000 -- true", "1000000 ranks, more than 65536"},
		{"launch: no variable", "launch -np 1 -x NOT_THERE -- true", "-x NOT_THERE: there is no such variable"},
		{"launch: a rank's variable", "launch -np 1 -x UBCOLL_RANK=1 -- true", "each rank has its own, which launch sets"},
		{"launch: grace", "launch -np 1 -grace 0s -- true", "--grace 0s: want more than 0"},
		{"env: argument", "env mpich", `env: unexpected argument "mpich"`},
		{"env: flag", "env -mpicc x", "env: unknown flag --mpicc"},
		{"version: argument", "version 1", `version: unexpected argument "1"`},
		{"version: flag", "version -jsn", "unknown flag --jsn: did you mean --json?"},
		{"plot: no results", "plot -o x.svg", "which results? ubcoll plot RESULTS ..., as results/smoke"},
		{"plot: nothing there", "plot no-such-results", "no-such-results: there is no such file: want a folder of ubcoll run"},
		{"plot: an experiment", "plot smoke.toml", "it is an experiment: ubcoll run smoke.toml writes its results to results/smoke"},
		{"plot: format", "plot -o x.pdf r", `"x.pdf": want a name that ends in .svg, .png, .html, .json, or in none of them`},
		{"plot: bound", "plot -bound fast r", `"fast": want GB/s, more than 0, as 450 or NVLink=450`},
		{"plot: axis", "plot -only rank=2 r", `unknown axis "rank"`},
		{"plot: nearest axis", "plot -only rank=2 r", "did you mean ranks?"},
		{"plot: flag", "plot -titel x r", "unknown flag --titel: did you mean --title?"},
		{"command of others", "plots", `unknown command "plots": did you mean plot`},
		{"completion: for what", "completion", "for which shell? bash, zsh or fish"},
		{"completion: shell", "completion bsh", `unknown shell "bsh" (bash, zsh or fish): did you mean bash?`},
		{"completion: two", "completion bash zsh", `unexpected argument "zsh"`},
		{"info: flag", "info -envs", "unknown flag --envs: did you mean --env?"},
		{"command", "verfy", `unknown command "verfy": did you mean verify`},
		{"command of mpirun", "lanch", `unknown command "lanch": did you mean launch`},
		{"bench: flag", "bench all_reduce -minbyte 8", "unknown flag --minbyte: did you mean --minbytes?"},
		{"bench: type", "bench all_reduce -d flaot", `unknown element type "flaot"`},
		{"bench: nearest type", "bench all_reduce -d flaot", "did you mean float?"},
		{"bench: reduction", "bench all_reduce -o mean", "did you mean avg?"},
		{"bench: operation", "bench bcast", "did you mean broadcast?"},
		{"bench: second operation", "bench all_reduce,bcast", "did you mean broadcast?"},
		{"bench: no operation between commas", "bench all_reduce,,barrier", `unknown operation ""`},
		{"bench: operation behind flags", "bench all_reduce -n 2 broadcast", `unexpected argument "broadcast": operations come before flags`},
		{"bench: mr with others", "bench all_reduce mr", "mr has flags of its own: ubcoll bench mr -h lists them"},
		{"bench: all, none of which can be", "bench all -n -1", "-1 iterations (-n)"},
		{"bench: window", "bench mbw_mr -W 0", "a window of 0 messages (-W)"},
		{"bench: no window", "bench mbw_mr -W x", `-W, --window-size: "x" is no whole number`},
		{"bench: pairs", "bench mbwmr", "did you mean mbw_mr?"},
		{"bench: overlap of what is none", "bench sendrecv --overlap 1", "overlap is measured of collectives, not of sendrecv"},
		{"bench: overlap, or not", "bench all_reduce --overlap yes", `--overlap: "yes" is neither 0 nor 1`},
		{"bench mr: flag", "bench mr -gidd 1", "unknown flag --gidd: did you mean --gid?"},
		{"verify: device", "verify -device gpu", "did you mean cuda?"},
		{"verify: type", "verify -d flaot", "-d: unknown element type \"flaot\""},
		{"verify: nearest type", "verify -d int8,flaot", "did you mean float?"},
		{"verify: size", "verify -b 1x", "-b: invalid size \"1x\""},
		{"verify: sizes that go down", "verify -b 2K -e 1K", "sizes from 2048 to 1024 bytes (-b, -e)"},
		{"verify: size of no element", "verify -b 2 -d half,float", "2 bytes (-b) have no float32 (-d), which takes 4"},
		{"verify: operation", "verify all_gater", "did you mean all_gather?"},
		{"verify: flag", "verify -sed 1", "unknown flag --sed: did you mean --seed?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(strings.Fields(c.args), &out)
			require.ErrorContains(t, err, c.want)
			var e exitError
			require.ErrorAs(t, err, &e)
			require.Equal(t, exitUsage, e.code)
			require.Empty(t, out.String())
		})
	}
}

// All commands' help has one form, which completions read.
func TestHelpForm(t *testing.T) {
	for _, c := range commands {
		var out bytes.Buffer
		require.ErrorIs(t, c.run([]string{"-h"}, &out), flag.ErrHelp, c.name)
		require.True(t, strings.HasPrefix(out.String(), "Usage: ubcoll "+c.name), c.name)
		for _, f := range flagLines(out.String()) {
			for _, n := range f.names {
				require.Regexp(t, `^(-\w|--\w[\w-]+)$`, n, "%s: one letter has one dash", c.name)
			}
			require.NotEmpty(t, f.help, c.name)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		stdout, stderr, code := testkit.Program(t, nil, "completion", shell)
		require.Equal(t, 0, code, stderr)
		for _, want := range []string{"all_reduce", "all ", "minbytes", "launch", "prefix", "mr"} {
			require.Contains(t, stdout, want, shell)
		}
	}
	stdout, _, _ := testkit.Program(t, nil, "completion", "bash")
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	file := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.WriteFile(file, []byte(stdout), 0o644))
	for _, c := range []struct{ words, want string }{
		{"ubcoll ben", "bench"}, {"ubcoll bench all_r", "all_reduce"}, {"ubcoll bench --minb", "--minbytes"},
		{"ubcoll launch --pre", "--prefix"}, {"ubcoll completion f", "fish"}, {"ubcoll version --j", "--json"},
	} {
		out, err := exec.Command(bash, "-c", `. "$1"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _ubcoll; echo "${COMPREPLY[@]}"`,
			"-", file, c.words).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.want+"\n", string(out), c.words)
	}
}

func TestVersion(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, nil, "version", "-json")
	require.Equal(t, 0, code, stderr)
	var a about
	require.NoError(t, json.Unmarshal([]byte(stdout), &a))
	require.Equal(t, built(), a)
	stdout, _, _ = testkit.Program(t, nil, "version")
	require.Contains(t, stdout, "ubcoll "+a.String()+"\n"+a.Go+" "+a.Platform)
	for _, c := range []struct {
		about about
		want  string
	}{
		{about{Version: "v0.1.0"}, "v0.1.0"},
		{about{Version: "devel", Revision: "0123456789abcdef"}, "devel 0123456789ab"},
		{about{Version: "devel", Revision: "0123456789abcdef", Modified: true}, "devel 0123456789ab+dirty"},
		{about{Version: "v0.0.0-2026-0123456789ab", Revision: "0123456789abcdef"}, "v0.0.0-2026-0123456789ab"},
	} {
		require.Equal(t, c.want, c.about.String())
	}
}

// What env prints a shell takes; the script of the repository says the same.
func TestEnv(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, []string{"MPICC=no-such-mpicc"}, "env")
	require.Equal(t, exitSupport, code, stdout)
	require.Contains(t, stderr, "MPICC=no-such-mpicc is not a command")
	// A wrapper and a launcher that say what Open MPI's do.
	dir := t.TempDir()
	cc := "#!/bin/sh\ncase $1 in *version) echo Open MPI 9 ;; *compile) echo \"-I/a'b -DX\" ;; *link) echo -L/c -lmpi ;; esac\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mpicc"), []byte(cc), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mpirun"), []byte("#!/bin/sh\necho mpirun of Open MPI\n"), 0o755))
	stdout, stderr, code = testkit.Program(t, []string{"MPICC=" + filepath.Join(dir, "mpicc")}, "env")
	require.Equal(t, 0, code, stderr)
	out, err := exec.Command("sh", "-c", stdout+"env").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "\nCGO_CFLAGS=-g -O2 -I/a'b -DX\n")
	require.Contains(t, "\n"+string(out), "\nMPIRUN="+filepath.Join(dir, "mpirun")+"\n")
}
