package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/test/audit"
)

// outOfService is the taint by which Kubernetes deletes the pods of a node that nobody answers for.
const outOfService = corev1.TaintNodeOutOfService

// managers are the pods of Signalbox that run.
func managers(ctx context.Context) []corev1.Pod {
	ginkgo.GinkgoHelper()
	var some []corev1.Pod
	for _, p := range pods(ctx, client.InNamespace("signalbox-system"),
		client.MatchingLabels{"app.kubernetes.io/name": "signalbox"}) {
		if p.DeletionTimestamp.IsZero() && p.Status.Phase == corev1.PodRunning {
			some = append(some, p)
		}
	}
	return some
}

// leader is the name of that one of some managers which leads; "" for none.
func leader(managers []corev1.Pod) string {
	ginkgo.GinkgoHelper()
	holder := kubectl("-n", "signalbox-system", "get", "lease", "signalbox.signalbox.dev",
		"-o", "jsonpath={.spec.holderIdentity}")
	for _, p := range managers {
		if strings.HasPrefix(holder, p.Name+"_") {
			return p.Name
		}
	}
	return ""
}

// awaitManagers waits until both managers answer.
func awaitManagers() {
	ginkgo.GinkgoHelper()
	kubectl("-n", "signalbox-system", "rollout", "status", "deployment/signalbox", "--timeout=90s")
}

// burst submits so many TrainJobs of one pod with one GPU each. In the midst of them something happens, and what that
// returns is waited for at the end. It holds that every one was started once, and again for each restart that its
// status tells of, that it has ended well, and that no quota is left.
func burst(ctx context.Context, count int, command []string, happens func() (end func())) {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, 8)
	g.runtime(ctx, "peer", peerImage, func(spec *trainerapi.TrainingRuntimeSpec) {
		// A pod that is evicted from its node is replaced in place; the TrainJob goes on.
		spec.Template.Spec.ReplicatedJobs[0].Template.Spec.BackoffLimit = ptr.To[int32](6)
	})
	from, err := audit.End(audit.Log(dir))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	end := func() {}
	for i := range count {
		if i == count/2 {
			end = happens()
		}
		g.submit(ctx, fmt.Sprintf("small-%d", i), "peer", 1, 1, command)
	}
	end()
	gomega.Eventually(g.finished(ctx), "4m", "1s").Should(gomega.Equal(count))
	gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	gomega.Expect(g.started(from)).To(gomega.Equal(count+g.restarted(ctx)), "JobSets made, one for each start and restart")
}

// restarted is how often TrainJobs of the namespace were restarted because a node that was drained had told a pod to
// end.
func (g *ground) restarted(ctx context.Context) int {
	ginkgo.GinkgoHelper()
	var list api.TrainJobList
	gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
	n := 0
	for _, tj := range list.Items {
		if tj.Status.Lost != nil {
			n += int(tj.Status.Lost.Restarts)
		}
	}
	return n
}

// started is how many JobSets were made in the namespace since a place in the API server's audit log.
func (g *ground) started(from int64) int {
	ginkgo.GinkgoHelper()
	made, err := audit.Since(audit.Log(dir), from, func(r audit.Request) bool {
		return r.ObjectRef.Resource == "jobsets" && r.ObjectRef.Namespace == g.namespace && r.ObjectRef.Subresource == "" &&
			r.ResponseStatus.Code == 201 && !r.DryRun()
	})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return len(made)
}

// finished is how many TrainJobs of the namespace have ended well.
func (g *ground) finished(ctx context.Context) func() int {
	return func() int {
		ginkgo.GinkgoHelper()
		var list api.TrainJobList
		if err := admin.List(ctx, &list, client.InNamespace(g.namespace)); err != nil {
			return -1 // the API server may be what is gone
		}
		n := 0
		for _, tj := range list.Items {
			if apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobComplete) {
				n++
			}
		}
		return n
	}
}

// runningPods are the names of the namespace's pods that run.
func runningPods(ctx context.Context, g *ground) []string {
	ginkgo.GinkgoHelper()
	var names []string
	for _, p := range pods(ctx, client.InNamespace(g.namespace)) {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp.IsZero() {
			names = append(names, p.Name)
		}
	}
	return names
}

