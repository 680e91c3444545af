package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("The override contract", contractSpecs)
	}
}

// as is a client of another identity. A MultiKueue copy is made as Kueue's service account.
func as(user string) client.Client {
	ginkgo.GinkgoHelper()
	c := rest.CopyConfig(config(cluster.kubeconfig("")))
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	made, err := client.New(c, client.Options{Scheme: admin.Scheme()})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return made
}

const multiKueue = "system:serviceaccount:kueue-system:kueue-controller-manager"

// ways are ways to send the same change.
var ways = map[string]func(ctx context.Context, c client.Client, before, after *unstructured.Unstructured) error{
	"update": func(ctx context.Context, c client.Client, _, after *unstructured.Unstructured) error {
		return c.Update(ctx, after.DeepCopy())
	},
	"merge patch": func(ctx context.Context, c client.Client, before, after *unstructured.Unstructured) error {
		return c.Patch(ctx, after.DeepCopy(), client.MergeFrom(before))
	},
	"client-side apply": func(ctx context.Context, c client.Client, before, after *unstructured.Unstructured) error {
		manifest := func(o *unstructured.Unstructured) []byte {
			o = o.DeepCopy()
			for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
				unstructured.RemoveNestedField(o.Object, "metadata", field)
			}
			unstructured.RemoveNestedField(o.Object, "status")
			data, err := o.MarshalJSON()
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return data
		}
		live := before.DeepCopy()
		gomega.Expect(c.Get(ctx, client.ObjectKeyFromObject(before), live)).To(gomega.Succeed())
		current, err := live.MarshalJSON()
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(manifest(before), manifest(after), current)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return c.Patch(ctx, after.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	},
	"server-side apply": func(ctx context.Context, c client.Client, _, after *unstructured.Unstructured) error {
		o := after.DeepCopy()
		for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		unstructured.RemoveNestedField(o.Object, "status")
		return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("somebody"),
			client.ForceOwnership)
	},
}

// raw reads a TrainJob as it is stored.
func raw(ctx context.Context, tj *api.TrainJob) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	gomega.Expect(admin.Get(ctx, client.ObjectKeyFromObject(tj), u)).To(gomega.Succeed())
	return u
}

