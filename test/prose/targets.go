package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// target is a rule of the Makefile, suite one of its parts of the end-to-end suite: make test-NAME.
	target = regexp.MustCompile(`(?m)^([a-z][a-z0-9.-]*):(?:[^=]|$)`)
	suite  = regexp.MustCompile(`(?m)^suite\.([a-z0-9.-]+) =`)
	// named is a target that a text names, in code.
	named = regexp.MustCompile("`make ([a-z][a-z0-9.-]*)")
)

// targetsOf returns the targets of the Makefile of root; none if it has none.
func targetsOf(root string) map[string]bool {
	content, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil
	}
	all := map[string]bool{}
	for _, found := range target.FindAllSubmatch(content, -1) {
		all[string(found[1])] = true
	}
	for _, found := range suite.FindAllSubmatch(content, -1) {
		all["test-"+string(found[1])] = true
	}
	return all
}

// missingTargets returns the targets that a file names and the Makefile doesn't have.
func missingTargets(file, content string, targets map[string]bool) (all []string) {
	for i, line := range strings.Split(content, "\n") {
		for _, found := range named.FindAllStringSubmatch(line, -1) {
			if len(targets) > 0 && !targets[found[1]] {
				all = append(all, fmt.Sprintf("%s:%d: the Makefile has no target %s", file, i+1, found[1]))
			}
		}
	}
	return all
}
