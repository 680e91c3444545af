package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/trainer"
)

func init() {
	if cluster.bundled() {
		return // it needs a real Kubeflow Trainer to compare with
	}
	ginkgo.Describe("The JobSet builder", func() {
		ginkgo.It("makes what Kubeflow Trainer makes, field by field, "+
			"of every runtime that it ships", func(ctx context.Context) {
			runtimes := installShippedRuntimes(ctx)
			gomega.Expect(runtimes).To(gomega.HaveLen(shippedRuntimes))
			runtimes = append(runtimes, installPodGroupRuntimes(ctx)...)
			gomega.Expect(runtimes).To(gomega.HaveLen(shippedRuntimes + withPodGroups))
			theirs, ours := newNamespace(ctx), newNamespace(ctx)
			builder, err := trainer.NewBuilder(ctx,
				fake.NewClientBuilder().WithScheme(admin.Scheme()).Build(), &trainerconfig.Configuration{})
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			compared := 0
			for _, rt := range runtimes {
				variants := jobVariants(&rt)
				gomega.Expect(variants).To(gomega.HaveLen(jobsPerRuntime))
				for i, change := range variants {
					tj := &api.TrainJob{
						ObjectMeta: metav1.ObjectMeta{
							Namespace: theirs, Name: fmt.Sprintf("%s-%d", strings.ReplaceAll(rt.Name, ".", "-"), i),
						},
						Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
							RuntimeRef: trainerapi.RuntimeRef{
								APIGroup: &trainerapi.GroupVersion.Group, Kind: ptr.To(trainerapi.ClusterTrainingRuntimeKind), Name: rt.Name,
							},
							Suspend: ptr.To(true),
						}},
					}
					change(tj)
					gomega.Expect(admin.Create(ctx, tj)).To(gomega.Succeed(), "%s, TrainJob %d", rt.Name, i)
					js := &unstructured.Unstructured{}
					js.SetAPIVersion("jobset.x-k8s.io/v1alpha2")
					js.SetKind("JobSet")
					gomega.Eventually(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(tj), js) }).Should(
						gomega.Succeed(), "%s, TrainJob %d", rt.Name, i)

					// Signalbox's are made in another namespace, of a TrainJob that Kubeflow Trainer leaves alone.
					twin := &api.TrainJob{
						ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: tj.Name}, Spec: *get(ctx, tj).Spec.DeepCopy(),
					}
					twin.Spec.ManagedBy = ptr.To("kueue.x-k8s.io/multikueue")
					gomega.Expect(admin.Create(ctx, twin)).To(gomega.Succeed())
					spec := rt.Spec.DeepCopy()
					spec.Template.Spec.VolumeClaimPolicies = nil // its claims are the TrainJob's, and volumes of the JobSet
					built, err := builder.Build(ctx, twin, spec)
					gomega.Expect(err).NotTo(gomega.HaveOccurred(), "%s, TrainJob %d", rt.Name, i)
					got := map[string]*unstructured.Unstructured{}
					got["JobSet "+tj.Name] = defaulted(ctx, built.JobSet)
					for _, o := range built.SideObjects {
						got[o.GetKind()+" "+o.GetName()] = defaulted(ctx, o)
					}
					want := map[string]*unstructured.Unstructured{}
					gomega.Eventually(func() []string {
						want = map[string]*unstructured.Unstructured{"JobSet " + tj.Name: js}
						for _, o := range childrenOf(ctx, tj) {
							want[o.GetKind()+" "+o.GetName()] = o
						}
						return slices.Sorted(maps.Keys(want))
					}).Should(gomega.Equal(slices.Sorted(maps.Keys(got))), "%s, TrainJob %d", rt.Name, i)
					for name := range want {
						differOnPurpose(want[name], tj, &rt)
						differ := differences(comparable(want[name], theirs), comparable(got[name], ours), "")
						gomega.Expect(differ).To(gomega.BeEmpty(), "%s, TrainJob %d, %s (Trainer's, ours)", rt.Name, i, name)
						compared++
					}
				}
			}
			ginkgo.AddReportEntry(fmt.Sprintf(
				"equality: %d objects of %d TrainJobs on %d runtimes are equal to Kubeflow Trainer's",
				compared, len(runtimes)*jobsPerRuntime, len(runtimes)))
		})
	})
}

func newNamespace(ctx context.Context) string {
	ginkgo.GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	gomega.Expect(admin.Create(ctx, namespace)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, namespace)).To(gomega.Succeed()) })
	return namespace.Name
}

