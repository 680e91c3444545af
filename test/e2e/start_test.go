package e2e

import (
	"context"
	"encoding/json"
	"fmt"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

var _ = ginkgo.Describe("A queued TrainJob", func() {
	ginkgo.It("starts with one write on the flavor that it was given, runs, "+
		"and gives its quota back", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "torch", "1s")
		from := cluster.auditEnd()
		tj := g.submit(ctx, g.trainJob("first", "torch", 2))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.Equal("True/Succeeded"))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		writes := cluster.requests(from, func(r request) bool {
			return r.Writes() && r.ObjectRef.Namespace == g.namespace && r.ObjectRef.Resource == "trainjobs" &&
				r.ObjectRef.Subresource == "" && r.User.Username != "user"
		})
		gomega.Expect(writes).To(gomega.HaveLen(1), "writes to the TrainJob by all but the user")
		gomega.Expect(writes[0].User.Username).To(gomega.Equal("signalbox"))
		pods := podsOf(ctx, tj)
		gomega.Expect(pods).To(gomega.HaveLen(2))
		for _, p := range pods {
			gomega.Expect(p.Spec.NodeSelector).To(gomega.Equal(map[string]string{"gpu": "a100", "has-a100": "true"}))
			gomega.Expect(p.Labels).To(gomega.And(
				gomega.HaveKeyWithValue("kueue.x-k8s.io/podset", "node"),
				gomega.HaveKeyWithValue("kueue.x-k8s.io/local-queue-name", localQueue),
				gomega.HaveKeyWithValue("kueue.x-k8s.io/cluster-queue-name", g.queue)))
		}
		if cluster.bundled() { // the TrainJob says so itself
			for _, c := range []string{api.ConditionQuotaReserved, api.ConditionAdmitted, trainerapi.TrainJobComplete} {
				gomega.Expect(apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, c)).To(gomega.BeTrue(), c)
			}
			gomega.Expect(apimeta.IsStatusConditionFalse(get(ctx, tj).Status.Conditions, trainerapi.TrainJobSuspended)).To(
				gomega.BeTrue())
			return
		}
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElements(
			gomega.Equal("Started: Admitted by clusterQueue "+g.queue+"; in one write, by spec.runtimePatches"),
			gomega.HavePrefix("CreatedWorkload: Created Workload: "+g.namespace+"/"),
			gomega.HavePrefix("FinishedWorkload: Workload '"+g.namespace+"/")))
	})

	ginkgo.It("that fails is declared failed, and gives its quota back", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "broken", "1s", func(rt *api.TrainingRuntime) {
			template := &rt.Spec.Template.Spec.ReplicatedJobs[0].Template
			template.Spec.BackoffLimit = ptr.To[int32](0)
			template.Spec.Template.Annotations[fails] = "true"
			template.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		})
		tj := g.submit(ctx, g.trainJob("broken", "broken", 1))
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.Equal("True/Failed"))
		gomega.Expect(apimeta.IsStatusConditionTrue(get(ctx, tj).Status.Conditions, trainerapi.TrainJobFailed)).To(
			gomega.BeTrue())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
	})

	ginkgo.It("is suspended when it was not created so, and only its admission starts it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8},
			func(cq *kueue.ClusterQueue) { cq.Spec.StopPolicy = ptr.To(kueue.Hold) })
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("eager", "torch", 1, func(tj *api.TrainJob) { tj.Spec.Suspend = ptr.To(false) }))
		gomega.Expect(tj.Spec.Suspend).To(gomega.HaveValue(gomega.BeTrue()))
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":null}}`))
		gomega.Expect(user.Patch(ctx, tj, patch)).To(gomega.Succeed())
		gomega.Expect(tj.Spec.Suspend).To(gomega.HaveValue(gomega.BeTrue()))
		gomega.Consistently(bound(ctx, tj)).Should(gomega.BeZero())
	})

	ginkgo.It("stays as it is when its manifest is applied again while it runs", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		tj := g.submit(ctx, g.trainJob("again", "torch", 1))
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		entry := entryOf(get(ctx, tj))
		// What a client-side apply sends for a manifest that says "suspend: true" and has no entries.
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true,"runtimePatches":null}}`))
		gomega.Expect(user.Patch(ctx, tj, patch)).To(gomega.Succeed())
		gomega.Expect(tj.Spec.Suspend).To(gomega.HaveValue(gomega.BeFalse()))
		gomega.Expect(entryOf(tj)).To(gomega.Equal(entry))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(1))
		// The update has taken the entry's fields from us before our webhook put it back; it is cleared and written all the
		// same.
		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(watched.startsOf(tj)).To(gomega.Equal(2))
	})

	ginkgo.It("may not be given the integration's entry, nor be taken out of its queue", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8},
			func(cq *kueue.ClusterQueue) { cq.Spec.StopPolicy = ptr.To(kueue.Hold) })
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("waits", "torch", 1))
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"runtimePatches":[{"manager":"example.com/a","trainingRuntimeSpec":{"template":{"metadata":{"labels":{"team":"a"}}}}},{"manager":"kueue.x-k8s.io/manager"}]}}`))
		gomega.Expect(user.Patch(ctx, tj, patch)).To(gomega.Succeed())
		gomega.Expect(tj.Spec.RuntimePatches).To(gomega.HaveLen(1))
		gomega.Expect(entryOf(tj)).To(gomega.BeNil())
		gomega.Expect(relabel(ctx, tj, constants.QueueLabel, "")).To(
			gomega.MatchError(gomega.ContainSubstring("name another queue, or delete the TrainJob")))
	})

	ginkgo.It("of any runtime that Kubeflow Trainer ships starts on the JobSet that Trainer has "+
		"built", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 128})
		from := cluster.auditEnd()
		for _, name := range []string{"torch-distributed", "deepspeed-distributed", "mlx-distributed", "jax-distributed",
			"xgboost-distributed"} {
			tj := g.submit(ctx, g.trainJob(name, name, 2, func(tj *api.TrainJob) {
				tj.Spec.RuntimeRef.Kind = ptr.To(trainerapi.ClusterTrainingRuntimeKind)
				tj.Spec.Trainer.Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
				tj.Spec.Trainer.Args = []string{"train"}
			}))
			gomega.Eventually(running(ctx, tj), "25s").Should(gomega.BeTrue(), "%s, before the wait for Trainer ends", name)
		}
		gomega.Expect(cluster.requests(from, func(r request) bool {
			return r.User.Username == "signalbox" && r.Verb == "delete" && r.ObjectRef.Namespace == g.namespace
		})).To(gomega.BeEmpty(), "nothing had to be built anew")
	})

	ginkgo.It("may not bring the integration's entry with it", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		tj := g.trainJob("forged", "torch", 1, func(tj *api.TrainJob) {
			tj.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager}}
		})
		gomega.Expect(user.Create(ctx, tj)).To(gomega.MatchError(gomega.ContainSubstring("take it out of the manifest")))
	})

	ginkgo.It("keeps a user's entry byte for byte, "+
		"with explicit zeros and with fields that nobody here knows", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8, "h100": 8})
		g.runtime(ctx, "torch", "2s", func(rt *api.TrainingRuntime) {
			rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers = append(
				rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers,
				corev1.Container{Name: "sidecar", Image: "example.com/sidecar:1"})
		})
		allowFutureField(ctx)
		tj := g.trainJob("zeros", "torch", 1)
		object, err := toUnstructured(tj)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		entries := `[{"manager":"example.com/team","trainingRuntimeSpec":{"template":{"spec":{"replicatedJobs":[{"name":"node","template":{"spec":{"template":{
			"metadata":{"labels":{"team":""}},
			"spec":{"futureField":"kept","volumes":[{"name":"data","emptyDir":{}}],"containers":[{"name":"sidecar","env":[{"name":"EMPTY","value":""}],
			"volumeMounts":[{"name":"data","mountPath":"/data","readOnly":false}]}],"tolerations":[{"key":"spot","operator":"Exists"},{"key":"team","operator":"Exists","effect":""}]}}}}}]}}}}]`
		var list []any
		gomega.Expect(json.Unmarshal([]byte(entries), &list)).To(gomega.Succeed())
		gomega.Expect(unstructured.SetNestedSlice(object.Object, list, "spec", "runtimePatches")).To(gomega.Succeed())
		gomega.Eventually(func() string { // the API server takes a moment to serve the changed CRD
			probe := object.DeepCopy()
			gomega.Expect(user.Create(ctx, probe, client.DryRunAll)).To(gomega.Succeed())
			data, err := probe.MarshalJSON()
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
			return string(data)
		}).Should(gomega.ContainSubstring("futureField"))
		gomega.Expect(user.Create(ctx, object)).To(gomega.Succeed())
		tj = get(ctx, tj)
		before := rawEntry(ctx, tj, "example.com/team")
		gomega.Expect(before).To(gomega.And(gomega.ContainSubstring(`"readOnly":false`), gomega.ContainSubstring(`"value":""`), gomega.ContainSubstring(`"futureField":"kept"`)))

		gomega.Eventually(bound(ctx, tj)).Should(gomega.Equal(1))
		gomega.Expect(rawEntry(ctx, tj, "example.com/team")).To(gomega.MatchJSON(before), "while it runs")
		_, spec := overrides.PodPatch(entryOf(get(ctx, tj)).TrainingRuntimeSpec, "node")
		gomega.Expect(spec.Tolerations).To(gomega.HaveLen(3), "the user's two, which replace the runtime's, and the flavor's")
		gomega.Expect(admin.Patch(ctx, workloadOf(ctx, tj), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"active":false}}`)))).To(gomega.Succeed())
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		gomega.Expect(rawEntry(ctx, tj, "example.com/team")).To(gomega.MatchJSON(before), "after it was stopped")
	})

	ginkgo.It("does not start where another entry contradicts what admission needs", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "1s")
		tj := g.submit(ctx, g.trainJob("conflict", "torch", 1,
			entryFor("example.com/team", "node", func(meta *metav1.ObjectMeta, _ *trainerapi.PodSpecPatch) {
				meta.Labels = map[string]string{"kueue.x-k8s.io/podset": "mine"}
			})))
		gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.Equal("True/FailedToStart"))
		message := apimeta.FindStatusCondition(workloadOf(ctx, tj).Status.Conditions, kueue.WorkloadFinished).Message
		gomega.Expect(message).To(gomega.And(
			gomega.ContainSubstring("spec.runtimePatches[example.com/team]"),
			gomega.ContainSubstring("metadata.labels[kueue.x-k8s.io/podset]"),
			gomega.ContainSubstring(`"mine"`), gomega.ContainSubstring(`"node"`)))
		gomega.Eventually(eventsOf(ctx, tj)).Should(gomega.ContainElement(gomega.HavePrefix("FailedToStart: ")))
		gomega.Consistently(bound(ctx, tj)).Should(gomega.BeZero())
		if cluster.bundled() {
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateBlocked))
			gomega.Eventually(func() string { return told(ctx, tj, api.ConditionBlocked) }).Should(
				gomega.ContainSubstring("spec.runtimePatches[example.com/team]"))
			first := workloadOf(ctx, tj).UID
			restarted := g.plugin(ctx, "user", "restart", tj.Name)
			gomega.Expect(restarted.code).To(gomega.BeZero(), restarted.err)
			gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.Equal("True/FailedToStart"))
			gomega.Expect(workloadOf(ctx, tj).UID).NotTo(gomega.Equal(first), "it was tried again")
			again := g.plugin(ctx, "user", "restart", tj.Name)
			gomega.Expect(again.code).NotTo(gomega.BeZero())
			gomega.Expect(again.err).To(gomega.ContainSubstring("isn't tried again yet"))
		}
		gomega.Expect(g.used(ctx)()).To(gomega.BeZero())
		gomega.Expect(watched.startsOf(tj)).To(gomega.BeZero())
	})

	ginkgo.It("takes what admission checks add, and refuses what contradicts an entry", func(ctx context.Context) {
		check := &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{GenerateName: "zones-"},
			Spec: kueue.AdmissionCheckSpec{ControllerName: "example.com/zones"}}
		gomega.Expect(admin.Create(ctx, check)).To(gomega.Succeed())
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, check)).To(gomega.Succeed()) })
		gomega.Eventually(func() error {
			apimeta.SetStatusCondition(&get(ctx, check).Status.Conditions,
				metav1.Condition{Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Ready"})
			return admin.Status().Update(ctx, check)
		}).Should(gomega.Succeed())
		g := newGround(ctx, map[string]int64{"a100": 16}, func(cq *kueue.ClusterQueue) {
			cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
				AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: kueue.AdmissionCheckReference(check.Name)}}}
		})
		g.runtime(ctx, "torch", "1s")
		agrees := g.submit(ctx, g.trainJob("agrees", "torch", 1))
		contradicts := g.submit(ctx, g.trainJob("contradicts", "torch", 1,
			entryFor("example.com/team", "node", func(_ *metav1.ObjectMeta, spec *trainerapi.PodSpecPatch) {
				spec.NodeSelector = map[string]string{"zone": "west"}
			})))
		for _, tj := range []*api.TrainJob{agrees, contradicts} {
			gomega.Eventually(condition(ctx, tj, kueue.WorkloadQuotaReserved)).Should(gomega.HavePrefix("True/"))
			answer(ctx, tj, check.Name, kueue.CheckStateReady, map[string]string{"zone": "east"})
		}
		gomega.Eventually(func() int { return len(podsOf(ctx, agrees)) }).Should(gomega.Equal(1))
		gomega.Expect(podsOf(ctx, agrees)[0].Spec.NodeSelector).To(gomega.HaveKeyWithValue("zone", "east"))
		gomega.Eventually(condition(ctx, contradicts, kueue.WorkloadFinished)).Should(gomega.Equal("True/FailedToStart"))
		gomega.Expect(apimeta.FindStatusCondition(workloadOf(ctx, contradicts).Status.Conditions,
			kueue.WorkloadFinished).Message).To(gomega.And(
			gomega.ContainSubstring("spec.runtimePatches[example.com/team]"), gomega.ContainSubstring("spec.nodeSelector[zone]"),
			gomega.ContainSubstring(`"west"`), gomega.ContainSubstring("AdmissionCheck "+check.Name), gomega.ContainSubstring(`"east"`)))
		gomega.Expect(podsOf(ctx, contradicts)).To(gomega.BeEmpty())
	})
})

var _ = ginkgo.Describe("A TrainJob of several steps", func() {
	ginkgo.It("gives the quota of an initializer back when that has succeeded", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 16})
		g.runtime(ctx, "staged", "forever", withInitializer("1s"))
		tj := g.submit(ctx, g.trainJob("staged", "staged", 1))
		gomega.Eventually(func() []kueue.ReclaimablePod {
			wl := workloadOf(ctx, tj)
			if wl == nil {
				return nil
			}
			return wl.Status.ReclaimablePods
		}).Should(gomega.ConsistOf(kueue.ReclaimablePod{Name: "dataset-initializer", Count: 1}))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8),
			"the GPUs of the initializer are free, those of the trainer are not")

		stopPolicy(ctx, g.queue, kueue.HoldAndDrain)
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		stopPolicy(ctx, g.queue, kueue.None)
		gomega.Eventually(func() int { return watched.startsOf(tj) }).Should(gomega.Equal(2),
			"it starts again without the initializer")
		gomega.Eventually(g.used(ctx)).Should(gomega.BeEquivalentTo(8))
	})

	ginkgo.It("runs MPI's launcher and workers as PodSets in the runtime's order", func(ctx context.Context) {
		g := newGround(ctx, map[string]int64{"a100": 32})
		g.runtime(ctx, "mpi", "1s", mpiAsNode)
		tj := g.submit(ctx, g.trainJob("mpi", "mpi", 4))
		gomega.Eventually(flavor(ctx, tj)).Should(gomega.Equal("a100"))
		var shape []string
		for _, ps := range workloadOf(ctx, tj).Spec.PodSets {
			shape = append(shape, fmt.Sprintf("%s×%d", ps.Name, ps.Count))
		}
		gomega.Expect(shape).To(gomega.Equal([]string{"node×3", "launcher×1"}))
		gomega.Eventually(complete(ctx, tj)).Should(gomega.BeTrue())
	})
})

// mpiAsNode makes a runtime one of MPI, whose launcher is one of the nodes and starts when the others are ready.
func mpiAsNode(rt *api.TrainingRuntime) {
	launcher := step("launcher", "trainer", "1s")
	launcher.DependsOn = []jobset.DependsOn{{Name: "node", Status: jobset.DependencyReady}}
	worker := step("node", "", "forever")
	rt.Spec.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](1),
		MLPolicySource: trainerapi.MLPolicySource{MPI: &trainerapi.MPIMLPolicySource{
			NumProcPerNode: ptr.To[int32](8), MPIImplementation: ptr.To(trainerapi.MPIImplementationOpenMPI),
			SSHAuthMountPath: ptr.To("/root/.ssh"), RunLauncherAsNode: ptr.To(true),
		}}}
	rt.Spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{Operator: jobset.OperatorAll,
		TargetReplicatedJobs: []string{"launcher"}}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{worker, launcher}
}

// withInitializer puts a dataset initializer before the trainer. It asks for a node's GPUs, so that its quota shows.
func withInitializer(duration string) func(*api.TrainingRuntime) {
	return func(rt *api.TrainingRuntime) {
		first := step("dataset-initializer", "dataset-initializer", duration)
		gpus := corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(gpusPerNode))}
		first.Template.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: gpus, Limits: gpus}
		jobs := rt.Spec.Template.Spec.ReplicatedJobs
		jobs[0].DependsOn = []jobset.DependsOn{{Name: "dataset-initializer", Status: jobset.DependencyComplete}}
		rt.Spec.Template.Spec.ReplicatedJobs = append([]jobset.ReplicatedJob{first}, jobs...)
	}
}
