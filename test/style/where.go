package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// minRules is how many rules the table "Where is what" of docs/architecture.md has at the least.
const minRules = 30

// index has the files that declare a name: "Func", "Type", "Type.Method", "Type.Field", "Const" or "Var", by the folder
// of the package.
type index map[string]map[string][]string

// declarations returns what the product's files declare; tests and generated files are left out.
func declarations(root string, files []string) (index, error) {
	all := index{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		if all[folder] == nil {
			all[folder] = map[string][]string{}
		}
		for _, name := range declared(file) {
			all[folder][name] = append(all[folder][name], filepath.Base(path))
		}
	}
	return all, nil
}

// declared returns the names that a file declares at the top, and the fields and methods of its types.
func declared(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, receiverOf(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
					names = append(names, members(s)...)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

// receiverOf returns a method's type with a dot, "" for a function.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// embedding, after the name of a type, says that it has the members of others, or is another by an alias.
const embedding = ".*"

// members returns the fields of a struct or the methods of an interface, with the type's name.
func members(s *ast.TypeSpec) (names []string) {
	var list *ast.FieldList
	switch t := s.Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	case *ast.Ident, *ast.SelectorExpr:
		return []string{s.Name.Name + embedding}
	default:
		return nil
	}
	for _, field := range list.List {
		if len(field.Names) == 0 {
			names = append(names, s.Name.Name+embedding)
		}
		for _, name := range field.Names {
			names = append(names, s.Name.Name+"."+name.Name)
		}
	}
	return names
}

// find returns the files that declare a name of a package: "package.Func" or "package.(*Type).Method".
func (x index) find(name string) []string {
	folder, rest := name, ""
	if at := strings.Index(name[strings.LastIndex(name, "/")+1:], "."); at >= 0 {
		at += strings.LastIndex(name, "/") + 1
		folder, rest = name[:at], name[at+1:]
	}
	return x[folder][strings.NewReplacer("(*", "", ")", "").Replace(rest)]
}

const (
	architecture = "docs/architecture.md"
	heading      = "\n## Where is what\n"
)

var inCode = regexp.MustCompile("`([^`]+)`")

// where returns the page with the files of the table "Where is what" as they are, and what is wrong with the table.
func (x index) where(page string) (written string, problems error) {
	before, rest, found := strings.Cut(page, heading)
	if !found {
		return page, fmt.Errorf("%s has no heading %q", architecture, strings.TrimSpace(heading))
	}
	table, after, _ := strings.Cut(rest, "\n## ")
	var lines []string
	var all []error
	rules := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| rule") && !strings.HasPrefix(line, "| ---") {
			row, err := x.row(strings.TrimSpace(line))
			if row+"\n" != line && err == nil {
				err = fmt.Errorf("%s: the row is %s; go run ./test/style -where writes it", architecture, row)
			}
			all = append(all, err)
			line = row + "\n"
			rules++
		}
		lines = append(lines, line)
	}
	if rules < minRules {
		all = append(all, fmt.Errorf("%s: the table has %d rules; it has at least %d", architecture, rules, minRules))
	}
	return before + heading + strings.Join(lines, "") + "\n## " + after, errors.Join(all...)
}

// row returns a row of the table with the files that declare its functions.
func (x index) row(line string) (string, error) {
	cells := strings.Split(strings.Trim(line, "|"), "|")
	if len(cells) < 2 {
		return line, fmt.Errorf("%s: no row of the table: %s", architecture, line)
	}
	var files []string
	functions := inCode.FindAllStringSubmatch(cells[1], -1)
	for _, f := range functions {
		found := x.find(f[1])
		if len(found) == 0 {
			return line, fmt.Errorf("%s names %s, which doesn't exist", architecture, f[1])
		}
		for _, file := range found {
			if file = "`" + file + "`"; !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	if len(functions) == 0 {
		return line, fmt.Errorf("%s: no function in %s", architecture, line)
	}
	return "|" + cells[0] + "|" + cells[1] + "| " + strings.Join(files, ", ") + " |", nil
}

// writeWhere writes the files of the table "Where is what".
func writeWhere(root string) error {
	files, err := sources(root, products)
	if err != nil {
		return err
	}
	x, err := declarations(root, files)
	if err != nil {
		return err
	}
	path := filepath.Join(root, architecture)
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	written, _ := x.where(string(page))
	if err := os.WriteFile(path, []byte(written), 0o644); err != nil {
		return err
	}
	_, err = x.where(written)
	return err
}
