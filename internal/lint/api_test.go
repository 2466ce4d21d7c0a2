package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reviewed is the file with the last reviewed face: what programs of users can name, one line each.
const reviewed = "testdata/api.txt"

// accept is the variable with which TestAPI writes that file anew.
const accept = "UBCOLL_TEST_ACCEPT"

// What users' programs can name is as it was reviewed last. A line that is gone, or differs, breaks programs that
// compile today.
func TestAPI(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the face is reviewed on Linux")
	}
	now := faceLines(t)
	if os.Getenv(accept) != "" {
		require.NoError(t, os.WriteFile(reviewed, []byte(strings.Join(now, "\n")+"\n"), 0o644))
	}
	text, err := os.ReadFile(reviewed)
	require.NoError(t, err)
	was := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if gone, added := without(was, now), without(now, was); gone != nil || added != nil {
		t.Errorf("the API is not what internal/lint/%s has.\nGone or changed, which breaks programs (CHANGELOG.md: Changed, Renamed):\n%s\n"+
			"New (CHANGELOG.md: Added):\n%s\nIf all of this is meant: %s=1 go test -count=1 -run TestAPI ./internal/lint, and commit the file",
			reviewed, list(gone), list(added), accept)
	}
}

// without returns the lines of a that b does not have.
func without(a, b []string) (lines []string) {
	for _, line := range a {
		if !slices.Contains(b, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

func list(lines []string) string {
	if lines == nil {
		return "\tnothing"
	}
	return "\t" + strings.Join(lines, "\n\t")
}

// faceLines returns the lines of the packages of face, sorted, from what the compiler exports of them without tags.
func faceLines(t *testing.T) []string {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, dir := range face {
		args = append(args, path.Join(module, dir))
	}
	var out, said bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Run(), "%s", &said)
	exports := map[string]string{}
	for d := json.NewDecoder(&out); d.More(); {
		var p struct{ ImportPath, Export string }
		require.NoError(t, d.Decode(&p))
		exports[p.ImportPath] = p.Export
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var lines []string
	for _, dir := range face {
		pkg, err := from.Import(path.Join(module, dir))
		require.NoError(t, err)
		lines = append(lines, packageLines(pkg)...)
	}
	slices.Sort(lines)
	return lines
}

// packageLines returns a line for each exported name of a package, and for each field and method of its types.
func packageLines(pkg *types.Package) (lines []string) {
	say := func(format string, args ...any) {
		lines = append(lines, pkg.Name()+": "+fmt.Sprintf(format, args...))
	}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.Const:
			say("const %s %s = %s", name, short(o.Type()), o.Val())
		case *types.TypeName:
			typeLines(o, say)
		case *types.Func:
			say("func %s%s", name, signature(o.Signature()))
		default:
			say("var %s %s", name, short(o.Type()))
		}
	}
	return lines
}

// typeLines says what users can name of a type: also of one of a package that is not theirs, through an alias.
func typeLines(o *types.TypeName, say func(format string, args ...any)) {
	name, t := o.Name(), o.Type()
	if o.IsAlias() {
		t = types.Unalias(t)
		say("type %s = %s", name, short(t))
	}
	named, ok := t.(*types.Named)
	if !ok {
		return
	}
	parameters := ""
	if p := named.TypeParams(); p.Len() > 0 {
		parameters = "[" + typeParameters(p) + "]"
	}
	compares := ""
	if !types.Comparable(t) {
		compares = ", not comparable"
	}
	switch under := t.Underlying().(type) {
	case *types.Struct:
		say("type %s%s struct%s", name, parameters, compares)
		for f := range under.Fields() {
			if f.Exported() {
				say("type %s struct, %s %s", name, f.Name(), short(f.Type()))
			}
		}
	case *types.Interface:
		say("type %s%s interface", name, parameters)
		for m := range under.Methods() {
			if m.Exported() {
				say("type %s interface, %s%s", name, m.Name(), signature(m.Signature()))
			} else {
				say("type %s interface, a method that only the package has", name)
			}
		}
		for e := range under.EmbeddedTypes() {
			if _, named := e.(*types.Named); !named {
				say("type %s interface, %s", name, short(e))
			}
		}
	default:
		say("type %s%s %s", name, parameters, short(under))
	}
	if types.IsInterface(t) {
		return
	}
	values := types.NewMethodSet(t)
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		if !m.Obj().Exported() {
			continue
		}
		receiver := "*" + name
		if values.Lookup(nil, m.Obj().Name()) != nil {
			receiver = name
		}
		say("method (%s) %s%s", receiver, m.Obj().Name(), signature(m.Type().(*types.Signature)))
	}
}

// short writes a type with the names of packages.
func short(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() })
}

func typeParameters(list *types.TypeParamList) string {
	var parts []string
	for p := range list.TypeParams() {
		parts = append(parts, p.Obj().Name()+" "+short(p.Constraint()))
	}
	return strings.Join(parts, ", ")
}

// signature writes a signature without the names of parameters, which users do not depend on.
func signature(s *types.Signature) string {
	unnamed := func(t *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range t.Variables() {
			vars = append(vars, types.NewParam(token.NoPos, nil, "", v.Type()))
		}
		return types.NewTuple(vars...)
	}
	plain := types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())
	parameters := ""
	if p := s.TypeParams(); p.Len() > 0 {
		parameters = "[" + typeParameters(p) + "]"
	}
	return parameters + strings.TrimPrefix(short(plain), "func")
}
