package lint

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestProject(t *testing.T) {
	require.FileExists(t, "../../"+architecture)
	faults, err := Check(os.DirFS("../.."))
	require.NoError(t, err)
	for _, f := range faults {
		t.Error(f)
	}
}

// Each rule must be able to fail, and must fail only where it should.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             string // "" if the file is in order
	}{
		{"an import", "coll/a.go", `package coll; import _ "github.com/ubcoll/ubcoll/register"`, ""},
		{"an import that is not among the only ones", "register/a.go", `package register; import _ "github.com/ubcoll/ubcoll/internal/mem"`,
			"register/a.go:1: register must not import internal/mem: the cache knows memory and transports by its interfaces only"},
		{"an import that a rule forbids", "internal/team/a.go", `package team; import _ "github.com/ubcoll/ubcoll/internal/transport/ipc"`,
			"internal/team/a.go:1: internal/team must not import internal/transport/ipc: a team is the ranks of one host, "},
		{"import the root from below", "hw/a.go", `package hw; import _ "github.com/ubcoll/ubcoll"`,
			"hw/a.go:1: hw must not import the root: bindings and common words know nothing of ranks"},
		{"the root imports a tool", "a.go", `package ubcoll; import _ "github.com/ubcoll/ubcoll/internal/bench"`,
			"a.go:1: the root must not import internal/bench: programs that use the library do not carry its tools"},
		{"import within hw", "hw/verbs/a.go", `package verbs; import _ "github.com/ubcoll/ubcoll/hw/shm"`, ""},
		{"a program imports all", "bootstrap/internal/c/a.go", `package main; import _ "github.com/ubcoll/ubcoll/internal/bench"`, ""},
		{"a test looks up", "a_test.go", `package ubcoll_test; import _ "github.com/ubcoll/ubcoll/coll"`, ""},
		{"a new package", "util/a.go", `package util; import _ "github.com/ubcoll/ubcoll/coll"`, ""},
		{"a module whose name begins as ours", "dtype/a.go", `package dtype; import _ "github.com/ubcoll/ubcollision/x"`, ""},
		{"C in a binding", "hw/cpu/a.go", "package cpu\n\nimport \"C\"", ""},
		{"C above", "coll/a.go", "package coll\n\nimport \"C\"", "coll/a.go:3: C belongs in hw and bootstrap only"},
		{"system calls in place", "internal/mem/a.go", `package mem; import _ "golang.org/x/sys/unix"`, ""},
		{"system calls above", "p2p/a.go", `package p2p; import _ "golang.org/x/sys/unix"`,
			"p2p/a.go:1: system calls belong in"},
		{"undocumented function", "coll/a.go", "package coll\n\nfunc F() {}\n", "coll/a.go:3: exported F has no comment"},
		{"undocumented method", "coll/a.go", "package coll\n\n// T is.\ntype T[E any] struct{}\n\nfunc (*T[E]) M() {}\n",
			"coll/a.go:6: exported M has no comment"},
		{"undocumented type", "coll/a.go", "package coll\n\ntype T int\n", "coll/a.go:3: exported T has no comment"},
		{"undocumented variable", "coll/a.go", "package coll\n\nvar a, B = 1, 2\n", "coll/a.go:3: exported B has no comment"},
		{"documented", "coll/a.go", "package coll\n\n// F is.\nfunc F() {}\n\n// These are.\nvar (\n\tA int\n)\n\n" +
			"const (\n\tB = 1 // is\n)\n\ntype t int\n\nfunc (t) M() {}\n", ""},
		{"finalizer", "coll/a.go", "package coll\n\nimport \"runtime\"\n\nfunc f() { runtime.SetFinalizer(nil, nil) }\n",
			"coll/a.go:5: runtime.SetFinalizer: nothing is freed"},
		{"cleanup", "coll/a.go", "package coll\n\nimport \"runtime\"\n\nvar _ = runtime.AddCleanup[int, int]\n",
			"coll/a.go:5: runtime.AddCleanup: nothing is freed"},
		{"another logger", "coll/a.go", "package coll\n\nfunc f() { slog.Warn(\"\") }\n", "coll/a.go:3: slog.Warn: the library's"},
		{"another logger with a context", "coll/a.go", "package coll\n\nfunc f() { slog.InfoContext(nil, \"\") }\n",
			"coll/a.go:3: slog.InfoContext: the library's"},
		{"the logger", "internal/logs/a.go", "package logs\n\nfunc f() { slog.Default() }\n", ""},
		{"the logger of tests", "internal/testkit/a.go", "package testkit\n\nfunc f() { slog.Default() }\n", ""},
		{"variable outside the table", "coll/a.go", "package coll\n\nimport \"os\"\n\nvar v = os.Getenv(\"UBCOLL_X\")\n",
			"coll/a.go:5: UBCOLL_X is read outside internal/env"},
		{"variable by a constant", "coll/a.go",
			"package coll\n\nimport \"os\"\n\nconst n = \"UBCOLL_X\"\n\nvar _, v = os.LookupEnv(n)\n",
			"coll/a.go:7: UBCOLL_X is read outside internal/env"},
		{"variable in the table", "internal/env/a.go",
			"package env\n\nimport \"os\"\n\nvar v = os.Getenv(\"UBCOLL_X\")\n", ""},
		{"variable that nobody reads", "internal/env/a.go", "package env\n\n// Log is.\nvar Log = define(1)\n\nfunc f() { Log.Get() }\n",
			"internal/env/a.go:4: nobody reads variable Log"},
		{"variable that nobody reads but tests", "internal/env/a.go", "package env\n\n// Tested is.\nvar Tested = define(1)\n",
			"internal/env/a.go:4: nobody reads variable Tested"},
		{"variable that is read", "internal/env/a.go", "package env\n\n// Read is.\nvar Read = define(1)\n", ""},
		{"another's variable", "coll/a.go", "package coll\n\nimport \"os\"\n\nvar v = os.Getenv(\"PMI_SIZE\")\n", ""},
		{"test hook", "coll/a.go", "package coll\n\nimport \"os\"\n\nvar v = os.Getenv(\"UBCOLL_TEST_X\")\n", ""},
		{"not Go", "coll/a.go", "package", "coll/a.go: coll/a.go:1:8: expected 'IDENT'"},
		{"another's variable is set", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/engine\"\n\nfunc init() { engine.F = nil }\n",
			"coll/a.go:5: sets engine.F, a variable of another package"},
		{"another's variable is set by another name", "coll/a.go",
			"package coll\n\nimport e \"github.com/ubcoll/ubcoll/internal/engine\"\n\nfunc f() { _, e.F = 1, nil }\n",
			"coll/a.go:5: sets e.F, a variable of another package"},
		{"another package is called in an init", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/engine\"\n\nfunc init() { engine.Add(nil) }\n",
			"coll/a.go:5: calls engine.Add, of another package, at init"},
		{"another package is called elsewhere", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/engine\"\n\nfunc f() { engine.Add(nil) }\n", ""},
		{"a field is set", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/team\"\n\nfunc f(team *team.Work) { team.Err = nil }\n", ""},
		{"another module's variable is set", "coll/a.go", "package coll\n\nimport \"os\"\n\nfunc f() { os.Args = nil }\n", ""},
		{"a dot import", "coll/a.go", "package coll\n\nimport . \"github.com/ubcoll/ubcoll/internal/engine\"\n",
			"coll/a.go:3: imports github.com/ubcoll/ubcoll/internal/engine with a dot, which hides whose its names are"},
		{"a dot import of another module", "coll/a.go", "package coll\n\nimport . \"os\"\n", ""},
		{"a program imports what is for tests", "cmd/x/a.go",
			`package main; import _ "github.com/ubcoll/ubcoll/internal/testkit"`,
			"cmd/x/a.go:1: cmd/x must not import internal/testkit, which is for tests"},
		{"a package imports what is for tests", "internal/bench/a.go",
			`package bench; import _ "github.com/ubcoll/ubcoll/internal/gpu/emulated"`,
			"internal/bench/a.go:1: internal/bench must not import internal/gpu/emulated, which is for tests"},
		{"a test imports what is for tests", "coll/a_test.go",
			`package coll; import _ "github.com/ubcoll/ubcoll/internal/testkit/gputest"`, ""},
		{"what is for tests imports such", "internal/conform/x/a.go",
			`package x; import _ "github.com/ubcoll/ubcoll/internal/testkit"`, ""},
		{"a program of a suite imports what is for tests", "internal/conform/job/a.go",
			`package main; import _ "github.com/ubcoll/ubcoll/internal/conform/x"`, ""},
		{"a function shows what users cannot see", "coll/a.go",
			"package coll\n\nimport t \"github.com/ubcoll/ubcoll/internal/team\"\n\n// F is.\nfunc F(...t.Vec) {}\n",
			"coll/a.go:6: shows t.Vec, of an internal package"},
		{"a field shows what users cannot see", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/team\"\n\n// T is.\ntype T struct {\n\tF team.Vec // is\n}\n",
			"coll/a.go:7: shows team.Vec, of an internal package"},
		{"a value shows what users cannot see", "a.go",
			"package ubcoll\n\nimport \"github.com/ubcoll/ubcoll/internal/team\"\n\n// V is.\nvar V = team.Sum\n\nvar w = team.Max\n",
			"a.go:6: shows team.Sum, of an internal package"},
		{"what is not shown may be hidden", "coll/a.go", "package coll\n\nimport \"github.com/ubcoll/ubcoll/internal/team\"\n\n" +
			"// T is.\ntype T struct {\n\tv team.Vec // a team.Vec\n}\n\ntype t team.Vec\n\n" +
			"// F is a team. It has none.\nfunc F() { _ = team.Vec{} }\n\nfunc f(team.Vec) {}\n\n" +
			"// M is team.Vec.\nfunc (t) M() team.Vec { return nil }\n", ""},
		{"what users do not hold may show it", "hw/cpu/a.go",
			"package cpu\n\nimport \"github.com/ubcoll/ubcoll/internal/race\"\n\n// F is.\nfunc F() race.T { return nil }\n", ""},
		{"a comment names what users cannot see", "coll/a.go", "package coll\n\n// F is\n// x.Vec of nearest.Vec.\nfunc F() {}\n",
			"coll/a.go:4: the comment says \"nearest.V\", which users cannot see"},
		{"a package's comment names a folder that users cannot see", "coll/a.go", "// Package coll is internal/x.\npackage coll\n",
			"coll/a.go:1: the comment says \"internal/\", which users cannot see"},
		{"undocumented field", "coll/a.go", "package coll\n\n// T is.\ntype T struct {\n\tF, g int\n}\n",
			"coll/a.go:5: exported field F has no comment"},
		{"undocumented method of an interface", "coll/a.go", "package coll\n\n// T is.\ntype T interface {\n\tM()\n}\n",
			"coll/a.go:5: exported method M has no comment"},
		{"undocumented field of what users do not hold", "hw/cpu/a.go", "package cpu\n\n// T is.\ntype T struct{ F int }\n", ""},
		{"a link", "coll/a.go", "package coll\n\nimport \"github.com/ubcoll/ubcoll/hw\"\n\n// T is as [T.F], [T.M], [F] and [V],\n" +
			"// [hw], [hw.Shown] and [github.com/ubcoll/ubcoll/hw.Shown], [context.Context]; x[I], [1,2].\ntype T struct {\n\tF int // is\n}\n\n" +
			"// M is\nfunc (*T) M() {}\n\n// F is.\nfunc F() T { return T{} }\n\n// V is.\nvar V hw.Shown\n", ""},
		{"a link to nothing", "coll/a.go", "package coll\n\n// F is [G].\nfunc F() {}\n\n// f is [G].\nfunc f() {}\n",
			"coll/a.go:3: [G] is no link"},
		{"a link in a list to nothing", "coll/a.go", "package coll\n\n// F is:\n//   - [F]\n//   - [F.G]\nfunc F() {}\n",
			"coll/a.go:3: [F.G] is no link"},
		{"a link to a package that is not imported", "coll/a.go", "package coll\n\n// F is [hw.Shown].\nfunc F() {}\n",
			"coll/a.go:3: [hw.Shown] is no link"},
		{"a link to nothing in a package", "coll/a.go",
			"package coll\n\nimport \"github.com/ubcoll/ubcoll/hw\"\n\n// F is [hw.Hidden].\nfunc F(hw.Shown) {}\n",
			"coll/a.go:5: the link to github.com/ubcoll/ubcoll/hw Hidden leads nowhere"},
		{"a link to no package", "coll/a.go", "package coll\n\n// F is [github.com/ubcoll/ubcoll/none].\nfunc F() {}\n",
			"coll/a.go:3: the link to github.com/ubcoll/ubcoll/none  leads nowhere"},
		{"another module", "examples/x/go.mod", "module x", ""},
		{"other licence", "LICENSE", "MIT", "LICENSE: must be there, with the Apache License"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, c.file, c.text, c.want)
		})
	}
	faults, err := Check(fstest.MapFS{})
	require.NoError(t, err)
	require.Equal(t, []string{"LICENSE: must be there, with the Apache License", "README.md: must be there"}, faults)
}

