package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// notRead are Go files whose strings users don't read: tests, tools and what is generated.
var notRead = regexp.MustCompile(`_test\.go$|^(bench|test|hack|config|examples)/|zz_generated`)

// minWords is how many words a string has at the least to be read as prose.
const minWords = 4

var (
	// verb is a verb of package fmt, whose value counts as one word.
	verb = regexp.MustCompile(`%[-+# 0]*[\d*]*(?:\.[\d*]+)?(?:\[\d+\])?[a-zA-Z]`)
	// plainWords are in prose, and not in a path, a key or a command.
	plainWords = regexp.MustCompile(`[a-z]{2,} [a-z]{2,}`)
)

// stringsOf returns the strings of a Go file that users read: errors, conditions, events, help. Those that are added up
// are one passage. Raw strings are templates and code.
func stringsOf(file string, set *token.FileSet, parsed *ast.File) (all []passage) {
	ast.Inspect(parsed, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			_, imports := n.(*ast.ImportSpec)
			return !imports
		}
		text, ok := joined(e)
		if !ok {
			return true
		}
		for _, paragraph := range strings.Split(verb.ReplaceAllString(text, "X"), "\n\n") {
			if len(strings.Fields(paragraph)) >= minWords && plainWords.MatchString(paragraph) {
				all = append(all, passage{file: file, line: set.Position(e.Pos()).Line, text: paragraph, isString: true})
			}
		}
		return false
	})
	return all
}

// joined returns the text of strings that are added up, with "…" for what isn't a literal, and whether there is one.
func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING || strings.HasPrefix(e.Value, "`") {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, isLeft := joined(e.X)
		right, isRight := joined(e.Y)
		if !isLeft {
			left = "…"
		}
		if !isRight {
			right = "…"
		}
		return left + right, isLeft || isRight
	}
	return "", false
}
