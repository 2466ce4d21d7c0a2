package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/sweep"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What is used wrongly says what is wrong, and the nearest right thing.
func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		testkit.WriteProgram(t, filepath.Join(dir, name), text)
	}
	write("prog", "")
	write("there.json", "{}")
	write("good.toml", smallSweep)
	write("bad.toml", "[sweep]\noperatoin = 'all_reduce'\nbytes = '4X'\n")
	write("never.toml", "[sweep]\ntype = 'bool'\n")
	write("job.toml", "[allreduce]\ntype = 'half'\n")
	for name, text := range map[string]string{
		"dumps/ubcoll-7a01-00000.json":  `{"version":1,"job":"7a01","size":1}`,
		"dumps/ubcoll-7a02-00000.json":  `{"version":1,"job":"7a02","size":1}`,
		"dumps2/ubcoll-7a01-00000.json": `{"version":2,"job":"7a01","size":1}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o777))
		write(name, text)
	}
	done := []string{"run", filepath.Join(dir, "good.toml"), "-o", filepath.Join(dir, "done"), "-quick", "-operation", "barrier"}
	_, stderr, code := testkit.Program(t, nil, done...)
	require.Equal(t, 0, code, stderr)
	t.Chdir(dir)
	for _, c := range []struct {
		name, args   string
		wrong, right string // in the error
	}{
		{"command", "verfy", `unknown command "verfy"`, "did you mean verify? ubcoll help lists them"},
		{"command of mpirun", "lanch", `unknown command "lanch"`, "did you mean launch?"},
		{"command, not near", "quux", `unknown command "quux"`, ": ubcoll help lists them"},
		{"command's flag", "--version", `unknown command "--version"`, "did you mean version?"},
		{"no command", "", "which command?", "ubcoll help lists them"},

		{"bench: no operation", "bench -b 8", "which operation?", "(all_reduce, all_gather, "},
		{"bench: operation", "bench allreduce", `unknown operation "allreduce"`, "did you mean all_reduce?"},
		{"bench: MPI's operation", "bench bcast", `unknown operation "bcast"`, "did you mean broadcast?"},
		{"bench: second operation", "bench all_reduce,bcast", `unknown operation "bcast"`, "did you mean broadcast?"},
		{"bench: no operation between commas", "bench all_reduce,,barrier", `unknown operation ""`, "one of all_reduce, "},
		{"bench: operation behind flags", "bench all_reduce -n 2 broadcast", `unexpected argument "broadcast"`,
			"operations come before flags"},
		{"bench: mr with others", "bench all_reduce mr", "mr has flags of its own", "ubcoll bench mr -h lists them"},
		{"bench: all, none of which can be", "bench all -n -1", "-1 iterations (-n)", "want 1 or more"},
		{"bench: flag", "bench all_reduce -minbyte 8", "unknown flag --minbyte", "did you mean --minbytes?"},
		{"bench: flag's beginning", "bench all_reduce -warmup 8", "unknown flag --warmup", "did you mean --warmup_iters?"},
		{"bench: flag, not near", "bench all_reduce -Q 8", "unknown flag -Q", "-h lists the flags"},
		{"bench: value", "bench all_reduce -n", "-n needs a value", "timed calls (by size"},
		{"bench: size", "bench all_reduce -b 8Q", `--minbytes: invalid size "8Q"`, "digits, then possibly K, M or G, as in 4M"},
		{"bench: negative size", "bench all_reduce -e -1", `--maxbytes: invalid size "-1"`, "as in 4M"},
		{"bench: sizes", "bench all_reduce -b 1M -e 1K", "sizes from 1048576 to 1024 bytes (-b, -e)", "want the larger one last"},
		{"bench: steps", "bench all_reduce -f 0", "step factor 0 (-f)", "want 1 or more"},
		{"bench: sizes beside", "bench all_reduce -also 1K,", `--also: invalid size ""`, "as in 4M"},
		{"bench: type", "bench all_reduce -d flaot", `unknown element type "flaot"`, "did you mean float?"},
		{"bench: reduction", "bench all_reduce -o mean", `unknown operation "mean"`, "did you mean avg?"},
		{"bench: sum of bools", "bench all_reduce -d bool -o sum", "no [sum] of [bool]", "only max and min (-o, -d)"},
		{"bench: number", "bench all_reduce -n 1.5", `-n, --iters: "1.5"`, "want a whole number"},
		{"bench: calls", "bench all_reduce -n -3", "-3 iterations (-n)", "want 1 or more, or 0"},
		{"bench: skipped calls", "bench all_reduce -n 5 -K 5", "5 calls to skip of 5 (-K, -n)", "fewer than are timed"},
		{"bench: switch", "bench all_reduce -I yes", `-I, --per_iter_timing: "yes"`, "want 0 or 1"},
		{"bench: average", "bench all_reduce -a 7", "average of kind 7", "(-a): want 0, 1, 2 or 3"},
		{"bench: buffers", "bench all_reduce -R 5", "buffers of kind 5", "(-R): want 0, 1 or 3"},
		{"bench: ranks", "bench all_reduce -t 0", `-t, --nthreads: "0"`, "want a number of ranks from 1"},
		{"bench: timeout", "bench all_reduce -T soon", `-T, --timeout: "soon"`, "want seconds, or a duration as 2m"},
		{"bench: device", "bench all_reduce -device gpu", `unknown device "gpu"`, "did you mean cuda?"},
		{"bench: algorithm", "bench all_reduce --algorithm rign", `algorithm "rign"`, "did you mean ring?"},
		{"bench: seed", "bench all_reduce --seed -1", `--seed: "-1"`, "want a whole number below 2^32"},
		{"bench: bandwidth", "bench all_reduce --min-busbw fast", `--min-busbw: "fast"`, "want GB/s, more than 0"},
		{"bench: output", "bench barrier -J x.txt", `"x.txt"`, "want a name that ends in .json, .jsonl or .csv"},
		{"bench: output is there", "bench barrier -J there.json", `"there.json" is there already`, "name another"},
		{"bench: output nowhere", "bench barrier -J no/such/x.csv", "no/such", "no such file or directory"},
		{"bench: append", "bench barrier -append", "no file to add to", "name it with -J"},
		{"bench: append or not", "bench barrier -append=x", `--append: "x"`, "want true or false"},
		{"bench: explain or not", "bench barrier -explain=x", `--explain: "x"`, "want true or false"},
		{"bench: calls of single times", "bench all_reduce -I 1 --loop 1", "a loop has no times of single calls", "-I beside --loop"},
		{"bench: memory of windows", "bench window -R 0", "window moves registered memory only", "-R 1"},

		{"bench: window", "bench mbw_mr -W 0", "a window of 0 messages (-W)", "want"},
		{"bench: no window", "bench mbw_mr -W x", `-W, --window-size: "x"`, "whole number"},
		{"bench: pairs", "bench mbwmr", `unknown operation "mbwmr"`, "did you mean mbw_mr?"},
		{"bench: overlap of what is none", "bench sendrecv --overlap 1", "overlap is measured of collectives", "not of sendrecv"},
		{"bench: overlap, or not", "bench all_reduce --overlap yes", `--overlap: "yes"`, "want 0 or 1"},
		{"bench mr: flag", "bench mr -gidd 1", "unknown flag --gidd", "did you mean --gid?"},
		{"bench mr: an operation's flag", "bench mr -G 3", "unknown flag -G", "-h lists the flags"},
		{"bench mr: words", "bench mr -b 9", "messages from 9 bytes (-b)", "want a multiple of 8"},
		{"bench mr: size", "bench mr -e 1x", `-e: invalid size "1x"`, "as in 4M"},
		{"bench mr: sizes", "bench mr -b 1M -e 8", "messages from 1048576 to 8 bytes (-b, -e)", "want more at the end"},
		{"bench mr: number", "bench mr -n many", `-n "many"`, "want a whole number"},
		{"bench mr: region", "bench mr -max 1", "regions of 1 bytes (-max)", "want 4096 at least, or 0 for none"},
		{"bench mr: row", "bench mr -gid -3", "row -3 of the table of GIDs (-gid)", "or -1, which takes the best"},
		{"bench mr: devices", "bench mr -dev ^", `"^" lists no device`, "want names with commas between"},
		{"bench mr: output", "bench mr -J x.csv", `-J "x.csv"`, "want a name that ends in .json"},
		{"bench mr: output is there", "bench mr -J there.json", `"there.json" is there already`, "name another"},
		{"bench mr: timeout", "bench mr -T -1s", "timeout -1s is negative", "or 0 for the default"},
		{"bench mr: argument", "bench mr put", `unexpected argument "put"`, "-h lists"},

		{"verify: device", "verify -device gpu", `unknown device "gpu"`, "did you mean cuda?"},
		{"verify: type", "verify -d int8,flaot", `-d: unknown element type "flaot"`, "did you mean float?"},
		{"verify: smallest size", "verify -b 1x", `-b: invalid size "1x"`, "as in 4M"},
		{"verify: sizes that go down", "verify -b 2K -e 1K", "sizes from 2048 to 1024 bytes (-b, -e)", "the larger one last"},
		{"verify: size of no element", "verify -b 2 -d half,float", "2 bytes (-b) have no float32 (-d)", "which takes 4"},
		{"verify: operation before flags", "verify all_gater -b 1K", `"all_gater"`, "did you mean all_gather?"},
		{"verify: operation", "verify all_gater", `"all_gater"`, "did you mean all_gather?"},
		{"verify: not to be verified", "verify channel", `"channel" cannot be verified`, "one of all_reduce, "},
		{"verify: flag", "verify -sed 1", "unknown flag --sed", "did you mean --seed?"},
		{"verify: size", "verify -e 4X", `-e: invalid size "4X"`, "as in 4M"},
		{"verify: ranks", "verify -t many", `-t "many"`, "want a whole number"},
		{"verify: no ranks", "verify -t -1", "-t -1", "want a number of ranks"},
		{"verify: timeout", "verify -T 5", `-T "5"`, "want a duration, as 30s or 10m"},
		{"verify: no time", "verify -T 0s", "-T 0s", "want more than 0"},
		{"verify: seed", "verify -seed 4294967296", "-seed 4294967296", "want a whole number below 2^32"},

		{"run: no file", "run", "which file?", "ubcoll run FILE.toml"},
		{"run: two files", "run good.toml bad.toml", "one file at a time", "ubcoll check takes several"},
		{"run: file", "run god.toml", "god.toml: no such file", "did you mean good.toml?"},
		{"run: folder", "run done", "done is a folder", "want a file"},
		{"run: key", "run bad.toml", "bad.toml:2: sweep.operatoin: unknown key", "did you mean operation?"},
		{"run: size in the file", "run bad.toml", `bad.toml:3: sweep.bytes: invalid size "4X"`, "as in 4M"},
		{"run: a job's file", "run job.toml", "job.toml is for allreduce_ub -config job.toml", "ubcoll run wants a table [sweep]"},
		{"run: flag", "run good.toml -repeat 2", "unknown flag --repeat", "did you mean --repeats?"},
		{"run: flag's beginning", "run good.toml --dry", "unknown flag --dry", "did you mean --dry-run?"},
		{"run: sizes", "run good.toml -bytes 8..", `--bytes: sweep.bytes: invalid size ""`, "a range is FROM..TO xFACTOR, as in 8..64M x4"},
		{"run: operation", "run good.toml -operation allreduce", `sweep.operation: unknown value "allreduce"`, "did you mean all_reduce?"},
		{"run: reduction", "run good.toml -reduction mean", `sweep.reduction: unknown value "mean"`, "did you mean avg?"},
		{"run: number", "run good.toml -ranks x", "--ranks: sweep.ranks", `must be an integer, not "x"`},
		{"run: no repeats", "run good.toml -repeats 0", "run.repeats", "must be 1 to 10000, not 0"},
		{"run: devices", "run good.toml -devices shared", `--devices: run.devices: unknown device policy "shared"`,
			"did you mean share?"},
		{"verify: devices", "verify -devices on", `unknown device policy "on"`, "(one of auto, off, required, share)"},
		{"bench: devices", "bench all_reduce --devices on", `--devices: unknown device policy "on"`,
			"(one of auto, off, required, share)"},
		{"bench: multicast", "bench all_reduce -nvls yes", `--nvls: unknown value "yes"`, "(one of off, on)"},
		{"verify: multicast", "verify -nvls 1", `unknown value "1"`, "(one of off, on)"},
		{"run: multicast", "run good.toml -nvls auto", `run.nvls: unknown value "auto"`, "(one of off, on)"},
		{"run: duration", "run good.toml -timeout 5", `--timeout: run.timeout: invalid duration "5"`, "as in 90s"},
		{"run: ranks", "run good.toml -t -1", "-t -1", "want a number of ranks"},
		{"run: results in a file", "run good.toml -o job.toml", "-o job.toml", "want a folder, and that is a file"},
		{"run: nothing possible", "run never.toml -n", "no combination of the lists is possible", "no [sum] of [bool]"},
		{"plot: no results", "plot -o x.svg", "which results?", "ubcoll plot RESULTS ..., as results/smoke"},
		{"plot: nothing there", "plot doen", "plot: doen: there is no such file", "want a folder of ubcoll run"},
		{"plot: an experiment", "plot smoke.toml", "it is an experiment", "ubcoll run smoke.toml writes its results to results/smoke"},
		{"plot: format", "plot -o x.pdf r", `"x.pdf"`, "want a name that ends in .svg, .png, .html, .json, or in none of them"},
		{"plot: bound", "plot -bound fast r", `"fast"`, "want GB/s, more than 0, as 450 or NVLink=450"},
		{"plot: axis", "plot -only rank=2 r", `unknown axis "rank"`, "did you mean ranks?"},
		{"plot: flag", "plot -titel x r", "unknown flag --titel", "did you mean --title?"},
		{"plot: command of others", "plots", `unknown command "plots"`, "did you mean plot?"},
		{"check: no file", "check", "which files?", "ubcoll check FILE.toml ..."},
		{"check: flag", "check -q good.toml", "unknown flag -q", "-h lists the flags"},
		{"check: file", "check god.toml", "god.toml: no such file", "did you mean good.toml?"},
		{"check: all files", "check bad.toml never.toml", "bad.toml:2: ", "never.toml: no combination"},
		{"compare: one run", "compare done", "want two runs, not 1", "ubcoll compare A B"},
		{"compare: no run", "compare done dome", "dome: no such file", "did you mean done?"},
		{"compare: no results", "compare done good.toml", "good.toml:1: no results of ubcoll run", "of ubcoll run"},
		{"compare: flag", "compare done done -treshold 5", "unknown flag --treshold", "did you mean --threshold?"},
		{"compare: threshold", "compare done done -threshold -5", `--threshold: "-5"`, "want percent, 0 or more"},

		{"tune: flag", "tune -devic host", "unknown flag --devic", "did you mean --device?"},
		{"tune: device", "tune -device gpu", `unknown device "gpu"`, "did you mean cuda?"},
		{"tune: size", "tune -e 1K", "-e: 1024 bytes", "want 64K or more"},
		{"tune: ranks", "tune -t -1", "-t -1", "want a number of ranks"},
		{"tune: operation", "tune all_reduce", `unexpected argument "all_reduce"`, "-h lists"},
		{"tune: no table", "tune -o good.toml", "tuning table good.toml", "remove that file, or name another one (-o)"},
		{"tune: nowhere", "tune -o doe/x.json", "there is no folder doe", "did you mean done?"},

		{"launch: no program", "launch -np 2", "which program?", "ubcoll launch -np 4 -- ./prog"},
		{"launch: how many", "launch -- true", "how many ranks?", "-np 4"},
		{"launch: none", "launch -np 0 -- true", "--np 0", "want a number of ranks from 1"},
		{"launch: no number", "launch -np four -- true", `--np "four"`, "want a whole number"},
		{"launch: mpirun's flag", "launch -n 4 -- true", "unknown flag -n", "did you mean --np?"},
		{"launch: Open MPI's flag", "launch --host a -- true", "unknown flag --host", "did you mean --hosts?"},
		{"launch: misspelt flag", "launch -perfix -np 1 -- true", "unknown flag --perfix", "did you mean --prefix?"},
		{"launch: not in PATH, but here", "launch -np 1 -- prog", "prog is not in PATH", "did you mean ./prog?"},
		{"launch: not in PATH", "launch -np 1 -- no-such", "no-such is not in PATH", "as bin/no-such"},
		{"launch: slots", "launch -hosts a:x -- true", `host "a:x"`, "want a number of ranks from 1 behind the colon, as a:2"},
		{"launch: no host", "launch -hosts a, -- true", "has no name", "want names with commas between"},
		{"launch: too many", "launch -np 1000000 -- true", "1000000 ranks", "more than 65536"},
		{"launch: no variable", "launch -np 1 -x NOT_THERE -- true", "-x NOT_THERE: there is no such variable", "-x NOT_THERE=value"},
		{"launch: a rank's variable", "launch -np 1 -x UBCOLL_RANK=1 -- true", "-x UBCOLL_RANK", "each rank has its own, which launch sets"},
		{"launch: grace", "launch -np 1 -grace 0s -- true", "--grace 0s", "want more than 0"},
		{"launch: no duration", "launch -np 1 -grace 5 -- true", `--grace "5"`, "want a duration, as 30s or 10m"},

		{"dump: no folder", "dump", "which folder?", "UBCOLL_DUMP=DIR"},
		{"dump: two folders", "dump done dumps", `unexpected argument "dumps"`, "one folder at a time"},
		{"dump: nothing there", "dump doen", "doen: there is no such folder", "did you mean done?"},
		{"dump: a file", "dump good.toml", "good.toml: want the folder", "that is a file"},
		{"dump: no dumps", "dump done", "done has no dumps", "UBCOLL_DUMP=done"},
		{"dump: flag", "dump done -job", "-job needs a value", "which job of the folder"},
		{"dump: flag of none", "dump done -opps 2", "unknown flag --opps", "did you mean --ops?"},
		{"dump: number", "dump done -ops many", `--ops "many"`, "want a whole number"},
		{"dump: no such number", "dump done -ops -1", "--ops -1", "want 0 or more"},
		{"dump: another version", "dump dumps2", "version 2 of the format", "reads 1"},
		{"dump: job", "dump dumps -job 12", `unknown job "12"`, "(one of 7a01, 7a02, latest)"},
		{"dump: several jobs", "dump dumps -job 7", `--job "7": several jobs begin like that`, "(7a01, 7a02)"},

		{"ps: argument", "ps job", `ps: unexpected argument "job"`, "want numbers of processes"},
		{"ps: flag behind", "ps 17 -v", `ps: unexpected argument "-v"`, "behind the flags"},
		{"ps: flag", "ps -wach 1s", "ps: unknown flag --wach", "did you mean --watch?"},
		{"ps: no time", "ps -watch -1s", "ps: --watch -1s", "want more than 0"},
		{"ps: no unit", "ps -watch 1", `--watch "1"`, "want a duration, as 30s or 10m"},
		{"ps: dump and show", "ps -dump -json", "ps: --dump shows nothing", "want it alone"},

		{"doctor: argument", "doctor mpi", `doctor: unexpected argument "mpi"`, "-h lists"},
		{"doctor: flag", "doctor -jsn", "doctor: unknown flag --jsn", "did you mean --json?"},
		{"info: argument", "info env", `info: unexpected argument "env"`, "-h lists"},
		{"info: flag", "info -envs", "info: unknown flag --envs", "did you mean --env?"},
		{"env: argument", "env mpich", `env: unexpected argument "mpich"`, "-h lists"},
		{"env: flag", "env -mpicc x", "env: unknown flag --mpicc", "-h lists the flags"},
		{"version: argument", "version 1", `version: unexpected argument "1"`, "-h lists"},
		{"version: flag", "version -jsn", "unknown flag --jsn", "did you mean --json?"},
		{"version: switch", "version -json=maybe", `--json "maybe"`, "want true or false"},
		{"completion: for what", "completion", "for which shell?", "bash, zsh or fish"},
		{"completion: shell", "completion bsh", `unknown shell "bsh" (one of bash, fish, zsh)`, "did you mean bash?"},
		{"completion: two", "completion bash zsh", `unexpected argument "zsh"`, "-h lists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(strings.Fields(c.args), &out)
			require.ErrorContains(t, err, c.wrong)
			require.ErrorContains(t, err, c.right)
			require.Equal(t, exitUsage, exitCode(err))
			require.Empty(t, out.String())
		})
	}
}

// What only the ranks of a job can find wrong, one of them says.
func TestWrongUseOfJob(t *testing.T) {
	good, done := sweepFile(t, smallSweep), filepath.Join(t.TempDir(), "done")
	_, stderr, code := testkit.Program(t, nil, "run", good, "-o", done, "-quick", "-operation", "barrier")
	require.Equal(t, 0, code, stderr)
	again := "run " + good + " -o " + done + " -quick -operation barrier "
	for _, c := range []struct {
		name, env, args string
		wrong, right    string // on standard error
	}{
		{"root", "", "bench broadcast -b 64 -e 64 -n 2 -r 5", "root 5 of 2 ranks", "of 2 ranks"},
		{"variable", "NTHREADS=many", "bench barrier -n 2", `NTHREADS="many"`, "want a whole number from 1"},
		{"variable of a launcher's process", "UBCOLL_RANK=0 UBCOLL_SIZE=1 UBCOLL_RANKS_PER_PROCESS=0", "bench barrier",
			`UBCOLL_RANKS_PER_PROCESS="0"`, "want a whole number from 1"},
		{"algorithm by a variable", "UBCOLL_ALGO=rung", "run " + good, `UBCOLL_ALGO="rung"`, "want one of ring, "},
		{"RDMA between 3", "NTHREADS=3", "bench mr", "the job has 3", "measures between 2 ranks"},
		{"tune: one algorithm", "UBCOLL_ALGO=ring", "tune -device host", "UBCOLL_ALGO asks for ring", "unset it"},
		{"run: nothing possible", "", "run " + good + " -type bool -operation reduce -o " + done + "2",
			"no combination of the lists is possible", "only max and min"},
		{"run: settings of another", "", again + "-seed 7", "is of another run:\n  run.seed: was 1, is 7\n", "-force"},
		{"run: ranks of another", "", again + "-t 4", "  ranks: was 3, is 4\n", "-force"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := testkit.Program(t, strings.Fields(c.env), strings.Fields(c.args)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, c.wrong)
			require.Contains(t, stderr, c.right)
		})
	}
	stdout, stderr, code := testkit.Program(t, nil, strings.Fields(again+"-force -seed 7")...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "measurements in "+done)
	require.FileExists(t, filepath.Join(done, sweep.PointsFile+".1"))
	_, stderr, code = testkit.Program(t, nil, "compare", done, done, "-threshold", "0")
	require.Equal(t, 0, code, stderr)
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

// Each shell reads its completions, and offers what a line can go on with.
func TestCompletion(t *testing.T) {
	for _, shell := range []struct {
		name, flag string
		script     string // loads the completions of $1, and prints what it offers for each line behind that, and =
	}{
		{"bash", "--norc", `. "$1"; f=$(complete -p ubcoll); f=${f#*-F }; f=${f% ubcoll}
			for line in "${@:2}"; do
				COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); $f
				echo "${COMPREPLY[@]}"; echo =
			done`},
		{"zsh", "-f", `autoload -U compinit && compinit -u -D && . "$1" && f=${_comps[ubcoll]##* } || exit
			for line in "${@:2}"; do
				words=(${=line}); CURRENT=$#words; COMP_WORDS=($words); COMP_CWORD=$((CURRENT-1))
				compgen -F $f | grep -e "^$words[CURRENT]" # as zsh does itself
				echo =
			done`},
		{"fish", "--no-config", `source $argv[2]
			for line in $argv[3..-1]
				complete -C $line | cut -f 1
				echo =
			end`},
	} {
		t.Run(shell.name, func(t *testing.T) {
			text, stderr, code := testkit.Program(t, nil, "completion", shell.name)
			require.Equal(t, 0, code, stderr)
			for _, want := range []string{"all_reduce", "minbytes", "launch", "prefix", "mr"} {
				require.Contains(t, text, want)
			}
			program, err := exec.LookPath(shell.name)
			if err != nil {
				t.Skip("there is no " + shell.name)
			}
			home := t.TempDir() // where a shell may leave what it likes
			file := filepath.Join(home, "completions")
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			args := []string{shell.flag, "-c", shell.script, "-", file}
			var want []string
			for _, c := range []struct{ line, want string }{
				{"ubcoll ben", "bench"}, {"ubcoll bench all_r", "all_reduce"}, {"ubcoll bench --minb", "--minbytes"},
				{"ubcoll launch --pre", "--prefix"}, {"ubcoll dump --jo", "--job"}, {"ubcoll completion f", "fish"}, {"ubcoll version --j", "--json"},
				{"ubcoll verify all_to", ""}, {"ubcoll verify allt", "alltoall alltoallv"},
			} {
				args, want = append(args, c.line), append(want, c.want)
			}
			cmd := exec.Command(program, args...)
			cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, strings.Join(strings.Fields(strings.Join(want, " = ")+" ="), " "), strings.Join(strings.Fields(string(out)), " "))
		})
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
	testkit.WriteProgram(t, filepath.Join(dir, "mpicc"), cc)
	testkit.WriteProgram(t, filepath.Join(dir, "mpirun"), "#!/bin/sh\necho mpirun of Open MPI\n")
	stdout, stderr, code = testkit.Program(t, []string{"MPICC=" + filepath.Join(dir, "mpicc")}, "env")
	require.Equal(t, 0, code, stderr)
	out, err := exec.Command("sh", "-c", stdout+"env").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "\nCGO_CFLAGS=-g -O2 -I/a'b -DX\n")
	require.Contains(t, "\n"+string(out), "\nMPIRUN="+filepath.Join(dir, "mpirun")+"\n")

	// They let Open MPI's launcher start more ranks than there are cores, and root's; what the user has set stays.
	for _, c := range []struct {
		name, id, set string
		want, not     []string
	}{
		{"a user", "1000", "", []string{"OMPI_MCA_rmaps_base_oversubscribe='1'", "PRTE_MCA_rmaps_default_mapping_policy=':oversubscribe'"},
			[]string{"ROOT"}},
		{"root", "0", "", []string{"OMPI_MCA_rmaps_base_oversubscribe='1'", "OMPI_ALLOW_RUN_AS_ROOT='1'", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1'",
			"PRTE_ALLOW_RUN_AS_ROOT='1'", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM='1'"}, nil},
		{"a user's own", "1000", "OMPI_MCA_rmaps_base_oversubscribe=0", []string{"OMPI_MCA_rmaps_base_oversubscribe='0'"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.WriteProgram(t, filepath.Join(dir, "id"), "#!/bin/sh\necho "+c.id+"\n")
			stdout, stderr, code := testkit.Program(t, []string{"MPICC=" + filepath.Join(dir, "mpicc"), "PATH=" + dir + ":" + os.Getenv("PATH"),
				"OMPI_MCA_rmaps_base_oversubscribe=", "PRTE_MCA_rmaps_default_mapping_policy=", c.set}, "env")
			require.Equal(t, 0, code, stderr)
			for _, want := range c.want {
				require.Contains(t, stdout, "export "+want+"\n")
			}
			for _, not := range c.not {
				require.NotContains(t, stdout, not)
			}
		})
	}
}

// The launcher that env names starts more ranks than there are cores, without flags, whoever asks.
func TestEnvStarts(t *testing.T) {
	testkit.Long(t)
	for _, mpicc := range []string{"mpicc.openmpi", "mpicc.mpich"} {
		t.Run(mpicc, func(t *testing.T) {
			lines, stderr, code := testkit.Program(t, []string{"MPICC=" + mpicc}, "env")
			if code == exitSupport && !env.Requires("mpi") {
				t.Skip(stderr)
			}
			require.Equal(t, 0, code, stderr)
			n := runtime.NumCPU() + 1
			// MPICH's mpiexec ends by SIGPIPE if a process ends while others are being started.
			out, err := exec.Command("sh", "-c", lines+fmt.Sprintf("$MPIRUN -n %d sh -c 'echo started; sleep 1'", n)).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, n, strings.Count(string(out), "started\n"), "%s", out)
		})
	}
}
