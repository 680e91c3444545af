package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// Profiles of earlier Trainers run the specs of this label alone.
var ofTrainers = ginkgo.Label("trainers")

func init() {
	// what the others do is proved at more length elsewhere
	if strings.HasPrefix(os.Getenv("SIGNALBOX_PROFILE"), "kubeflow-") {
		ginkgo.Describe("Beside a Kubeflow Trainer of any version", ofTrainers, trainerSpecs)
	}
}

// onTwoGroups gives CPUs a flavor of their own, without labels and tolerations, so that admission says nothing of pods
// that ask for no GPUs.
func onTwoGroups(ctx context.Context) func(*kueue.ClusterQueue) {
	ginkgo.GinkgoHelper()
	any := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{GenerateName: "any-"}}
	gomega.Expect(admin.Create(ctx, any)).To(gomega.Succeed())
	ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, any)).To(gomega.Succeed()) })
	return func(cq *kueue.ClusterQueue) {
		gpus := cq.Spec.ResourceGroups[0]
		gpus.CoveredResources = []corev1.ResourceName{gpu}
		for i := range gpus.Flavors {
			gpus.Flavors[i].Resources = gpus.Flavors[i].Resources[:1]
		}
		cq.Spec.ResourceGroups = []kueue.ResourceGroup{gpus, {
			CoveredResources: []corev1.ResourceName{corev1.ResourceCPU},
			Flavors: []kueue.FlavorQuotas{
				{Name: kueue.ResourceFlavorReference(any.Name),
					Resources: []kueue.ResourceQuota{{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("10000")}}}},
		}}
		cq.Spec.FlavorFungibility = &kueue.FlavorFungibility{WhenCanPreempt: kueue.MayStopSearch}
	}
}

// withOpenInitializer puts an initializer before the node, which may run on any node.
func withOpenInitializer(rt *api.TrainingRuntime) {
	init := step("dataset-initializer", "dataset-initializer", "1s")
	init.Template.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	spec := &rt.Spec.Template.Spec
	spec.ReplicatedJobs = append([]jobset.ReplicatedJob{init}, spec.ReplicatedJobs...)
	spec.ReplicatedJobs[1].DependsOn = []jobset.DependsOn{{Name: init.Name, Status: jobset.DependencyComplete}}
}

// usersOverrides is what users say in the shape of each Trainer. That of v2.0 names each ReplicatedJob once in the
// whole list, and admission has to say something of the node.
var usersOverrides = map[string]string{
	legacy.PodSpecOverrides: `[{targetJobs: [{name: dataset-initializer}], serviceAccountName: default, volumes: [{name: cache, emptyDir: {sizeLimit: 1Gi}}],
		containers: [{name: dataset-initializer, volumeMounts: [{name: cache, mountPath: /cache, readOnly: false}]}]}]`,
	legacy.PodTemplateOverrides: `[
		{targetJobs: [{name: node}], metadata: {labels: {team: a}}, spec: {volumes: [{name: scratch, emptyDir: {sizeLimit: 1Gi}}],
		  tolerations: [{key: spot, operator: Exists, effect: NoSchedule}, {key: mine, operator: Exists, effect: NoExecute}],
		  containers: [{name: node, volumeMounts: [{name: scratch, mountPath: /scratch, readOnly: false}]}]}},
		{targetJobs: [{name: dataset-initializer}, {name: node}], metadata: {annotations: {note: ""}}, spec: {serviceAccountName: default}}]`,
	overrides.RuntimePatches: `[
		{manager: example.com/team, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {metadata: {labels: {team: a}}, spec: {
		  volumes: [{name: scratch, emptyDir: {sizeLimit: 1Gi}}], tolerations: [{key: spot, operator: Exists, effect: NoSchedule}, {key: mine, operator: Exists, effect: NoExecute}],
		  containers: [{name: node, volumeMounts: [{name: scratch, mountPath: /scratch, readOnly: false}]}]}}}}}]}}}},
		{manager: example.com/other, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: dataset-initializer, template: {spec: {template: {metadata: {annotations: {note: ""}}}}}}]}}}}]`,
}

