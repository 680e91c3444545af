package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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
	"sigs.k8s.io/kueue/pkg/controller/constants"
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
	fetch := corev1.Container{Name: "fetch-identity", Image: "example.com/fetch:1", Env: []corev1.EnvVar{{Name: "USER_ID", Value: "1"}, {Name: "REGION", Value: "east"}}}
	init := step("dataset-initializer", "dataset-initializer", "1s")
	init.Template.Spec.Template.Spec.InitContainers = []corev1.Container{fetch}
	spec := &rt.Spec.Template.Spec
	node := &spec.ReplicatedJobs[0].Template.Spec.Template
	node.Labels = map[string]string{"team": "platform", "from": "runtime"}
	node.Annotations["monitoring"] = "off"
	pod := &node.Spec
	pod.NodeSelector = map[string]string{"disk": "fast"}
	pod.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
		{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "rack"}}}}}
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
		Env:          []corev1.EnvVar{{Name: "MODE", Value: "slow"}, {Name: "KEEP", Value: "this"}},
		VolumeMounts: []corev1.VolumeMount{{Name: "model-cache", MountPath: "/cache"}, {Name: "shared", MountPath: "/shared"}},
	})
	spec.ReplicatedJobs = append([]jobset.ReplicatedJob{init}, spec.ReplicatedJobs...)
}

// example is one of the guide's: what the TrainJob says, and what the guide promises of the pods.
type example struct {
	overrides string
	promise   func(pods map[string]corev1.Pod)
}

// ofA100 is what admission adds to every pod.
var ofA100 = corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "a100", Effect: corev1.TaintEffectNoSchedule}

func env(c corev1.Container) map[string]string {
	values := map[string]string{}
	for _, e := range c.Env {
		if e.Name != "JOB_COMPLETION_INDEX" { // a Job gives that to all
			values[e.Name] = e.Value
		}
	}
	return values
}

func mounts(c corev1.Container) map[string]string {
	paths := map[string]string{}
	for _, m := range c.VolumeMounts {
		if !strings.HasPrefix(m.MountPath, "/var/run/secrets/") {
			paths[m.MountPath] = m.Name
		}
	}
	return paths
}

func containerOf(p corev1.Pod, name string) corev1.Container {
	ginkgo.GinkgoHelper()
	for _, c := range append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
		if c.Name == name {
			return c
		}
	}
	ginkgo.Fail("no container " + name)
	return corev1.Container{}
}

func volumeOf(p corev1.Pod, name string) corev1.VolumeSource {
	ginkgo.GinkgoHelper()
	for _, v := range p.Spec.Volumes {
		if v.Name == name {
			return v.VolumeSource
		}
	}
	ginkgo.Fail("no volume " + name)
	return corev1.VolumeSource{}
}

