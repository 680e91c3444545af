package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
)

// SIGNALBOX_LIST is how many TrainJobs the list is measured with (make test-list). The suite leaves that out, because
// it takes minutes until all are queued.
func init() {
	if n, err := strconv.Atoi(os.Getenv("SIGNALBOX_LIST")); err == nil && cluster.bundled() {
		ginkgo.Describe("kubectl signalbox list", ginkgo.Label("list"), func() {
			ginkgo.It(fmt.Sprintf("lists %d TrainJobs, in pages", n), func(ctx context.Context) { longList(ctx, n) })
		})
	}
}

// longList reports how long a list of many TrainJobs takes, and holds how it is read. Of 10,000, 200 run, one in each
// ClusterQueue, beside 1,000 nodes; and so on.
func longList(ctx context.Context, n int) {
	quota := map[string]int64{"a100": gpusPerNode}
	g := newGround(ctx, quota)
	g.runtime(ctx, "torch", "forever")
	queues := max(n/50, 1)
	queueOf := func(i int) string { return fmt.Sprintf("%s-%d", localQueue, i%queues) }
	for i := range queues {
		g.clusterQueue(ctx, fmt.Sprintf("%s-%d", g.queue, i), quota)
		g.localQueue(ctx, queueOf(i), fmt.Sprintf("%s-%d", g.queue, i))
	}
	moreNodes(ctx, "a100", nodesOfKind, max(n/10-nodesOfKind*len(gpuKinds), 0))
	jobs := make(chan int)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			defer ginkgo.GinkgoRecover()
			for i := range jobs {
				g.submit(ctx, g.trainJob(fmt.Sprintf("job-%d", i), "torch", 1, func(tj *api.TrainJob) {
					tj.Labels[constants.QueueLabel] = queueOf(i)
				}))
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	all.Wait()
	gomega.Eventually(func() int {
		var list kueue.WorkloadList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
		return len(list.Items)
	}, "20m", "5s").Should(gomega.Equal(n))
	// What a controller still writes would be measured, too.
	written := cluster.auditEnd()
	gomega.Eventually(func() int {
		from := written
		written = cluster.auditEnd()
		return len(
			cluster.requests(from, func(r request) bool { return r.Writes() && r.ObjectRef.Namespace == g.namespace }),
		)
	}, "20m", "10s").Should(gomega.BeZero())
	busy := quietMachine()
	var times []float64
	for range 5 {
		from, start := cluster.auditEnd(), time.Now()
		answer := g.plugin(ctx, "", "list", "-o", "name")
		times = append(times, time.Since(start).Seconds())
		gomega.Expect(answer.code).To(gomega.BeZero(), answer.err)
		pages := map[string]int{}
		for _, r := range cluster.requests(from, func(r request) bool {
			return r.Verb == "list" && r.User.Username == "admin"
		}) {
			pages[r.ObjectRef.Resource]++
		}
		const page = 500
		gomega.Expect(pages["trainjobs"]).To(gomega.Equal((n + page - 1) / page))
		gomega.Expect(pages["workloads"]).To(gomega.BeNumerically(">=", n/page))
	}
	slices.Sort(times)
	ginkgo.AddReportEntry(fmt.Sprintf("list: %d TrainJobs in %.2f s (%.2f–%.2f), in pages of 500; before, "+
		"the processors were %.0f %% busy", n, times[len(times)/2], times[0], times[len(times)-1], 100*busy))
	for _, name := range slices.Sorted(maps.Keys(both)) {
		g.longPage(ctx, name)
	}
	// The API server ends a request that takes a minute; those that are left are deleted by the next.
	gomega.Eventually(func() error {
		return admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(g.namespace))
	}, "20m", "1s").Should(gomega.Succeed())
	gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }, "20m",
		"5s").Should(gomega.BeEmpty())
}

// quietMachine waits until the machine has little to do: controllers still compute when they write no more. After five
// minutes another program keeps it busy. It returns which share of the processors' time was used.
func quietMachine() float64 {
	proc, err := procfs.NewDefaultFS()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	const interval, much = 10 * time.Second, 0.1
	busy := 1.0
	for deadline := time.Now().Add(5 * time.Minute); busy > much && time.Now().Before(deadline); {
		before, err := proc.Stat()
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		<-time.After(interval)
		after, err := proc.Stat()
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		idle := after.CPUTotal.Idle - before.CPUTotal.Idle
		busy = 1 - idle/(interval.Seconds()*float64(len(after.CPU)))
	}
	return busy
}

// addGangs adds what needs a scheduler that knows gangs.
func addGangs() {
	if hasGangs {
		situations["its gang has no room"] = situation{
			explain.CodeGang,
			"",
			func(ctx context.Context) (*ground, *api.TrainJob) {
				g := newGround(ctx, map[string]int64{"a100": 800})
				g.runtime(ctx, "torch", "forever")
				return g, g.submit(ctx, g.trainJob("job", "torch", 2*nodesOfKind, gangs(api.GangRequired)))
			},
		}
	}
}

