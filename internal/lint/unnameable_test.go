package lint

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Users can name every type that the packages of the face return and take: the type is exported by a package that is
// not internal, and so are the types of its fields and methods.
func TestNameable(t *testing.T) {
	arguments := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}
	for _, dir := range face {
		arguments = append(arguments, "../../"+dir)
	}
	out, err := exec.CommandContext(t.Context(), "go", arguments...).Output()
	require.NoError(t, err)
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		compiled[path] = file
	}
	packages := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(compiled[path])
	})
	for _, dir := range face {
		p, err := packages.Import(strings.TrimSuffix(module+"/"+dir, "/"))
		require.NoError(t, err)
		require.NotEmpty(t, p.Scope().Names())
		require.Empty(t, unnameable(p))
	}
}

func TestUnnameable(t *testing.T) {
	fset := token.NewFileSet()
	parse := func(path, text string, i types.Importer) *types.Package {
		f, err := parser.ParseFile(fset, "a.go", text, 0)
		require.NoError(t, err)
		p, err := (&types.Config{Importer: i}).Check(path, fset, []*ast.File{f}, nil)
		require.NoError(t, err)
		return p
	}
	hidden := parse(module+"/internal/team", "package team; type Vec struct{ F int }; func (Vec) M(int) {}", nil)
	for text, want := range map[string]string{
		"type T team.Vec":                          "",
		"type t = team.Vec; type T t":              "",
		"func f() team.Vec { return team.Vec{} }":  "",
		"type T struct{ f team.Vec }":              "",
		"type T struct{}; func (T) m(team.Vec) {}": "",
		"type T[E any] struct{}; func (T[E]) M(E) (*T[E], error)  { return nil, nil }": "",
		"type T = team.Vec":                                            "T: github.com/ubcoll/ubcoll/internal/team.Vec",
		"func F() []team.Vec { return nil }":                           "F: github.com/ubcoll/ubcoll/internal/team.Vec",
		"func F(func(map[int]*team.Vec)) {}":                           "F: github.com/ubcoll/ubcoll/internal/team.Vec",
		"type t int; var V, W []t":                                     "V: p.t; W: p.t",
		"type t int; const C t = 1":                                    "C: p.t",
		"type t struct{}; func (t) M() {}; type T struct{ t }":         "",
		"type t struct{}; func (t) M(team.Vec) {}; type T struct{ t }": "T.M: github.com/ubcoll/ubcoll/internal/team.Vec",
		"type T struct{ team.Vec }":                                    "T.Vec: github.com/ubcoll/ubcoll/internal/team.Vec",
		"type t int; type T struct{ F chan t }":                        "T.F: p.t",
		"type T struct{}; func (*T) M() (v team.Vec) { return v }":     "T.M: github.com/ubcoll/ubcoll/internal/team.Vec",
		"type t int; type T interface{ M(...t) }":                      "T.M: p.t",
		"type t int; type T func(struct{ F t })":                       "T: p.t",
		"type T[E team.Vec | int] struct{}":                            "T: github.com/ubcoll/ubcoll/internal/team.Vec",
		"func F[E interface{ ~[]team.Vec }]() {}":                      "F: github.com/ubcoll/ubcoll/internal/team.Vec",
		"type G[E any] struct{}; func F(G[team.Vec]) {}":               "F: github.com/ubcoll/ubcoll/internal/team.Vec",
	} {
		p := parse("p", "package p; import \"github.com/ubcoll/ubcoll/internal/team\"; var _ team.Vec; "+text,
			only{hidden})
		require.Equal(t, want, strings.Join(unnameable(p), "; "), text)
	}
}

// only is an importer that knows one package.
type only struct{ p *types.Package }

func (o only) Import(string) (*types.Package, error) { return o.p, nil }

// unnameable returns what p exports that shows a type which other packages cannot name.
func unnameable(p *types.Package) []string {
	var faults []string
	look := func(what string, t types.Type) {
		w := &walk{seen: map[types.Type]bool{}}
		w.look(t)
		for _, bad := range w.bad {
			faults = append(faults, fmt.Sprintf("%s: %s", what, bad))
		}
	}
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		named, isNamed := o.Type().(*types.Named)
		if _, isType := o.(*types.TypeName); !isType || !isNamed {
			if a, ok := o.Type().(*types.Alias); isType && ok {
				look(name, a.Rhs())
			} else {
				look(name, o.Type())
			}
			continue
		}
		for e := range named.TypeParams().TypeParams() {
			look(name, e.Constraint())
		}
		under := named.Underlying()
		if s, ok := under.(*types.Struct); ok {
			for f := range s.Fields() {
				if f.Exported() {
					look(name+"."+f.Name(), f.Type())
				}
			}
		} else if _, ok := under.(*types.Interface); !ok {
			look(name, under)
		}
		for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
			if m.Obj().Exported() {
				look(name+"."+m.Obj().Name(), m.Type())
			}
		}
		if types.IsInterface(named) {
			for m := range types.NewMethodSet(named).Methods() {
				if m.Obj().Exported() {
					look(name+"."+m.Obj().Name(), m.Type())
				}
			}
		}
	}
	slices.Sort(faults)
	return slices.Compact(faults)
}

// walk goes through a type down to the named types in it.
type walk struct {
	seen map[types.Type]bool
	bad  []string
}

func (w *walk) look(t types.Type) {
	if t == nil || w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		w.name(t.Obj(), t.TypeArgs())
	case *types.Named:
		w.name(t.Obj(), t.TypeArgs())
	case *types.TypeParam:
		w.look(t.Constraint())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels, maps
		w.look(t.Elem())
		if m, ok := t.(*types.Map); ok {
			w.look(m.Key())
		}
	case *types.Signature:
		for e := range t.TypeParams().TypeParams() {
			w.look(e.Constraint())
		}
		for v := range t.Params().Variables() {
			w.look(v.Type())
		}
		for v := range t.Results().Variables() {
			w.look(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.look(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			w.look(m.Type())
		}
		for e := range t.EmbeddedTypes() {
			w.look(e)
		}
	case *types.Union:
		for e := range t.Terms() {
			w.look(e.Type())
		}
	}
}

// name checks a named type where it is used. Exported ones are checked where they are declared.
func (w *walk) name(o *types.TypeName, arguments *types.TypeList) {
	if p := o.Pkg(); p != nil && (!o.Exported() || strings.Contains(p.Path()+"/", "/internal/")) {
		w.bad = append(w.bad, p.Path()+"."+o.Name())
	}
	for e := range arguments.Types() {
		w.look(e)
	}
}