// check requires that the rules find want, or nothing if it is "", in a tree with that file.
func check(t *testing.T, file, text, want string) {
	t.Helper()
	tree := fstest.MapFS{
		"LICENSE":               {Data: []byte("Apache License")},
		"README.md":             {Data: []byte("x\n")},
		"examples/x/a.go":       {Data: []byte(`package main; import _ "github.com/ubcoll/ubcoll/hw"`)},
		"hw/testdata/a.go":      {Data: []byte(`package util`)},
		"hw/read.go":            {Data: []byte("package hw\n\nvar _ = env.Read.Get()\n\n// Shown is.\ntype Shown int\n")},
		"internal/nearest/a.go": {Data: []byte("package nearest\n")},
		"hw/read_test.go":       {Data: []byte("package hw\n\nvar _ = env.Tested.Get()\n")},
		".hidden/a/util.go":     {Data: []byte(`package util`)},
	}
	tree[file] = &fstest.MapFile{Data: []byte(text)}
	faults, err := Check(tree)
	require.NoError(t, err)
	if want == "" {
		require.Empty(t, faults)
		return
	}
	require.Len(t, faults, 1)
	require.True(t, strings.HasPrefix(faults[0], want), "%s", faults[0])
}

// Another package's variables and functions are used in every possible way, by a package, a test and a program.
func TestSets(t *testing.T) {
	const (
		sets  = "sets engine.F, a variable of another package"
		calls = "calls engine.F, of another package, at init"
	)
	for _, c := range []struct{ name, text, want string }{
		{"an element", "func f() { engine.F[1] = nil }", sets},
		{"a field", "func f() { engine.F.Move.To = f }", sets},
		{"a field of an element", "func f() { engine.F[1].Move += 1 }", sets},
		{"what it points to", "func f() { *engine.F = 1 }", sets},
		{"a slice of it", "func f() { engine.F[1:][0] = 1 }", sets},
		{"counted up", "func f() { engine.F++ }", sets},
		{"in parentheses", "func f() { (engine.F) = 1 }", sets},
		{"a range's key", "func f() { for engine.F = range 3 {} }", sets},
		{"a range's value", "func f() { for _, engine.F = range []int{} {} }", sets},
		{"its address", "func f() { g(&engine.F.Move) }", "takes the address of engine.F, a variable of another package"},
		{"the address of a value of another's type", "func f() { g(&engine.F{}) }", ""},
		{"it is read", "func f() { x := engine.F[1].Move; x++ }", ""},
		{"a field of what a function returns", "func f() { engine.F().Move = 1 }", ""},
		{"an init calls a method", "func init() { engine.F.Add(nil) }", calls},
		{"an init calls what calls", "func init() { f() }; func f() { g() }; func g() { x := engine.F(nil) }", calls},
		{"a value calls for nothing", "var _ = engine.F(nil)", calls},
		{"a value's literal calls for nothing", "var v = func() int { engine.F(nil); return 1 }()", calls},
		{"a value calls what calls for nothing", "var v = f(); func f() int { engine.F(nil); return 1 }", calls},
		{"a value calls for the result", "var v = engine.F(f()); func f() int { x := engine.F(1); return x }", ""},
		{"a literal that is not called", "var v = func() { engine.F(nil) }", ""},
		{"a function that is not called", "var v = f; func f() { engine.F(nil) }", ""},
		{"of another package's type", "var _ = (*engine.F)(nil)", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := "\n\nimport \"github.com/ubcoll/ubcoll/internal/engine\"\n\n"
			want := func(file string) string {
				if c.want == "" {
					return ""
				}
				return file + ":5: " + c.want
			}
			check(t, "coll/a.go", "package coll"+head+c.text, want("coll/a.go"))
			check(t, "coll/a_test.go", "package coll"+head+c.text, "")
			if c.want == calls { // programs may do this
				c.want = ""
			}
			check(t, "cmd/x/a.go", "package main"+head+c.text, want("cmd/x/a.go"))
		})
	}
}

