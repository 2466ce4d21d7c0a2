package lint

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// face lists the packages that users use directly: what go doc shows of them is a promise.
var face = []string{"", "coll", "p2p", "graph", "bootstrap", "dtype", "fault"}

// source is the text of a file.
type source struct {
	name string
	data []byte
}

// face checks what go doc shows of those packages, for all builds: no declaration or comment names an internal package,
// each field and each interface method has a comment, and links lead somewhere. In a tree with a go.mod all of those
// packages must exist.
func (c *checker) face() {
	hidden := []string{"internal"}
	for dir := range c.dirs {
		if strings.HasPrefix(dir, "internal/") {
			hidden = append(hidden, regexp.QuoteMeta(path.Base(dir)))
		}
	}
	named := regexp.MustCompile(`\binternal/|\b(` + strings.Join(hidden, "|") + `)\.\w`)
	symbols := map[string]map[string]bool{}
	pages := map[string]*doc.Package{}
	for dir, sources := range c.sources {
		if strings.HasPrefix(dir, "internal/") {
			continue
		}
		var files []*ast.File
		for _, s := range sources {
			if f := c.parse(s); f != nil {
				files = append(files, f)
			}
		}
		page, err := doc.NewFromFiles(c.fset, files, strings.TrimSuffix(module+"/"+dir, "/"))
		if err != nil {
			c.fault(or(dir, "the root"), "%v", err)
			continue
		}
		pages[dir] = page
		symbols[page.ImportPath] = exported(page)
	}
	_, err := fs.Stat(c.tree, "go.mod")
	whole := err == nil
	for _, dir := range face {
		if whole && len(c.sources[dir]) == 0 {
			c.fault(or(dir, "the root"), "has no files: internal/lint's face names the packages that users hold")
		}
		for _, s := range c.sources[dir] {
			if f := c.parse(s); f != nil {
				ast.FileExports(f)
				c.shown(f, named, pages[dir], symbols)
			}
		}
	}
}

// parse returns nil for a file that does not parse, which has been reported already.
func (c *checker) parse(s source) *ast.File {
	f, err := parser.ParseFile(c.fset, s.name, s.data, parser.ParseComments)
	if err != nil {
		return nil
	}
	return f
}

// exported returns the names that have an anchor on the page: Name, or Type.Member.
func exported(page *doc.Package) map[string]bool {
	names := map[string]bool{}
	values := func(list []*doc.Value) {
		for _, v := range list {
			for _, n := range v.Names {
				names[n] = true
			}
		}
	}
	values(page.Consts)
	values(page.Vars)
	for _, f := range page.Funcs {
		names[f.Name] = true
	}
	for _, t := range page.Types {
		names[t.Name] = true
		values(t.Consts)
		values(t.Vars)
		for _, f := range t.Funcs {
			names[f.Name] = true
		}
		for _, m := range t.Methods {
			names[t.Name+"."+m.Name] = true
		}
		ast.Inspect(t.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				for _, id := range f.Names {
					names[t.Name+"."+id.Name] = true
				}
			}
			return true
		})
	}
	return names
}

// shown checks a file from which all that is not exported has been removed.
func (c *checker) shown(f *ast.File, named *regexp.Regexp, page *doc.Package, symbols map[string]map[string]bool) {
	inside := map[string]bool{}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(p, module+"/internal/") {
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		inside[name] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Recv == nil || exportedReceiver(n.Recv)
		case *ast.BlockStmt:
			return false
		case *ast.StructType:
			c.members("field", n.Fields)
		case *ast.InterfaceType:
			c.members("method", n.Methods)
		case *ast.CommentGroup:
			for i, line := range strings.Split(n.Text(), "\n") {
				if m := named.FindString(line); m != "" {
					c.fault(c.line(c.fset.Position(n.Pos()).Filename, c.fset.Position(n.Pos()).Line-1+i),
						"the comment says %q, which users cannot see", m)
				}
			}
			c.links(n, page, symbols)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && inside[x.Name] {
				c.fault(c.at(n.Pos()), "shows %s.%s, of an internal package", x.Name, n.Sel.Name)
			}
		}
		return true
	})
}

// members checks that each exported member of a type has a comment.
func (c *checker) members(what string, list *ast.FieldList) {
	for _, f := range list.List {
		for _, id := range f.Names {
			if id.IsExported() && f.Doc.Text() == "" && f.Comment.Text() == "" {
				c.fault(c.at(id.Pos()), "exported %s %s has no comment", what, id.Name)
			}
		}
	}
}

// bracketed matches text that is meant as a link: [Name], [Type.Member], [package.Name].
var bracketed = regexp.MustCompile(`(?:^|\W)(\[\*?([\w/.]+\.)?[A-Z]\w*\])`)

// links checks that bracketed text in a comment is a link to something exported.
func (c *checker) links(g *ast.CommentGroup, page *doc.Package, symbols map[string]map[string]bool) {
	text := func(list []comment.Text) {
		for _, t := range list {
			switch t := t.(type) {
			case comment.Plain:
				for _, m := range bracketed.FindAllStringSubmatch(string(t), -1) {
					c.fault(c.at(g.Pos()), "%s is no link: there is no such name, or its package is not imported here", m[1])
				}
			case *comment.DocLink:
				name := t.Name
				if t.Recv != "" {
					name = t.Recv + "." + name
				}
				known := symbols[t.ImportPath]
				if strings.HasPrefix(t.ImportPath, module) && (known == nil || name != "" && !known[name]) {
					c.fault(c.at(g.Pos()), "the link to %s %s leads nowhere", t.ImportPath, name)
				}
			}
		}
	}
	var blocks func(list []comment.Block)
	blocks = func(list []comment.Block) {
		for _, b := range list {
			switch b := b.(type) {
			case *comment.Heading:
				text(b.Text)
			case *comment.Paragraph:
				text(b.Text)
			case *comment.List:
				for _, item := range b.Items {
					blocks(item.Content)
				}
			}
		}
	}
	blocks(page.Parser().Parse(g.Text()).Content)
}