var examples = map[string]example{
	"1, a service account and a node selector": {
		`[{targetJobs: [{name: node}], spec: {serviceAccountName: ml-training, nodeSelector: {accelerator: v100, node-pool: training}}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.ServiceAccountName).To(gomega.Equal("ml-training"))
			gomega.Expect(pods["node"].Spec.NodeSelector).To(gomega.Equal(map[string]string{"accelerator": "v100", "node-pool": "training", "gpu": "a100", "has-a100": "true"}),
				"the runtime's is replaced, and admission adds the flavor's")
			gomega.Expect(pods["dataset-initializer"].Spec.ServiceAccountName).To(gomega.Equal("default"))
		},
	},
	"2, volumes and their mounts": {
		`[{targetJobs: [{name: node}], spec: {
		  volumes: [{name: training-data, persistentVolumeClaim: {claimName: team-claim}}, {name: model-cache, emptyDir: {}}],
		  containers: [{name: trainer, volumeMounts: [{name: training-data, mountPath: /workspace/data}, {name: model-cache, mountPath: /workspace/cache}]}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(volumeOf(pods["node"], "training-data").PersistentVolumeClaim.ClaimName).To(gomega.Equal("team-claim"))
			cache := volumeOf(pods["node"], "model-cache")
			gomega.Expect(cache.EmptyDir).NotTo(gomega.BeNil())
			gomega.Expect(cache.HostPath).To(gomega.BeNil(), "a volume of the same name is overridden")
			gomega.Expect(volumeOf(pods["node"], "shared").EmptyDir).NotTo(gomega.BeNil(), "the runtime's others stay")
			gomega.Expect(mounts(containerOf(pods["node"], "trainer"))).To(gomega.Equal(map[string]string{
				"/workspace/data": "training-data", "/workspace/cache": "model-cache", "/shared": "shared"}), "a mount of the same volume replaces the runtime's")
		},
	},
	"3, environment of an initContainer": {
		`[{targetJobs: [{name: node}], spec: {initContainers: [{name: fetch-identity, env: [{name: USER_ID, value: "12345"}, {name: WORKSPACE_ID, value: ml-team}, {name: FETCH_TIMEOUT, value: "300"}]}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(env(containerOf(pods["node"], "fetch-identity"))).To(gomega.Equal(map[string]string{"USER_ID": "12345", "WORKSPACE_ID": "ml-team", "FETCH_TIMEOUT": "300", "REGION": "east"}))
			gomega.Expect(env(containerOf(pods["dataset-initializer"], "fetch-identity"))).To(gomega.Equal(map[string]string{"USER_ID": "1", "REGION": "east"}))
		},
	},
	"4, tolerations": {
		`[{targetJobs: [{name: node}], spec: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}, {key: training-workload, operator: Equal, value: high-priority, effect: NoSchedule}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(own(pods["node"].Spec.Tolerations)).To(gomega.ConsistOf(ofA100,
				corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				corev1.Toleration{Key: "training-workload", Operator: corev1.TolerationOpEqual, Value: "high-priority", Effect: corev1.TaintEffectNoSchedule}))
		},
	},
	"5, affinity": {
		`[{targetJobs: [{name: node}], spec: {affinity: {
		  podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {job: mine}}}}]},
		  nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: type, operator: In, values: [p3, p4]}]}]}}}}}]`,
		func(pods map[string]corev1.Pod) {
			a := pods["node"].Spec.Affinity
			gomega.Expect(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution).To(gomega.HaveLen(1))
			gomega.Expect(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values).To(gomega.Equal([]string{"p3", "p4"}))
			gomega.Expect(a.PodAffinity).To(gomega.BeNil(), "the runtime's is replaced")
		},
	},
	"6, image pull secrets": {
		`[{targetJobs: [{name: node}], spec: {imagePullSecrets: [{name: private}, {name: backup}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.ImagePullSecrets).To(gomega.Equal([]corev1.LocalObjectReference{{Name: "private"}, {Name: "backup"}}))
		},
	},
	"7, several overrides for several jobs": {
		`[{targetJobs: [{name: dataset-initializer}], spec: {serviceAccountName: dataset-reader, initContainers: [{name: fetch-identity, env: [{name: DATA_SOURCE, value: bucket}]}],
		    volumes: [{name: dataset-cache, emptyDir: {sizeLimit: 10Gi}}], containers: [{name: dataset-initializer, volumeMounts: [{name: dataset-cache, mountPath: /cache}]}]}},
		  {targetJobs: [{name: node}], spec: {serviceAccountName: model-trainer, nodeSelector: {kind: big}, tolerations: [{key: dedicated, operator: Equal, value: training, effect: NoSchedule}],
		    volumes: [{name: model-output, persistentVolumeClaim: {claimName: models}}], containers: [{name: trainer, volumeMounts: [{name: model-output, mountPath: /workspace/output}]}]}}]`,
		func(pods map[string]corev1.Pod) {
			init, node := pods["dataset-initializer"], pods["node"]
			gomega.Expect(init.Spec.ServiceAccountName).To(gomega.Equal("dataset-reader"))
			gomega.Expect(env(containerOf(init, "fetch-identity"))).To(gomega.Equal(map[string]string{"USER_ID": "1", "REGION": "east", "DATA_SOURCE": "bucket"}))
			gomega.Expect(mounts(containerOf(init, "dataset-initializer"))).To(gomega.Equal(map[string]string{"/cache": "dataset-cache"}))
			gomega.Expect(volumeOf(init, "dataset-cache").EmptyDir.SizeLimit.String()).To(gomega.Equal("10Gi"))
			gomega.Expect(node.Spec.ServiceAccountName).To(gomega.Equal("model-trainer"))
			gomega.Expect(node.Spec.NodeSelector).To(gomega.HaveKeyWithValue("kind", "big"))
			gomega.Expect(mounts(containerOf(node, "trainer"))).To(gomega.HaveKeyWithValue("/workspace/output", "model-output"))
			gomega.Expect(own(node.Spec.Tolerations)).To(gomega.HaveLen(2))
		},
	},
	"8, scheduling gates": {
		`[{targetJobs: [{name: node}], spec: {schedulingGates: [{name: example.com/data-validation}, {name: example.com/quota-check}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.SchedulingGates).To(gomega.Equal([]corev1.PodSchedulingGate{{Name: "example.com/data-validation"}, {Name: "example.com/quota-check"}}))
		},
	},
	"on merging, the later of two for the same job": {
		`[{targetJobs: [{name: node}], spec: {serviceAccountName: base, nodeSelector: {a: first}, tolerations: [{key: first, operator: Exists}]}},
		  {targetJobs: [{name: node}], spec: {serviceAccountName: custom, nodeSelector: {b: second}, tolerations: [{key: second, operator: Exists}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.ServiceAccountName).To(gomega.Equal("custom"))
			gomega.Expect(pods["node"].Spec.NodeSelector).To(gomega.Equal(map[string]string{"b": "second", "gpu": "a100", "has-a100": "true"}))
			gomega.Expect(own(pods["node"].Spec.Tolerations)).To(gomega.ConsistOf(ofA100, corev1.Toleration{Key: "second", Operator: corev1.TolerationOpExists}))
		},
	},
	"on merging, what is merged by key and by name": {
		`[{targetJobs: [{name: node}], metadata: {labels: {team: ml, project: churn}, annotations: {monitoring: enabled, description: "a b"}},
		   spec: {containers: [{name: trainer, env: [{name: MODE, value: fast}, {name: MORE, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}]`,
		func(pods map[string]corev1.Pod) {
			p := pods["node"]
			for key, value := range map[string]string{"team": "ml", "project": "churn", "from": "runtime"} {
				gomega.Expect(p.Labels).To(gomega.HaveKeyWithValue(key, value))
			}
			gomega.Expect(p.Annotations).To(gomega.And(gomega.HaveKeyWithValue("monitoring", "enabled"), gomega.HaveKeyWithValue("description", "a b"), gomega.HaveKey(runFor)))
			gomega.Expect(env(containerOf(p, "trainer"))).To(gomega.Equal(map[string]string{"MODE": "fast", "KEEP": "this", "MORE": ""}))
			gomega.Expect(containerOf(p, "trainer").Env).To(gomega.ContainElement(gomega.HaveField("ValueFrom.SecretKeyRef.Name", "s")))
		},
	},
}

func guideSpecs() {
	// submitted returns one pod of each ReplicatedJob of a queued TrainJob.
	submitted := func(ctx context.Context, g *ground, name, field, list string) map[string]corev1.Pod {
		ginkgo.GinkgoHelper()
		for _, account := range []string{"ml-training", "dataset-reader", "model-trainer", "base", "custom"} {
			gomega.Expect(ignoreExists(admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: account}}))).To(gomega.Succeed())
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
			gomega.Expect(admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: account}})).To(gomega.Succeed())
		}
		rt := &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "pytorch-distributed-gpu"}, Spec: trainerapi.TrainingRuntimeSpec{
			MLPolicy: &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1), MLPolicySource: trainerapi.MLPolicySource{Torch: &trainerapi.TorchMLPolicySource{}}},
			Template: trainerapi.JobSetTemplateSpec{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{step("node", "trainer", "1s")}}},
		}}
		guided(rt)
		everywhere := &api.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: rt.Name, Labels: map[string]string{"trainer.kubeflow.org/framework": "torch"}}, Spec: rt.Spec}
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
			gomega.HavePrefix("spec.podTemplateOverrides is deprecated; the equivalent in spec is {"), gomega.ContainSubstring(`"runtimePatches":[{"manager":"signalbox.dev/converted"`), gomega.ContainSubstring("ml-training-sa"))))
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
		gomega.Expect(of("pytorch-distributed-custom", "node").Spec.NodeSelector).To(gomega.Equal(map[string]string{"accelerator": "nvidia-tesla-v100", "node-pool": "gpu-training"}))
		gomega.Expect(mounts(containerOf(of("pytorch-with-persistent-storage", "node"), "trainer"))).To(gomega.HaveKeyWithValue("/workspace/cache", "model-cache"))
		gomega.Expect(env(containerOf(of("pytorch-custom-init", "node"), "fetch-identity"))).To(gomega.HaveKeyWithValue("FETCH_TIMEOUT", "300"))
		gomega.Expect(own(of("pytorch-gpu-toleration", "node").Spec.Tolerations)).To(gomega.HaveLen(2))
		gomega.Expect(of("pytorch-with-affinity", "node").Spec.Affinity.PodAffinity).To(gomega.BeNil())
		gomega.Expect(of("pytorch-private-registry", "node").Spec.ImagePullSecrets).To(gomega.Equal([]corev1.LocalObjectReference{{Name: "private-registry-secret"}, {Name: "backup-registry-secret"}}))
		gomega.Expect(of("pytorch-multi-override", "dataset-initializer").Spec.ServiceAccountName).To(gomega.Equal("dataset-reader-sa"))
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
			`[{targetJobs: [{name: node}]}]`:                                       `spec.podTemplateOverrides[0]: Required value: the entry says nothing of what may be changed`,
			`[{targetJobs: [{name: node}], spec: {priorityClassName: high}}]`:      `the entry says nothing of what may be changed`,
			`[{targetJobs: [], spec: {serviceAccountName: x}}]`:                    `spec.podTemplateOverrides[0].targetJobs: Required value`,
			`[{targetJobs: [{name: node}], metadata: {labels: {$patch: delete}}}]`: `a key may not begin with $`,
		}
		for list, want := range refusals {
			u, err := toUnstructured(g.trainJob("refused", "guided", 1))
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(list), "spec", "podTemplateOverrides")).To(gomega.Succeed())
			gomega.Expect(user.Create(ctx, u)).To(gomega.MatchError(gomega.ContainSubstring(want)), list)
		}
		// Command, args, image and resources are not in the shape; a strict client is told so.
		u, err := toUnstructured(g.trainJob("strict", "guided", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(`[{targetJobs: [{name: node}], spec: {containers: [{name: node, image: other, command: [x], args: [y], resources: {}}]}}]`), "spec", "podTemplateOverrides")).To(gomega.Succeed())
		strict := client.WithFieldValidation(user, metav1.FieldValidationStrict)
		err = strict.Create(ctx, u)
		for _, field := range []string{"image", "command", "args", "resources"} {
			gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(`unknown field "spec.podTemplateOverrides[0].spec.containers[0].` + field + `"`)))
		}
		ginkgo.AddReportEntry(fmt.Sprintf("guide: %d refusals tried", len(refusals)+1))
	})

	ginkgo.It("is converted by kubectl signalbox convert, which has the cluster check the result", func(ctx context.Context) {
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
			gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(list), "spec", "podTemplateOverrides")).To(gomega.Succeed())
			manifest, err := yaml.Marshal(u.Object)
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			cmd := exec.CommandContext(ctx, filepath.Join(cluster.dir, "..", "bin", "kubectl-signalbox"), "convert", "-f", "-", "--server-dry-run")
			cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig(""))
			var written, errs strings.Builder
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(manifest)), &written, &errs
			err = cmd.Run()
			return written.String(), errs.String(), err
		}
		for name, e := range examples {
			out, said, err := convert("plain", e.overrides)
			gomega.Expect(err).NotTo(gomega.HaveOccurred(), name+": "+said)
			gomega.Expect(out).To(gomega.And(gomega.ContainSubstring("runtimePatches:"), gomega.Not(gomega.ContainSubstring("podTemplateOverrides"))), name)
		}
		gomega.Expect(g.list(ctx, &api.TrainJobList{})).To(gomega.BeEmpty(), "nothing is stored")
		_, said, err := convert("guided", examples["1, a service account and a node selector"].overrides)
		gomega.Expect(err).To(gomega.HaveOccurred())
		gomega.Expect(said).To(gomega.And(gomega.ContainSubstring("LOST: "), gomega.ContainSubstring("nodeSelector.disk is \"fast\" and was not there"), gomega.ContainSubstring("lost: 1; each is named above")))
		_, said, err = convert("plain", `[{targetJobs: [{name: nodes}], spec: {serviceAccountName: x}}]`)
		gomega.Expect(err).To(gomega.HaveOccurred())
		gomega.Expect(said).To(gomega.ContainSubstring(`"nodes"`))
	})

	ginkgo.It("lets runtimePatches win over templateOverrides, and these over podTemplateOverrides", func(ctx context.Context) {
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
				gomega.Expect(p.Labels).To(gomega.And(gomega.HaveKeyWithValue("a", "pod"), gomega.HaveKeyWithValue("b", "template"), gomega.HaveKeyWithValue("c", "patch"), gomega.HaveKeyWithValue("team", "platform")))
				gomega.Expect(p.Spec.TerminationGracePeriodSeconds).To(gomega.HaveValue(gomega.BeEquivalentTo(7)))
			}
		}
	})
}

func historySpecs() {
	const manager = "example.com/team"
	submit := func(ctx context.Context, g *ground, history string) *api.TrainJob {
		ginkgo.GinkgoHelper()
		tj := g.trainJob("history", "guided", 1)
		tj.Labels = map[string]string{constants.QueueLabel: "held"} // so that nothing else happens to it
		return g.submitRaw(ctx, tj, "templateOverrides", listFrom(history))
	}

	ginkgo.It("is merged, the later time over the earlier, into the JobSet, the Jobs and the pods", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		tj := g.submitRaw(ctx, g.trainJob("history", "guided", 1), "templateOverrides", listFrom(`[{manager: example.com/team,
		  job: [{metadata: {labels: {of: jobset}}}, {targetJobs: [{name: node}], metadata: {annotations: {of: job}}}],
		  pod: [{time: "2026-02-02T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: later}, terminationGracePeriodSeconds: 5}},
		        {time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: earlier, more: "yes"}, terminationGracePeriodSeconds: 9, securityContext: {runAsUser: 7}}}]}]`))
		gomega.Eventually(func() []string { return podsNamed(ctx, tj, "node") }).Should(gomega.HaveLen(1))
		js := get(ctx, &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: tj.Namespace, Name: tj.Name}})
		gomega.Expect(js.Labels).To(gomega.HaveKeyWithValue("of", "jobset"))
		gomega.Expect(js.Spec.ReplicatedJobs[1].Template.Annotations).To(gomega.HaveKeyWithValue("of", "job"))
		pod := js.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec
		gomega.Expect(pod.NodeSelector).To(gomega.Equal(map[string]string{"disk": "fast", "zone": "later", "more": "yes", "gpu": "a100", "has-a100": "true"}), "merged by key")
		gomega.Expect(pod.TerminationGracePeriodSeconds).To(gomega.HaveValue(gomega.BeEquivalentTo(5)))
		gomega.Expect(pod.SecurityContext.RunAsUser).To(gomega.HaveValue(gomega.BeEquivalentTo(7)))
	})

	ginkgo.It("is a history: entries may be added, never changed or removed; its times are the server's where they are missing", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		const first = `{targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}`
		tj := submit(ctx, g, `[{manager: example.com/team, pod: [`+first+`]}]`)
		stamp := tj.Spec.TemplateOverrides[0].Pod[0].Time
		gomega.Expect(stamp).NotTo(gomega.BeNil())
		gomega.Expect(time.Since(stamp.Time)).To(gomega.BeNumerically("<", time.Minute))
		send := func(way, history string) error {
			before := raw(ctx, tj)
			after := before.DeepCopy()
			if history == "" {
				unstructured.RemoveNestedField(after.Object, "spec", "templateOverrides")
			} else {
				gomega.Expect(unstructured.SetNestedSlice(after.Object, listFrom(history), "spec", "templateOverrides")).To(gomega.Succeed())
			}
			return ways[way](ctx, user, before, after)
		}
		for way := range ways {
			gomega.Expect(send(way, `[{manager: example.com/team, pod: [`+first+`]}]`)).To(gomega.Succeed(), way+": the same again, without its time")
			gomega.Expect(get(ctx, tj).Spec.TemplateOverrides[0].Pod[0].Time.Equal(stamp)).To(gomega.BeTrue(), way+": its time is kept")
			refusals := []string{
				`[{manager: example.com/team, pod: [{targetJobs: [{name: node}], spec: {nodeSelector: {zone: b}}}]}]`,
				`[{manager: example.com/team, pod: [{time: "2026-01-01T00:00:00Z", targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}]}]`,
				`[{manager: example.com/other, pod: [` + first + `]}]`, `[{manager: example.com/team, job: [{metadata: {labels: {a: b}}}]}]`,
			}
			if way == "server-side apply" { // which takes another manager's entry for one beside the first
				refusals = append(refusals[:2], refusals[3:]...)
			}
			if way != "server-side apply" {
				refusals = append(refusals, "")
			}
			for _, refusal := range refusals {
				gomega.Expect(send(way, refusal)).To(gomega.MatchError(gomega.And(
					gomega.ContainSubstring("spec.templateOverrides[example.com/team].pod[0]: Forbidden: entry 0, of "), gomega.ContainSubstring("is history: it can't be changed, moved or removed"),
					gomega.ContainSubstring("or use spec.runtimePatches"))), way+": "+refusal)
			}
		}
		gomega.Expect(send("update", `[{manager: example.com/team, pod: [`+first+`, {targetJobs: [{name: node}], spec: {nodeSelector: {zone: b}}}]}]`)).To(gomega.Succeed(), "one is added")
		now := get(ctx, tj).Spec.TemplateOverrides[0].Pod
		gomega.Expect(now).To(gomega.HaveLen(2))
		gomega.Expect(now[0].Time.Equal(stamp)).To(gomega.BeTrue())
		gomega.Expect(now[1].Time).NotTo(gomega.BeNil())
		gomega.Expect(send("update", `[{manager: kueue.x-k8s.io/manager, pod: [`+first+`]}]`)).To(gomega.MatchError(gomega.ContainSubstring("is the integration's")))
	})

	ginkgo.It("can't change while the TrainJob runs, and warns of what to use instead", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("runs", "torch", 1))
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		for field, list := range map[string]string{
			"templateOverrides":    `[{"manager":"` + manager + `","pod":[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"a":"b"}}}]}]`,
			"podTemplateOverrides": `[{"targetJobs":[{"name":"node"}],"spec":{"nodeSelector":{"a":"b"}}}]`,
		} {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"`+field+`":`+list+`}}`))
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), patch)).To(gomega.MatchError(gomega.ContainSubstring("spec." + field + ": Forbidden: its entries can't change while the TrainJob runs; suspend it before")))
		}
		warned := &warnings{}
		c := rest.CopyConfig(config(cluster.kubeconfig("")))
		c.WarningHandler = warned
		warning, err := client.New(c, client.Options{Scheme: admin.Scheme()})
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		u, err := toUnstructured(g.trainJob("warned", "torch", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(unstructured.SetNestedSlice(u.Object, listFrom(`[{manager: example.com/team, pod: [{targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}]}]`), "spec", "templateOverrides")).To(gomega.Succeed())
		gomega.Expect(warning.Create(ctx, u)).To(gomega.Succeed())
		gomega.Expect(warned.texts).To(gomega.HaveLen(1))
		_, equivalent, found := strings.Cut(warned.texts[0], "spec.templateOverrides is deprecated; the equivalent in spec is ")
		gomega.Expect(found).To(gomega.BeTrue(), warned.texts[0])
		var spec api.TrainJobSpec
		gomega.Expect(json.Unmarshal([]byte(equivalent), &spec)).To(gomega.Succeed())
		gomega.Expect(spec.RuntimePatches).To(gomega.HaveLen(1))
		gomega.Expect(spec.RuntimePatches[0].Manager).To(gomega.Equal(manager))
	})
}