// jobVariants are the TrainJobs that are tried on a runtime.
func jobVariants(rt *api.ClusterTrainingRuntime) []func(*api.TrainJob) {
	gpus := corev1.ResourceList{gpu: quantity("4")}
	withTrainer := func(tj *api.TrainJob) *trainerapi.Trainer {
		tj.Spec.Trainer = &trainerapi.Trainer{}
		if policy := rt.Spec.MLPolicy; policy != nil && policy.Flux != nil {
			tj.Spec.Trainer.NumNodes = ptr.To[int32](1) // Trainer v2.3.0 panics without
		}
		return tj.Spec.Trainer
	}
	return []func(*api.TrainJob){
		func(tj *api.TrainJob) {
			if rt.Spec.MLPolicy != nil {
				withTrainer(tj) // without it, Trainer v2.3.0 leaves out the environment of torchrun, JAX and others
			}
		},
		func(tj *api.TrainJob) { withTrainer(tj) },
		func(tj *api.TrainJob) { // nodes and resources
			t := withTrainer(tj)
			t.NumNodes, t.NumProcPerNode = ptr.To[int32](3), ptr.To[int32](2)
			t.ResourcesPerNode = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("3"), gpu: quantity("4")}, Limits: gpus,
			}
		},
		func(tj *api.TrainJob) { // the node's container
			t := withTrainer(tj)
			t.Image, t.Command, t.Args = ptr.To("example.com/mine:1"), []string{"python", "train.py"}, []string{"--epochs", "3"}
			t.Env = []corev1.EnvVar{
				{Name: "PLAIN", Value: "value"}, {Name: "EMPTY"},
				{Name: "FIELD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k", Optional: ptr.To(true),
				}}},
			}
		},
		func(tj *api.TrainJob) { // initializers, where the runtime has them; else its arguments alone
			t := withTrainer(tj)
			t.Args = []string{"lr=1"}
			for _, rj := range rt.Spec.Template.Spec.ReplicatedJobs {
				mounts := rj.Template.Spec.Template.Spec.Containers[0].VolumeMounts
				if len(mounts) == 0 || mounts[0].Name != "initializer" {
					continue
				}
				if tj.Spec.Initializer == nil {
					tj.Spec.Initializer = &trainerapi.Initializer{}
				}
				switch rj.Name {
				case "dataset-initializer":
					tj.Spec.Initializer.Dataset = &trainerapi.DatasetInitializer{
						StorageUri: ptr.To("s3://bucket/data"), Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
						SecretRef: &corev1.LocalObjectReference{Name: "token"},
					}
				case "model-initializer":
					tj.Spec.Initializer.Model = &trainerapi.ModelInitializer{
						StorageUri: ptr.To("hf://me/model"), Env: []corev1.EnvVar{{Name: "C", Value: "d"}},
						SecretRef: &corev1.LocalObjectReference{Name: "token"},
					}
				}
			}
		},
		func(tj *api.TrainJob) { // a user's entry of every field, for every ReplicatedJob
			withTrainer(tj)
			tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{everyField(rt, "example.com/team")}
		},
		func(tj *api.TrainJob) { // two entries that meet
			withTrainer(tj).NumNodes = ptr.To[int32](2)
			first, second := everyField(rt, "example.com/team"), everyField(rt, "example.org/other")
			for i := range second.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
				pod := second.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs[i].Template.Spec.Template
				pod.Metadata.Labels = map[string]string{"team": "other", "more": "yes"}
				pod.Spec = &trainerapi.PodSpecPatch{
					NodeSelector: map[string]string{"zone": "west"},
					Tolerations:  []corev1.Toleration{{Key: "other", Operator: corev1.TolerationOpExists}},
				}
			}
			slices.Reverse(second.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs)
			tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{first, second}
		},
	}
}

