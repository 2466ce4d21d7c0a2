package lint

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
)

// code is a part of a file, with a function that recognizes names of other packages of this module in it.
type code struct {
	node ast.Node
	of   func(e ast.Expr) string
}

// start is the code of a package that runs when the program starts.
type start struct {
	inits     []code            // bodies of init functions
	values    []code            // specifications of variables
	functions map[string][]code // bodies of functions, by name; several if builds differ
}

// sets checks that f sets no variable of another package: it must not assign to the variable, its elements, its fields
// or what it points to, and must not take its address. The check does not see methods that change a variable, or
// pointers and maps that somebody got from it. sets also notes f's code that runs at the start.
func (c *checker) sets(f *ast.File, dir string) {
	of := c.others(f)
	set := func(to ast.Expr) {
		if name := of(to); name != "" {
			c.fault(c.at(to.Pos()), "sets %s, a variable of another package", name)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				set(to)
			}
		case *ast.IncDecStmt:
			set(n.X)
		case *ast.RangeStmt:
			set(n.Key)
			set(n.Value)
		case *ast.UnaryExpr:
			if name := of(n.X); n.Op == token.AND && name != "" {
				c.fault(c.at(n.Pos()), "takes the address of %s, a variable of another package", name)
			}
		}
		return true
	})
	if f.Name.Name != "main" {
		c.starts(f, dir, of)
	}
}

// others returns a function that names, as in "engine.F", the object of another package of this module that an
// expression is, or is part of; "" for any other expression. A dot import would hide such names, and is reported.
func (c *checker) others(f *ast.File) (of func(e ast.Expr) string) {
	ours := map[string]bool{}
	for _, spec := range f.Imports {
		p, _ := strconv.Unquote(spec.Path.Value) // the parser has accepted it
		if p != module && !strings.HasPrefix(p, module+"/") {
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			c.fault(c.at(spec.Pos()), "imports %s with a dot, which hides whose its names are", p)
		}
		ours[name] = true
	}
	return func(e ast.Expr) string {
		for {
			switch x := e.(type) {
			case *ast.ParenExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.IndexExpr:
				e = x.X
			case *ast.IndexListExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			case *ast.SelectorExpr:
				if p, ok := x.X.(*ast.Ident); ok && p.Obj == nil && ours[p.Name] {
					return called(x)
				}
				e = x.X
			default:
				return ""
			}
		}
	}
}

// starts notes f's code that runs at the start.
func (c *checker) starts(f *ast.File, dir string, of func(ast.Expr) string) {
	s := c.start[dir]
	if s == nil {
		s = &start{functions: map[string][]code{}}
		c.start[dir] = s
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch {
			case d.Recv != nil || d.Body == nil:
			case d.Name.Name == "init":
				s.inits = append(s.inits, code{d.Body, of})
			default:
				s.functions[d.Name.Name] = append(s.functions[d.Name.Name], code{d.Body, of})
			}
		case *ast.GenDecl:
			for _, v := range d.Specs {
				if _, ok := v.(*ast.ValueSpec); ok {
					s.values = append(s.values, code{v, of})
				}
			}
		}
	}
}

// atStart checks that no package, except a program's main, registers itself with another one at the start: packages are
// connected by calls. An init must not call functions of other packages of this module. The values of a package's
// variables may call them if the result is used, so neither assigned to _ nor dropped by a statement. Both rules cover
// the functions of the same package that they call by name, but not its methods.
func (c *checker) atStart() {
	for _, s := range c.start {
		seen := map[ast.Node]bool{}
		for _, k := range s.inits {
			c.called(s, k, true, seen)
		}
		seen = map[ast.Node]bool{}
		for _, k := range s.values {
			c.called(s, k, false, seen)
		}
	}
}

// called finds the calls of other packages in k and in the functions of its own package that k calls. If init is set it
// finds all of them; else those whose result is dropped, except in function literals that are not called where they
// stand.
func (c *checker) called(s *start, k code, init bool, seen map[ast.Node]bool) {
	if seen[k.node] {
		return
	}
	seen[k.node] = true
	check := func(e ast.Expr) {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return
		}
		if _, conversion := call.Fun.(*ast.ParenExpr); conversion {
			return
		}
		if name := k.of(call.Fun); name != "" {
			c.fault(c.at(call.Pos()), "calls %s, of another package, at init", name)
		}
	}
	ast.Inspect(k.node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if i < len(n.Names) && n.Names[i].Name == "_" && !init {
					check(v)
				}
			}
		case *ast.ExprStmt:
			if !init {
				check(n.X)
			}
		case *ast.CallExpr:
			if init {
				check(n)
			}
			switch f := n.Fun.(type) {
			case *ast.Ident:
				if f.Obj == nil || f.Obj.Kind == ast.Fun {
					for _, own := range s.functions[f.Name] {
						c.called(s, own, init, seen)
					}
				}
			case *ast.FuncLit:
				if !init {
					c.called(s, code{f.Body, k.of}, init, seen)
				}
			}
		case *ast.FuncLit:
			return init
		}
		return true
	})
}
