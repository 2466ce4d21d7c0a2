// Package outside tests what a module outside of this repository can do, and what it cannot.
package outside

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	// The packages that the other module imports: when they change, go test's cached results of these tests are
	// invalid.
	_ "github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	_ "github.com/ubcoll/ubcoll/p2p"
)

const repository = "../../.."

// module makes a module in a folder of its own. It takes this module from its place here, and all else from the module
// cache.
func module(t *testing.T) string {
	t.Helper()
	if race.Enabled {
		t.Skip("what runs here is built without the race detector")
	}
	dir := t.TempDir()
	root, err := filepath.Abs(repository)
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	text := strings.Replace(string(mod), "module github.com/ubcoll/ubcoll", "module outside.example", 1)
	require.NotEqual(t, string(mod), text)
	write(t, dir, "go.mod", text+"\nrequire github.com/ubcoll/ubcoll v0.0.0\n\nreplace github.com/ubcoll/ubcoll => "+root+"\n")
	copied(t, filepath.Join(root, "go.sum"), filepath.Join(dir, "go.sum"))
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	write(t, filepath.Dir(to), filepath.Base(to), string(b))
}

// run runs a command in a folder, without a network, and returns its output.
func run(t *testing.T, dir string, environment []string, name string, arguments ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir = dir
	flags := "GOFLAGS=-mod=mod"
	if testkit.Full() {
		flags += " -trimpath" // it compiles the standard library again
	}
	cmd.Env = append(os.Environ(), flags, "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "UBCOLL_CUDA=off")
	cmd.Env = append(cmd.Env, environment...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The examples of the documentation, word by word, compile outside of the repository and print what they should.
func TestExamples(t *testing.T) {
	testkit.Long(t)
	dir := module(t)
	for _, room := range []string{".", "coll", "p2p", "graph", "bootstrap", "dtype"} {
		files, err := filepath.Glob(filepath.Join(repository, room, "*example_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, room)
		for _, f := range files {
			copied(t, f, filepath.Join(dir, room, filepath.Base(f)))
		}
	}
	// vet would look for the documented names in the examples' own folder.
	out, err := run(t, dir, nil, "go", "test", "-v", "-vet=off", "./...")
	require.NoError(t, err, out)
	for task, example := range map[string]string{
		"all-reduce":    "ExampleAllReduce",
		"halo exchange": "ExampleSendRecv",
		"window":        "ExampleComm_RegisterWindow",
		"channel":       "ExampleConnect",
		"graph":         "ExampleCapture",
	} {
		require.Contains(t, out, "--- PASS: "+example+" ", task)
	}
	for _, room := range []string{"coll", "p2p"} {
		for _, f := range functions(t, filepath.Join(repository, room)) {
			require.Contains(t, out, "--- PASS: Example"+f+" ", "package %s", room)
		}
	}
}

// functions returns the exported functions of a package.
func functions(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.IsExported() {
				names = append(names, d.Name.Name)
			}
		}
	}
	require.NotEmpty(t, names)
	return names
}

// The README's first program compiles and runs there, too.
func TestFirstProgram(t *testing.T) {
	testkit.Long(t)
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(readme), "```go\npackage main\n")
	require.True(t, found)
	text, _, found = strings.Cut(text, "```")
	require.True(t, found)
	dir := module(t)
	write(t, dir, "main.go", "package main\n"+text)
	out, err := run(t, dir, nil, "go", "build", "-o", "program", ".")
	require.NoError(t, err, out)
	out, err = run(t, dir, []string{"NTHREADS=4"}, "./program")
	require.NoError(t, err, out)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{"rank 0 of 4 has 6", "rank 1 of 4 has 6", "rank 2 of 4 has 6", "rank 3 of 4 has 6"}, lines)
}

// Other modules cannot use internal packages.
func TestInside(t *testing.T) {
	testkit.Long(t)
	dir := module(t)
	for _, c := range []struct{ name, imports, body, want string }{
		{"nothing", "", "_ = c.Rank()", ""},
		{"import", `import _ "github.com/ubcoll/ubcoll/internal/inside"`, "",
			"use of internal package github.com/ubcoll/ubcoll/internal/inside not allowed"},
		{"conversion", `import "github.com/ubcoll/ubcoll/internal/inside"`, "_ = (*inside.Comm)(c).View()",
			"use of internal package github.com/ubcoll/ubcoll/internal/inside not allowed"},
		{"conversion to what looks alike", "", "_ = (*struct{ v any })(c)", "cannot convert c"},
		{"name", "", "_ = (*ubcoll.comm)(c)", "undefined: ubcoll.comm"},
		{"method", "", "_ = c.View()", "c.View undefined"},
		{"method of a vector", "", "_ = ubcoll.Vec{}.Team()", "Team undefined"},
		{"field", "", "_ = c.v", "c.v undefined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, dir, "main.go", "package main\n\nimport \"github.com/ubcoll/ubcoll\"\n\n"+c.imports+
				"\n\nfunc main() { f(nil) }\n\nfunc f(c *ubcoll.Comm) { "+c.body+" }\n")
			out, err := run(t, dir, nil, "go", "build", "-o", "program", ".")
			if c.want == "" {
				require.NoError(t, err, out)
				return
			}
			require.Error(t, err)
			require.Contains(t, out, c.want)
		})
	}
}
