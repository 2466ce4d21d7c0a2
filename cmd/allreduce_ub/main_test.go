package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The tests run the program as users do: this test binary is started again, and there runs main instead of its tests.
func TestMain(m *testing.M) {
	if testkit.IsProgram() {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ranks4.golden is the "Expected Output" of NCCL's example of user buffer registration, word for word. The other files
// are that text for other numbers of ranks: a line about rank 0 stands for one about each rank.
func TestGolden(t *testing.T) {
	seed := golden(t, 4)
	for _, n := range []int{1, 2, 3, 8} {
		var want strings.Builder
		for line := range strings.Lines(seed) {
			switch {
			case strings.HasPrefix(line, "  Rank 0 "):
				for r := range n {
					want.WriteString(strings.NewReplacer("Rank 0", fmt.Sprint("Rank ", r), "device 0", fmt.Sprint("device ", r),
						"value: 0", fmt.Sprint("value: ", r)).Replace(line))
				}
			case !strings.HasPrefix(line, "  Rank "):
				want.WriteString(strings.NewReplacer("4 ranks", fmt.Sprint(n, " ranks"), "6.0", fmt.Sprintf("%d.0", n*(n-1)/2)).Replace(line))
			}
		}
		require.Equal(t, want.String(), golden(t, n))
	}
}

func golden(t *testing.T, ranks int) string {
	text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("ranks%d.golden", ranks)))
	require.NoError(t, err)
	return string(text)
}

func TestOutput(t *testing.T) {
	for _, c := range testkit.Sample(3, []struct {
		name  string
		ranks int
		env   []string
		args  []string
	}{
		{"4 by default", 4, nil, nil},
		{"4", 4, []string{"NTHREADS=4"}, nil},
		{"1", 1, []string{"NTHREADS=1"}, nil},
		{"2", 2, []string{"NTHREADS=2"}, nil},
		{"3", 3, []string{"NTHREADS=3"}, nil},
		{"8", 8, []string{"NTHREADS=8"}, nil},
		{"the config as it stands", 4, nil, []string{"-config", "../../configs/allreduce_ub.toml"}},
		{"in place", 4, nil, []string{"-in-place"}},
	}) {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, append(c.env, "UBCOLL_CUDA=off"), c.args...)
			require.Equal(t, golden(t, c.ranks), stdout)
			require.Equal(t, onHost+"\n", stderr)
			require.Equal(t, 0, code)
		})
	}
	t.Run("emulated GPUs", func(t *testing.T) {
		testkit.Long(t)
		environ := append(emulated.Environ(emulated.Library(t)), "UBCOLL_CUDA=auto", "UBCOLL_EMULATE_DEVICES=4")
		stdout, stderr, code := testkit.Program(t, environ)
		require.Equal(t, golden(t, 4), stdout)
		require.Empty(t, stderr)
		require.Equal(t, 0, code)
	})
}

// With several iterations it prints time and bandwidth.
func TestIterations(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_CUDA=off"}, "-in-place", "-n", "3")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^  3 iterations: the first took [\d.]+ us, the others [\d.]+ us \(median\), `+
		`algbw [\d.]+ GB/s, busbw [\d.]+ GB/s$`, stdout)
	require.Equal(t, strings.Count(golden(t, 4), "\n")+1, strings.Count(stdout, "\n"))
}

// The times are those of the slower rank, without the first call.
func TestTimed(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		us := [][]float64{{100, 1, 2, 9}, {50, 4, 2, 3}}[c.Rank()]
		p := &printer{w: io.Discard}
		if c.Rank() == 0 {
			p.w = &out
		}
		return timed(ctx, c, us, 8000, p)
	}))
	require.Equal(t, "  4 iterations: the first took 100.00 us, the others 4.00 us (median), algbw 2.000 GB/s, busbw 2.000 GB/s\n", out.String())
}

// A flag overrides the environment, and that overrides a file.
func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.toml")
	require.NoError(t, os.WriteFile(file, []byte("[allreduce]\nregistration = \"explicit\"\n"), 0o644))
	for _, c := range []struct {
		name  string
		env   []string
		flags []string
		says  bool
	}{
		{"the file's", nil, nil, true},
		{"the environment's", []string{"UBCOLL_REGISTER=off"}, nil, false},
		{"the flag's", []string{"UBCOLL_REGISTER=off"}, []string{"-registration", "explicit"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, c.env, append(c.flags, "-config", file, "-b", "64")...)
			require.Equal(t, 0, code, stderr)
			require.Equal(t, c.says, strings.Contains(stdout, "buffers deregistered"))
		})
	}
}

// What the flags say about pinning is what the ranks open with.
func TestPin(t *testing.T) {
	_, stderr, code := testkit.Program(t, []string{"UBCOLL_LOG=info", "UBCOLL_CUDA=off"}, "-pin", "required", "-b=64", "-config",
		"../../configs/allreduce_ub.toml")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, 4, strings.Count(stderr, " pin=required "), stderr)
}