// addOutages adds what a TrainJob that waits says while a controller is down.
func addOutages() {
	for name, s := range map[string]situation{
		"kueue":     {explain.CodeKueueDown, "Kueue is down", nil},
		"signalbox": {explain.CodeNoWorkload, "Signalbox is down", nil},
	} {
		s.stage = func(ctx context.Context) (*ground, *api.TrainJob) {
			g, tj := waitsOn(2, nil)(ctx)
			gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateQueued))
			cluster.mustAct("stop", name)
			ginkgo.DeferCleanup(cluster.ensure, name)
			return g, tj
		}
		situations[name+" is down"] = s
	}
}

// waitsInQueue stages a TrainJob in a LocalQueue.
func waitsInQueue(name string, change func(context.Context, *ground)) func(context.Context) (*ground, *api.TrainJob) {
	return func(ctx context.Context) (*ground, *api.TrainJob) {
		ginkgo.GinkgoHelper()
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		if change != nil {
			change(ctx, g)
		}
		return g, g.submit(
			ctx,
			g.trainJob("job", "torch", 1, func(tj *api.TrainJob) { tj.Labels[constants.QueueLabel] = name }),
		)
	}
}

// onCheck makes a ground whose ClusterQueue has an admission check that nobody answers.
func onCheck(ctx context.Context) (g *ground, check string) {
	ginkgo.GinkgoHelper()
	ac := &kueue.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "check-",
		},
		Spec: kueue.AdmissionCheckSpec{ControllerName: "example.com/check"},
	}
	gomega.Expect(admin.Create(ctx, ac)).To(gomega.Succeed())
	gomega.Eventually(func() error {
		apimeta.SetStatusCondition(&get(ctx, ac).Status.Conditions, metav1.Condition{
			Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", Message: "ready",
		})
		return admin.Status().Update(ctx, ac)
	}).Should(gomega.Succeed(), "Kueue adds its finalizer meanwhile")
	ginkgo.DeferCleanup(
		func(ctx context.Context) { gomega.Expect(ignoreNotFound(admin.Delete(ctx, ac))).To(gomega.Succeed()) },
	)
	g = newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
		cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{
			AdmissionChecks: []kueue.AdmissionCheckStrategyRule{
				{Name: kueue.AdmissionCheckReference(ac.Name)},
			},
		}
	})
	g.runtime(ctx, "torch", "forever")
	return g, ac.Name
}

// answers has an admission check answer about a TrainJob.
func answers(ctx context.Context, tj *api.TrainJob, check string, state kueue.CheckState, message string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(condition(ctx, tj, kueue.WorkloadQuotaReserved)).Should(gomega.HavePrefix("True"))
	gomega.Eventually(func() error {
		wl := workloadOf(ctx, tj)
		for i := range wl.Status.AdmissionChecks {
			if string(wl.Status.AdmissionChecks[i].Name) == check {
				wl.Status.AdmissionChecks[i].State, wl.Status.AdmissionChecks[i].Message = state, message
				wl.Status.AdmissionChecks[i].LastTransitionTime = metav1.Now()
				return admin.Status().Update(ctx, wl)
			}
		}
		return fmt.Errorf("the Workload has no check %s", check)
	}).Should(gomega.Succeed())
}

// gone deletes a runtime, although TrainJobs use it.
func gone(ctx context.Context, g *ground, name string) {
	ginkgo.GinkgoHelper()
	rt := get(ctx, &api.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}})
	gomega.Expect(admin.Delete(ctx, rt)).To(gomega.Succeed())
	gomega.Eventually(func() error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(rt), rt); err != nil {
			return ignoreNotFound(err)
		}
		patched(ctx, rt, `{"metadata":{"finalizers":null}}`)
		return nil
	}).Should(gomega.Succeed())
}

// podSays stages a TrainJob that runs, and whose pod says something.
func podSays(ctx context.Context, change func(*corev1.Pod)) (*ground, *api.TrainJob) {
	ginkgo.GinkgoHelper()
	g := newGround(ctx, map[string]int64{"a100": 8})
	g.runtime(ctx, "torch", "forever")
	tj := g.submit(ctx, g.trainJob("job", "torch", 1))
	gomega.Eventually(state(ctx, tj)).Should(gomega.Equal(api.StateRunning))
	var pods corev1.PodList
	gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace),
		client.MatchingLabels{jobset.JobSetNameKey: tj.Name})).To(gomega.Succeed())
	gomega.Expect(pods.Items).To(gomega.HaveLen(1))
	gomega.Eventually(func() error {
		p := get(ctx, &pods.Items[0])
		change(p)
		return admin.Status().Update(ctx, p)
	}).Should(gomega.Succeed())
	return g, tj
}
