package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestSystems checks the types of all code, tests included, for other systems and without cgo. That finds nearly all that
// compiling finds, which takes ten times as long, for each a standard library of its own. make lint does that in full runs.
func TestSystems(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the same in the plain run")
	}
	for _, system := range []string{"linux/amd64", "linux/arm64", "darwin/arm64"} {
		t.Run(system, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(system, "/")
			out := command(t, filepath.Join("..", ".."), []string{"CGO_ENABLED=0", "GOOS=" + goos, "GOARCH=" + goarch}, "go", "list", "-deps", "-test",
				"-json=ImportPath,Dir,GoFiles,ImportMap,Standard,Module", "./...")
			c := typeChecker{token.NewFileSet(), map[string]*types.Package{"unsafe": types.Unsafe}, types.SizesFor("gc", goarch)}
			for packages := json.NewDecoder(strings.NewReader(out)); ; {
				var p listed
				err := packages.Decode(&p)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				require.NoError(t, c.check(p))
			}
			require.Contains(t, c.done, module)
		})
	}
}

// The check can fail: an assignment to a type of another size is right on one system and wrong on another.
func TestSystemsDiffer(t *testing.T) {
	dir := t.TempDir()
	p := listed{ImportPath: "x", Dir: dir, GoFiles: []string{"x.go"}}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.go"), []byte("package x\n\nimport \"unsafe\"\n\nfunc f() { var _ [8]int = [unsafe.Sizeof(uintptr(0))]int{} }\n"), 0o600))
	for arch, right := range map[string]bool{"arm64": true, "arm": false} {
		c := typeChecker{token.NewFileSet(), map[string]*types.Package{"unsafe": types.Unsafe}, types.SizesFor("gc", arch)}
		require.Equal(t, right, c.check(p) == nil, arch)
	}
}

// listed is what go list says of a package. Those that it imports come first.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Standard        bool
	Module          *struct{ Path, GoVersion string }
}

// typeChecker checks packages one after the other, each after those that it imports.
type typeChecker struct {
	files *token.FileSet
	done  map[string]*types.Package
	sizes types.Sizes
}

func (c *typeChecker) check(p listed) error {
	if c.done[p.ImportPath] != nil || strings.HasSuffix(p.ImportPath, ".test") { // main of a test program is generated
		return nil
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	var errs []error
	config := types.Config{Importer: imports{c, p.ImportMap}, Sizes: c.sizes, Error: func(err error) { errs = append(errs, err) }}
	if p.Standard || p.Module != nil && p.Module.Path != module {
		config.IgnoreFuncBodies = true
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "p [q.test]" is p with files for the test of q
	c.done[p.ImportPath], _ = config.Check(path, c.files, files, nil)
	return errors.Join(errs...)
}

// imports finds what a package imports among what has been checked.
type imports struct {
	*typeChecker
	renamed map[string]string
}

func (i imports) Import(path string) (*types.Package, error) {
	if to := i.renamed[path]; to != "" {
		path = to
	}
	if p := i.done[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %q: go list tells of it later", path)
}
