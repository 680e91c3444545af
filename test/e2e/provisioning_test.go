package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() { // it doesn't depend on the Trainer
		ginkgo.Describe("Kueue's ProvisioningRequests", ginkgo.Label("kueue"), ginkgo.Ordered, ginkgo.ContinueOnFailure,
			provisioningSpecs)
	}
}

var provisioningRequest = schema.GroupVersionKind{
	Group: "autoscaling.x-k8s.io", Version: "v1", Kind: "ProvisioningRequest",
}

// installProvisioningRequests applies the autoscaler's CRD and restarts Kueue, which looks for it when it starts.
func installProvisioningRequests(ctx context.Context) {
	ginkgo.GinkgoHelper()
	const module = "k8s.io/autoscaler/cluster-autoscaler/apis"
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	out, err := exec.Command("go", "mod", "download", "-json", module+"@"+strings.TrimSpace(string(version))).Output()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	var downloaded struct{ Dir string }
	gomega.Expect(json.Unmarshal(out, &downloaded)).To(gomega.Succeed())
	applyFiles(ctx, filepath.Join(downloaded.Dir, "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml"), nil)
	gomega.Eventually(func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(provisioningRequest)
		return admin.List(ctx, list)
	}).Should(gomega.Succeed())
	cluster.mustAct("restart", "kueue")
	awaitKueue()
}

// requestOf is a TrainJob's ProvisioningRequest of an attempt, from 1; nil while there is none. Kueue deletes those of
// earlier attempts when the Workload is evicted.
func requestOf(ctx context.Context, tj *api.TrainJob, attempt int) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(provisioningRequest)
	gomega.Expect(admin.List(ctx, list, client.InNamespace(tj.Namespace))).To(gomega.Succeed())
	wl := workloadOf(ctx, tj)
	for i := range list.Items {
		name := list.Items[i].GetName()
		if wl != nil && strings.HasPrefix(name, wl.Name+"-") && strings.HasSuffix(name, fmt.Sprintf("-%d", attempt)) {
			return &list.Items[i]
		}
	}
	return nil
}

// autoscale waits for a TrainJob's ProvisioningRequest of an attempt, and answers it.
func autoscale(ctx context.Context, tj *api.TrainJob, attempt int, condition string, details map[string]any) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() *unstructured.Unstructured { return requestOf(ctx, tj, attempt) }).ShouldNot(gomega.BeNil())
	u := requestOf(ctx, tj, attempt)
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	conditions = append(conditions, map[string]any{
		"type": condition, "status": "True", "reason": condition, "message": "the autoscaler says " + condition,
		"lastTransitionTime": metav1.Now().UTC().Format("2006-01-02T15:04:05Z"), "observedGeneration": u.GetGeneration(),
	})
	gomega.Expect(unstructured.SetNestedSlice(u.Object, conditions, "status", "conditions")).To(gomega.Succeed())
	if details != nil {
		gomega.Expect(unstructured.SetNestedMap(u.Object, details, "status", "provisioningClassDetails")).To(gomega.Succeed())
	}
	gomega.Expect(admin.Status().Update(ctx, u)).To(gomega.Succeed())
}

// onProvisioned is a ground whose admission waits for a ProvisioningRequest, which is retried once.
func onProvisioned(ctx context.Context) *ground {
	ginkgo.GinkgoHelper()
	config := &kueue.ProvisioningRequestConfig{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "capacity-"},
		Spec: kueue.ProvisioningRequestConfigSpec{
			ProvisioningClassName: "check-capacity.autoscaling.x-k8s.io",
			RetryStrategy: &kueue.ProvisioningRequestRetryStrategy{
				BackoffLimitCount: ptr.To[int32](1), BackoffBaseSeconds: ptr.To[int32](1), BackoffMaxSeconds: ptr.To[int32](1),
			},
			PodSetUpdates: &kueue.ProvisioningRequestPodSetUpdates{
				NodeSelector: []kueue.ProvisioningRequestPodSetUpdatesNodeSelector{
					{Key: "rack", ValueFromProvisioningClassDetail: "rack"},
				},
			},
		},
	}
	gomega.Expect(admin.Create(ctx, config)).To(gomega.Succeed())
	check := &kueue.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "capacity-"},
		Spec: kueue.AdmissionCheckSpec{
			ControllerName: kueue.ProvisioningRequestControllerName,
			Parameters: &kueue.AdmissionCheckParametersReference{
				APIGroup: kueue.SchemeGroupVersion.Group, Kind: "ProvisioningRequestConfig", Name: config.Name,
			},
		},
	}
	gomega.Expect(admin.Create(ctx, check)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		gomega.Expect(admin.Delete(ctx, check)).To(gomega.Succeed())
		gomega.Expect(admin.Delete(ctx, config)).To(gomega.Succeed())
	})
	gomega.Eventually(func() bool {
		return apimeta.IsStatusConditionTrue(get(ctx, check).Status.Conditions, kueue.AdmissionCheckActive)
	}).Should(gomega.BeTrue())
	g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
			AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: kueue.AdmissionCheckReference(check.Name)}},
		}
	})
	g.runtime(ctx, "torch", "forever")
	return g
}

