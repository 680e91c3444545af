package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
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
	fmt.Printf("rights: %d granted, %d of them used by %d specs; %d kinds of requests forbidden\n", len(granted),
		len(granted)-len(unused), report.PreRunStats.SpecsThatWillRun, len(forbidden))
	if whole {
		fmt.Printf("rights granted and not used:\n  %s\n", strings.Join(slices.Sorted(maps.Keys(unused)), "\n  "))
	}
	gomega.Expect(slices.Sorted(maps.Keys(forbidden))).To(gomega.BeEmpty(), "the manager was refused what it asked for")
})

var _ = ginkgo.Describe("Metrics over TLS", func() {
	ginkgo.It("are for those whom the API server lets, by default", func(ctx context.Context) {
		cluster.configure(func(map[string]any) {}, func(c map[string]any) { delete(c["metrics"].(map[string]any), "secure") })
		g := newGround(ctx, map[string]int64{"a100": 8})
		content, err := os.ReadFile(cluster.configPath("signalbox"))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		parsed, err := configapi.Parse(content)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "prometheus"}}
		gomega.Expect(admin.Create(ctx, account)).To(gomega.Succeed())
		request := &authenticationv1.TokenRequest{}
		gomega.Expect(admin.SubResource("token").Create(ctx, account, request)).To(gomega.Succeed())
		insecure := &http.Client{Timeout: 10 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		status := func(token string) func() (int, error) {
			return func() (int, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+parsed.Metrics.BindAddress+"/metrics", nil)
				if err != nil {
					return 0, err
				}
				if token != "" {
					r.Header.Set("Authorization", "Bearer "+token)
				}
				response, err := insecure.Do(r)
				if err != nil {
					return 0, err
				}
				return response.StatusCode, response.Body.Close()
			}
		}
		gomega.Eventually(status("")).Should(gomega.Equal(http.StatusUnauthorized))
		gomega.Expect(status(request.Status.Token)()).To(gomega.Equal(http.StatusForbidden),
			"its account may not get /metrics")
		reader := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: g.namespace},
			Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
		gomega.Expect(admin.Create(ctx, reader)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, reader)).To(gomega.Succeed()) })
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: g.namespace},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: g.namespace},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: g.namespace, Name: account.Name}}}
		gomega.Expect(admin.Create(ctx, binding)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, binding)).To(gomega.Succeed()) })
		gomega.Eventually(status(request.Status.Token)).Should(gomega.Equal(http.StatusOK))
	})
})

func right(verb, group, resource string) string {
	if group == "" {
		group = "core"
	}
	return fmt.Sprintf("%s %s.%s", verb, resource, group)
}
