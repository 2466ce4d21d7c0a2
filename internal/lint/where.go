package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strings"
)

// architecture is the page that has, under whereHeading, a table of where things are.
const (
	architecture = "docs/architecture/packages.md"
	whereHeading = "## Where is ..."
	whereLeast   = 25 // rows
)

// place matches a row of that table: question, file, symbol.
var place = regexp.MustCompile("^\\| (.+) \\| `([^`|]+)` \\| `([^`|]+)` \\|$")

// where checks that the table's files exist, and that each declares its symbol: a function, type, constant or variable
// by name, a method or field as Type.Name. A file that is not Go need only contain the word.
func (c *checker) where() {
	page, err := fs.ReadFile(c.tree, architecture)
	if err != nil {
		return // the test checks that the page exists
	}
	rows, table := 0, false
	for i, line := range strings.Split(string(page), "\n") {
		if strings.HasPrefix(line, "## ") {
			table = line == whereHeading
		}
		if !table || !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") || line == "| Question | File | Symbol |" {
			continue
		}
		rows++
		at := c.line(architecture, i)
		row := place.FindStringSubmatch(line)
		if row == nil {
			c.fault(at, "a row of the table is | question | `file` | `symbol` |")
			continue
		}
		file, symbol := row[2], row[3]
		data, err := fs.ReadFile(c.tree, file)
		switch {
		case err != nil:
			c.fault(at, "there is no file %s", file)
		case !declares(file, data, symbol):
			c.fault(at, "%s does not declare %s", file, symbol)
		}
	}
	if rows < whereLeast {
		c.fault(architecture, "%q has %d rows, fewer than %d", whereHeading, rows, whereLeast)
	}
}

// declares reports whether a file declares symbol.
func declares(file string, data []byte, symbol string) bool {
	if !strings.HasSuffix(file, ".go") {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(symbol) + `\b`).Match(data)
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, data, 0)
	if err != nil {
		return false // c.file reports it
	}
	of, name, member := strings.Cut(symbol, ".")
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch {
			case d.Recv == nil:
				if !member && d.Name.Name == symbol {
					return true
				}
			case member && d.Name.Name == name && receiver(d.Recv) == of:
				return true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.Name == of && (!member || has(s.Type, name)) {
						return true
					}
				case *ast.ValueSpec:
					for _, id := range s.Names {
						if !member && id.Name == symbol {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// has reports whether a struct has a field, or an interface a method, of that name.
func has(t ast.Expr, name string) bool {
	var fields *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return false
	}
	for _, f := range fields.List {
		for _, id := range f.Names {
			if id.Name == name {
				return true
			}
		}
	}
	return false
}