// listFrom reads a list, its numbers as an API server's client does.
func listFrom(text string) []any {
	ginkgo.GinkgoHelper()
	data, err := yaml.YAMLToJSON([]byte(text))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return parsed(`{"list":` + string(data) + `}`).Object["list"].([]any)
}

// submitRaw submits a TrainJob with what users say of its runtime, and returns it with what they said.
func (g *ground) submitRaw(ctx context.Context, tj *api.TrainJob, field string, said []any) *api.TrainJob {
	ginkgo.GinkgoHelper()
	u, err := toUnstructured(tj)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Expect(unstructured.SetNestedSlice(u.Object, said, "spec", field)).To(gomega.Succeed())
	create(ctx, u)
	return get(ctx, tj)
}

// said returns the users' elements of a TrainJob's list of overrides as they are stored, as JSON. The time of an entry
// is the Trainer's.
func said(ctx context.Context, tj *api.TrainJob) func() string {
	return func() string {
		ginkgo.GinkgoHelper()
		d := current()
		list, _, err := unstructured.NestedSlice(raw(ctx, tj).Object, "spec", d.Field)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		record, err := legacy.RecordOf(get(ctx, tj))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if record != nil {
			list = record.Strip(list)
		}
		list = slices.DeleteFunc(list, func(e any) bool { return e.(map[string]any)["manager"] == overrides.Manager })
		for _, e := range list {
			delete(e.(map[string]any), "time")
		}
		data, err := json.Marshal(list)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		return string(data)
	}
}

func asJSON(value any) string {
	ginkgo.GinkgoHelper()
	data, err := json.Marshal(value)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return string(data)
}

// atomicStarts reports whether the Trainer takes a start in one write.
func atomicStarts() bool {
	return current().Keyed() && os.Getenv("SIGNALBOX_PROFILE") != "kubeflow-2.2.0"
}