// Which devices policy the job opens with: flags count more than the environment, and that more than the file.
func TestDevices(t *testing.T) {
	for _, c := range []struct {
		name, file, variable, flag string
		want                       ubcoll.DevicePolicy
	}{
		{"by default", "", "", "", ubcoll.DevicesAuto},
		{"the file's", "share", "", "", ubcoll.DevicesShare},
		{"the environment's", "share", "off", "", ubcoll.DevicesOff},
		{"the flag's", "off", "auto", "share", ubcoll.DevicesShare},
		{"required stays", "required", "share", "", ubcoll.DevicesRequired},
		{"required by a flag", "", "share", "required", ubcoll.DevicesRequired},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "job.toml")
			text := ""
			if c.file != "" {
				text = "[options]\ndevices = \"" + c.file + "\"\n"
			}
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			t.Setenv(env.CUDA.Name, "")
			os.Unsetenv(env.CUDA.Name)
			if c.variable != "" {
				t.Setenv(env.CUDA.Name, c.variable)
			}
			args := []string{"-config", file}
			if c.flag != "" {
				args = append(args, "-devices", c.flag)
			}
			e, err := configure(args, io.Discard)
			require.NoError(t, err)
			require.Equal(t, c.want, e.Options.Devices)
		})
	}
}

func TestEveryTypeAndOperation(t *testing.T) {
	want := map[string]string{"sum": "6.0", "prod": "0.0", "min": "0.0", "max": "3.0", "avg": "1.5"}
	for _, ty := range dtype.All() {
		for op, value := range want {
			if op != "sum" && ty != dtype.Float16 && ty != dtype.Int8 && ty != dtype.Bool {
				continue // package coll tests the whole product
			}
			if testkit.Daily() && ty != dtype.Float16 && ty != dtype.Bool {
				continue
			}
			if ty == dtype.Bool && op != "max" && op != "min" {
				continue // bool does not have it
			}
			t.Run(ty.String()+"/"+op, func(t *testing.T) {
				if op == "avg" && !ty.Float() || op == "max" && ty == dtype.Bool {
					value = "1.0"
				}
				stdout, stderr, code := testkit.Program(t, nil, "-d", ty.String(), "-o", op, "-elements", "1001")
				require.Equal(t, 0, code, "%s%s", stdout, stderr)
				require.Contains(t, stdout, "Expected: "+value+", Got: "+value+"\nResults verified correctly\n")
			})
		}
	}
}

func TestRegistration(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		says bool
	}{
		{"explicit", []string{"-registration", "explicit"}, true},
		{"auto", []string{"-registration", "auto"}, false},
		{"off", []string{"-registration=off", "-device=host", "-timeout=1m"}, false},
		{"off by config", []string{"-config", "../../configs/small_integers.toml"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, []string{"NTHREADS=2"}, c.args...)
			require.Equal(t, 0, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout, "Results verified correctly")
			require.Equal(t, c.says, strings.Contains(stdout, "buffers deregistered"),
				"only what was registered by the job is deregistered by it")
		})
	}
}

// If GPUs are asked for, the job does not run on the host instead.
func TestNoGPU(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_CUDA=off"}, "-device", "cuda", "-b=64")
	require.Equal(t, 5, code, "%s%s", stdout, stderr)
	require.Contains(t, stderr, "not supported")
	require.NotContains(t, stdout, "cleaned up")
}

// If something required is missing, the error names it, and nothing else is done.
func TestRequired(t *testing.T) {
	for _, what := range []string{"mpi", "cuda", "verbs"} {
		t.Run(what, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_CUDA=off", "UBCOLL_REQUIRE=" + what}, "-b=64")
			require.Equal(t, 5, code, "%s%s", stdout, stderr)
			require.Contains(t, stderr, "UBCOLL_REQUIRE lists "+what+": ")
			require.NotContains(t, stdout, "Starting")
		})
	}
	_, stderr, code := testkit.Program(t, []string{"UBCOLL_CUDA=off", "UBCOLL_REQUIRE=mpi,cuda"}, "-b=64") // verbs is Open's to find
	require.Equal(t, 5, code)
	require.Contains(t, stderr, "lists mpi")
	require.Contains(t, stderr, "lists cuda")
}

// A variable that looks like a setting and is none is reported once, and does not stop the job.
func TestUnknownVariable(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_ALGORITHM=ring"}, "-b=64")
	require.Equal(t, 0, code, "%s%s", stdout, stderr)
	require.Equal(t, 2, strings.Count(stderr, "\n"), stderr)
	require.Contains(t, stderr, onHost+"\n")
	require.Contains(t, stderr, `level=WARN msg="ubcoll: no such variable: did you mean UBCOLL_ALGO?" variable=UBCOLL_ALGORITHM`)
	_, stderr, _ = testkit.Program(t, []string{"UBCOLL_ALGORITHM=ring", "UBCOLL_LOG=error"}, "-b=64")
	require.Equal(t, onHost+"\n", stderr)
}

