package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// names is what comments may name: what the product declares, and each word of code, of strings and of manifests.
type names struct {
	index index
	words map[string]bool
	files map[string]bool // by path, and by name alone
}

var (
	word = regexp.MustCompile(`[A-Za-z_]\w*`)
	// naming is a word of a comment that may name something: store.Pin, Trial.Startable, mayResume, docs/api.md.
	naming = regexp.MustCompile(`[\w/-]*\w(?:\.\w+)*`)
	// camel is a word that is none of a language.
	camel = regexp.MustCompile(`^(?:[a-z]+|[A-Z][a-z]+)[A-Z]\w*$`)
	// elsewhere is in a comment that may name what another project has.
	elsewhere = regexp.MustCompile(`Kueue|Kubernetes|kubectl|JobSet|Kubeflow|k8s\.io|controller-runtime|apiserver|LeaderWorkerSet`)
	// a domain isn't a name of a package, nor is a field of an object.
	domain = regexp.MustCompile(`\.(?:org|io|dev|com)\b|^(?:metadata|spec|status)\.`)
	aFile  = regexp.MustCompile(`\.(?:go|md|ya?ml|sh|tpl)$`)
)

// namesOf reads what comments may name, of Go files and of the manifests below root.
func namesOf(root string, product, tools []string) (*names, error) {
	x, err := declarations(root, product)
	if err != nil {
		return nil, err
	}
	n := &names{index: x, words: map[string]bool{}, files: map[string]bool{}}
	for _, file := range slices.Concat(product, tools) {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		n.read(content)
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	for _, file := range strings.Fields(string(out)) {
		n.files[file], n.files[path.Base(file)] = true, true
		if strings.HasPrefix(file, "charts/") || strings.HasPrefix(file, "config/") {
			content, err := os.ReadFile(filepath.Join(root, file))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			n.add(content)
		}
	}
	return n, nil
}

// read adds the words of a Go file but for its comments.
func (n *names) read(content []byte) {
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile("", -1, len(content)), content, nil, 0)
	for {
		_, kind, text := s.Scan()
		if kind == token.EOF {
			return
		}
		if kind == token.IDENT || kind == token.STRING {
			n.add([]byte(text))
		}
	}
}

func (n *names) add(content []byte) {
	for _, w := range word.FindAll(content, -1) {
		n.words[string(w)] = true
	}
}

// unknown returns what a product's file names in its comments that doesn't exist.
func (n *names) unknown(root, file string) ([]string, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.Join(root, file), nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, group := range parsed.Comments {
		foreign := elsewhere.MatchString(group.Text())
		for _, comment := range group.List {
			text, ok := strings.CutPrefix(comment.Text, "// ")
			if !ok || strings.HasPrefix(text, "+") {
				continue
			}
			for _, name := range naming.FindAllString(text, -1) {
				if !n.exists(filepath.ToSlash(file), parsed.Imports, name, foreign) {
					found = append(found, fmt.Sprintf("%s:%d: %s", file, set.Position(comment.Pos()).Line, name))
				}
			}
		}
	}
	return found, nil
}

// exists reports whether what a comment of a file names exists. foreign is set if the comment is about another project,
// whose names aren't known.
func (n *names) exists(file string, imports []*ast.ImportSpec, name string, foreign bool) bool {
	if domain.MatchString(name) {
		return true
	}
	if aFile.MatchString(name) {
		return foreign || n.files[name] || n.files[path.Join(path.Dir(file), name)]
	}
	first, rest, qualified := strings.Cut(name, ".")
	folders := n.folders(first)
	if qualified && len(folders) > 0 {
		return slices.ContainsFunc(folders, func(folder string) bool { return len(n.index[folder][rest]) > 0 }) ||
			n.words[rest] && (!ast.IsExported(rest) || imported(imports, first))
	}
	if qualified && n.isType(first) && word.FindString(rest) == rest {
		return n.has(first + "." + rest)
	}
	for part := range strings.SplitSeq(name, ".") {
		if camel.MatchString(part) && !n.words[part] && !foreign {
			return false
		}
	}
	return true
}

// isType reports whether a name is of a type of the product whose fields and methods are all known.
func (n *names) isType(name string) bool {
	return ast.IsExported(name) && n.has(name) && !n.has(name+embedding)
}

// has reports whether a package of the product declares a name.
func (n *names) has(name string) bool {
	for _, declared := range n.index {
		if len(declared[name]) > 0 {
			return true
		}
	}
	return false
}

// folders returns the folders of the product's packages with a name or a path.
func (n *names) folders(name string) (all []string) {
	for folder := range n.index {
		if folder == name || path.Base(folder) == name {
			all = append(all, folder)
		}
	}
	return all
}

// imported reports whether a file imports a package of another module with that name.
func imported(imports []*ast.ImportSpec, name string) bool {
	return slices.ContainsFunc(imports, func(i *ast.ImportSpec) bool {
		path := strings.Trim(i.Path.Value, `"`)
		return strings.HasSuffix(path, "/"+name) && !strings.HasPrefix(path, modulePath)
	})
}

// commentBound measures what comments of the product and the page of its architecture name that doesn't exist.
func commentBound(root string, product, tools []string) (bound, error) {
	b := bound{title: "names in comments and in " + architecture + " that don't exist"}
	n, err := namesOf(root, product, tools)
	if err != nil {
		return b, err
	}
	for _, file := range product {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		found, err := n.unknown(root, file)
		if err != nil {
			return b, err
		}
		b.found = append(b.found, found...)
	}
	page, err := os.ReadFile(filepath.Join(root, architecture))
	if err != nil {
		return b, err
	}
	b.found = append(b.found, n.unknownOfPage(architecture, string(page))...)
	b.got = len(b.found)
	return b, nil
}

// unknownOfPage returns what code in a page names that doesn't exist.
func (n *names) unknownOfPage(file, page string) (found []string) {
	number := 0
	for line := range strings.Lines(page) {
		number++
		for _, code := range inCode.FindAllStringSubmatch(line, -1) {
			for _, name := range naming.FindAllString(strings.NewReplacer("(*", "", ")", "").Replace(code[1]), -1) {
				if !n.exists(file, nil, name, elsewhere.MatchString(line)) {
					found = append(found, fmt.Sprintf("%s:%d: %s", file, number, name))
				}
			}
		}
	}
	return found
}
