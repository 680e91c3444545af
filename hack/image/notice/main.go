// Command notice writes NOTICE, the modules that the programs link with their licences and notices: notice REPOSITORY.
// It fails at a licence that isn't known to allow it. `make generate` runs it. notice REPOSITORY FILE writes the texts
// of the licences as well, which a release has beside its programs.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences, by their SPDX names, under which what is linked may be given on with these programs.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// leastKnown is which share of a licence's file has to be a licence that is known, in per cent. The rest says whose it
// is.
const leastKnown = 75

// platforms are those of a release; what is linked differs.
var platforms = []string{"linux", "darwin", "windows"}

const introduction = `Signalbox
Copyright The Signalbox authors

Its programs contain the modules below, under these licences; a release has the texts in LICENSES.txt. The page contains
htmx.org, under 0BSD. make generate writes this file, and fails at a licence that isn't known to allow it.

`

// module is one of which packages are linked.
type module struct {
	name    string   // path and version
	folders []string // of the packages that are linked, and those above, in which licences are
}

// text is a file of a module.
type text struct{ of, content string }

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "notice: want REPOSITORY [FILE]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

func run(repository string, to []string) error {
	modules, err := linked(repository)
	if err != nil {
		return err
	}
	out := strings.Builder{}
	out.WriteString(introduction)
	var problems []error
	var notices, licences []text
	for _, m := range modules {
		names, texts, said, err := m.read()
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		fmt.Fprintf(&out, "%s: %s\n", m.name, strings.Join(names, ", "))
		licences, notices = append(licences, texts...), append(notices, said...)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	write(&out, notices)
	if err := os.WriteFile(filepath.Join(repository, "NOTICE"), []byte(out.String()), 0o644); err != nil {
		return err
	}
	for _, file := range to {
		var all strings.Builder
		write(&all, licences)
		if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// write writes each text once, below the names of all that have it.
func write(out *strings.Builder, texts []text) {
	var order []string
	having := map[string][]string{}
	for _, t := range texts {
		if having[t.content] == nil {
			order = append(order, t.content)
		}
		having[t.content] = append(having[t.content], t.of)
	}
	for _, content := range order {
		var lines strings.Builder
		for line := range strings.Lines(strings.TrimSpace(content)) {
			lines.WriteString(strings.TrimRight(line, " \t\r\n") + "\n")
		}
		fmt.Fprintf(out, "\n--- %s\n\n%s", strings.Join(having[content], "\n--- "), lines.String())
	}
}

// linked returns the modules of all packages that the programs link on any platform.
func linked(repository string) ([]module, error) {
	folders := map[string]map[string]bool{} // by module
	for _, platform := range platforms {
		list := exec.Command("go", "list", "-deps", "-f",
			"{{$dir := .Dir}}{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}\t{{$dir}}{{end}}{{end}}",
			"./cmd/...")
		list.Dir, list.Stderr = repository, os.Stderr
		list.Env = append(os.Environ(), "GOOS="+platform)
		found, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("listing what is linked for %s: %w", platform, err)
		}
		for line := range strings.Lines(string(found)) {
			of := strings.Split(strings.TrimSpace(line), "\t") // the module, its folder, the package's
			if len(of) != 3 {
				continue
			}
			if folders[of[0]] == nil {
				folders[of[0]] = map[string]bool{}
			}
			for dir := of[2]; strings.HasPrefix(dir, of[1]); dir = filepath.Dir(dir) {
				folders[of[0]][dir] = true
			}
		}
	}
	var all []module
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		all = append(all, module{name, slices.Sorted(maps.Keys(folders[name]))})
	}
	return all, nil
}

// read returns the SPDX names of a module's licences, their texts, and its notices.
func (m module) read() (names []string, licences, notices []text, err error) {
	root := m.folders[0]
	for _, folder := range m.folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, nil, nil, err
		}
		for _, e := range entries {
			upper := strings.ToUpper(e.Name())
			isNotice := upper == "NOTICE" || strings.HasPrefix(upper, "NOTICE.")
			isLicence := strings.HasPrefix(upper, "LICEN") || strings.HasPrefix(upper, "COPYING")
			// LICENSE.docs is of texts that aren't linked, and a Go file is linked itself.
			if e.IsDir() || !isNotice && !isLicence || strings.HasSuffix(upper, ".DOCS") || strings.HasSuffix(upper, ".GO") {
				continue
			}
			path := filepath.Join(folder, e.Name())
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, nil, nil, err
			}
			t := text{m.name + strings.TrimPrefix(path, root), string(content)}
			if isNotice {
				notices = append(notices, t)
				continue
			}
			of, err := namesOf(content)
			if err != nil {
				return nil, nil, nil, fmt.Errorf("%s: %w", strings.TrimPrefix(path, root+"/"), err)
			}
			names, licences = append(names, of...), append(licences, t)
		}
	}
	if len(names) == 0 {
		return nil, nil, nil, errors.New("it has no licence")
	}
	slices.Sort(names)
	return slices.Compact(names), licences, notices, nil
}

// namesOf returns the SPDX names of the licences in a file.
func namesOf(content []byte) (names []string, err error) {
	found := licensecheck.Scan(content)
	for _, match := range found.Match {
		if !slices.Contains(allowed, match.ID) {
			return nil, fmt.Errorf("licence %s isn't among %s", match.ID, strings.Join(allowed, ", "))
		}
		names = append(names, match.ID)
	}
	if len(names) == 0 || found.Percent < leastKnown {
		return nil, fmt.Errorf("%.0f %% of it is a known licence, and %d have to be; read it", found.Percent, leastKnown)
	}
	return names, nil
}
