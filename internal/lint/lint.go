// Package lint checks what the compiler does not: which package may import which; that no package sets another's
// variables; how large a package may be; where C and system calls may be used; that exported names are documented; what
// go doc shows to users; and that the architecture's table of where things are is true. Its test runs it on the whole
// project.
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

// layers is the order of the rooms. A package may import only packages on lines above its own (in hw, also those on its
// own line). "" is the root package. A star stands for everything below a folder.
var layers = [][]string{
	{"internal/clock", "internal/nearest", "internal/plural", "internal/procfs", "scripts"},
	{"hw", "dtype", "internal/race", "internal/stats"},
	{"fault"},
	{"internal/reason"},
	{"internal/env"},
	{"internal/testkit"},
	{"internal/logs", "internal/tracing"},
	{"hw/*"},
	{"internal/mem", "internal/tuning"},
	{"bootstrap"},
	{"internal/conform/bootstraps"},
	{"register"},
	{"internal/gpu/*"},
	{"internal/team", "internal/turn"},
	{"internal/roster"},
	{"internal/transport/net/*"},
	{"internal/transport/net"},
	{"internal/hosts"},
	{"internal/engine"},
	{"internal/transport/*"},
	{"internal/gpu"},
	{"internal/onesided"},
	{"internal/mail"},
	{"internal/enginetest"},
	{"internal/inside"},
	{""},
	{"internal/testkit/gputest"},
	{"p2p"},
	{"coll"},
	{"graph"},
	{"internal/verify"},
	{"internal/bench", "internal/experiment", "internal/conform", "internal/launch", "internal/doctor",
		"internal/usage"},
	{"internal/conform/*", "internal/bench/*", "internal/sweep"},
	{"internal/chart"},
	{"internal/lint"},
	{programs, "cmd/*", "examples", "examples/*"},
}

// programs stands for every main package, wherever it is. It may import everything except packages for tests.
const programs = "main"

// cgoRooms may contain C; sysRooms may make system calls through x/sys.
var (
	cgoRooms = []string{"hw/*", "bootstrap"}
	sysRooms = []string{"hw", "hw/*", "internal/mem", "bootstrap", "internal/transport/*", "internal/launch"}
)

// testRooms are for tests. Only tests and each other may import them, programs may not.
var testRooms = []string{"internal/testkit", "internal/testkit/*", "internal/enginetest", "internal/gpu/emulated",
	"hw/verbs/verbstest", "internal/conform", "internal/conform/*"}

// wherePrivate are beginnings of paths that exist on one machine only. They are split so that this file passes the
// check.
var wherePrivate = []string{"/wo" + "rk/", "/ro" + "ot/"}

// Check reads the tree and returns one line for each place where a rule is broken: "file:line: what is wrong". It does
// not enter folders with a go.mod of their own, hidden folders, testdata, bin and build.
func Check(tree fs.FS) ([]string, error) {
	c := &checker{tree: tree, fset: token.NewFileSet(), variables: map[string]token.Pos{}, read: map[string]bool{},
		rooms: map[string]bool{}, start: map[string]*start{}, sources: map[string][]source{}}
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
	read      map[string]bool      // which of them other rooms read

	rooms   map[string]bool     // those with more than tests
	start   map[string]*start   // by room
	sources map[string][]source // by room: what go doc reads
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
	for i, line := range strings.Split(string(data), "\n") {
		for _, p := range wherePrivate {
			if strings.Contains(line, p) {
				c.fault(c.line(name, i), "names %s, which is a folder of one machine", p)
			}
		}
	}
	if !strings.HasSuffix(name, ".go") {
		return nil
	}
	f, err := parser.ParseFile(c.fset, name, data, parser.ParseComments)
	if err != nil {
		c.fault(name, "%v", err)
		return nil
	}
	room := path.Dir(name)
	if room == "." {
		room = ""
	}
	test := strings.HasSuffix(name, "_test.go")
	c.imports(f, room, test)
	if !test {
		c.rooms[room] = true
		c.sets(f, room)
		c.calls(f, room)
		c.environment(f, room)
		if f.Name.Name != "main" {
			c.documented(f)
			c.sources[room] = append(c.sources[room], source{name, data})
		}
	}
	return nil
}

// imports checks the order of the rooms, C and x/sys. Tests may import upwards: Go itself refuses cycles.
func (c *checker) imports(f *ast.File, room string, test bool) {
	mine, known := layer(room), true
	if f.Name.Name == "main" {
		mine = layer(programs)
	}
	if mine < 0 {
		known = false
		c.fault(c.at(f.Package), "package %q is not in the import order: give it a line in internal/lint", room)
	}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		where := c.at(spec.Pos())
		switch {
		case p == "C" && !within(room, cgoRooms):
			c.fault(where, "C belongs in hw and bootstrap only")
		case (p == "golang.org/x/sys" || strings.HasPrefix(p, "golang.org/x/sys/")) && !within(room, sysRooms) && !test:
			c.fault(where, "system calls belong in %s", strings.Join(sysRooms, ", "))
		}
		other, ours := strings.CutPrefix(p+"/", module+"/")
		other = strings.TrimSuffix(other, "/")
		if !ours || !known || test {
			continue
		}
		theirs := layer(other)
		sameRoom := theirs == mine && strings.HasPrefix(room, "hw/")
		if within(other, testRooms) && !within(room, testRooms) {
			c.fault(where, "%s must not import %s, which is for tests", or(room, "the root"), other)
		} else if theirs >= mine && !sameRoom {
			c.fault(where, "%s must not import %s, which is not below it", or(room, "the root"), or(other, "the root"))
		}
	}
}

// calls checks what may be called where.
func (c *checker) calls(f *ast.File, room string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if name := called(n); name == "runtime.SetFinalizer" || name == "runtime.AddCleanup" {
				c.fault(c.at(n.Pos()), "%s: nothing is freed behind the user's back", name)
			} else if pkg, what, _ := strings.Cut(name, "."); pkg == "slog" &&
				room != "internal/logs" && room != "internal/testkit" &&
				slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "With", "Default"},
					strings.TrimSuffix(what, "Context")) {
				c.fault(c.at(n.Pos()), "%s: the library's messages go to the communicator's logger, or to that of internal/logs", name)
			}
		case *ast.CallExpr:
			name := called(n.Fun)
			if room == "internal/env" || len(n.Args) == 0 || name != "os.Getenv" && name != "os.LookupEnv" {
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

// environment notes the variables that internal/env defines, and those whose values other rooms read.
func (c *checker) environment(f *ast.File, room string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if room != "internal/env" {
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
	if b, err := fs.ReadFile(c.tree, "README.md"); err != nil {
		c.fault("README.md", "must be there")
	} else if n := strings.Count(string(b), "\n"); n > 150 {
		c.fault("README.md", "has %d lines, more than 150", n)
	}
}

// layer returns the line of room in the order, -1 if it has none.
func layer(room string) int {
	return slices.IndexFunc(layers, func(rooms []string) bool { return within(room, rooms) })
}

func within(room string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool {
		below, star := strings.CutSuffix(r, "*")
		return room == r || star && strings.HasPrefix(room, below)
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
