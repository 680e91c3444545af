package e2e

import (
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// example is one of the guide's: what the TrainJob says, and what the guide promises of the pods.
type example struct {
	overrides string
	promise   func(pods map[string]corev1.Pod)
}

// ofA100 is what admission adds to every pod.
var ofA100 = corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "a100",
	Effect: corev1.TaintEffectNoSchedule}

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
			gomega.Expect(pods["node"].Spec.NodeSelector).To(
				gomega.Equal(map[string]string{"accelerator": "v100", "node-pool": "training", "gpu": "a100", "has-a100": "true"}),
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
				"/workspace/data": "training-data", "/workspace/cache": "model-cache",
				"/shared": "shared"}), "a mount of the same volume replaces the runtime's")
		},
	},
	"3, environment of an initContainer": {
		`[{targetJobs: [{name: node}], spec: {initContainers: [{name: fetch-identity, env: [{name: USER_ID, value: "12345"}, {name: WORKSPACE_ID, value: ml-team}, {name: FETCH_TIMEOUT, value: "300"}]}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(env(containerOf(pods["node"], "fetch-identity"))).To(
				gomega.Equal(map[string]string{"USER_ID": "12345", "WORKSPACE_ID": "ml-team", "FETCH_TIMEOUT": "300",
					"REGION": "east"}))
			gomega.Expect(env(containerOf(pods["dataset-initializer"], "fetch-identity"))).To(
				gomega.Equal(map[string]string{"USER_ID": "1", "REGION": "east"}))
		},
	},
	"4, tolerations": {
		`[{targetJobs: [{name: node}], spec: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}, {key: training-workload, operator: Equal, value: high-priority, effect: NoSchedule}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(own(pods["node"].Spec.Tolerations)).To(gomega.ConsistOf(ofA100,
				corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				corev1.Toleration{Key: "training-workload", Operator: corev1.TolerationOpEqual, Value: "high-priority",
					Effect: corev1.TaintEffectNoSchedule}))
		},
	},
	"5, affinity": {
		`[{targetJobs: [{name: node}], spec: {affinity: {
		  podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {job: mine}}}}]},
		  nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: type, operator: In, values: [p3, p4]}]}]}}}}}]`,
		func(pods map[string]corev1.Pod) {
			a := pods["node"].Spec.Affinity
			gomega.Expect(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution).To(gomega.HaveLen(1))
			gomega.Expect(
				a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values).To(
				gomega.Equal([]string{"p3", "p4"}))
			gomega.Expect(a.PodAffinity).To(gomega.BeNil(), "the runtime's is replaced")
		},
	},
	"6, image pull secrets": {
		`[{targetJobs: [{name: node}], spec: {imagePullSecrets: [{name: private}, {name: backup}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.ImagePullSecrets).To(
				gomega.Equal([]corev1.LocalObjectReference{{Name: "private"}, {Name: "backup"}}))
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
			gomega.Expect(env(containerOf(init, "fetch-identity"))).To(
				gomega.Equal(map[string]string{"USER_ID": "1", "REGION": "east", "DATA_SOURCE": "bucket"}))
			gomega.Expect(mounts(containerOf(init, "dataset-initializer"))).To(
				gomega.Equal(map[string]string{"/cache": "dataset-cache"}))
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
			gomega.Expect(pods["node"].Spec.SchedulingGates).To(
				gomega.Equal([]corev1.PodSchedulingGate{{Name: "example.com/data-validation"}, {Name: "example.com/quota-check"}}))
		},
	},
	"on merging, the later of two for the same job": {
		`[{targetJobs: [{name: node}], spec: {serviceAccountName: base, nodeSelector: {a: first}, tolerations: [{key: first, operator: Exists}]}},
		  {targetJobs: [{name: node}], spec: {serviceAccountName: custom, nodeSelector: {b: second}, tolerations: [{key: second, operator: Exists}]}}]`,
		func(pods map[string]corev1.Pod) {
			gomega.Expect(pods["node"].Spec.ServiceAccountName).To(gomega.Equal("custom"))
			gomega.Expect(pods["node"].Spec.NodeSelector).To(
				gomega.Equal(map[string]string{"b": "second", "gpu": "a100", "has-a100": "true"}))
			gomega.Expect(own(pods["node"].Spec.Tolerations)).To(
				gomega.ConsistOf(ofA100, corev1.Toleration{Key: "second", Operator: corev1.TolerationOpExists}))
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
			gomega.Expect(p.Annotations).To(
				gomega.And(gomega.HaveKeyWithValue("monitoring", "enabled"), gomega.HaveKeyWithValue("description", "a b"),
					gomega.HaveKey(runFor)))
			gomega.Expect(env(containerOf(p, "trainer"))).To(
				gomega.Equal(map[string]string{"MODE": "fast", "KEEP": "this", "MORE": ""}))
			gomega.Expect(containerOf(p, "trainer").Env).To(
				gomega.ContainElement(gomega.HaveField("ValueFrom.SecretKeyRef.Name", "s")))
		},
	},
}
