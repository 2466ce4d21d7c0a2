package lint

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
)

// code is a part of a file, and what tells the names of other packages of this module in it.
type code struct {
	node ast.Node
	of   func(e ast.Expr) string
}

// start is what a package does when the program starts.
type start struct {
	inits     []code            // bodies of init functions
	values    []code            // specifications of variables
	functions map[string][]code // bodies of functions, by name; some are there once for each build
}

// sets checks that f sets no variable of another package: it is not assigned to, nor is an element, a field or what it
// points to, nor is its address taken. What methods do to a variable, or who has a pointer or a map out of it, is not
// seen. It notes what f does at the start.
func (c *checker) sets(f *ast.File, room string) {
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
		c.starts(f, room, of)
	}
}

// others is what tells the name, as "engine.F", of what a package of this module has and an expression is or is in; ""
// for all else. A dot import, which would hide such names, is a fault.
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

// starts notes what f does at the start.
func (c *checker) starts(f *ast.File, room string, of func(ast.Expr) string) {
	s := c.start[room]
	if s == nil {
		s = &start{functions: map[string][]code{}}
		c.start[room] = s
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

// atStart checks that no package but a program's main makes itself known to another one at the start: what a room is
// given it is given by calls. An init calls no function of another package of this module. What sets a package's
// variables may call one for its result, which is not thrown away: neither as _, nor as a statement. Both hold in what
// they call of their own package's functions, by name. Methods of the own package are not followed.
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

// called finds the calls of other packages in k, and in what k calls of its own package: all if it is of an init, else
// those whose result is thrown away, outside function literals that are not called where they stand.
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
