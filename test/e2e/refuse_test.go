package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("The manager refuses to start", func() {
	ginkgo.BeforeEach(func() {
		cluster.mustAct("stop", "signalbox")
		ginkgo.DeferCleanup(func() { cluster.mustAct("start", "signalbox") }) // after the cleanups that follow
	})
	// refused starts the manager and returns what it says.
	refused := func() string {
		ginkgo.GinkgoHelper()
		from := cluster.logEnd("signalbox")
		gomega.Expect(cluster.act("start", "signalbox")).NotTo(gomega.Succeed())
		return cluster.logSince("signalbox", from)
	}

	ginkgo.It("beside Kueue's built-in TrainJob integration", func(ctx context.Context) {
		content, err := os.ReadFile(cluster.configPath("kueue"))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		ginkgo.DeferCleanup(func() { setKueueConfig(string(content)) })
		setKueueConfig(strings.Replace(string(content),
			"- jobset.x-k8s.io/jobset", "- jobset.x-k8s.io/jobset\n  - trainer.kubeflow.org/trainjob", 1))
		gomega.Expect(refused()).To(gomega.And(
			gomega.ContainSubstring(`integrations.frameworks lists "trainer.kubeflow.org/trainjob"`),
			gomega.ContainSubstring("take it out")))
	})

	ginkgo.It("with a Kueue that is too old, and says what to upgrade", func(ctx context.Context) {
		editCRD(ctx, "workloads.kueue.x-k8s.io", func(_ string, p map[string]apiextensionsv1.JSONSchemaProps) {
			podSets := p["spec"].Properties["podSets"]
			podSets.MaxItems = ptr.To[int64](8)
			p["spec"].Properties["podSets"] = podSets
		})
		gomega.Expect(refused()).To(gomega.ContainSubstring("is older than Kueue 0.18; upgrade it to 0.18 or later"))
	})

	if cluster.bundled() {
		bundledRefusals(refused)
	} else {
		ginkgo.It("beside a Trainer that it doesn't know", func(ctx context.Context) {
			editTrainJobs(ctx, func(properties map[string]apiextensionsv1.JSONSchemaProps) {
				spec := properties["spec"]
				spec.Properties["someOverrides"] = spec.Properties["runtimePatches"]
				delete(spec.Properties, "runtimePatches")
				properties["spec"] = spec
			})
			gomega.Expect(refused()).To(gomega.ContainSubstring(
				"has none of spec.runtimePatches, spec.podTemplateOverrides and spec.podSpecOverrides: " +
					"it is of no Kubeflow Trainer from v2.0 to v2.3; install one of these"))
		})
	}

	ginkgo.It("with a configuration that can't be, naming the field", func() {
		path := cluster.configPath("signalbox")
		content, err := os.ReadFile(path)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		ginkgo.DeferCleanup(func() { gomega.Expect(os.WriteFile(path, content, 0o644)).To(gomega.Succeed()) })
		gomega.Expect(os.WriteFile(path, append(content, []byte("concurrency: 0\n")...), 0o644)).To(gomega.Succeed())
		gomega.Expect(refused()).To(gomega.ContainSubstring("concurrency: Invalid value: 0: must be 1 or more"))
	})
})

// bundledRefusals are what the bundled Trainer refuses to start beside.
func bundledRefusals(refused func() string) {
	ginkgo.It("as the Trainer, beside another Trainer", func(ctx context.Context) {
		policy := admissionregistrationv1.Ignore
		none := admissionregistrationv1.SideEffectClassNone
		theirs := &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "validator.trainer.kubeflow.org"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "validator.trainjob.trainer.kubeflow.org", FailurePolicy: &policy, SideEffects: &none,
				AdmissionReviewVersions: []string{"v1"},
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/validate")},
			}},
		}
		gomega.Expect(admin.Create(ctx, theirs)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, theirs)).To(gomega.Succeed()) })
		gomega.Expect(refused()).To(gomega.And(
			gomega.ContainSubstring("another Trainer serves TrainJobs here"),
			gomega.ContainSubstring("Set trainer.enabled to false"),
			gomega.ContainSubstring("validator.trainjob.trainer.kubeflow.org "+
				"(ValidatingWebhookConfiguration validator.trainer.kubeflow.org)")))
	})

	ginkgo.It("as the Trainer, on Kubeflow Trainer's CRDs", func(ctx context.Context) {
		editTrainJobs(ctx, func(properties map[string]apiextensionsv1.JSONSchemaProps) {
			delete(properties["status"].Properties, "state")
		})
		gomega.Expect(refused()).To(gomega.And(
			gomega.ContainSubstring("has no status.state"),
			gomega.ContainSubstring("apply config/crd of this release over it")))
	})
}

// editTrainJobs changes the properties of the TrainJobs' CRD for the running spec.
func editTrainJobs(ctx context.Context, edit func(map[string]apiextensionsv1.JSONSchemaProps)) {
	ginkgo.GinkgoHelper()
	const name = "trainjobs.trainer.kubeflow.org"
	editCRD(ctx, name, func(_ string, properties map[string]apiextensionsv1.JSONSchemaProps) { edit(properties) })
}