// A malformed variable is bad usage, and reported as such.
func TestMalformedVariables(t *testing.T) {
	for _, v := range []string{"UBCOLL_TIMEOUT=soon", "UBCOLL_REGISTER=maybe", "UBCOLL_CUDA=on", "UBCOLL_MAX_REGIONS=-1",
		"UBCOLL_LOG=nonsense", "UBCOLL_REQUIRE=gpu", "NTHREADS=many"} {
		t.Run(v, func(t *testing.T) {
			_, stderr, code := testkit.Program(t, []string{v}, "-b=64")
			require.Equal(t, 6, code, stderr)
			name, value, _ := strings.Cut(v, "=")
			require.Regexp(t, name+`="`+value+`": .*want .*: invalid argument`, stderr)
		})
	}
}

// What the machine cannot hold is refused before anything is allocated.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"ranks", []string{"NTHREADS=4096"}, nil, "4096 ranks, more than 4095: limit reached"},
		{"buffers", nil, []string{"-b", "1024G"}, "each rank needs 5242880 MiB, and a host has "},
		{"tuning table", []string{"UBCOLL_TUNING=/dev/zero"}, nil, "/dev/zero is no regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, c.env, c.args...)
			require.NotZero(t, code)
			require.Contains(t, stderr, c.want)
			require.NotContains(t, stdout, "allocating")
		})
	}
}

func TestCorrupted(t *testing.T) {
	for _, rank := range []string{"0", "2"} {
		for _, ty := range testkit.Sample(3, []string{"float32", "int8", "half"}) {
			t.Run(rank+"/"+ty, func(t *testing.T) {
				stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_TEST_CORRUPT=" + rank}, "-d", ty, "-elements=100")
				require.Equal(t, 7, code)
				require.Contains(t, stdout, "Results verification failed\n  Rank "+rank+
					" has 1 wrong elements, the first at index 50: expected 6, got 7\n")
				require.NotContains(t, stdout, "verified correctly")
				require.NotContains(t, stdout, "cleaned up")
				require.Contains(t, stderr, "wrong results on 1 of 4 ranks")
			})
		}
	}
}

