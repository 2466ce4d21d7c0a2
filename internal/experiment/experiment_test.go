package experiment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/register"
)

func size(n int64) *Size { s := Size(n); return &s }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       func(*Experiment)
	}{
		{"empty", "", func(*Experiment) {}},
		{"every key", `
title = "all"
[job]
ranks = 4
[allreduce]
elements = "1K"
type = "half"
op = "max"
iterations = 3
in_place = true
registration = "off"
device = "host"
[options]
timeout = "90s"
net_timeout = "9s"
algorithm = "ring"
pin = "required"
devices = "share"
net = "tcp"
nvls = "off"
`, func(e *Experiment) {
			*e = Experiment{Title: "all", Job: Job{Ranks: 4}, Options: Options{Duration(90 * time.Second),
				Duration(9 * time.Second), "ring", register.PinRequired, ubcoll.DevicesShare, "tcp", "off"},
				AllReduce: AllReduce{Elements: size(1024), Type: dtype.Float16, Op: "max", Iterations: 3, InPlace: true,
					Registration: register.Off, Device: "host"}}
		}},
		{"other spellings", "job.ranks = 2\n'allreduce' = { \"bytes\" = 4096, type = \"int8\" }", func(e *Experiment) {
			e.Job.Ranks = 2
			e.AllReduce.Bytes = size(4096)
			e.AllReduce.Type = dtype.Int8
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := Default()
			c.want(want)
			got, err := Parse("x.toml", []byte(c.text))
			require.NoError(t, err)
			require.Equal(t, want, got)
			again, err := Parse("again.toml", []byte(got.String()))
			require.NoError(t, err, got.String())
			require.Equal(t, got, again, "String must read back to the same")
		})
	}
}

func TestParseFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"all at once, in line order", `# comment
title = 5
[job]
ranks = "four"
rank = 4
[allreduce]
bytes = 6
type = "float32"
op = "summ"
iterations = 0
in_place = "yes"
device = "gpu"
registration = "of"
timeout = "1m"
[options]
timeout = 10
pin = "requird"
devices = "shred"
colour = "red"
[[extra]]
`, `x.toml:2: title: must be a string, not the integer 5
x.toml:4: job.ranks: must be an integer, not a string
x.toml:5: job.rank: unknown key: did you mean ranks?
x.toml:7: allreduce.bytes: 6 bytes are not a whole number of float32 elements (4 bytes each)
x.toml:9: allreduce.op: unknown value "summ" (one of sum, prod, min, max, avg): did you mean sum?
x.toml:10: allreduce.iterations: must be 1 to 10000000, not 0
x.toml:11: allreduce.in_place: must be true or false, not a string
x.toml:12: allreduce.device: unknown value "gpu" (one of auto, host, cuda): did you mean cuda?
x.toml:13: allreduce.registration: unknown registration policy "of" (one of auto, explicit, off): did you mean off?: invalid argument
x.toml:14: allreduce.timeout: unknown key: did you mean options.timeout?
x.toml:16: options.timeout: invalid duration "10" (as in 90s, 10m, 1h30m)
x.toml:17: options.pin: unknown pinning "requird" (one of auto, required): did you mean required?: invalid argument
x.toml:18: options.devices: unknown device policy "shred" (one of auto, off, required, share): did you mean share?: invalid argument
x.toml:19: options.colour: unknown key (known here: timeout, net_timeout, algorithm, pin, devices, net, nvls)
x.toml:20: extra: unknown key (known here: title, job, allreduce, options)`},
		{"too long", "[options]\ntimeout = '9999999h30m'\n", `x.toml:2: options.timeout: duration "9999999h30m": too long, 2562047h at most`},
		{"another's name", "[allreduce]\nop = 'mean'",
			`x.toml:2: allreduce.op: unknown value "mean" (one of sum, prod, min, max, avg): did you mean avg?`},
		{"syntax", "[job]\nranks = \n", `x.toml:2: job.ranks: expected value but found '\n' instead`},
		{"key twice", "[job]\nranks = 1\nranks = 2", `x.toml:3: job.ranks: Key 'job.ranks' has already been defined`},
		{"table wanted", "job = 3", "x.toml:1: job: must be a table, not the integer 3"},
		{"array of tables", "\n[[job]]\nranks = 3\n[[job]]", "x.toml:4: job: must be a table, not an array"},
		{"table not wanted", "[title]", "x.toml:1: title: must be a string, not a table"},
		{"float", "[job]\nranks = 1.5", "x.toml:2: job.ranks: must be an integer, not a float"},
		{"date", "[job]\nranks = 2020-01-02", "x.toml:2: job.ranks: must be an integer, not a date or time"},
		{"boolean", "title = true", "x.toml:1: title: must be a string, not a boolean"},
		{"quoted key", "[job]\n\"ra nks\" = 1", `x.toml:2: job."ra nks": unknown key: did you mean ranks?`},
		{"both sizes", "[allreduce]\nelements = 4\nbytes = 16",
			"x.toml:3: allreduce.bytes: given beside elements: give one of them"},
		{"size of a bad kind", "[allreduce]\nbytes = 1.5", "x.toml:2: allreduce.bytes: must be an integer, or a string as \"4M\", not a float"},
		{"size of a bad form", "[allreduce]\nbytes = \"4X\"",
			`x.toml:2: allreduce.bytes: invalid size "4X" (digits, then possibly K, M or G, as in 4M)`},
		{"no elements", "[allreduce]\nelements = 0",
			"x.toml:2: allreduce.elements: must be 1 to 274877906944 (1 TiB of float32), not 0"},
		{"no bytes", "[allreduce]\nbytes = \"0G\"", "x.toml:2: allreduce.bytes: must be 1 to 1024G, not 0"},
		{"too many bytes", "[allreduce]\nbytes = \"1025G\"",
			"x.toml:2: allreduce.bytes: must be 1 to 1024G, not 1100585369600"},
		{"negative", "[job]\nranks = -1\n[options]\ntimeout='-1s'",
			"x.toml:2: job.ranks: must be 0 (as launched) or more, not -1\n" +
				"x.toml:4: options.timeout: must be 0 (the library's default) or longer, not -1s"},
		{"not text", "\x00\x01", "x.toml:1: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := Parse("x.toml", []byte(c.text))
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, fault.ErrArgument)
			require.Nil(t, e)
		})
	}
}