func provisioningSpecs() {
	ginkgo.BeforeAll(installProvisioningRequests)

	// inactive reports whether Kueue has deactivated a TrainJob's Workload.
	inactive := func(ctx context.Context, tj *api.TrainJob) func() bool {
		return func() bool {
			wl := workloadOf(ctx, tj)
			return wl != nil && !ptr.Deref(wl.Spec.Active, true)
		}
	}

	ginkgo.It("start a TrainJob where the autoscaler has provisioned, and stop it when the capacity is revoked",
		func(ctx context.Context) {
			g := onProvisioned(ctx)
			tj := g.submit(ctx, g.trainJob("capacity", "torch", 1, func(tj *api.TrainJob) {
				metav1.SetMetaDataAnnotation(&tj.ObjectMeta, "provreq.kueue.x-k8s.io/ValidUntilSeconds", "600")
			}))
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQuotaReserved))
			gomega.Eventually(func() *unstructured.Unstructured { return requestOf(ctx, tj, 1) }).ShouldNot(gomega.BeNil())
			parameters, _, err := unstructured.NestedStringMap(requestOf(ctx, tj, 1).Object, "spec", "parameters")
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(parameters).To(gomega.HaveKeyWithValue("ValidUntilSeconds", "600"))
			gomega.Consistently(running(ctx, tj)).Should(gomega.BeFalse())
			autoscale(ctx, tj, 1, "Provisioned", map[string]any{"rack": "a100-rack-1"})
			gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
			pod := podsOf(ctx, tj)[0]
			gomega.Expect(pod.Spec.NodeSelector).To(gomega.HaveKeyWithValue("rack", "a100-rack-1"))
			gomega.Expect(pod.Annotations).To(gomega.HaveKeyWithValue(
				"autoscaling.x-k8s.io/consume-provisioning-request", requestOf(ctx, tj, 1).GetName()))
			autoscale(ctx, tj, 1, "CapacityRevoked", nil)
			gomega.Eventually(running(ctx, tj)).Should(gomega.BeFalse())
			gomega.Eventually(inactive(ctx, tj)).Should(gomega.BeTrue())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
			gomega.Expect(podsOf(ctx, tj)).To(gomega.BeEmpty())
		})

	ginkgo.It("are retried after a failure and after an expired booking, and give up in the end",
		func(ctx context.Context) {
			for _, failure := range []string{"Failed", "BookingExpired"} {
				g := onProvisioned(ctx)
				tj := g.submit(ctx, g.trainJob("retried", "torch", 1))
				autoscale(ctx, tj, 1, failure, nil)
				autoscale(ctx, tj, 2, "Provisioned", map[string]any{"rack": "a100-rack-0"})
				gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
				gomega.Expect(podsOf(ctx, tj)[0].Annotations).To(gomega.HaveKeyWithValue(
					"autoscaling.x-k8s.io/consume-provisioning-request", requestOf(ctx, tj, 2).GetName()))
				gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
				gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
				gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

				lost := g.submit(ctx, g.trainJob("lost", "torch", 1))
				autoscale(ctx, lost, 1, failure, nil)
				autoscale(ctx, lost, 2, failure, nil)
				gomega.Eventually(inactive(ctx, lost)).Should(gomega.BeTrue())
				gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
				gomega.Expect(watched.startsOf(lost)).To(gomega.BeZero())
			}
		})
}
