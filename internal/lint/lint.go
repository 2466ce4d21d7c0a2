// Package lint checks what the compiler does not: what a package must not import; that no package sets another's
// variables; where C and system calls may be used; that exported names are documented; what go doc shows to users; and
// that the architecture's table of where things are is true. Its test runs it on the whole project.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the path of the project's module.
const module = "github.com/ubcoll/ubcoll"

// importRule says what some packages must not import. Names are those of folders of the module; "" is the root package,
// and a star stands for everything below a folder. Packages for tests and programs are under no rule; programs only
// under that of what is for tests.
type importRule struct {
	of   []string
	not  []string // of this module
	only []string // of this module; nil: all but not
	why  string
}

// importRules is all that the order of packages is for. A package may come under several.
var importRules = []importRule{
	{
		of: []string{"hw", "hw/*", "dtype", "fault"},
		only: []string{"hw", "hw/*", "dtype", "fault", "internal/env", "internal/fdtrace", "internal/race",
			"internal/nearest"},
		why: "bindings and common words know nothing of ranks",
	}, {
		of:   []string{"bootstrap"},
		only: []string{"fault", "hw/shm", "internal/clock", "internal/env", "internal/nearest", "internal/reason"},
		why:  "programs use it without a communicator",
	}, {
		of:   []string{"register"},
		only: []string{"fault", "hw", "internal/env", "internal/invariants", "internal/nearest"},
		why:  "the cache knows memory and transports by its interfaces only",
	}, {
		of:  []string{"internal/mem", "internal/tuning", "internal/gpu/kernels"},
		not: []string{"internal/team", "internal/engine", "internal/gpu", "internal/transport/*"},
		why: "several communicators use it, and its tests none",
	}, {
		of:  []string{"internal/team"},
		not: []string{"internal/transport/*", "internal/hosts", "internal/engine", "bootstrap"},
		why: "a team is the ranks of one host, which it reaches by the Transport that it declares",
	}, {
		of:  []string{"internal/transport/net", "internal/transport/net/*"},
		not: []string{"internal/team", "internal/hosts", "internal/engine", "bootstrap"},
		why: "the network carries frames, whatever they are for",
	}, {
		of:  []string{"internal/hosts"},
		not: []string{"internal/transport/*"},
		why: "it knows the network by the interfaces of internal/transport, which every fabric implements",
	}, {
		of:  []string{"internal/roster", "internal/hosts"},
		not: []string{"internal/engine"},
		why: "the engine makes communicators of what this finds out",
	}, {
		of: []string{"internal/engine"},
		not: []string{"internal/transport/ipc", "internal/gpu", "internal/gpuend", "internal/gpumail", "internal/mail", "internal/onesided",
			"internal/inside"},
		why: "inside.Open gives these to the engine, as engine.Providers",
	}, {
		of:  []string{"internal/gpu", "internal/transport/ipc"},
		not: []string{"internal/gpuend", "internal/gpumail", "internal/mail", "internal/onesided"},
		why: "these are its clients, by interfaces that it declares",
	}, {
		of:  []string{"internal/gpuend"},
		not: []string{"internal/gpumail", "internal/mail", "internal/onesided"},
		why: "an end does not know whether a channel or a window owns it: its Owner is an interface",
	}, {
		of:  []string{"internal/mail"},
		not: []string{"hw/cuda", "internal/gpu", "internal/gpu/*", "internal/gpumail"},
		why: "messages of host memory know nothing of devices; those of device memory start together with them",
	}, {
		of:  []string{"internal/mail", "internal/gpumail"},
		not: []string{"internal/gpuend", "internal/onesided"},
		why: "messages, and channels and windows, attach to a communicator independently",
	}, {
		of:  []string{"internal/onesided"},
		not: []string{"internal/mail", "internal/gpumail"},
		why: "messages, and channels and windows, attach to a communicator independently",
	}, {
		of:  []string{"p2p"},
		not: []string{"coll", "graph"},
		why: "a program may want messages alone",
	}, {
		of:  []string{"coll"},
		not: []string{"p2p", "graph"},
		why: "a program may want collectives alone",
	}, {
		of: []string{"", "bootstrap", "coll", "dtype", "fault", "graph", "hw", "hw/*", "p2p", "register", "internal/clock",
			"internal/engine", "internal/env", "internal/gpu", "internal/gpu/*", "internal/gpuend", "internal/gpumail",
			"internal/hosts", "internal/inside", "internal/logs", "internal/mail", "internal/mem", "internal/onesided",
			"internal/reason", "internal/roster", "internal/team", "internal/tracing", "internal/transport/*",
			"internal/tuning", "internal/turn"},
		not: []string{"internal/bench", "internal/bench/*", "internal/chart", "internal/doctor", "internal/experiment", "internal/launch",
			"internal/procs", "internal/stats", "internal/sweep", "internal/usage", "internal/verify"},
		why: "programs that use the library do not carry its tools",
	},
}