// Text on which the parser would spend gigabytes does not reach it.
func TestLimits(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"endless", strings.Repeat("#", 1<<20+1), "x.toml: longer than 65536 bytes: this is no experiment"},
		{"parts", "\n" + strings.Repeat("a.", 250_000/16) + "a = 1", "x.toml:2: a key of more than 8 parts"},
		{"one part more", strings.Repeat("a.", 8) + "a = 1", "x.toml:1: a key of more than 8 parts"},
		{"one bracket more", "a = " + strings.Repeat("[", 9), "x.toml:1: more than 8 brackets within each other"},
		{"one byte more", strings.Repeat("a", 256) + " = 1", "x.toml:1: a key of more than 256 bytes"},
		{"parts of a table", "[" + strings.Repeat("a.", 9) + "a]", "x.toml:1: a key of more than 8 parts"},
		{"quoted parts", strings.Repeat("''.", 9) + "a = 1", "x.toml:1: a key of more than 8 parts"},
		{"tables", "a = " + strings.Repeat("{a = ", 10_000) + "1", "x.toml:1: more than 8 brackets within each other"},
		{"arrays", "a = [1,\n" + strings.Repeat("[", 10_000), "x.toml:2: more than 8 brackets within each other"},
		{"long key", strings.Repeat("a", 300) + " = 1", "x.toml:1: a key of more than 256 bytes"},
		{"long quoted key", "x = {'" + strings.Repeat("=", 300) + "' = 1}", "x.toml:1: a key of more than 256 bytes"},
		{"long table", " [['" + strings.Repeat("]", 300) + "']]", "x.toml:1: a key of more than 256 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("x.toml", []byte(c.text))
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, fault.ErrLimit)
		})
	}
	for _, text := range []string{"", "a = " + strings.Repeat("[", 8) + strings.Repeat("]", 8), strings.Repeat("a", 256) + "=1",
		"title = '" + strings.Repeat(".[{", 5000) + "'", "# " + strings.Repeat("[", 100),
		"title = \"\"\"\n" + strings.Repeat("[a.b.c.d]\n", 5000) + "\"\"\"", "[a.b.c.d.e.f.g.h]\nx = 1.5\ny = 1979-05-27T00:32:00.9Z",
		"a = [\n'" + strings.Repeat("x", 300) + "',\n'" + strings.Repeat("y", 300) + "', {b = [[{c = 1}]]}]"} {
		line, msg := limits(text)
		require.Empty(t, msg, "%d: %.80q", line, text)
	}
	// As much of everything as the limits allow.
	var b strings.Builder
	fmt.Fprintf(&b, "[%s]\n", strings.Repeat(strings.Repeat("k", 28)+".", 7)+"k")
	for i := 0; b.Len() < maxFile-100; i++ {
		fmt.Fprintf(&b, "a%d.b.c.d={e.f.g.h={i.j.k.l=1}}\n", i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Parse("x.toml", []byte(b.String()))
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "unknown key")
	t.Logf("%d bytes of TOML took %d MiB in all", b.Len(), (after.TotalAlloc-before.TotalAlloc)>>20)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(512<<20))
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(filepath.Join(dir, "none.toml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "none.toml")
	_, err = Load(dir)
	require.ErrorContains(t, err, "is a folder: want a file")

	path := filepath.Join(dir, "x.toml")
	require.NoError(t, os.WriteFile(path, []byte("[job]\nranks = 3\n"), 0o644))
	e, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, 3, e.Job.Ranks)
}

