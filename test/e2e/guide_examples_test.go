package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
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

func historySpecs() {
	const manager = "example.com/team"
	submit := func(ctx context.Context, g *ground, history string) *api.TrainJob {
		ginkgo.GinkgoHelper()
		tj := g.trainJob("history", "guided", 1)
		tj.Labels = map[string]string{constants.QueueLabel: "held"} // so that nothing else happens to it
		return g.submitRaw(ctx, tj, "templateOverrides", listFrom(history))
	}

	ginkgo.It("is merged, the later time over the earlier, into the JobSet, "+
		"the Jobs and the pods", func(ctx context.Context) {
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
		gomega.Expect(pod.NodeSelector).To(
			gomega.Equal(map[string]string{"disk": "fast", "zone": "later", "more": "yes", "gpu": "a100", "has-a100": "true"}),
			"merged by key")
		gomega.Expect(pod.TerminationGracePeriodSeconds).To(gomega.HaveValue(gomega.BeEquivalentTo(5)))
		gomega.Expect(pod.SecurityContext.RunAsUser).To(gomega.HaveValue(gomega.BeEquivalentTo(7)))
	})

	ginkgo.It("is a history: entries may be added, never changed or removed; "+
		"its times are the server's where they are missing", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "guided", "1s", guided)
		const first = `{targetJobs: [{name: node}], spec: {nodeSelector: {zone: a}}}`
		tj := submit(ctx, g, `[{manager: example.com/team, pod: [`+first+`]}]`)
		stamp := tj.Spec.TemplateOverrides[0].Pod[0].Time
		gomega.Expect(stamp).NotTo(gomega.BeNil())
		gomega.Expect(stamp.Time).To(gomega.BeTemporally("~", tj.CreationTimestamp.Time, time.Minute))
		send := func(way, history string) error {
			before := raw(ctx, tj)
			after := before.DeepCopy()
			if history == "" {
				unstructured.RemoveNestedField(after.Object, "spec", "templateOverrides")
			} else {
				gomega.Expect(unstructured.SetNestedSlice(after.Object, listFrom(history), "spec", "templateOverrides")).To(
					gomega.Succeed())
			}
			return ways[way](ctx, user, before, after)
		}
		for way := range ways {
			gomega.Expect(send(way, `[{manager: example.com/team, pod: [`+first+`]}]`)).To(gomega.Succeed(), way+": the same again, without its time")
			gomega.Expect(get(ctx, tj).Spec.TemplateOverrides[0].Pod[0].Time.Equal(stamp)).To(gomega.BeTrue(),
				way+": its time is kept")
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
					gomega.ContainSubstring("spec.templateOverrides[example.com/team].pod[0]: Forbidden: entry 0, of "),
					gomega.ContainSubstring("is history: it can't be changed, moved or removed"),
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
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), patch)).To(
				gomega.MatchError(gomega.ContainSubstring("spec." + field +
					": Forbidden: its entries can't change while the TrainJob runs; suspend it before")))
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
		_, equivalent, found := strings.Cut(warned.texts[0],
			"spec.templateOverrides is deprecated; the equivalent in spec is ")
		gomega.Expect(found).To(gomega.BeTrue(), warned.texts[0])
		var spec api.TrainJobSpec
		gomega.Expect(json.Unmarshal([]byte(equivalent), &spec)).To(gomega.Succeed())
		gomega.Expect(spec.RuntimePatches).To(gomega.HaveLen(1))
		gomega.Expect(spec.RuntimePatches[0].Manager).To(gomega.Equal(manager))
	})
}