// A folder with a module of its own is not entered: what it imports does not matter here.
func TestOtherModule(t *testing.T) {
	tree := fstest.MapFS{
		"LICENSE":           {Data: []byte("Apache License")},
		"README.md":         {},
		"examples/m/go.mod": {},
		"examples/m/a.go":   {Data: []byte("package main\n\nimport \"C\"\n")},
	}
	faults, err := Check(tree)
	require.NoError(t, err)
	require.Empty(t, faults)
	delete(tree, "examples/m/go.mod")
	faults, err = Check(tree)
	require.NoError(t, err)
	require.Len(t, faults, 1)
}

// Packages that users hold must exist: one that was moved would no longer be checked.
func TestFace(t *testing.T) {
	tree := fstest.MapFS{
		"LICENSE":         {Data: []byte("Apache License")},
		"README.md":       {},
		"go.mod":          {Data: []byte("module " + module + "\n")},
		"a.go":            {Data: []byte("package ubcoll\n")},
		"fault/fault.go":  {Data: []byte("package main\n")}, // go doc shows nothing of it
		"graph/a_test.go": {Data: []byte("package graph\n")},
	}
	for _, dir := range []string{"coll", "p2p", "bootstrap", "dtype"} {
		tree[dir+"/a.go"] = &fstest.MapFile{Data: []byte("package " + dir + "\n")}
	}
	const want = ": has no files: internal/lint's face names the packages that users hold"
	faults, err := Check(tree)
	require.NoError(t, err)
	require.Equal(t, []string{"fault" + want, "graph" + want}, faults)
	delete(tree, "a.go")
	faults, err = Check(tree)
	require.NoError(t, err)
	require.Equal(t, []string{"fault" + want, "graph" + want, "the root" + want}, faults)
}

