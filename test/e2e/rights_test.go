package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// The manager runs with the roles that it ships and nothing else. After all specs it has been refused nothing that it
// asked for, and what it was granted and never asked for is listed.
var _ = ginkgo.ReportAfterSuite("rights of the manager", func(ctx ginkgo.SpecContext, report ginkgo.Report) {
	roles := []string{"role.yaml"}
	if cluster.bundled() {
		roles = append(roles, filepath.Join("trainer", "role.yaml"))
	}
	granted, named := map[string]bool{}, map[string][]string{} // the second: of which names alone
	for _, role := range roles {
		content, err := os.ReadFile(filepath.Join("config", "rbac", role)) // make runs it at the root of the tree
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		var r rbacv1.ClusterRole
		gomega.Expect(yaml.Unmarshal(content, &r)).To(gomega.Succeed())
		for _, rule := range r.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						what := right(verb, group, resource)
						granted[what] = true
						named[what] = append(named[what], rule.ResourceNames...)
					}
				}
			}
		}
	}
	unused := maps.Clone(granted)
	forbidden := map[string]bool{}
	cluster.requests(0, func(r request) bool {
		if r.User.Username != "signalbox" {
			return false
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		what := right(r.Verb, r.ObjectRef.APIGroup, resource)
		delete(unused, what)
		// What the roles grant is forbidden only for the moment in which a restarted API server doesn't know them yet.
		known := granted[what] && (len(named[what]) == 0 || slices.Contains(named[what], r.ObjectRef.Name))
		if r.Forbidden() && !known {
			forbidden[what+" "+r.ObjectRef.Namespace+"/"+r.ObjectRef.Name] = true
		}
		return false
	})
	whole := report.PreRunStats.SpecsThatWillRun == report.PreRunStats.TotalSpecs
	fmt.Printf("rights: %d granted, %d of them used by %d specs; %d kinds of requests forbidden\n", len(granted), len(granted)-len(unused), report.PreRunStats.SpecsThatWillRun, len(forbidden))
	if whole {
		fmt.Printf("rights granted and not used:\n  %s\n", strings.Join(slices.Sorted(maps.Keys(unused)), "\n  "))
	}
	gomega.Expect(slices.Sorted(maps.Keys(forbidden))).To(gomega.BeEmpty(), "the manager was refused what it asked for")
})

func right(verb, group, resource string) string {
	if group == "" {
		group = "core"
	}
	return fmt.Sprintf("%s %s.%s", verb, resource, group)
}
