// Command notice writes NOTICE, the modules that the programs link and their licences: notice REPOSITORY. It fails at a
// licence that isn't known to allow it. `make generate` runs it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences, by their SPDX names, under which what is linked may be given on with these programs.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// platforms are those of a release; what is linked differs.
var platforms = []string{"linux", "darwin", "windows"}

const introduction = `Signalbox
Copyright The Signalbox authors

Its programs contain the modules below, under these licences; the text of each is in the module. The page contains
htmx.org, under 0BSD. make generate writes this file, and fails at a licence that isn't known to allow it.

`

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "notice: want REPOSITORY")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

func run(repository string) error {
	modules, err := linked(repository)
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString(introduction)
	var problems []error
	for _, line := range modules {
		of := strings.Split(line, "\t") // path, version, folder
		licences, err := licencesOf(of[2])
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", of[0], of[1], err))
			continue
		}
		fmt.Fprintf(&out, "%s %s: %s\n", of[0], of[1], strings.Join(licences, ", "))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repository, "NOTICE"), []byte(out.String()), 0o644)
}

// linked returns the modules of all packages that the programs link on any platform.
func linked(repository string) ([]string, error) {
	var all []string
	for _, platform := range platforms {
		list := exec.Command("go", "list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/...")
		list.Dir, list.Stderr = repository, os.Stderr
		list.Env = append(os.Environ(), "GOOS="+platform)
		found, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("listing what is linked for %s: %w", platform, err)
		}
		all = append(all, strings.Split(strings.TrimSpace(string(found)), "\n")...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(line string) bool { return line == "" }), nil
}

// licencesOf returns the SPDX names of the licences in a module's folder.
func licencesOf(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") ||
			strings.HasSuffix(name, ".DOCS") { // of texts that aren't linked
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, match := range licensecheck.Scan(text).Match {
			if !slices.Contains(allowed, match.ID) {
				return nil, fmt.Errorf("%s has licence %s, which isn't among %s", e.Name(), match.ID, strings.Join(allowed, ", "))
			}
			found = append(found, match.ID)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no licence was recognized")
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