var _ = ginkgo.Describe("Operations", func() {
	if !bundled() {
		return
	}

	ginkgo.It("60 small TrainJobs start once each", func(ctx context.Context) {
		burst(ctx, 60, peer("--steps", "5"), func() func() { return func() {} })
	})

	ginkgo.It("a manager's pod killed in a burst is replaced, and webhooks stay served", func(ctx context.Context) {
		burst(ctx, 20, peer("--steps", "5"), func() func() {
			for _, p := range managers(ctx) {
				if p.Name == leader([]corev1.Pod{p}) {
					gomega.Expect(admin.Delete(ctx, &p, client.GracePeriodSeconds(0))).To(gomega.Succeed())
				}
			}
			return awaitManagers
		})
	})

	ginkgo.It("a node that is drained in a burst loses no TrainJob, and webhooks are served all the time",
		func(ctx context.Context) {
			drained, _ := withoutKueue(ctx)
			ginkgo.DeferCleanup(func() { kubectl("uncordon", drained) })
			burst(ctx, 20, peer("--steps", "10"), func() func() {
				done := make(chan error, 1)
				go func() {
					_, err := tryKubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", "--force")
					done <- err
				}()
				// A dry run goes through the webhooks of both roles.
				g := newGround(ctx, 1)
				asks := func() error {
					return user.Create(ctx, &api.TrainJob{
						ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "asks"},
						Spec: api.TrainJobSpec{TrainJobSpec: trainerapi.TrainJobSpec{
							RuntimeRef: trainerapi.RuntimeRef{Name: "torch-distributed"}}},
					}, client.DryRunAll)
				}
				gomega.Consistently(asks, "20s", "100ms").Should(gomega.Succeed())
				return func() {
					gomega.Eventually(done, "90s").Should(gomega.Receive(gomega.BeNil()))
					for _, p := range managers(ctx) {
						gomega.Expect(p.Spec.NodeName).NotTo(gomega.Equal(drained))
					}
					awaitManagers()
				}
			})
		})

	ginkgo.It("helm upgrade to another image disturbs none of the TrainJobs that run", func(ctx context.Context) {
		g := newGround(ctx, 8)
		g.runtime(ctx, "peer", peerImage)
		from, err := audit.End(audit.Log(dir))
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		const count = 20
		small := func(tj *api.TrainJob) { // so that all run at a time, on quota of memory
			tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}}
		}
		for i := range count {
			g.submit(ctx, fmt.Sprintf("small-%d", i), "peer", 1, 0, peer("--steps", "250"), small)
		}
		all := func() []string { return runningPods(ctx, g) }
		gomega.Eventually(all).Should(gomega.HaveLen(count))
		before := all()
		_, err = command("helm", "upgrade", "signalbox", "charts/signalbox", "--namespace", "signalbox-system",
			"--reuse-values", "--set-string", "image.tag=2", "--wait", "--timeout", "2m")
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		for _, p := range managers(ctx) {
			gomega.Expect(p.Spec.Containers[0].Image).To(gomega.HaveSuffix(":2"))
		}
		gomega.Expect(all()).To(gomega.ConsistOf(before), "the same pods run on")
		gomega.Eventually(g.finished(ctx), "3m", "1s").Should(gomega.Equal(count))
		gomega.Expect(g.started(from)).To(gomega.Equal(count))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
	})

	ginkgo.DescribeTable("a TrainJob on a node that dies starts again, or fails, as its policy says",
		func(ctx context.Context, then func(ctx context.Context)) {
			g := newGround(ctx, 8)
			onNode2 := map[string]string{corev1.LabelHostname: "node-2"}
			g.runtime(ctx, "once", peerImage, func(spec *trainerapi.TrainingRuntimeSpec) {
				trainerPod(spec).NodeSelector = onNode2
			})
			g.runtime(ctx, "again", peerImage, func(spec *trainerapi.TrainingRuntimeSpec) {
				spec.Template.Spec.FailurePolicy = &jobset.FailurePolicy{MaxRestarts: 1}
			})
			once := g.submit(ctx, "once", "once", 1, 1, peer("--steps", "300"), func(tj *api.TrainJob) {
				tj.Annotations = map[string]string{api.RestartsAnnotation: "0"}
			})
			lost := g.submit(ctx, "lost", "once", 1, 1, peer("--steps", "300"))
			again := g.submit(ctx, "again", "again", 2, 2, peer("--steps", "60"))
			gomega.Eventually(running(ctx, once)).Should(gomega.Equal(1))
			gomega.Eventually(running(ctx, lost)).Should(gomega.Equal(1))
			gomega.Eventually(running(ctx, again)).Should(gomega.Equal(2))
			ginkgo.DeferCleanup(func(ctx context.Context) {
				if err := tryAct("start", "node-2"); err != nil {
					gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("runs already")))
				}
				awaitNode(ctx, "node-2", corev1.ConditionTrue)
				if _, err := tryKubectl("taint", "node", "node-2", outOfService+"-"); err != nil {
					gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("not found")))
				}
				awaitManagers()
			})
			act("kill", "node-2")
			awaitNode(ctx, "node-2", corev1.ConditionUnknown)
			then(ctx)
			gomega.Eventually(is(ctx, once, trainerapi.TrainJobFailed), "2m").Should(gomega.BeTrue())
			gomega.Eventually(is(ctx, again, trainerapi.TrainJobComplete), "2m").Should(gomega.BeTrue())
			gomega.Eventually(func() *api.Loss { return get(ctx, lost).Status.Lost }, "2m").Should(gomega.HaveValue(
				gomega.HaveField("Restarts", gomega.BeEquivalentTo(1))))
			gomega.Expect(is(ctx, lost, trainerapi.TrainJobFailed)()).To(gomega.BeFalse())
			gomega.Expect(user.Delete(ctx, lost)).To(gomega.Succeed())
			gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())
		},
		ginkgo.Entry("when the node is back", func(ctx context.Context) {
			act("start", "node-2")
			awaitNode(ctx, "node-2", corev1.ConditionTrue)
		}),
		ginkgo.Entry("when an administrator says that it won't be back", func(context.Context) {
			kubectl("taint", "node", "node-2", outOfService+"=true:NoExecute")
		}),
	)

	ginkgo.It("containerd that is restarted disturbs no container", func(ctx context.Context) {
		g := newGround(ctx, 8)
		g.runtime(ctx, "peer", peerImage)
		tj := g.submit(ctx, "runs", "peer", 2, 2, peer("--steps", "60"))
		gomega.Eventually(running(ctx, tj)).Should(gomega.Equal(2))
		act("restart", "containerd-1")
		next := g.submit(ctx, "next", "peer", 2, 2, peer("--steps", "3"))
		gomega.Eventually(is(ctx, next, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		gomega.Eventually(is(ctx, tj, trainerapi.TrainJobComplete)).Should(gomega.BeTrue())
		gomega.Expect(logs(rank(ctx, tj, 0))()).To(gomega.ContainSubstring("done after step 60"))
	})

	ginkgo.It("managers that the API server is out of reach of for a minute lose nothing", func(ctx context.Context) {
		burst(ctx, 10, peer("--steps", "5"), func() func() {
			cut := managers(ctx)
			for _, p := range cut {
				act("isolate", p.Status.PodIP)
			}
			gomega.Consistently(func() error { // their webhooks are cut off too, so that nothing is created past them
				return user.Create(ctx, &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}})
			}, time.Minute, "10s").ShouldNot(gomega.Succeed())
			for _, p := range cut {
				act("reconnect", p.Status.PodIP)
			}
			awaitManagers()
			return func() {}
		})
		// What Kueue admitted meanwhile nobody could start, also for a moment after they were back.
		for _, f := range findings() {
			gomega.Expect(f).To(gomega.HavePrefix("quota-for-nothing"))
		}
	})

	ginkgo.It("an etcd whose disk is full and then isn't loses nothing", func(ctx context.Context) {
		ginkgo.DeferCleanup(func() { act("empty", "etcd") })
		burst(ctx, 10, peer("--steps", "5"), func() func() {
			act("fill", "etcd")
			gomega.Consistently(func() error {
				return admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", GenerateName: "full-"}})
			}, "20s", "2s").ShouldNot(gomega.Succeed())
			act("empty", "etcd")
			return awaitManagers
		})
	})
})

// withoutKueue is the node that Kueue's only pod doesn't run on, whose webhooks would be missed, and the other one.
func withoutKueue(ctx context.Context) (node, other string) {
	ginkgo.GinkgoHelper()
	kueue := pods(ctx, client.InNamespace("kueue-system"))
	gomega.Expect(kueue).To(gomega.HaveLen(1))
	other = kueue[0].Spec.NodeName
	return map[string]string{"node-1": "node-2", "node-2": "node-1"}[other], other
}

// awaitNode waits until a node is ready, or nobody knows whether it is.
func awaitNode(ctx context.Context, name string, status corev1.ConditionStatus) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() corev1.ConditionStatus {
		var n corev1.Node
		if err := admin.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
			return ""
		}
		return readiness(&n)
	}, "90s").Should(gomega.Equal(status), name)
}

func isReady(n *corev1.Node) bool { return readiness(n) == corev1.ConditionTrue }

func readiness(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}