func trainerSpecs() {
	ginkgo.It("finishes a burst of 50 whose runtime tolerates a taint of its own, 50 of 50", func(ctx context.Context) {
		const jobs = 50
		g := newGround(ctx, map[string]int64{"a100": 64, "h100": 64})
		audited.ofBurst()
		g.runtime(ctx, "torch", "1s")
		from := cluster.auditEnd()
		var all []*api.TrainJob
		for i := range jobs {
			all = append(all, g.submit(ctx, g.trainJob(fmt.Sprintf("burst-%03d", i), "torch", 1)))
		}
		gomega.Eventually(g.finished(ctx), burstEnds, "500ms").Should(gomega.Equal(jobs))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		starts := g.startsOf(ctx, all)
		gomega.Expect(starts).To(gomega.Equal(jobs))
		written, refused := 0, 0
		writes := cluster.requests(from, func(r request) bool {
			return r.Writes() && r.User.Username == "signalbox" && r.ObjectRef.Resource == "trainjobs" &&
				r.ObjectRef.Subresource == ""
		})
		for _, w := range writes {
			gomega.Expect(w.DryRun()).To(gomega.BeFalse())
			if w.ResponseStatus.Code < 300 {
				written++
			} else {
				refused++
			}
		}
		ginkgo.AddReportEntry(fmt.Sprintf(
			"burst of %d beside %s: %d finished, %d starts; %.2f writes to the TrainJob per start, %d refused", jobs,
			os.Getenv("SIGNALBOX_PROFILE"), jobs, starts, float64(written)/float64(starts), refused), summary(writes))
		if atomicStarts() {
			gomega.Expect(len(writes)).To(gomega.Equal(jobs), "exactly one write a start, none refused")
		}
	})

	ginkgo.It("runs a preempted TrainJob again on the other flavor, "+
		"and leaves what users say byte for byte", func(ctx context.Context) {
		low, high := makePriorities(ctx)
		g := newGround(ctx, map[string]int64{"a100": 16, "h100": 16}, onTwoGroups(ctx))
		g.runtime(ctx, "torch", "forever", withOpenInitializer)
		g.runtime(ctx, "short", "3s")
		given := listFrom(usersOverrides[current().Field])
		victim := g.submitRaw(ctx, g.trainJob("victim", "torch", 2, priority(low)), current().Field, given)
		gomega.Expect(said(ctx, victim)()).To(gomega.Equal(asJSON(given)), "as it was sent")
		runs := func(kind string) {
			ginkgo.GinkgoHelper()
			gomega.Eventually(func() int { return len(podsNamed(ctx, victim, "node")) }).Should(gomega.Equal(2))
			gomega.Eventually(func() string { return boundOn(ctx, victim, "node") }).Should(gomega.Equal(kind + " " + kind))
			gomega.Expect(said(ctx, victim)()).To(gomega.Equal(asJSON(given)), "while it runs")
			for _, p := range podsOf(ctx, victim) {
				if p.Labels[jobset.ReplicatedJobNameKey] != "node" {
					continue
				}
				gomega.Expect(p.Spec.NodeSelector).To(gomega.Equal(map[string]string{"gpu": kind, "has-" + kind: "true"}))
				wanted := []corev1.Toleration{spot,
					{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: kind, Effect: corev1.TaintEffectNoSchedule}}
				if current().Field != legacy.PodSpecOverrides {
					wanted = append(wanted, corev1.Toleration{Key: "mine", Operator: corev1.TolerationOpExists,
						Effect: corev1.TaintEffectNoExecute})
					gomega.Expect(p.Labels).To(gomega.HaveKeyWithValue("team", "a"))
					gomega.Expect(p.Spec.Volumes[0].Name).To(gomega.Equal("scratch"))
				}
				gomega.Expect(own(p.Spec.Tolerations)).To(gomega.ConsistOf(wanted))
			}
		}
		runs("a100")
		way := startedBy(current().Field)
		gomega.Eventually(eventsOf(ctx, victim)).Should(gomega.ContainElement(way), "an event says how it was started")

		urgent := g.submit(ctx, g.trainJob("urgent", "short", 2, priority(high)))
		gomega.Eventually(complete(ctx, urgent), "90s").Should(gomega.BeTrue())
		gomega.Eventually(flavor(ctx, victim)).Should(gomega.Equal("h100"))
		runs("h100")
		gomega.Expect(watched.startsOf(victim)).To(gomega.Equal(2))
		text, err := cluster.metrics()
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		label := "one-write"
		if !atomicStarts() {
			label = "two-writes"
		}
		gomega.Expect(text).To(gomega.MatchRegexp(fmt.Sprintf(`signalbox_trainjob_starts_total{field=%q,result="started",way=%q} [1-9]`, current().Field, label)))
	})

	ginkgo.It("takes a manifest that is applied again while its TrainJob runs, "+
		"and a change of it while it waits", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8}, onTwoGroups(ctx))
		g.runtime(ctx, "torch", "forever", withOpenInitializer)
		given := listFrom(usersOverrides[current().Field])
		manifest, err := toUnstructured(g.trainJob("job", "torch", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		unstructured.RemoveNestedField(manifest.Object, "spec", "suspend") // which is for the queue to say
		gomega.Expect(unstructured.SetNestedSlice(manifest.Object, given, "spec", current().Field)).To(gomega.Succeed())
		apply := func() error {
			return user.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest.DeepCopy()), client.FieldOwner("kubectl"))
		}
		gomega.Expect(apply()).To(gomega.Succeed())
		tj := g.trainJob("job", "torch", 1)
		gomega.Eventually(running(ctx, tj)).Should(gomega.BeTrue())
		entry := entryOf(get(ctx, tj))
		gomega.Expect(apply()).To(gomega.Succeed(), "the same manifest, applied by the server")
		gomega.Expect(running(ctx, tj)()).To(gomega.BeTrue())
		gomega.Expect(said(ctx, tj)()).To(gomega.Equal(asJSON(given)))
		gomega.Expect(entryOf(get(ctx, tj))).To(gomega.Equal(entry))
		if !current().Keyed() {
			// A client that knows nothing of the integration sends the list without its elements.
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"`+current().Field+`":`+asJSON(given)+`},"metadata":{"annotations":null}}`))
			gomega.Expect(user.Patch(ctx, tj.DeepCopy(), patch)).To(gomega.Succeed())
			gomega.Expect(said(ctx, tj)()).To(gomega.Equal(asJSON(given)))
			gomega.Expect(entryOf(get(ctx, tj))).To(gomega.Equal(entry))
		}

		waiting, err := toUnstructured(g.trainJob("waiting", "torch", 1))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		gomega.Expect(unstructured.SetNestedSlice(waiting.Object, given, "spec", current().Field)).To(gomega.Succeed())
		gomega.Expect(user.Create(ctx, waiting.DeepCopy())).To(gomega.Succeed())
		if !current().Keyed() {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"`+current().Field+`":`+asJSON(given[:1])+`}}`))
			gomega.Expect(user.Patch(ctx, waiting.DeepCopy(), patch)).To(gomega.Succeed())
			gomega.Expect(said(ctx, g.trainJob("waiting", "torch", 1))()).To(gomega.Equal(asJSON(given[:1])))
		}
	})

	ginkgo.It("clears what a manager has half written that was killed between two writes", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8, "h100": 8})
		g.runtime(ctx, "torch", "2s")
		trap := newTrap(cluster)
		n := 1
		for ; ; n++ {
			fired := trap.arm(n, g.namespace)
			tj := g.trainJob(fmt.Sprintf("job-%d", n), "torch", 1)
			eventually := func(holds func() bool) {
				ginkgo.GinkgoHelper()
				gomega.Eventually(func() bool { trap.reviveAfter(fired); return holds() }).Should(gomega.BeTrue(), "round %d", n)
			}
			eventually(func() bool { return user.Create(ctx, tj) == nil })
			eventually(complete(ctx, tj))
			eventually(func() bool {
				wl := workloadOf(ctx, tj)
				return wl != nil && workloadfinish.IsFinished(wl)
			})
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero(), "round %d", n)
			eventually(func() bool { return g.letGo(ctx) })
			gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1), "round %d", n)
			gomega.Expect(watched.violations()).To(gomega.BeEmpty(), "round %d", n)
			if !trap.fired() {
				break
			}
		}
		ginkgo.AddReportEntry(fmt.Sprintf("crash beside %s: killed after each of %d writes of a start and a finish",
			os.Getenv("SIGNALBOX_PROFILE"), n-1))
		gomega.Expect(n).To(gomega.BeNumerically(">", 4), "a Workload, a start, an event, a finish")
	})

	switch os.Getenv("SIGNALBOX_PROFILE") {
	case "kubeflow-2.0":
		refusalSpecs() // every later shape carries all
	case "kubeflow-2.1":
		upgradeSpecs() // the last: it leaves another Trainer behind
	}
}

func refusalSpecs() {
	ginkgo.It("refuses with a message what the shape can't carry", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		given := listFrom("[{targetJobs: [{name: node}], serviceAccountName: default}]")
		tj := g.submitRaw(ctx, g.trainJob("job", "torch", 1), current().Field, given)
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.And(
			gomega.ContainSubstring("spec.podSpecOverrides[0]"), gomega.ContainSubstring("one element for each replicatedJob"),
			gomega.ContainSubstring("upgrade Kubeflow Trainer to v2.1"))))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero(), "it holds no quota")
		gomega.Expect(running(ctx, tj)()).To(gomega.BeFalse())
	})
}
