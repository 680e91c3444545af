package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pages are the documents whose commands are run, in the order in which a new user comes through them.
var pages = []string{"docs/quick-start.md", "docs/batch-admin.md", "docs/user-guide.md", "docs/install.md"}

// TestDocumentation does what the documentation says, with real kubectl and Helm: every command of every block of kind
// sh must succeed. Where a page installs, a manager is started as its Deployment would start it.
func TestDocumentation(t *testing.T) {
	s := newStand(t)
	s.create(exampleNodes)
	run := s.shell()
	all, blocks := "", 0
	for _, page := range pages {
		content, err := os.ReadFile(filepath.Join(repository, page))
		s.must(err)
		for _, block := range commands(string(content)) {
			run(page, block)
			all += block
			blocks++
			if strings.Contains(block, "helm install ") {
				s.run("documented")
			}
			if strings.Contains(block, "helm uninstall ") {
				s.uninstalled()
			}
		}
	}
	examples, err := filepath.Glob(filepath.Join(repository, "examples", "*", "*.yaml"))
	s.must(err)
	for _, example := range examples {
		if filepath.Base(filepath.Dir(example)) == "training" {
			continue // it trains for real: test/node applies it
		}
		if !strings.Contains(all, filepath.ToSlash(example)) {
			t.Errorf("no page applies %s", example)
		}
	}
	run("what is left",
		"test \"$(kubectl get trainjobs -A --no-headers | grep -c Complete)\" = 4\n"+
			"kubectl delete --wait=false -f examples/user -f examples/batch-admin\n"+
			"kubectl delete crd trainjobs.trainer.kubeflow.org trainingruntimes.trainer.kubeflow.org "+
			"clustertrainingruntimes.trainer.kubeflow.org\n")
	t.Logf("documentation: %d blocks of commands of %d pages run, %d examples applied, every TrainJob finished", blocks,
		len(pages), len(examples))
}

// commands are the blocks of a page that are to be run.
func commands(page string) (blocks []string) {
	for {
		_, after, found := strings.Cut(page, "\n```sh\n")
		if !found {
			return blocks
		}
		block, rest, _ := strings.Cut(after, "```\n")
		blocks, page = append(blocks, block), rest
	}
}

// shell returns what runs a block of commands with the control plane's kubeconfig. That the webhooks are reached on
// localhost is all that its Helm adds.
func (s *stand) shell() func(page, block string) {
	s.Helper()
	bin := s.TempDir()
	tools, err := filepath.Abs(filepath.Join(repository, "bin"))
	s.must(err)
	helm := fmt.Sprintf(
		"#!/bin/sh\ncase \"$1\" in\ninstall|upgrade) exec %[1]s/helm \"$@\" --set webhook.url=https://localhost:%[2]d ;;\n"+
			"esac\nexec %[1]s/helm \"$@\"\n", tools, s.service.port)
	s.must(os.WriteFile(filepath.Join(bin, "helm"), []byte(helm), 0o700))
	s.must(os.Symlink(filepath.Join(tools, "kubectl"), filepath.Join(bin, "kubectl")))
	return func(page, block string) {
		s.Helper()
		cmd := exec.CommandContext(s.Context(), "sh", "-ec", block)
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(s.dir, "kubeconfig"),
			"HOME="+bin)
		out, err := cmd.CombinedOutput()
		s.Logf("%s:\n%s%s", page, block, out)
		if err != nil {
			s.Fatalf("%s: %v of\n%s", page, err, block)
		}
	}
}