func contractSpecs() {
	// freeJob is one that no queue manages, so that the user may suspend and resume it: the contract is the Trainer's.
	freeJob := func(g *ground, name string, suspend bool, change ...func(*api.TrainJob)) *api.TrainJob {
		return g.trainJob(name, "torch", 1,
			append(change, func(tj *api.TrainJob) { tj.Labels, tj.Spec.Suspend = nil, &suspend })...)
	}
	tolerant := func(rt *api.TrainingRuntime) {
		pod := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
	}

	ginkgo.It("lets overrides change as its table says: before and after, active or not, "+
		"however it is sent", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever", tolerant)
		tried := 0
		for way, send := range ways {
			for _, row := range []struct{ before, after bool }{{false, false}, {true, true}, {true, false}, {false, true}} {
				for _, active := range []bool{false, true} {
					tried++
					name := fmt.Sprintf("row-%d", tried)
					// What is not to be looked after by our Trainer, so that its JobSet is what the row says.
					tj := freeJob(g, name, row.before,
						func(tj *api.TrainJob) { tj.Spec.ManagedBy = ptr.To("kueue.x-k8s.io/multikueue") })
					gomega.Expect(user.Create(ctx, tj)).To(gomega.Succeed())
					js := &jobset.JobSet{
						ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{
							*metav1.NewControllerRef(tj, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))}},
						Spec: jobset.JobSetSpec{Suspend: ptr.To(!active),
							ReplicatedJobs: []jobset.ReplicatedJob{step("node", "", "forever")}},
					}
					js.Spec.ReplicatedJobs[0].Replicas = 1
					js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
					// Kueue's webhook may not know the TrainJob yet
					gomega.Eventually(func() error { return admin.Create(ctx, js) }).Should(gomega.Succeed())
					gomega.Eventually(func() bool {
						s := get(ctx, js).Status.ReplicatedJobsStatus
						return len(s) == 1 && (s[0].Active > 0) == active
					}).Should(gomega.BeTrue())
					before := raw(ctx, tj)
					after := before.DeepCopy()
					gomega.Expect(unstructured.SetNestedField(after.Object, row.after, "spec", "suspend")).To(gomega.Succeed())
					gomega.Expect(unstructured.SetNestedSlice(after.Object, entriesFrom(nodeEntry("example.com/team", `"nodeSelector":{"zone":"east"}`)), "spec", "runtimePatches")).To(gomega.Succeed())
					allowed := (row.before || row.after) && !active
					what := fmt.Sprintf("%s, suspended %t then %t, active %t", way, row.before, row.after, active)
					refusal := `replicatedJob "node" of the last run is still active (1); try again when it has stopped`
					if !row.before && !row.after {
						refusal = "spec.runtimePatches: Forbidden: the entry of example.com/team can't change while the TrainJob runs; " +
							"suspend it before, or in the same update"
					}
					// our cache of JobSets may be a moment late
					gomega.Eventually(func() error { return send(ctx, user, before, after) }).Should(gomega.Or(
						gomega.And(gomega.Succeed(), gomega.WithTransform(func(error) bool { return allowed }, gomega.BeTrue())),
						gomega.And(gomega.MatchError(gomega.ContainSubstring(refusal)),
							gomega.WithTransform(func(error) bool { return allowed }, gomega.BeFalse())),
					), what)
					entry := get(ctx, tj).Spec.RuntimePatches
					if allowed {
						gomega.Expect(entry).To(gomega.HaveLen(1), what)
						gomega.Expect(entry[0].Time).NotTo(gomega.BeNil(), what)
					} else {
						gomega.Expect(entry).To(gomega.BeEmpty(), what)
						// The same without the entry is no change of overrides.
						unstructured.RemoveNestedField(after.Object, "spec", "runtimePatches")
						gomega.Expect(send(ctx, user, before, after)).To(gomega.Succeed(), what)
					}
					gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
				}
			}
		}
		ginkgo.AddReportEntry(fmt.Sprintf("contract: %d transitions tried", tried))
		gomega.Expect(tried).To(gomega.Equal(4 * 4 * 2))
	})

	ginkgo.It("refuses, with the path, the value and the way out", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s", func(rt *api.TrainingRuntime) {
			init := step("dataset-initializer", "dataset-initializer", "1s")
			rt.Spec.Template.Spec.ReplicatedJobs = append(rt.Spec.Template.Spec.ReplicatedJobs, init)
		})
		const inPods = ".trainingRuntimeSpec.template.spec.replicatedJobs[node].template.spec.template.spec."
		many := make([]string, 17)
		for i := range many {
			many[i] = fmt.Sprintf(`{"manager":"example.com/m%d"}`, i)
		}
		refusals := map[string][]string{ // of what is put into the spec: what is said
			`"runtimePatches":[{"manager":"example.com/a","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"nodes"}]}}}}]`: {
				`spec.runtimePatches[example.com/a].trainingRuntimeSpec.template.spec.replicatedJobs[nodes]: Unsupported value: "nodes"`, `runtime "torch" has no such replicatedJob; supported values: "dataset-initializer", "node"`},
			`"runtimePatches":` + list(nodeEntry("example.com/a", `"containers":[{"name":"sidecar"}]`)): {
				`spec.runtimePatches[example.com/a]` + inPods + `containers[sidecar]: Unsupported value: "sidecar"`, `has no such container; supported values: "node"`},
			`"runtimePatches":` + list(nodeEntry("example.com/a", `"initContainers":[{"name":"node"}]`)): {
				`spec.runtimePatches[example.com/a]` + inPods + `initContainers[node]: Unsupported value: "node"`, `has no such initContainer`},
			`"runtimePatches":` + list(nodeEntry("example.com/a", `"containers":[{"name":"node","env":[{"name":"A","value":"b"}]}]`)): {
				`spec.runtimePatches[example.com/a]` + inPods + `containers[node].env: Forbidden`, `(here "A") is not for an entry; set it by spec.trainer.env`},
			`"runtimePatches":` + strings.ReplaceAll(list(nodeEntry("example.com/a", `"containers":[{"name":"dataset-initializer","env":[{"name":"A"}]}]`)), `"name":"node"`, `"name":"dataset-initializer"`): {
				`containers[dataset-initializer].env: Forbidden`, `set it by spec.initializer.dataset.env`},
			`"runtimePatches":[{"manager":"me"}]`:                                        {`spec.runtimePatches[0].manager: Invalid value: "me"`, `such as example.com/team`},
			`"runtimePatches":[{"manager":"example.com/a"},{"manager":"example.com/a"}]`: {`spec.runtimePatches[1].manager: Duplicate value: "example.com/a"`, `a manager has one entry; join the two`},
			`"runtimePatches":[` + strings.Join(many, ",") + `]`:                         {`spec.runtimePatches: Too many: 17: must have at most 16 items`},
			`"runtimePatches":` + list(strings.Replace(nodeEntry("example.com/a", `"nodeSelector":{}`), `"nodeSelector":{}`, `"nodeSelector":{"$patch":"replace"}`, 1)): {
				`spec.runtimePatches[example.com/a].trainingRuntimeSpec`, `a key may not begin with $`},
			`"runtimePatches":[{"manager":"kueue.x-k8s.io/manager"}]`: {`spec.runtimePatches[kueue.x-k8s.io/manager]: Forbidden`, `take it out of the manifest`},
			`"initializer":{"dataset":{}}`:                            {`spec.initializer.dataset: Invalid value: "torch"`, `the runtime has no mount of a volume "initializer" in container "dataset-initializer"`, `refer to a runtime that has one`},
			`"initializer":{"model":{}}`:                              {`spec.initializer.model: Invalid value: "torch"`, `the runtime has no replicatedJob "model-initializer"`},
			`"runtimeRef":{"kind":"TrainingRuntime","name":"gone"}`:   {`spec.runtimeRef: Invalid value: "gone": there is no TrainingRuntime "gone" in namespace "` + g.namespace + `"; create it before the TrainJob`},
			`"runtimeRef":{"kind":"Other","name":"torch"}`:            {`spec.runtimeRef.kind: Unsupported value: "Other.trainer.kubeflow.org"`, `"ClusterTrainingRuntime.trainer.kubeflow.org"`},
			`"trainer":{"env":[{"name":"PET_NNODES","value":"2"}]}`:   {`spec.trainer.env`, `must not have reserved envs`},
		}
		for change, words := range refusals {
			o := parsed(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"` + g.namespace + `","name":"refused"},"spec":{"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"torch"}}}`)
			maps := parsed(`{` + change + `}`)
			spec := o.Object["spec"].(map[string]any)
			for key, value := range maps.Object {
				spec[key] = value
			}
			err := user.Create(ctx, o)
			for _, w := range words {
				gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(w)), change)
			}
		}
		// What the shape doesn't have, a strict client is told; others' doesn't reach the pods.
		strict := parsed(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"` + g.namespace + `","name":"strict"},"spec":{"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"torch"},"runtimePatches":` +
			list(nodeEntry("example.com/a", `"containers":[{"name":"node","image":"other","command":["other"]}]`)) + `}}`)
		gomega.Expect(user.Create(ctx, strict, client.FieldValidation(metav1.FieldValidationStrict))).To(
			gomega.MatchError(gomega.And(
				gomega.ContainSubstring(`unknown field "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].image"`),
				gomega.ContainSubstring("containers[0].command"))))
		ginkgo.AddReportEntry(fmt.Sprintf("contract: %d refusals tried", len(refusals)+1))
	})

	ginkgo.It("lets nobody out of it by an update that takes the spec, or a part of it, away", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		rt := g.runtime(ctx, "torch", "forever", tolerant)
		pin, err := store.Pin(&rt.Spec)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		tj := g.submit(ctx, g.trainJob("escape", "torch", 4))
		gomega.Eventually(state(ctx, tj)).Should(gomega.BeEquivalentTo("Queued"))
		escape, err := json.Marshal([]map[string]any{
			{"op": "remove", "path": "/spec"},
			{"op": "add", "path": "/metadata/annotations", "value": map[string]string{store.PinAnnotation: pin}},
		})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.JSONPatchType, escape))).To(
			gomega.MatchError(gomega.Or(
				// whichever webhook is asked first
				gomega.ContainSubstring("spec: Required value"), gomega.ContainSubstring("spec.runtimeRef: Forbidden"))))

		running := freeJob(g, "swapped", false)
		gomega.Expect(user.Create(ctx, running)).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, running)).Should(gomega.Equal(1))
		removed := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/trainer"}]`))
		gomega.Expect(user.Patch(ctx, running.DeepCopy(), removed)).To(
			gomega.MatchError(gomega.ContainSubstring("spec.trainer: Forbidden: it can't change while the TrainJob runs")))
	})

	ginkgo.It("warns where two managers set the same to different values; the later wins", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		warned := &warnings{}
		c := config(cluster.kubeconfig("user"))
		c.WarningHandler = warned
		told, err := client.New(c, client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		o := parsed(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"` + g.namespace + `","name":"warned"},"spec":{"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"torch"},"runtimePatches":` +
			list(nodeEntry("example.com/a", `"nodeSelector":{"zone":"east","disk":"ssd"}`), nodeEntry("example.com/b", `"nodeSelector":{"zone":"west","disk":"ssd"}`)) + `}}`)
		gomega.Expect(told.Create(ctx, o)).To(gomega.Succeed())
		gomega.Expect(warned.texts).To(gomega.ConsistOf(gomega.And(gomega.ContainSubstring("example.com/a sets"), gomega.ContainSubstring(`nodeSelector.zone to "east"`),
			gomega.ContainSubstring(`example.com/b to "west"; the later entry, of example.com/b, takes precedence`))))
	})

	ginkgo.It("keeps an entry's time while its content stays, and sets it when that changes", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		o := parsed(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"` + g.namespace + `","name":"timed"},"spec":{"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"torch"},"runtimePatches":` +
			strings.ReplaceAll(list(nodeEntry("example.com/a", `"nodeSelector":{"a":"1"}`), nodeEntry("example.com/b", `"nodeSelector":{"b":"1"}`)), `{"manager"`, `{"time":"2020-01-01T00:00:00Z","manager"`) + `}}`)
		gomega.Expect(user.Create(ctx, o)).To(gomega.Succeed())
		tj := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "timed"}}
		before := raw(ctx, tj)
		after := before.DeepCopy()
		gomega.Expect(unstructured.SetNestedSlice(after.Object, entriesFrom(nodeEntry("example.com/a", `"nodeSelector":{"a":"1"}`), nodeEntry("example.com/b", `"nodeSelector":{"b":"2"}`)), "spec", "runtimePatches")).To(gomega.Succeed())
		gomega.Expect(user.Patch(ctx, after, client.MergeFrom(before))).To(gomega.Succeed())
		entries := get(ctx, tj).Spec.RuntimePatches
		gomega.Expect(entries[0].Time.UTC().Year()).To(gomega.Equal(2020))
		gomega.Expect(entries[1].Time.UTC().Year()).To(gomega.BeNumerically(">", 2020))
	})

	ginkgo.It("keeps the integration's entry out of all other hands, however they write", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 64})
		g.runtime(ctx, "torch", "forever", tolerant)
		self, kueues := as("signalbox"), as(multiKueue)
		tried := 0
		for way, send := range ways {
			for _, queued := range []bool{true, false} {
				for hand, c := range map[string]client.Client{"user": user, "integration": self, "MultiKueue": kueues} {
					for _, change := range []string{"drop", "alter"} {
						tried++
						tj := freeJob(g, fmt.Sprintf("owned-%d", tried), true, func(tj *api.TrainJob) {
							tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{
								{Manager: "example.com/team", TrainingRuntimeSpec: labelled()},
								{Manager: overrides.Manager, TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{}}}
						})
						if queued { // in a queue that is held, so that nothing else happens to it
							tj.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "held"}
						}
						gomega.Expect(kueues.Create(ctx, tj)).To(gomega.Succeed())
						before := raw(ctx, tj)
						entry := rawEntry(ctx, tj, overrides.Manager)
						after := before.DeepCopy()
						entries := entriesFrom(labelledEntry)
						if change == "alter" {
							entries = entriesFrom(nodeEntry(overrides.Manager, `"nodeSelector":{"gpu":"stolen"}`), labelledEntry)
						}
						gomega.Expect(unstructured.SetNestedSlice(after.Object, entries, "spec", "runtimePatches")).To(gomega.Succeed())
						what := fmt.Sprintf("%s, %s by %s, queued %t", way, change, hand, queued)
						gomega.Expect(send(ctx, c, before, after)).To(gomega.Succeed(), what)
						now := get(ctx, tj)
						own := current().Own(now)
						switch {
						case hand == "user":
							gomega.Expect(rawEntry(ctx, tj, overrides.Manager)).To(gomega.MatchJSON(entry), what)
							gomega.Expect(overrides.OwnIndex(now)).To(gomega.Equal(len(now.Spec.RuntimePatches)-1), what+": it stands last")
						case change == "alter":
							gomega.Expect(own.TrainingRuntimeSpec.Template).NotTo(gomega.BeNil(), what)
						case way != "server-side apply": // which leaves what another field manager owns
							gomega.Expect(own).To(gomega.BeNil(), what)
						}
						gomega.Expect(admin.Delete(ctx, tj)).To(gomega.Succeed())
					}
				}
			}
		}
		gomega.Expect(user.Create(ctx, freeJob(g, "forged", true, func(tj *api.TrainJob) {
			tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager}}
		}))).To(gomega.MatchError(gomega.ContainSubstring("take it out of the manifest")))
		ginkgo.AddReportEntry(fmt.Sprintf("contract: %d changes of the integration's entry tried", tried))
	})

	ginkgo.It("takes an unchanged manifest again while the TrainJob runs, and changes nothing", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		manifest := parsed(`{"apiVersion":"trainer.kubeflow.org/v1alpha1","kind":"TrainJob","metadata":{"namespace":"` + g.namespace + `","name":"again","labels":{"kueue.x-k8s.io/queue-name":"` + localQueue + `"}},
			"spec":{"suspend":true,"runtimeRef":{"kind":"TrainingRuntime","name":"torch"},"trainer":{"numNodes":1,"resourcesPerNode":{"limits":{"nvidia.com/gpu":8}}},"runtimePatches":` +
			list(nodeEntry("example.com/team", `"nodeSelector":{"gpu":"a100"}`)) + `}}`)
		tj := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "again"}}
		gomega.Expect(user.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest.DeepCopy()),
			client.FieldOwner("kubectl"))).To(gomega.Succeed())
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Eventually(state(ctx, tj)).Should(gomega.BeEquivalentTo("Running"))
		before := raw(ctx, tj)
		gomega.Expect(ways["client-side apply"](ctx, user, manifest, manifest)).To(gomega.Succeed())
		gomega.Expect(user.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest.DeepCopy()),
			client.FieldOwner("kubectl"), client.ForceOwnership)).To(gomega.Succeed())
		after := raw(ctx, tj)
		gomega.Expect(after.Object["spec"]).To(gomega.Equal(before.Object["spec"]))
		gomega.Expect(after.GetGeneration()).To(gomega.Equal(before.GetGeneration()))
		gomega.Expect(watched.startsOf(get(ctx, tj))).To(gomega.Equal(1))
	})
}