// cgoPackages may contain C; sysPackages may make system calls through x/sys.
var (
	cgoPackages = []string{"hw/*", "bootstrap"}
	sysPackages = []string{"hw", "hw/*", "internal/mem", "bootstrap", "internal/transport/*", "internal/launch"}
)

// testPackages are for tests. Only tests and each other may import them, programs may not.
var testPackages = []string{"internal/testkit", "internal/testkit/*", "internal/enginetest", "internal/gpu/emulated",
	"hw/dlpack/dlpacktest", "hw/verbs/verbstest", "internal/transport/transporttest", "internal/transport/net/conntest",
	"internal/conform", "internal/conform/*"}

// Check reads the tree and returns one line for each place where a rule is broken: "file:line: what is wrong". It does
// not enter folders with a go.mod of their own, hidden folders, testdata, bin and build.
func Check(tree fs.FS) ([]string, error) {
	c := &checker{tree: tree, fset: token.NewFileSet(), variables: map[string]token.Pos{}, read: map[string]bool{},
		dirs: map[string]bool{}, start: map[string]*start{}, sources: map[string][]source{}}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return c.enter(name)
		}
		if name == ".git" { // a linked working tree has a file of this name
			return nil
		}
		return c.file(name)
	})
	for name, p := range c.variables {
		if !c.read[name] {
			c.fault(c.at(p), "nobody reads variable %s: what users set in vain must not be in the table", name)
		}
	}
	c.atStart()
	c.face()
	c.project()
	c.where()
	slices.Sort(c.faults)
	return c.faults, err
}

type checker struct {
	tree   fs.FS
	fset   *token.FileSet
	faults []string

	variables map[string]token.Pos // those of internal/env, by their Go names
	read      map[string]bool      // which of them other packages read

	dirs    map[string]bool     // those with more than tests
	start   map[string]*start   // by package
	sources map[string][]source // by package: what go doc reads
}

func (c *checker) fault(where, format string, args ...any) {
	c.faults = append(c.faults, where+": "+fmt.Sprintf(format, args...))
}

func (c *checker) at(p token.Pos) string {
	pos := c.fset.Position(p)
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

func (c *checker) line(name string, i int) string { return fmt.Sprintf("%s:%d", name, i+1) }

func (c *checker) enter(dir string) error {
	base := path.Base(dir)
	switch {
	case dir == ".":
		return nil
	case strings.HasPrefix(base, "."), base == "testdata", dir == "bin", dir == "build":
		return fs.SkipDir
	}
	if _, err := fs.Stat(c.tree, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func (c *checker) file(name string) error {
	data, err := fs.ReadFile(c.tree, name)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(name, ".go") {
		return nil
	}
	f, err := parser.ParseFile(c.fset, name, data, parser.ParseComments)
	if err != nil {
		c.fault(name, "%v", err)
		return nil
	}
	dir := path.Dir(name)
	if dir == "." {
		dir = ""
	}
	test := strings.HasSuffix(name, "_test.go")
	c.imports(f, dir, test)
	if !test {
		c.dirs[dir] = true
		c.sets(f, dir)
		c.calls(f, dir)
		c.environment(f, dir)
		if f.Name.Name != "main" {
			c.documented(f)
			c.sources[dir] = append(c.sources[dir], source{name, data})
		}
	}
	return nil
}

// imports checks what a file imports: of this module, C and x/sys. Tests may import everything: Go itself refuses cycles.
func (c *checker) imports(f *ast.File, dir string, test bool) {
	program := f.Name.Name == "main"
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		where := c.at(spec.Pos())
		switch {
		case p == "C" && !within(dir, cgoPackages):
			c.fault(where, "C belongs in hw and bootstrap only")
		case (p == "golang.org/x/sys" || strings.HasPrefix(p, "golang.org/x/sys/")) && !within(dir, sysPackages) && !test:
			c.fault(where, "system calls belong in %s", strings.Join(sysPackages, ", "))
		}
		other, ours := strings.CutPrefix(p+"/", module+"/")
		other = strings.TrimSuffix(other, "/")
		if !ours || test || within(dir, testPackages) {
			continue
		}
		if within(other, testPackages) {
			c.fault(where, "%s must not import %s, which is for tests", or(dir, "the root"), other)
			continue
		}
		for _, r := range importRules {
			if program || !within(dir, r.of) {
				continue
			}
			if within(other, r.not) || r.only != nil && !within(other, r.only) {
				c.fault(where, "%s must not import %s: %s", or(dir, "the root"), or(other, "the root"), r.why)
				break
			}
		}
	}
}

// calls checks what may be called where.
func (c *checker) calls(f *ast.File, dir string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if name := called(n); name == "runtime.SetFinalizer" || name == "runtime.AddCleanup" {
				c.fault(c.at(n.Pos()), "%s: nothing is freed behind the user's back", name)
			} else if pkg, what, _ := strings.Cut(name, "."); pkg == "slog" &&
				dir != "internal/logs" && dir != "internal/testkit" &&
				slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "With", "Default"},
					strings.TrimSuffix(what, "Context")) {
				c.fault(c.at(n.Pos()), "%s: the library's messages go to the communicator's logger, or to that of internal/logs", name)
			}
		case *ast.CallExpr:
			name := called(n.Fun)
			if dir == "internal/env" || len(n.Args) == 0 || name != "os.Getenv" && name != "os.LookupEnv" {
				break
			}
			// Test hooks are not settings: they stay out of the table that users read.
			if s := text(n.Args[0]); strings.HasPrefix(s, "UBCOLL_") && !strings.HasPrefix(s, "UBCOLL_TEST_") &&
				!strings.HasPrefix(s, "UBCOLL_EMULATE") {
				c.fault(c.at(n.Pos()), "%s is read outside internal/env, the table of all variables", s)
			}
		}
		return true
	})
}

