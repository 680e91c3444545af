package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
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

var _ = ginkgo.Describe("Who owns a TrainJob", func() {
	owner := func(tj *api.TrainJob) []metav1.OwnerReference {
		return []metav1.OwnerReference{
			{APIVersion: trainerapi.GroupVersion.String(), Kind: trainerapi.TrainJobKind, Name: tj.Name, UID: tj.UID,
				Controller: ptr.To(true)}}
	}

	ginkgo.It("is decided when it is created", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "forever")
		small, tj := g.submit(ctx, g.trainJob("small", "torch", 1)), g.submit(ctx, g.trainJob("mine", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		for _, of := range []*api.TrainJob{small, tj} {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": owner(of)}})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(
				gomega.MatchError(gomega.ContainSubstring("metadata.ownerReferences")))
		}
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.inUse(ctx)).Should(gomega.BeZero())
	})

	ginkgo.It("doesn't make it run on another's quota", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		parent := g.submit(ctx, g.trainJob("parent", "torch", 1))
		gomega.Eventually(bound(ctx, parent)).Should(gomega.Equal(1))
		child := g.submit(ctx, g.trainJob("child", "torch", 1, func(tj *api.TrainJob) { tj.OwnerReferences = owner(parent) }))
		gomega.Eventually(func() *kueue.Workload { return workloadOf(ctx, child) }).ShouldNot(gomega.BeNil(),
			"it needs quota of its own")
		gomega.Consistently(running(ctx, child)).Should(gomega.BeFalse())
		gomega.Expect(g.inUse(ctx)()).To(gomega.Equal(int64(8)))
	})
})

var _ = ginkgo.Describe("A field manager's name", func() {
	ginkgo.It("is nobody's: what is applied by the integration's stays", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.trainJob("mine", "torch", 1)
		tj.Labels["team"] = "x"
		u, err := toUnstructured(tj)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		u.SetAPIVersion(trainerapi.GroupVersion.String())
		u.SetKind(trainerapi.TrainJobKind)
		delete(u.Object, "status")
		u.SetCreationTimestamp(metav1.Time{})
		gomega.Expect(user.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(store.FieldManager),
			client.ForceOwnership)).To(gomega.Succeed())
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		gomega.Expect(get(ctx, tj).Labels).To(
			gomega.And(gomega.HaveKeyWithValue(constants.QueueLabel, localQueue), gomega.HaveKeyWithValue("team", "x")))
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeFalse(), "it is still managed")
		gomega.Eventually(g.inUse(ctx)).Should(gomega.BeZero())
	})
})

var _ = ginkgo.Describe("A pinned runtime", func() {
	if !cluster.bundled() {
		return
	}
	ginkgo.It("is the manager's alone, "+
		"also of a TrainJob that nobody queues and in a namespace that Kueue doesn't manage", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever")
		privileged := rt.Spec.DeepCopy()
		privileged.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.HostPID = true
		pin, err := store.Pin(privileged)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, namespace := range []string{g.namespace, "kueue-system"} {
			tj := g.trainJob("mine", "torch", 1)
			tj.Namespace, tj.Labels, tj.Annotations = namespace, nil, map[string]string{store.PinAnnotation: pin}
			gomega.Expect(user.Create(ctx, tj)).To(gomega.MatchError(gomega.ContainSubstring(store.PinAnnotation)))
		}
		tj := g.trainJob("mine", "torch", 1)
		tj.Labels = nil
		gomega.Expect(user.Create(ctx, tj)).To(gomega.Succeed())
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{store.PinAnnotation: pin}},
			"spec":     map[string]any{"suspend": false}})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))).To(gomega.Succeed())
		gomega.Eventually(func() []corev1.Pod { return podsOf(ctx, tj) }).Should(gomega.HaveLen(1))
		gomega.Expect(podsOf(ctx, tj)[0].Spec.HostPID).To(gomega.BeFalse())
		gomega.Expect(get(ctx, tj).Annotations[store.PinAnnotation]).NotTo(gomega.Equal(pin))
	})
})