// The table of where things are must name files that exist, and symbols that they declare.
func TestWhere(t *testing.T) {
	source := "package a\n\nconst c = 1\n\nvar v, w int\n\ntype s struct{ field int }\n\ntype i interface{ Method() }\n\n" +
		"func f() {}\n\nfunc (*s) g() {}\n"
	for _, c := range []struct{ file, symbol, want string }{
		{"hw/a.go", "c", ""},
		{"hw/a.go", "w", ""},
		{"hw/a.go", "f", ""},
		{"hw/a.go", "s", ""},
		{"hw/a.go", "s.field", ""},
		{"hw/a.go", "s.g", ""},
		{"hw/a.go", "i.Method", ""},
		{"hw/a.h", "word", ""},
		{"hw/b.go", "f", "there is no file hw/b.go"},
		{"hw/a.go", "x", "hw/a.go does not declare x"},
		{"hw/a.go", "g", "hw/a.go does not declare g"},
		{"hw/a.go", "s.f", "hw/a.go does not declare s.f"},
		{"hw/a.go", "i.g", "hw/a.go does not declare i.g"},
		{"hw/a.go", "t.g", "hw/a.go does not declare t.g"},
		{"hw/a.go", "v.g", "hw/a.go does not declare v.g"},
		{"hw/a.go", "f.g", "hw/a.go does not declare f.g"},
		{"hw/a.h", "wor", "hw/a.h does not declare wor"},
		{"hw/a.h", "", "a row of the table is | question | `file` | `symbol` |"},
	} {
		table := "# Page\n\n| Other | table |\n\n" + whereHeading + "\n\n| Question | File | Symbol |\n| --- | --- | --- |\n" +
			strings.Repeat("| what is f | `hw/a.go` | `f` |\n", whereLeast-1) +
			"| it | `" + c.file + "` | `" + c.symbol + "` |\n\n## Then\n\n| another | table |\n"
		tree := fstest.MapFS{
			"LICENSE":    {Data: []byte("Apache License")},
			"README.md":  {},
			"hw/a.go":    {Data: []byte(source)},
			"hw/a.h":     {Data: []byte("void word();\n")},
			architecture: {Data: []byte(table)},
		}
		faults, err := Check(tree)
		require.NoError(t, err)
		if c.want == "" {
			require.Empty(t, faults, "%s %s", c.file, c.symbol)
			continue
		}
		require.Equal(t, []string{architecture + ":33: " + c.want}, faults)
	}
	faults, err := Check(fstest.MapFS{"LICENSE": {Data: []byte("Apache License")}, "README.md": {},
		architecture: {Data: []byte("# Page\n")}})
	require.NoError(t, err)
	require.Equal(t, []string{architecture + `: "## Where is ..." has 0 rows, fewer than 25`}, faults)
}