// Every file in configs/ must be readable.
func TestConfigs(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			if strings.Contains(string(b), "\n[sweep]\n") {
				return // internal/sweep reads it
			}
			_, err = Load(f)
			require.NoError(t, err)
		})
	}
}

// Each field of the schema must be one that set can store, with a tag that names it.
func TestEveryFieldDecodes(t *testing.T) {
	text := map[string]string{"string": "x", "int": "7", "bool": "true", "dtype.Type": "int8",
		"*experiment.Size": "4K", "register.Policy": "off", "register.Pin": "required",
		"experiment.Duration": "1s", "ubcoll.DevicePolicy": "share"}
	for _, key := range leaves(reflect.TypeFor[Experiment](), "") {
		t.Run(key, func(t *testing.T) {
			e := &Experiment{}
			v := reflect.ValueOf(e).Elem()
			for _, k := range strings.Split(key, ".") {
				v = field(v, k)
			}
			require.NotEmpty(t, text[v.Type().String()], "no text to try on %v", v.Type())
			require.NoError(t, e.Set(key, text[v.Type().String()]))
			require.False(t, v.IsZero(), "Set did not store")
		})
	}
}

func TestSet(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"allreduce.typ", "half", "allreduce.typ: unknown key: did you mean allreduce.type?"},
		{"allreduce.type.x", "half", "allreduce.type.x: unknown key: did you mean allreduce.type?"},
		{"job.ranks", "x", `job.ranks: must be an integer, not "x"`},
		{"allreduce.in_place", "maybe", `allreduce.in_place: must be true or false, not "maybe"`},
		{"allreduce.elements", "-1", `allreduce.elements: invalid size "-1" (digits, then possibly K, M or G, as in 4M)`},
	} {
		t.Run(c.key, func(t *testing.T) { require.EqualError(t, Default().Set(c.key, c.text), c.want) })
	}
}

func TestCount(t *testing.T) {
	e := Default()
	require.Equal(t, 1<<20, e.AllReduce.Count())
	e.AllReduce.Type = dtype.Float64
	require.Equal(t, 1<<19, e.AllReduce.Count())
	e.AllReduce.Bytes = size(80)
	require.Equal(t, 10, e.AllReduce.Count())
	e.AllReduce.Bytes, e.AllReduce.Elements = nil, size(3)
	require.Equal(t, 3, e.AllReduce.Count())
	e.AllReduce.Type, e.AllReduce.Registration = 0, 7
	e.Options.Pin, e.Options.Devices, e.Options.NVLS = 7, 7, "yes"
	require.EqualError(t, e.Validate(), "allreduce.type: missing\n"+
		"allreduce.registration: registration policy 7 is unknown: invalid argument\noptions.pin: pinning 7 is unknown: invalid argument\n"+
		"options.devices: device policy 7 is unknown: invalid argument\noptions.nvls: unknown value \"yes\" (one of off, on)")
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		text string
		want Size
		back string
	}{
		{"0", 0, "0"}, {"8", 8, "8"}, {"1K", 1024, "1K"}, {"1k", 1024, "1K"}, {"1024", 1024, "1K"}, {"4M", 4 << 20, "4M"},
		{"1g", 1 << 30, "1G"}, {"2048G", 2 << 40, "2048G"}, {"1025", 1025, "1025"}, {"007", 7, "7"},
	} {
		got, err := ParseSize(c.text)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		require.Equal(t, c.back, got.String())
	}
	for _, bad := range []string{"", "K", "4X", "4KK", "-1", "+1", "1.5M", " 1", "9223372036854775808", "9007199254740992K"} {
		_, err := ParseSize(bad)
		require.Error(t, err, "%q", bad)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"", "0", "4M", "9g", "1024K", "9223372036854775807", "K", "-4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseSize(text)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, v, Size(0))
		again, err := ParseSize(v.String())
		require.NoError(t, err)
		require.Equal(t, v, again)
	})
}

