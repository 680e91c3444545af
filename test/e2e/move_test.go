package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if !cluster.bundled() {
		ginkgo.Describe("A cluster", moveSpecs)
	}
}

func moveSpecs() {
	ginkgo.It("moves from Kubeflow Trainer to the bundled one and back, "+
		"and a running TrainJob notices neither", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		g.runtime(ctx, "short", "1s")
		runs := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		waits := g.submit(ctx, g.trainJob("waits", "short", 1))
		jobSetOf := func(tj *api.TrainJob) func() types.UID {
			return func() types.UID {
				var js jobset.JobSet
				if ignoreNotFound(admin.Get(ctx, client.ObjectKeyFromObject(tj), &js)) != nil {
					return "unknown"
				}
				return js.UID
			}
		}
		gomega.Eventually(jobSetOf(waits)).ShouldNot(gomega.BeEmpty(), "Kubeflow Trainer makes it at once")
		before, pods := jobSetOf(runs)(), podsOf(ctx, runs)
		unharmed := func() {
			ginkgo.GinkgoHelper()
			gomega.Expect(jobSetOf(runs)()).To(gomega.Equal(before))
			gomega.Expect(podsOf(ctx, runs)[0].UID).To(gomega.Equal(pods[0].UID))
			gomega.Expect(watched.startsOf(runs)).To(gomega.Equal(1))
			gomega.Expect(running(ctx, waits)()).To(gomega.BeFalse())
		}

		activate := func(value bool) {
			ginkgo.GinkgoHelper()
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"active":%t}}`, value))
			gomega.Expect(admin.Patch(ctx, workloadOf(ctx, runs), patch)).To(gomega.Succeed())
		}

		back := moveToBundled(ctx)
		ginkgo.DeferCleanup(back)
		gomega.Eventually(state(ctx, runs)).Should(gomega.Equal(api.StateRunning))
		gomega.Eventually(state(ctx, waits)).Should(gomega.Equal(api.StateQueued))
		gomega.Eventually(jobSetOf(waits)).Should(gomega.BeEmpty(), "nothing is kept before its time")
		unharmed()
		back(ctx)
		gomega.Eventually(jobSetOf(waits)).ShouldNot(gomega.BeEmpty())
		unharmed()

		// Either can stop and start again what the other has made.
		again := moveToBundled(ctx)
		ginkgo.DeferCleanup(again)
		activate(false)
		gomega.Eventually(complete(ctx, waits)).Should(gomega.BeTrue())
		gomega.Eventually(jobSetOf(runs)).Should(gomega.BeEmpty())
		activate(true)
		gomega.Eventually(state(ctx, runs)).Should(gomega.Equal(api.StateRunning))
		gomega.Expect(watched.startsOf(runs)).To(gomega.Equal(2))
		again(ctx)
		activate(false)
		gomega.Eventually(bound(ctx, runs)).Should(gomega.BeZero())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		activate(true)
		gomega.Eventually(bound(ctx, runs)).Should(gomega.Equal(1))
		for _, p := range podsOf(ctx, runs) {
			gomega.Expect(own(p.Spec.Tolerations)).To(
				gomega.ConsistOf(spot, corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "a100",
					Effect: corev1.TaintEffectNoSchedule}))
		}
	})
}

// moveToBundled does what docs/trainer.md says, in its order, and returns what moves back; that does nothing a second
// time.
func moveToBundled(ctx context.Context) func(context.Context) {
	ginkgo.GinkgoHelper()
	// 1. Kubeflow Trainer's controller and its webhooks go; its CRDs stay.
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	gomega.Expect(admin.Get(ctx, client.ObjectKey{Name: "trainer-mutating"}, &mutating)).To(gomega.Succeed())
	gomega.Expect(admin.Get(ctx, client.ObjectKey{Name: "trainer-validating"}, &validating)).To(gomega.Succeed())
	cluster.mustAct("stop", "trainer")
	gomega.Expect(admin.Delete(ctx, mutating.DeepCopy())).To(gomega.Succeed())
	gomega.Expect(admin.Delete(ctx, validating.DeepCopy())).To(gomega.Succeed())
	// 2. Our CRDs are applied over Trainer's, and the role is granted.
	for _, path := range []string{"config/crd/trainer*.yaml", "config/rbac/trainer/*.yaml"} {
		applyFiles(ctx, path, nil)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "signalbox-trainer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "signalbox-trainer"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "signalbox"}},
	}
	gomega.Expect(admin.Create(ctx, binding)).To(gomega.Succeed())
	// 3. Signalbox is restarted with the role, and then its webhooks are made.
	setTrainer(true)
	cluster.mustAct("restart", "signalbox")
	var ours admissionregistrationv1.MutatingWebhookConfiguration
	gomega.Expect(admin.Get(ctx, client.ObjectKey{Name: "signalbox-mutating"}, &ours)).To(gomega.Succeed())
	served := ours.Webhooks[0].ClientConfig
	base := strings.TrimSuffix(*served.URL, "/mutate-trainjob")
	made := applyFiles(ctx, "config/webhook/trainer/*.yaml", func(o *unstructured.Unstructured) {
		o.SetName("signalbox-trainer-" + strings.ToLower(strings.TrimSuffix(o.GetKind(), "WebhookConfiguration")))
		for _, w := range o.Object["webhooks"].([]any) {
			config := w.(map[string]any)["clientConfig"].(map[string]any)
			path, _, err := unstructured.NestedString(config, "service", "path")
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			w.(map[string]any)["clientConfig"] = map[string]any{"url": base + path,
				"caBundle": base64.StdEncoding.EncodeToString(served.CABundle)}
		}
	})

	moved := false
	return func(ctx context.Context) {
		ginkgo.GinkgoHelper()
		if moved {
			return
		}
		moved = true
		// The same the other way round: role and webhooks off, Trainer's CRDs, Trainer.
		for _, o := range made {
			gomega.Expect(admin.Delete(ctx, o)).To(gomega.Succeed())
		}
		setTrainer(false)
		cluster.mustAct("stop", "signalbox")
		gomega.Expect(admin.Delete(ctx, binding)).To(gomega.Succeed())
		applyFiles(ctx, filepath.Join(moduleDir(trainerModule), "manifests/base/crds/trainer*.yaml"), nil)
		cluster.mustAct("start", "trainer")
		for _, o := range []client.Object{&mutating, &validating} {
			o.SetResourceVersion("")
			o.SetUID("")
			gomega.Expect(admin.Create(ctx, o)).To(gomega.Succeed())
		}
		cluster.mustAct("start", "signalbox")
	}
}

// setTrainer switches the role in Signalbox's configuration file.
func setTrainer(enabled bool) {
	ginkgo.GinkgoHelper()
	_, after := cluster.edited("signalbox", func(c map[string]any) { c["trainer"] = map[string]any{"enabled": enabled} })
	gomega.Expect(os.WriteFile(cluster.configPath("signalbox"), after, 0o644)).To(gomega.Succeed())
}

// applyFiles applies manifests, as `kubectl apply --server-side --force-conflicts` does.
func applyFiles(ctx context.Context, pattern string, change func(*unstructured.Unstructured)) []client.Object {
	ginkgo.GinkgoHelper()
	files, err := filepath.Glob(pattern)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Expect(files).NotTo(gomega.BeEmpty(), pattern)
	var applied []client.Object
	for _, file := range files {
		content, err := os.ReadFile(file)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, text := range strings.Split(string(content), "\n---\n") {
			o := &unstructured.Unstructured{}
			gomega.Expect(yaml.Unmarshal([]byte(text), &o.Object)).To(gomega.Succeed(), file)
			if o.GetKind() == "" {
				continue
			}
			if change != nil {
				change(o)
			}
			gomega.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("cluster"),
				client.ForceOwnership)).To(gomega.Succeed(), file)
			applied = append(applied, o)
		}
	}
	return applied
}
