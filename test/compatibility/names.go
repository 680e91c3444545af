package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// namesOf has the names of each released version, which docs/api-policy.md promises to keep or to list as removed.
const namesOf = "test/compatibility/names"

// upgradePage lists what versions remove.
const upgradePage = "docs/upgrade.md"

// promising are the pages that are generated from the source, and have all names that users rely on in the first column
// of their tables, below the headings of what they are.
var promising = []string{"docs/reference.md", "charts/signalbox/README.md", "charts/signalbox-runtimes/README.md"}

var code = regexp.MustCompile("`([^`]+)`")

// promised returns the names that users rely on, each with what it is: "Metrics: signalbox_build_info".
func promised() ([]string, error) {
	names := map[string]bool{}
	for _, path := range promising {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		heading := ""
		for lines := bufio.NewScanner(file); lines.Scan(); {
			line := lines.Text()
			if of, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
				heading = of
			}
			cells := strings.Split(line, " | ")
			name, is := strings.CutPrefix(cells[0], "| `")
			if !is {
				continue
			}
			name = heading + ": " + strings.TrimSuffix(name, "`")
			names[name] = true
			if heading == "Metrics" && len(cells) > 2 { // dashboards rely on labels too
				for _, label := range code.FindAllStringSubmatch(cells[2], -1) {
					names[name+"{"+label[1]+"}"] = true
				}
			}
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// broken returns the names of a released version that are gone, and that the page doesn't list as removed: with what
// they are ("Metrics: signalbox_build_info"), in the first column of a table below a heading of "Removed".
func broken(released, now []string, page string) (gone []string) {
	removed, inside := map[string]bool{}, false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			inside = strings.HasPrefix(strings.TrimLeft(line, "# "), "Removed")
		}
		if inside && strings.HasPrefix(line, "| ") {
			first, _, _ := strings.Cut(line[2:], " |")
			removed[strings.Trim(first, "`")] = true
		}
	}
	for _, name := range released {
		if !slices.Contains(now, name) && !removed[name] {
			gone = append(gone, name)
		}
	}
	return gone
}

// recordNames keeps the names of a version that is released.
func recordNames(version string) error {
	names, err := promised()
	if err != nil {
		return err
	}
	path := filepath.Join(namesOf, version+".txt")
	fmt.Println("wrote", len(names), "names to", path)
	return os.WriteFile(path, []byte(strings.Join(names, "\n")+"\n"), 0o644)
}