// environment notes the variables that internal/env defines, and those whose values other packages read.
func (c *checker) environment(f *ast.File, dir string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if dir != "internal/env" {
				break
			}
			for i, v := range n.Values {
				if call, ok := v.(*ast.CallExpr); ok && i < len(n.Names) {
					if define, ok := call.Fun.(*ast.Ident); ok && define.Name == "define" {
						c.variables[n.Names[i].Name] = n.Pos()
					}
				}
			}
		case *ast.SelectorExpr:
			if name, ok := strings.CutPrefix(called(n.X), "env."); ok && (n.Sel.Name == "Get" || n.Sel.Name == "IsSet") {
				c.read[name] = true
			}
		}
		return true
	})
}

// documented checks that every exported name has a comment: its own, its line's or its group's.
func (c *checker) documented(f *ast.File) {
	need := func(id *ast.Ident, docs ...*ast.CommentGroup) {
		if !id.IsExported() {
			return
		}
		for _, d := range docs {
			if d.Text() != "" {
				return
			}
		}
		c.fault(c.at(id.Pos()), "exported %s has no comment", id.Name)
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || exportedReceiver(d.Recv) {
				need(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					need(s.Name, d.Doc, s.Doc, s.Comment)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						need(id, d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
}

// project checks the files that readers of any project look for.
func (c *checker) project() {
	if b, err := fs.ReadFile(c.tree, "LICENSE"); err != nil || !strings.Contains(string(b), "Apache License") {
		c.fault("LICENSE", "must be there, with the Apache License")
	}
	if _, err := fs.Stat(c.tree, "README.md"); err != nil {
		c.fault("README.md", "must be there")
	}
}

// within reports whether dirs has dir; a star stands for everything below a folder.
func within(dir string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(r string) bool {
		below, star := strings.CutSuffix(r, "*")
		return dir == r || star && strings.HasPrefix(dir, below)
	})
}

// called returns "os.Getenv" for that expression, "" for an expression that is no name of a package.
func called(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// text is the value of a string literal, or of a constant declared in the same file.
func text(e ast.Expr) string {
	if id, ok := e.(*ast.Ident); ok && id.Obj != nil {
		if s, ok := id.Obj.Decl.(*ast.ValueSpec); ok && len(s.Values) == 1 {
			e = s.Values[0]
		}
	}
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		s, _ := strconv.Unquote(lit.Value) // the parser has accepted it
		return s
	}
	return ""
}

func exportedReceiver(recv *ast.FieldList) bool { return ast.IsExported(receiver(recv)) }

// receiver returns the name of a method's type.
func receiver(recv *ast.FieldList) string {
	t := recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}
