package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func init() {
	if cluster.bundled() {
		ginkgo.Describe("The operator guide of podTemplateOverrides", guideSpecs)
		ginkgo.Describe("The proposal of templateOverrides", historySpecs)
	}
}

// guided is a runtime with something in every place that an override may change.
func guided(rt *api.TrainingRuntime) {
	fetch := corev1.Container{
		Name: "fetch-identity", Image: "example.com/fetch:1",
		Env: []corev1.EnvVar{{Name: "USER_ID", Value: "1"}, {Name: "REGION", Value: "east"}},
	}
	init := step("dataset-initializer", "dataset-initializer", "1s")
	init.Template.Spec.Template.Spec.InitContainers = []corev1.Container{fetch}
	spec := &rt.Spec.Template.Spec
	node := &spec.ReplicatedJobs[0].Template.Spec.Template
	node.Labels = map[string]string{"team": "platform", "from": "runtime"}
	node.Annotations["monitoring"] = "off"
	pod := &node.Spec
	pod.NodeSelector = map[string]string{"disk": "fast"}
	pod.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "rack"}},
		},
	}}
	pod.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/of-the-runtime"}}
	pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "of-the-runtime"}}
	pod.ServiceAccountName = "default"
	pod.Volumes = []corev1.Volume{
		{Name: "model-cache", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/cache"}}},
		{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	pod.InitContainers = []corev1.Container{fetch}
	pod.Containers = append(pod.Containers, corev1.Container{
		Name: "trainer", Image: "example.com/beside:1",
		Env: []corev1.EnvVar{{Name: "MODE", Value: "slow"}, {Name: "KEEP", Value: "this"}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "model-cache", MountPath: "/cache"}, {Name: "shared", MountPath: "/shared"},
		},
	})
	spec.ReplicatedJobs = append([]jobset.ReplicatedJob{init}, spec.ReplicatedJobs...)
}

func guideSpecs() {
	// submitted returns one pod of each ReplicatedJob of a queued TrainJob.
	submitted := func(ctx context.Context, g *ground, name, field, list string) map[string]corev1.Pod {
		ginkgo.GinkgoHelper()
		for _, account := range []string{"ml-training", "dataset-reader", "model-trainer", "base", "custom"} {
			gomega.Expect(ignoreExists(admin.Create(ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: account},
			}))).To(gomega.Succeed())
		}
		tj := g.submitRaw(ctx, g.trainJob(name, "guided", 1), field, listFrom(list))
		pods := map[string]corev1.Pod{}
		gomega.Eventually(func() int {
			for _, p := range podsOf(ctx, tj) {
				pods[p.Labels[jobset.ReplicatedJobNameKey]] = p
			}
			return len(pods)
		}).Should(gomega.Equal(2))
		return pods
	}
	for name, e := range examples {
		ginkgo.It("gives the pods that it promises: example "+name, func(ctx context.Context) {
			g := newGround(ctx, map[string]int64{"a100": 8})
			g.runtime(ctx, "guided", "1s", guided)
			e.promise(submitted(ctx, g, "example", "podTemplateOverrides", e.overrides))
		})
	}

	ginkgo.It("holds for its own YAML as it stands", func(ctx context.Context) {
		text, err := os.ReadFile("testdata/guide.yaml")
		if os.IsNotExist(err) {
			text, err = os.ReadFile("test/e2e/testdata/guide.yaml")
		}
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml-team"}}
		gomega.Expect(admin.Create(ctx, namespace)).To(gomega.Succeed())
		for _, account := range []string{"ml-training-sa", "dataset-reader-sa", "model-trainer-sa"} {
			gomega.Expect(admin.Create(ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: account},
			})).To(gomega.Succeed())
		}
		rt := &api.TrainingRuntime{
			ObjectMeta: metav1.ObjectMeta{Name: "pytorch-distributed-gpu"},
			Spec: trainerapi.TrainingRuntimeSpec{
				MLPolicy: &trainerapi.MLPolicy{
					NumNodes:       ptr.To[int32](1),
					MLPolicySource: trainerapi.MLPolicySource{Torch: &trainerapi.TorchMLPolicySource{}},
				},
				Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{
					ReplicatedJobs: []jobset.ReplicatedJob{step("node", "trainer", "1s")},
				}},
			},
		}
		guided(rt)
		everywhere := &api.ClusterTrainingRuntime{
			ObjectMeta: metav1.ObjectMeta{Name: rt.Name, Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}},
			Spec:       rt.Spec,
		}
		gomega.Expect(admin.Create(ctx, everywhere)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) {
			gomega.Expect(admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(namespace.Name))).To(gomega.Succeed())
			gomega.Expect(admin.Delete(ctx, everywhere)).To(gomega.Succeed())
			gomega.Expect(admin.Delete(ctx, namespace)).To(gomega.Succeed())
		})
		warned := &warnings{}
		c := rest.CopyConfig(config(cluster.kubeconfig("")))
		c.WarningHandler = warned
		guide, err := client.New(c, client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		applied := 0
		for _, doc := range strings.Split(string(text), "\n---\n") {
			o := &unstructured.Unstructured{}
			gomega.Expect(yaml.Unmarshal([]byte(doc), &o.Object)).To(gomega.Succeed())
			gomega.Expect(guide.Create(ctx, o)).To(gomega.Succeed(), o.GetName())
			applied++
			tj := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: o.GetName()}}
			gomega.Eventually(func() int { return len(podsOf(ctx, tj)) }).Should(gomega.Equal(2), o.GetName())
		}
		gomega.Expect(applied).To(gomega.Equal(8))
		gomega.Expect(warned.texts).To(gomega.ContainElement(gomega.And(
			gomega.HavePrefix("spec.podTemplateOverrides is deprecated; the equivalent in spec is {"),
			gomega.ContainSubstring(`"runtimePatches":[{"manager":"signalbox.dev/converted"`),
			gomega.ContainSubstring("ml-training-sa"))))
		of := func(job, replicatedJob string) corev1.Pod {
			ginkgo.GinkgoHelper()
			for _, p := range podsOf(ctx, &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: job}}) {
				if p.Labels[jobset.ReplicatedJobNameKey] == replicatedJob {
					return p
				}
			}
			ginkgo.Fail(fmt.Sprintf("no pod of %s of %s", replicatedJob, job))
			return corev1.Pod{}
		}
		gomega.Expect(of("pytorch-distributed-custom", "node").Spec.NodeSelector).To(gomega.Equal(map[string]string{
			"accelerator": "nvidia-tesla-v100", "node-pool": "gpu-training",
		}))
		gomega.Expect(mounts(containerOf(of("pytorch-with-persistent-storage", "node"), "trainer"))).To(
			gomega.HaveKeyWithValue("/workspace/cache", "model-cache"))
		gomega.Expect(env(containerOf(of("pytorch-custom-init", "node"), "fetch-identity"))).To(
			gomega.HaveKeyWithValue("FETCH_TIMEOUT", "300"))
		gomega.Expect(own(of("pytorch-gpu-toleration", "node").Spec.Tolerations)).To(gomega.HaveLen(2))
		gomega.Expect(of("pytorch-with-affinity", "node").Spec.Affinity.PodAffinity).To(gomega.BeNil())
		gomega.Expect(of("pytorch-private-registry", "node").Spec.ImagePullSecrets).To(gomega.Equal(
			[]corev1.LocalObjectReference{{Name: "private-registry-secret"}, {Name: "backup-registry-secret"}}))
		gomega.Expect(of("pytorch-multi-override", "dataset-initializer").Spec.ServiceAccountName).To(
			gomega.Equal("dataset-reader-sa"))
		gomega.Expect(of("pytorch-with-gates", "node").Spec.SchedulingGates).To(gomega.HaveLen(2))
	})

	ginkgo.It("refuses what it says can't be overridden", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		refusals := map[string]string{
			`[{targetJobs: [{name: node}], spec: {containers: [{name: node, env: [{name: A, value: b}]}]}}]`:                                   `spec.podTemplateOverrides[0].spec.containers[node].env: Forbidden: the environment of container "node" (here "A") is not for an entry; set it by spec.trainer.env`,
			`[{targetJobs: [{name: dataset-initializer}], spec: {containers: [{name: dataset-initializer, env: [{name: A}]}]}}]`:               `set it by spec.initializer.dataset.env`,
			`[{targetJobs: [{name: node}], spec: {containers: [{name: model-initializer, env: [{name: A}]}]}}]`:                                `set it by spec.initializer.model.env`,
			`[{targetJobs: [{name: nodes}], spec: {serviceAccountName: x}}]`:                                                                   `spec.podTemplateOverrides[0].targetJobs[nodes]: Unsupported value: "nodes": runtime "guided" has no such replicatedJob; supported values: "dataset-initializer", "node"`,
			`[{targetJobs: [{name: node}], spec: {serviceAccountName: x}}, {targetJobs: [{name: node}], spec: {containers: [{name: other}]}}]`: `spec.podTemplateOverrides[1].spec.containers[other]: Unsupported value: "other"`,
			`[{targetJobs: [{name: node}], spec: {initContainers: [{name: trainer}]}}]`:                                                        `spec.podTemplateOverrides[0].spec.initContainers[trainer]: Unsupported value: "trainer"`,
			`[{targetJobs: [{name: node}]}]`:                                       `spec.podTemplateOverrides[0]: Required value: the entry sets no field that may be changed`,
			`[{targetJobs: [{name: node}], spec: {priorityClassName: high}}]`:      `the entry sets no field that may be changed`,
			`[{targetJobs: [], spec: {serviceAccountName: x}}]`:                    `spec.podTemplateOverrides[0].targetJobs: Required value`,
			`[{targetJobs: [{name: node}], metadata: {labels: {$patch: delete}}}]`: `a key may not begin with $`,
		}
		for list, want := range refusals {
			u, err := toUnstructured(g.trainJob("refused", "guided", 1))
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(list), "spec", "podTemplateOverrides")).To(
				gomega.Succeed())
			gomega.Expect(user.Create(ctx, u)).To(gomega.MatchError(gomega.ContainSubstring(want)), list)
		}
		// Command, args, image and resources are not in the shape; a strict client is told so.
		u, err := toUnstructured(g.trainJob("strict", "guided", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(
			`[{targetJobs: [{name: node}], spec: {containers: [{name: node, image: other, command: [x], args: [y], resources: {}}]}}]`,
		), "spec", "podTemplateOverrides")).To(gomega.Succeed())
		strict := client.WithFieldValidation(user, metav1.FieldValidationStrict)
		err = strict.Create(ctx, u)
		for _, field := range []string{"image", "command", "args", "resources"} {
			gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(
				`unknown field "spec.podTemplateOverrides[0].spec.containers[0].` + field + `"`)))
		}
		ginkgo.AddReportEntry(fmt.Sprintf("guide: %d refusals tried", len(refusals)+1))
	})

	ginkgo.It("is converted by kubectl signalbox convert, "+
		"which has the cluster check the result", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "plain", "1s", func(rt *api.TrainingRuntime) { // what the guide names, and nothing in its way
			guided(rt)
			pod := &rt.Spec.Template.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec
			pod.NodeSelector, pod.Affinity, pod.SchedulingGates, pod.ImagePullSecrets, pod.Volumes = nil, nil, nil, nil, nil
			pod.Containers[1].VolumeMounts = nil
		})
		g.runtime(ctx, "guided", "1s", guided)
		convert := func(runtime, list string) (out, said string, err error) {
			ginkgo.GinkgoHelper()
			u, err := toUnstructured(g.trainJob("converted", runtime, 1))
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(list), "spec", "podTemplateOverrides")).To(
				gomega.Succeed())
			manifest, err := yaml.Marshal(u.Object)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			cmd := exec.CommandContext(ctx, filepath.Join(cluster.dir, "..", "bin", "kubectl-signalbox"),
				"convert", "-f", "-", "--server-dry-run")
			cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig(""))
			var written, errs strings.Builder
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(manifest)), &written, &errs
			err = cmd.Run()
			return written.String(), errs.String(), err
		}
		for name, e := range examples {
			out, said, err := convert("plain", e.overrides)
			gomega.Expect(err).NotTo(gomega.HaveOccurred(), name+": "+said)
			gomega.Expect(out).To(gomega.And(gomega.ContainSubstring("runtimePatches:"),
				gomega.Not(gomega.ContainSubstring("podTemplateOverrides"))), name)
		}
		gomega.Expect(g.list(ctx, &api.TrainJobList{})).To(gomega.BeEmpty(), "nothing is stored")
		_, said, err := convert("guided", examples["1, a service account and a node selector"].overrides)
		gomega.Expect(err).To(gomega.HaveOccurred())
		gomega.Expect(said).To(gomega.And(gomega.ContainSubstring("LOST: "),
			gomega.ContainSubstring("nodeSelector.disk is \"fast\" and was not there"),
			gomega.ContainSubstring("lost: 1; each is named above")))
		_, said, err = convert("plain", `[{targetJobs: [{name: nodes}], spec: {serviceAccountName: x}}]`)
		gomega.Expect(err).To(gomega.HaveOccurred())
		gomega.Expect(said).To(gomega.ContainSubstring(`"nodes"`))
	})

	ginkgo.It("lets runtimePatches win over templateOverrides, "+
		"and these over podTemplateOverrides", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		u, err := toUnstructured(g.trainJob("layers", "guided", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for field, list := range map[string]string{
			"podTemplateOverrides": `[{targetJobs: [{name: node}], metadata: {labels: {a: pod, b: pod, c: pod}}}]`,
			"templateOverrides":    `[{manager: example.com/team, pod: [{targetJobs: [{name: node}], metadata: {labels: {b: template, c: template}}}]}]`,
			"runtimePatches":       `[` + nodeEntry("example.com/team", `"terminationGracePeriodSeconds":7`) + `, {manager: example.com/other, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {metadata: {labels: {c: patch}}}}}}]}}}}]`,
		} {
			gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(list), "spec", field)).To(gomega.Succeed())
		}
		gomega.Expect(user.Create(ctx, u)).To(gomega.Succeed())
		tj := g.trainJob("layers", "guided", 1)
		gomega.Eventually(func() []string { return podsNamed(ctx, tj, "node") }).Should(gomega.HaveLen(1))
		for _, p := range podsOf(ctx, tj) {
			if p.Labels[jobset.ReplicatedJobNameKey] == "node" {
				gomega.Expect(p.Labels).To(gomega.And(
					gomega.HaveKeyWithValue("a", "pod"), gomega.HaveKeyWithValue("b", "template"),
					gomega.HaveKeyWithValue("c", "patch"), gomega.HaveKeyWithValue("team", "platform")))
				gomega.Expect(p.Spec.TerminationGracePeriodSeconds).To(gomega.HaveValue(gomega.BeEquivalentTo(7)))
			}
		}
	})
}