// everyField is an entry that sets every field that an entry can, for every ReplicatedJob of a runtime.
func everyField(rt *api.ClusterTrainingRuntime, manager string) trainerapi.RuntimePatch {
	entry := trainerapi.RuntimePatch{Manager: manager, TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
		Template: &trainerapi.JobSetTemplatePatch{
			Metadata: &metav1.ObjectMeta{Labels: map[string]string{"jobset": "label"},
				Annotations: map[string]string{"jobset": "annotation"}},
			Spec: &trainerapi.JobSetSpecPatch{},
		},
	}}
	for _, rj := range rt.Spec.Template.Spec.ReplicatedJobs {
		container := rj.Template.Spec.Template.Spec.Containers[0].Name
		entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs = append(
			entry.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs, trainerapi.ReplicatedJobPatch{
				Name: rj.Name,
				Template: &trainerapi.JobTemplatePatch{
					Metadata: &metav1.ObjectMeta{Labels: map[string]string{"job": "label"},
						Annotations: map[string]string{"job": "annotation"}},
					Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{
						Metadata: &metav1.ObjectMeta{Labels: map[string]string{"team": "a"},
							Annotations: map[string]string{"pod": "annotation"}},
						Spec: &trainerapi.PodSpecPatch{
							ServiceAccountName: ptr.To("trainer"),
							Volumes: []corev1.Volume{{Name: "scratch",
								VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
							Containers: []trainerapi.ContainerPatch{{
								Name: container, VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
								SecurityContext: &corev1.SecurityContext{RunAsNonRoot: ptr.To(true)},
							}},
							ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
							SecurityContext:  &corev1.PodSecurityContext{FSGroup: ptr.To[int64](2000)},
							NodeSelector:     map[string]string{"zone": "east", "disk": "ssd"},
							Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
								RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
									NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
										Key: "gpu", Operator: corev1.NodeSelectorOpIn, Values: []string{"a100"}}}}}}}},
							Tolerations: []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpEqual, Value: "a",
								Effect: corev1.TaintEffectNoSchedule}},
							SchedulingGates:               []corev1.PodSchedulingGate{{Name: "example.com/gate"}},
							TerminationGracePeriodSeconds: ptr.To[int64](7),
						},
					}},
				},
			})
	}
	return entry
}

// childrenOf are the ConfigMaps, Secrets and pod groups that Trainer has made for a TrainJob, but for its snapshot.
func childrenOf(ctx context.Context, tj *api.TrainJob) []*unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	var children []*unstructured.Unstructured
	for _, kind := range append(slices.Clone(podGroupKinds),
		corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Secret")) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		gomega.Expect(admin.List(ctx, list, client.InNamespace(tj.Namespace))).To(gomega.Succeed())
		for i := range list.Items {
			if metav1.IsControlledBy(&list.Items[i], tj) && !strings.HasSuffix(list.Items[i].GetName(), "-runtime-snapshot") {
				children = append(children, &list.Items[i])
			}
		}
	}
	return children
}

// defaulted is what the API server makes of an object, webhooks and all, without keeping it.
func defaulted(ctx context.Context, applied any) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	data, err := json.Marshal(applied)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	o := &unstructured.Unstructured{}
	gomega.Eventually(func() error { // Kueue's webhook looks for the TrainJob, which its cache may not show yet
		o = &unstructured.Unstructured{}
		gomega.Expect(json.Unmarshal(data, o)).To(gomega.Succeed())
		return admin.Create(ctx, o, client.DryRunAll)
	}).Should(gomega.Succeed())
	return o
}

// comparable is an object without what the API server adds to each, without the name of its namespace, and with its
// environment in order: Trainer runs its plugins in no fixed one.
func comparable(o *unstructured.Unstructured, namespace string) any {
	ginkgo.GinkgoHelper()
	o = o.DeepCopy()
	delete(o.Object, "status")
	metadata := o.Object["metadata"].(map[string]any)
	for _, f := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "namespace"} {
		delete(metadata, f)
	}
	delete(metadata["ownerReferences"].([]any)[0].(map[string]any), "uid")
	if o.GetKind() == "Secret" {
		data := o.Object["data"].(map[string]any)
		for key := range data {
			data[key] = "drawn at random"
		}
	}
	text, err := json.Marshal(sorted(o.Object))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	var content any
	gomega.Expect(json.Unmarshal(bytes.ReplaceAll(text, []byte(namespace), []byte("NAMESPACE")), &content)).To(
		gomega.Succeed())
	return content
}

func sorted(content any) any {
	switch c := content.(type) {
	case map[string]any:
		for key, value := range c {
			c[key] = sorted(value)
			if list, ok := value.([]any); ok && key == "env" {
				slices.SortStableFunc(list, func(a, b any) int {
					return strings.Compare(fmt.Sprint(a.(map[string]any)["name"]), fmt.Sprint(b.(map[string]any)["name"]))
				})
			}
		}
	case []any:
		for i := range c {
			c[i] = sorted(c[i])
		}
	}
	return content
}

// differences names every field in which two objects differ.
func differences(a, b any, path string) []string {
	if reflect.DeepEqual(a, b) {
		return nil
	}
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			var all []string
			keys := maps.Clone(x)
			maps.Copy(keys, y)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				all = append(all, differences(x[key], y[key], path+"."+key)...)
			}
			return all
		}
	case []any:
		if y, ok := b.([]any); ok && len(x) == len(y) {
			var all []string
			for i := range x {
				all = append(all, differences(x[i], y[i], fmt.Sprintf("%s[%d]", path, i))...)
			}
			return all
		}
	}
	return []string{fmt.Sprintf("%s: %v, %v", path, a, b)}
}

const trainerModule = "github.com/kubeflow/trainer/v2"

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
