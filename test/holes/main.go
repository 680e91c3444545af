// Command holes removes each fix of docs/security.md from a copy of the tree, runs the end-to-end specs that cover it,
// and prints how many fail and what `signalbox audit` finds. It exits with an error if no spec fails, or if the audit
// misses what it should find.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// hole removes a fix: in file, from is replaced by to.
type hole struct {
	name, file, from, to string
	// focus selects the specs that cover it.
	focus string
	// finds is the rule that audit must report; "" if the audit doesn't cover it.
	finds string
	// also names a hole without which this one stays closed, because two fixes hold the same; "" if there is none.
	also string
}

func main() {
	only := flag.String("only", "", "regular expression of the holes to test; all by default")
	patience := flag.String("patience", "700ms", "how long a finding of the audit must last")
	flag.Parse()
	if err := run(regexp.MustCompile(*only), *patience); err != nil {
		fmt.Fprintln(os.Stderr, "holes:", err)
		os.Exit(1)
	}
}

func run(only *regexp.Regexp, patience string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	tree := filepath.Join(root, "bin", "holes")
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	// Includes uncommitted files.
	copied := exec.Command("bash", "-c", `mkdir -p "$1" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"`, "copy", tree)
	if out, err := copied.CombinedOutput(); err != nil {
		return fmt.Errorf("copying the tree: %w: %s", err, out)
	}
	defer os.RemoveAll(tree)
	failed := 0
	fmt.Println("| without the fix | specs that fail | audit finds |\n| --- | --: | --- |")
	for _, h := range holes {
		if !only.MatchString(h.name) {
			continue
		}
		says, err := h.try(root, tree, patience)
		if err != nil {
			failed++
			says = "**" + err.Error() + "** |"
		}
		fmt.Printf("| %s | %s |\n", h.name, says)
	}
	if failed > 0 {
		return fmt.Errorf("%d holes are not detected", failed)
	}
	return nil
}

var (
	ran   = regexp.MustCompile(`(\d+) Passed \| (\d+) Failed`)
	rules = regexp.MustCompile(`"((?:no-quota|exceeds-admission|quota-for-nothing|altered-child|other-flavor|doubled): [^"]*)"`)
)

// open removes the fix from the tree, and that of also. What it returns puts both back.
func (h hole) open(tree string) (func() error, error) {
	path := filepath.Join(tree, h.file)
	whole, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.Count(whole, []byte(h.from)) != 1 {
		return nil, fmt.Errorf("%s has changed; update the hole", h.file)
	}
	if err := os.WriteFile(path, bytes.Replace(whole, []byte(h.from), []byte(h.to), 1), 0o644); err != nil {
		return nil, err
	}
	closes := func() error { return os.WriteFile(path, whole, 0o644) }
	if h.also == "" {
		return closes, nil
	}
	i := slices.IndexFunc(holes, func(other hole) bool { return other.name == h.also })
	if i < 0 {
		return nil, errors.Join(fmt.Errorf("there is no hole %q", h.also), closes())
	}
	closesOther, err := holes[i].open(tree)
	if err != nil {
		return nil, errors.Join(err, closes())
	}
	return func() error { return errors.Join(closes(), closesOther()) }, nil
}

// try runs the specs without the fix, and returns the failures and a finding as table cells.
func (h hole) try(root, tree, patience string) (cells string, err error) {
	closes, err := h.open(tree)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closes()) }()
	specs := exec.Command(filepath.Join(root, "bin", "cluster"), "run", "--root", tree, "--profile", "bundled", "--",
		filepath.Join(root, "bin", "e2e.test"), "-ginkgo.vv", "-ginkgo.no-color", "-ginkgo.focus="+h.focus)
	specs.Env = append(os.Environ(), "SIGNALBOX_AUDIT_PATIENCE="+patience)
	out, err := specs.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return "", err
	}
	counts := ran.FindSubmatch(out)
	if counts == nil {
		return "", fmt.Errorf("no spec ran: %s", lastOf(out))
	}
	if string(counts[2]) == "0" {
		return "", errors.New("no spec fails")
	}
	found := ""
	for _, m := range rules.FindAllSubmatch(out, -1) {
		if found == "" || strings.HasPrefix(string(m[1]), h.finds+":") && !strings.HasPrefix(found, h.finds+":") {
			found = string(m[1])
		}
	}
	if h.finds != "" && !strings.HasPrefix(found, h.finds+":") {
		return "", fmt.Errorf("audit doesn't find %s, but %q", h.finds, found)
	}
	return fmt.Sprintf("%s | %s", counts[2], strings.ReplaceAll(found, "|", "/")), nil
}

func lastOf(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " / ")
}