// Each key has the right line, however it is written.
func TestLines(t *testing.T) {
	text := "\ufeffa = 1 # c\r\n" + // 1
		"b.c = [1, # ]\n" + // 2
		"  {d = 2}, [\"]\"]]\n" + // 3
		"\"q\\u0041 . \" . 'lit\\' = \"\"\"x\n" + // 4
		"[no]\\\"\"\" = 3\n" + // 5
		"\"\"\"\"\"\n" + // 6
		"l = '''\n" + // 7
		"m = 1'''\n" + // 8
		" [ t . \"u\" ] # [v]\n" + // 9
		"\tw = {x = 1, y.z = {k = '}'},\n" + // 10
		"  n = 2}\n" + // 11
		"[[r]]\n" + // 12
		"s = 1979-05-27 07:32:00\n" // 13
	var faults Faults
	_, err := Parse("x.toml", []byte(text))
	require.ErrorAs(t, err, &faults)
	got := map[string]int{}
	for _, f := range faults {
		got[f.Key] = f.Line
	}
	require.Equal(t, map[string]int{"a": 1, "b": 2, "\"qA . \"": 6, "l": 8, "r": 12, "t": 9}, got,
		"strings of several lines count where they end")
}

// For any text, faults have lines that exist in it; and an experiment that is read can be written and read again.
func FuzzParse(f *testing.F) {
	seeds, _ := filepath.Glob("../../configs/*.toml")
	for _, s := range seeds {
		b, err := os.ReadFile(s)
		require.NoError(f, err)
		f.Add(b)
	}
	for _, s := range []string{"", "a = 1", "[a.b]\nc.d = {e = [1, {f = 2}]}", "'' = ''", "\"\\x41\" = \"\"\"\n\"\"\"\"\"",
		"[[a]]\n[a.b]\n[[a]]", "a=[\n#]\n]", "[job]\nranks=0x10", "k = '''''x'''''", "a.\"b\\tc\" . d=1", "[[[", "a = {{{"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := string(data)
		if _, msg := limits(text); msg != "" {
			_, err := Parse("f.toml", data)
			require.ErrorIs(t, err, fault.ErrLimit)
			return // the rest of the test parses the text
		}
		total := strings.Count(text, "\n") + 1
		e, err := Parse("f.toml", data)
		if err == nil {
			again, err := Parse("again.toml", []byte(e.String()))
			require.NoError(t, err, e.String())
			require.Equal(t, e, again)
		}
		var faults Faults
		if errors.As(err, &faults) {
			for _, f := range faults {
				require.True(t, f.Line >= 0 && f.Line <= total, "%v: of %d lines", f, total)
			}
		}
		var table map[string]any
		if md, err := toml.Decode(text, &table); err == nil {
			for _, key := range md.Keys() {
				require.LessOrEqual(t, len(key), maxParts*(maxDepth+1), "%q", text)
			}
		}
	})
}

func ExampleParse() {
	_, err := Parse("job.toml", []byte("[allreduce]\ntype = \"float31\"\nelemnts = 4\n"))
	fmt.Println(err)
	// Output:
	// job.toml:2: allreduce.type: unknown element type "float31" (one of int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, bfloat16, float32, float64, bool, half, float, double): did you mean float32?
	// job.toml:3: allreduce.elemnts: unknown key: did you mean elements?
}