// What is used wrongly says what is wrong, and the nearest right thing.
func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("job.toml", "[allreduce]\ntyp = 1\niterations = 0\n[job]\nranks = true\n")
	write("sweep.toml", "[sweep]\noperation = 'barrier'\n")
	t.Chdir(dir)
	for _, c := range []struct {
		name, args   string
		wrong, right string // in the error
	}{
		{"flag", "-typ half", "unknown flag --typ", "did you mean --type?"},
		{"nccl-tests' flag", "-dtype half", "unknown flag --dtype", "did you mean --type?"},
		{"flag, not near", "-bogus", "unknown flag --bogus", "-h lists the flags"},
		{"value", "-op", "--op needs a value", "sum, prod, min, max, avg"},
		{"argument", "4M", `unexpected argument "4M"`, "it takes flags alone"},
		{"size", "-b 4X", `--bytes: allreduce.bytes: invalid size "4X"`, "as in 4M"},
		{"part of an element", "-b 3", "3 bytes are not a whole number of float32 elements", "4 bytes each"},
		{"no elements", "-elements 0", "allreduce.elements", "must be 1 to 274877906944 (1 TiB of float32), not 0"},
		{"both sizes", "-b 4M -elements 3", "allreduce.bytes: given beside elements", "give one of them"},
		{"type", "-type float31", `unknown element type "float31"`, "did you mean float32?"},
		{"reduction", "-op mean", `allreduce.op: unknown value "mean"`, "did you mean avg?"},
		{"sum of bools", "-type bool", "there is no sum of bools", "only max, which is or, and min, which is and"},
		{"iterations", "-n 0", "allreduce.iterations", "must be 1 to 10000000, not 0"},
		{"too many iterations", "-n 1000000000000", "allreduce.iterations", "must be 1 to 10000000, not 1000000000000"},
		{"number", "-n x", "--iterations: allreduce.iterations", `must be an integer, not "x"`},
		{"switch", "-in-place=maybe", "--in-place: allreduce.in_place", `must be true or false, not "maybe"`},
		{"registration", "-registration on", `unknown registration policy "on"`, "(one of auto, explicit, off)"},
		{"pin", "-pin require", `--pin: options.pin: unknown pinning "require"`, "did you mean required?"},
		{"devices", "-devices shared", `--devices: options.devices: unknown device policy "shared"`, "did you mean share?"},
		{"device", "-device gpu", `allreduce.device: unknown value "gpu"`, "did you mean cuda?"},
		{"timeout", "-timeout 5", `--timeout: options.timeout: invalid duration "5"`, "as in 90s"},
		{"file", "-config jb.toml", "jb.toml: no such file", "did you mean job.toml?"},
		{"folder", "-config .", ". is a folder", "want a file"},
		{"file of ubcoll run", "-config sweep.toml", "sweep.toml is for ubcoll run sweep.toml", "wants a table [allreduce]"},
		{"key", "-config job.toml", "job.toml:2: allreduce.typ: unknown key", "did you mean type?"},
		{"all of a file", "-config job.toml", "job.toml:3: allreduce.iterations: must be 1 to", "job.toml:5: job.ranks: must be an integer"},
		{"file and flag", "-config job.toml -device gpu", "job.toml:2: ", `allreduce.device: unknown value "gpu"`},
		{"all flags", "-b 4X -o xor -n 0", `invalid size "4X"`, `allreduce.op: unknown value "xor"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			_, err := configure(strings.Fields(c.args), &out)
			require.ErrorContains(t, err, c.wrong)
			require.ErrorContains(t, err, c.right)
			require.Empty(t, out.String())
		})
	}
}

func TestExitCodes(t *testing.T) {
	three := filepath.Join(t.TempDir(), "three.toml")
	require.NoError(t, os.WriteFile(three, []byte("job.ranks = 3\n"), 0o644))
	for _, c := range []struct{ name, env, args, want string }{
		{"flag", "", "-typ half", "allreduce_ub: unknown flag --typ: did you mean --type?\nallreduce_ub: -h lists the flags\n"},
		{"algorithm", "", "-algorithm rign", `unknown algorithm "rign" (one of ring, `},
		{"nearest algorithm", "", "-algorithm rign", "did you mean ring?"},
		{"other ranks than the config's", "NTHREADS=2", "-config " + three, "asks for 3 ranks, but the job has 2"},
		{"fewer ranks than the job's", "NTHREADS=4", "-config " + three, "asks for 3 ranks, but the job has 4"},
		{"no ranks", "NTHREADS=0", "", `NTHREADS="0": want a whole number from 1`},
		{"hook without a rank", "UBCOLL_TEST_CORRUPT=x", "-b=64", `"x": want a rank`},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := testkit.Program(t, strings.Fields(c.env), strings.Fields(c.args)...)
			require.Equal(t, exitUsage, code, "%s%s", stdout, stderr)
			require.Contains(t, stderr, c.want)
		})
	}
	stdout, _, code := testkit.Program(t, nil, "-config", three)
	require.Equal(t, 0, code)
	require.Contains(t, stdout, "with 3 ranks", "without NTHREADS the config's number counts")
}

func TestUsage(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, nil, "-h")
	require.Equal(t, 0, code)
	require.Empty(t, stderr)
	for _, f := range flags {
		require.Contains(t, stdout, "--"+f.name+"\n")
	}
}

func TestExpected(t *testing.T) {
	for _, c := range []struct {
		name      string
		want, tol float64
		f         func(string, int) (float64, float64)
		op        string
		n         int
	}{
		{"one rank", 0, 0, expected[int8], "sum", 1},
		{"sum", 6, 0, expected[int64], "sum", 4},
		{"sum wraps", 120 + 16 - 256, 0, expected[int8], "sum", 17},
		{"unsigned wraps", 276 - 256, 0, expected[uint8], "sum", 24},
		{"avg of integers is cut", 1, 0, expected[int32], "avg", 4},
		{"avg", 1.5, 4*1.5/(1<<23) + 1.5/(1<<23), expected[float32], "avg", 4},
		{"max", 7, 0, expected[dtype.BF16], "max", 8},
		{"or", 1, 0, expected[bool], "max", 3},
		{"or of one rank", 0, 0, expected[bool], "max", 1},
		{"and", 0, 0, expected[bool], "min", 3},
		{"half sum", 28, 8 * 28.0 / (1 << 10), expected[dtype.F16], "sum", 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, tol := c.f(c.op, c.n)
			require.Equal(t, c.want, want)
			require.Equal(t, c.tol, tol)
		})
	}
}

func TestCheckSeesEachElement(t *testing.T) {
	for i := range 5 {
		got := fill(make([]float32, 5), 6)
		require.Zero(t, check(got, "sum", 4).wrong)
		got[i] = float32(math.NaN())
		f := check(got, "sum", 4)
		require.Equal(t, uint64(1), f.wrong)
		require.Equal(t, uint64(i), f.index)
		require.True(t, math.IsNaN(findingOf(f.words()).got))
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1.00 KB", 4 << 20: "4.00 MB",
		3 << 30: "3072.00 MB", 4000: "3.91 KB"} {
		require.Equal(t, want, size("%.2f", n))
	}
}
