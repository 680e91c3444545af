package release

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestInsights holds that security-insights.yml has what its specification requires, and names files that there are.
func TestInsights(t *testing.T) {
	t.Chdir("../..")
	content, err := os.ReadFile(".github/security-insights.yml")
	if err != nil {
		t.Fatal(err)
	}
	var insights map[string]any
	if err := yaml.UnmarshalStrict(content, &insights); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"header.schema-version", "header.last-updated", "header.last-reviewed", "header.url",
		"project.name", "project.administrators", "project.repositories", "project.vulnerability-reporting.reports-accepted",
		"project.vulnerability-reporting.bug-bounty-available", "repository.url", "repository.status",
		"repository.accepts-change-request", "repository.accepts-automated-change-request", "repository.core-team",
		"repository.license.url", "repository.license.expression", "repository.security.assessments.self.comment"} {
		at := any(insights)
		for _, key := range strings.Split(path, ".") {
			of, _ := at.(map[string]any)
			at = of[key]
		}
		if at == nil {
			t.Errorf("%s is missing (schema 2.0.0)", path)
		}
	}
	links := regexp.MustCompile(`https://github\.com/signalbox-dev/signalbox/(?:blob|tree)/main/([^\s#]+)`)
	found := links.FindAllStringSubmatch(string(content), -1)
	if len(found) < 5 {
		t.Errorf("%d links", len(found))
	}
	for _, link := range found {
		if _, err := os.Stat(link[1]); err != nil {
			t.Error(err)
		}
	}
}

// TestBlocks holds that the scripts paste the commands below a heading, and neither outputs nor other sections.
func TestBlocks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# Page\n```sh\nkubectl none\n```\n## A part\n```\nhelm install \\\n  a\n```\n\n```yaml\nkubectl: no\n```\n" +
		"```\n$ kubectl logs\nkubectl is said\n```\n```\nNAME STATE\n```\n```sh node\nkubectl get a\n```\n" +
		"### Within\n```\nmake b\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("./blocks.sh", page, "A part").CombinedOutput()
	if want := "helm install \\\n  a\nkubectl get a\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

var (
	refusal = regexp.MustCompile(`\{\{-? *fail \(?(?:printf )?"((?:[^"\\]|\\.)*)"`)
	parts   = regexp.MustCompile(`%[a-z]|[:;(,] ?`)
)

// TestTroubleshooting holds that the page has a line of each message that a first-time user can run into: each reason
// of condition Blocked, each warning, and each refusal of the chart.
func TestTroubleshooting(t *testing.T) {
	t.Chdir("../..")
	content, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	reference, err := os.ReadFile("docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, reasons, _ := strings.Cut(string(reference), "## Reasons of the condition Blocked")
	reasons, events, _ := strings.Cut(reasons, "## Events")
	names := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(reasons, -1)
	names = append(names, regexp.MustCompile("(?m)^\\| `(\\w+)` \\| Warning").FindAllStringSubmatch(events, -1)...)
	if len(names) < 40 {
		t.Fatalf("%d reasons and warnings", len(names))
	}
	for _, name := range names {
		if !strings.Contains(page, "`"+name[1]+"`") {
			t.Errorf("nothing about %s", name[1])
		}
	}
	templates, err := filepath.Glob("charts/signalbox/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	for _, path := range templates {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, says := range refusal.FindAllStringSubmatch(string(content), -1) {
			refusals++
			first, _, _ := strings.Cut(strings.ReplaceAll(says[1], `\n`, ""), ". ")
			longest := slices.MaxFunc(parts.Split(first, -1), func(a, b string) int { return cmp.Compare(len(a), len(b)) })
			if longest = strings.TrimSpace(longest); !strings.Contains(page, longest) {
				t.Errorf("nothing about %q, of %s", longest, path)
			}
		}
	}
	if refusals < 10 {
		t.Errorf("%d refusals of the chart", refusals)
	}
}