// editCRD changes the properties of each version of a CRD for the running spec.
func editCRD(
	ctx context.Context, name string, edit func(version string, properties map[string]apiextensionsv1.JSONSchemaProps),
) {
	ginkgo.GinkgoHelper()
	crd := get(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}})
	before := crd.DeepCopy()
	ginkgo.DeferCleanup(func(ctx context.Context) {
		crd = get(ctx, crd)
		crd.Spec = before.Spec
		gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
	})
	for _, v := range crd.Spec.Versions {
		edit(v.Name, v.Schema.OpenAPIV3Schema.Properties)
	}
	gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
}

// nodeEntry is an entry for the pods of ReplicatedJob node.
// labelledEntry is an entry that gives the JobSet a label, and labelled what it says.
const labelledEntry = `{"manager":"example.com/team","trainingRuntimeSpec":{"template":{"metadata":{"labels":{"team":"a"}}}}}`

func labelled() *trainerapi.TrainingRuntimeSpecPatch {
	return &trainerapi.TrainingRuntimeSpecPatch{
		Template: &trainerapi.JobSetTemplatePatch{Metadata: &metav1.ObjectMeta{Labels: map[string]string{"team": "a"}}}}
}

func nodeEntry(manager, pod string) string {
	return `{"manager":"` + manager + `","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{"spec":{` + pod + `}}}}}]}}}}`
}

func list(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }

func entriesFrom(entries ...string) []any {
	ginkgo.GinkgoHelper()
	var all []any
	gomega.Expect(json.Unmarshal([]byte(list(entries...)), &all)).To(gomega.Succeed())
	return all
}

func parsed(text string) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	o := &unstructured.Unstructured{}
	gomega.Expect(json.Unmarshal([]byte(text), &o.Object)).To(gomega.Succeed(), text)
	return o
}

// warnings collects what the API server warns of.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// entryFor adds a user's entry for one ReplicatedJob.
func entryFor(
	manager, replicatedJob string, fill func(*metav1.ObjectMeta, *trainerapi.PodSpecPatch),
) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		pod := &trainerapi.PodTemplatePatch{Metadata: &metav1.ObjectMeta{}, Spec: &trainerapi.PodSpecPatch{}}
		fill(pod.Metadata, pod.Spec)
		tj.Spec.RuntimePatches = append(tj.Spec.RuntimePatches, trainerapi.RuntimePatch{
			Manager: manager,
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
				Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{
					{Name: replicatedJob, Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{Template: pod}}},
				}},
			}},
		})
	}
}

// answer lets an admission check of a TrainJob's Workload come to a state, with a node selector for every PodSet.
func answer(
	ctx context.Context, tj *api.TrainJob, check string, state kueue.CheckState, nodeSelector map[string]string,
) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		wl := workloadOf(ctx, tj)
		var updates []kueue.PodSetUpdate
		for _, ps := range wl.Spec.PodSets {
			updates = append(updates, kueue.PodSetUpdate{Name: ps.Name, NodeSelector: nodeSelector})
		}
		for i := range wl.Status.AdmissionChecks {
			if c := &wl.Status.AdmissionChecks[i]; string(c.Name) == check {
				c.State, c.Message, c.PodSetUpdates, c.LastTransitionTime = state, "answered by the spec", updates, metav1.Now()
				return admin.Status().Update(ctx, wl)
			}
		}
		return fmt.Errorf("Workload %s has no admission check %s yet", wl.Name, check)
	}).Should(gomega.Succeed())
}

func toUnstructured(tj *api.TrainJob) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(tj)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &o.Object); err != nil {
		return nil, err
	}
	delete(o.Object, "status")
	o.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	return o, nil
}

// rawEntry returns an entry as the API server has it, with fields that our types don't know.
func rawEntry(ctx context.Context, tj *api.TrainJob, manager string) string {
	ginkgo.GinkgoHelper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(tj), o)).To(gomega.Succeed())
	entries, _, err := unstructured.NestedSlice(o.Object, "spec", "runtimePatches")
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	for _, e := range entries {
		if e.(map[string]any)["manager"] == manager {
			data, err := json.Marshal(e)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return string(data)
		}
	}
	return ""
}

// allowFutureField lets TrainJobs have a field in a pod patch that no Trainer has today, as a later one might.
func allowFutureField(ctx context.Context) {
	ginkgo.GinkgoHelper()
	crd := get(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "trainjobs.trainer.kubeflow.org"},
	})
	before := crd.DeepCopy()
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	gomega.Expect(addProperty(root, []string{
		"spec", "runtimePatches", "*", "trainingRuntimeSpec", "template", "spec", "replicatedJobs", "*",
		"template", "spec", "template", "spec",
	}, "futureField")).To(gomega.BeTrue())
	gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) {
		crd = get(ctx, crd)
		crd.Spec = before.Spec
		gomega.Expect(admin.Update(ctx, crd)).To(gomega.Succeed())
	})
}

// addProperty adds a string property to the object at the path of a schema; * is a list's items.
func addProperty(schema *apiextensionsv1.JSONSchemaProps, path []string, name string) bool {
	if len(path) == 0 {
		schema.Properties[name] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		return true
	}
	if path[0] == "*" {
		return schema.Items != nil && addProperty(schema.Items.Schema, path[1:], name)
	}
	child, found := schema.Properties[path[0]]
	if !found || !addProperty(&child, path[1:], name) {
		return false
	}
	schema.Properties[path[0]] = child
	return true
}
