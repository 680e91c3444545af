package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what is looked at of a workflow of GitHub.
type workflow struct {
	Permissions any            `json:"permissions"`
	Jobs        map[string]job `json:"jobs"`
}

type job struct {
	Permissions map[string]string `json:"permissions"`
	Uses        string            `json:"uses"`
	Steps       []step            `json:"steps"`
	Strategy    struct {
		Matrix struct {
			Target  []string            `json:"target"`
			Include []map[string]string `json:"include"`
		} `json:"matrix"`
	} `json:"strategy"`
}

type step struct {
	Uses string         `json:"uses"`
	Run  string         `json:"run"`
	With map[string]any `json:"with"`
}

var (
	pinned  = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}$`)
	version = regexp.MustCompile(`@[0-9a-f]{40} # v\d`)
	// byTag is the exception: SLSA's generator finds its builder by its own tag.
	byTag  = regexp.MustCompile(`^slsa-framework/slsa-github-generator/\.github/workflows/\w+\.yml@v\d+\.\d+\.\d+$`)
	others = regexp.MustCompile(`\$\{\{[^}]*\bgithub\b`)
	target = regexp.MustCompile(`\bmake ([a-z0-9][a-z0-9 -]*)`)
)

// writes are the rights to write that a job may have, and what for. Others have read access at most.
var writes = map[string][]string{
	"scorecard.yml scorecard":         {"id-token", "security-events"},
	"scorecard.yml codeql":            {"security-events"},
	"release.yml publish":             {"contents", "id-token"},
	"release.yml provenance":          {"id-token", "packages"},
	"release.yml provenance-of-files": {"contents", "id-token"},
	"release.yml verified":            {"contents"},
	"release.yml site":                {"contents"},
}

// TestWorkflows holds that workflows pin what they use, have no more rights than they need, and call targets of the
// Makefile that there are.
func TestWorkflows(t *testing.T) {
	t.Chdir("../..")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(".github/workflows/*.yml")
	if err != nil || len(paths) < 4 {
		t.Fatalf("%d workflows, %v", len(paths), err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range check(filepath.Base(path), content, string(makefile)) {
			t.Errorf("%s: %s", path, problem)
		}
	}
}

// check returns what is wrong with a workflow.
func check(file string, content []byte, makefile string) (problems []string) {
	var w workflow
	if err := yaml.Unmarshal(content, &w); err != nil {
		return []string{err.Error()}
	}
	if of, is := w.Permissions.(map[string]any); !is || len(of) > 0 {
		problems = append(problems, "it begins with rights; say permissions: {}, and give each job its own")
	}
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, "uses:") && !version.MatchString(line) && !strings.Contains(line, "slsa-framework/") {
			problems = append(problems, "no commit with its version in a comment: "+strings.TrimSpace(line))
		}
	}
	for name, j := range w.Jobs {
		problems = append(problems, checkJob(name, file+" "+name, &j, makefile)...)
	}
	slices.Sort(problems)
	return problems
}

func checkJob(name, key string, j *job, makefile string) (problems []string) {
	complain := func(text string) { problems = append(problems, "job "+name+": "+text) }
	if j.Permissions == nil {
		complain("it doesn't say which rights it needs")
	}
	for of, access := range j.Permissions {
		if access == "write" && !slices.Contains(writes[key], of) {
			complain("it may write " + of)
		}
	}
	if j.Uses != "" && !pinned.MatchString(j.Uses) && !byTag.MatchString(j.Uses) {
		complain("it uses " + j.Uses)
	}
	var commands []string
	for _, s := range j.Steps {
		if s.Uses != "" && !pinned.MatchString(s.Uses) {
			complain("it uses " + s.Uses)
		}
		if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false && name != "site" {
			complain("it leaves its token in the clone: persist-credentials")
		}
		if others.MatchString(s.Run) {
			complain("others write a part of its script: " + s.Run)
		}
		commands = append(commands, s.Run)
	}
	for _, t := range j.Strategy.Matrix.Target {
		commands = append(commands, "make "+t)
	}
	for _, i := range j.Strategy.Matrix.Include {
		if t := i["target"]; t != "" {
			commands = append(commands, "make "+t)
		}
	}
	for _, found := range target.FindAllStringSubmatch(strings.Join(commands, "\n"), -1) {
		for _, name := range strings.Fields(found[1]) {
			if !isTarget(makefile, name) {
				complain("make " + name + " is no target of the Makefile")
			}
		}
	}
	return problems
}

// isTarget reports whether the Makefile has a target, or a pattern and what that needs.
func isTarget(makefile, name string) bool {
	for line := range strings.Lines(makefile) {
		if names, _, is := strings.Cut(line, ":"); is && slices.Contains(strings.Fields(names), name) {
			return true
		}
	}
	suite, isSuite := strings.CutPrefix(name, "test-")
	return isSuite && strings.Contains(makefile, "\nsuite."+suite+" = ") || strings.HasPrefix(name, "bench-")
}

// TestCheck holds that each kind of fault is found.
func TestCheck(t *testing.T) {
	const head = "permissions: {}\njobs:\n  a:\n    permissions: {contents: read}\n"
	const sha = "0123456789012345678901234567890123456789"
	for text, want := range map[string]string{
		"permissions: {contents: read}\njobs: {}": "begins with rights",
		"jobs: {}": "begins with rights",
		"permissions: {}\njobs: {a: {steps: []}}":                          "doesn't say which rights",
		"permissions: {}\njobs: {a: {permissions: {contents: write}}}":     "may write contents",
		head + "    steps:\n    - uses: a/b@v1 # v1\n":                     "it uses a/b@v1",
		head + "    steps:\n    - uses: a/b@" + sha + "\n":                 "no commit with its version",
		head + "    uses: a/b/.github/workflows/c.yml@v1.0.0\n":            "it uses a/b/",
		head + "    steps:\n    - uses: actions/checkout@" + sha + " # v7": "persist-credentials",
		head + "    steps:\n    - run: make none\n":                        "make none is no target",
		head + "    steps:\n    - run: echo ${{github.event.title}}\n":     "others write",
		head + "    steps:\n    - run: echo ${{ toJSON(github.event) }}\n": "others write",
	} {
		found := check("a.yml", []byte(text), "all: b ## c\n")
		if !slices.ContainsFunc(found, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("%q: got %q, want %q", text, found, want)
		}
	}
	if found := check("a.yml", []byte(head+"    steps:\n    - run: make all\n"), "all: b ## c\n"); len(found) > 0 {
		t.Errorf("got %q", found)
	}
}
