package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

var _ = ginkgo.Describe("A burst of 100 TrainJobs whose runtime tolerates a taint of its own", func() {
	const jobs = 100
	burst := func(ctx context.Context, gpus int64, limit func(by map[string]int, all int)) {
		ginkgo.GinkgoHelper()
		g := newGround(ctx, map[string]int64{"a100": 64, "h100": 64})
		gomega.Eventually(func() error { // until then, pods are refused, and tried again every second
			return admin.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: "default"}, &corev1.ServiceAccount{})
		}).Should(gomega.Succeed())
		audited.ofBurst()
		g.runtime(ctx, "torch", "1s")
		from, begun := cluster.auditEnd(), time.Now()
		var all []*api.TrainJob
		for i := range jobs {
			all = append(all, g.submit(ctx, g.trainJob(fmt.Sprintf("burst-%03d", i), "torch", 1, func(tj *api.TrainJob) {
				some := corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI)}
				tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: some, Limits: some}
			})))
		}
		gomega.Eventually(g.finished(ctx), burstEnds, "500ms").Should(gomega.Equal(jobs))
		gomega.Eventually(func() int {
			finished := 0
			var list kueue.WorkloadList
			gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
			for i := range list.Items {
				if workloadfinish.IsFinished(&list.Items[i]) {
					finished++
				}
			}
			return finished
		}).Should(gomega.Equal(jobs))
		gomega.Eventually(g.used(ctx)).Should(gomega.BeZero())

		starts := g.startsOf(ctx, all)
		writes := cluster.requests(from, func(r request) bool { return r.Writes() && component(r) != "" })
		toTrainJobs, by := 0, map[string]int{}
		var dryRuns []request
		for _, w := range writes {
			by[component(w)]++
			if w.ObjectRef.Resource == "trainjobs" && w.ObjectRef.Subresource == "" {
				toTrainJobs++
			}
			// Kueue's webhook doesn't find the first TrainJob until its cache has it; that is no answer.
			if w.DryRun() && w.ResponseStatus.Code != http.StatusNotFound {
				dryRuns = append(dryRuns, w)
			}
		}
		each := func(n int) float64 { return float64(n) / jobs }
		ginkgo.AddReportEntry(fmt.Sprintf("burst of 100 at %d GPUs: %d of %d finished, %d starts; "+
			"%.2f writes to the TrainJob per start; %d dry runs; "+
			"writes per TrainJob: Signalbox %.2f, Kueue %.2f, JobSet %.2f, together %.2f",
			gpus, jobs, jobs, starts, float64(toTrainJobs)/float64(starts), len(dryRuns),
			each(by["signalbox"]), each(by["kueue"]), each(by["jobset"]), each(len(writes))), summary(writes))

		gomega.Expect(starts).To(gomega.Equal(jobs))
		gomega.Expect(toTrainJobs).To(gomega.Equal(jobs), "exactly one write a start")
		minutes := int(time.Since(begun).Minutes()) + 1
		gomega.Expect(len(dryRuns)).To(gomega.BeNumerically("<=", 4+12*minutes),
			"the JobSet of what runs, its Service, its Job and its pod are tried once; and the last three once a minute for "+
				"each flavor, while pods come late, and again by who asks at the same time: not once for each TrainJob: %s",
			summary(dryRuns))
		limit(by, len(writes))
	}

	ginkgo.It("runs and finishes, 100 of 100, with one write a start, whole nodes each", func(ctx context.Context) {
		burst(ctx, gpusPerNode, func(by map[string]int, _ int) {
			if !cluster.bundled() {
				gomega.Expect(by["signalbox"]).To(gomega.BeNumerically("<=", 7*jobs))
			}
		})
	})

	ginkgo.It("runs and finishes, 100 of 100, with one write a start, all at once", func(ctx context.Context) {
		burst(ctx, 1, func(by map[string]int, all int) {
			if cluster.bundled() {
				gomega.Expect(all).To(gomega.BeNumerically("<=", 18*jobs), "Signalbox, Kueue and JobSet together")
			}
		})
	})
})

// component is the controller on trial that a request is of, "" where it is of another client.
func component(r request) string {
	switch r.User.Username {
	case "signalbox", "kueue", "jobset":
		return r.User.Username
	}
	return ""
}

// summary counts requests by what they are.
func summary(requests []request) []string {
	byKind := map[string]int{}
	for _, r := range requests {
		byKind[fmt.Sprintf("%s: %s %s/%s %d",
			r.User.Username, r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ResponseStatus.Code)]++
	}
	var lines []string
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		lines = append(lines, fmt.Sprintf("%d %s", byKind[kind], kind))
	}
	return lines
}

func init() {
	if cluster.bundled() {
		ginkgo.Describe("A TrainJob of a thousand pods", ginkgo.Label("kueue"), thousandSpecs)
	}
}

func thousandSpecs() {
	ginkgo.It("costs 8 writes with topology and partial admission", func(ctx context.Context) {
		thousand(ctx, api.GangOff, 8)
	})

	if hasGangs {
		// A Workload and a PodGroup are created and deleted.
		ginkgo.It("costs 4 more as a gang", func(ctx context.Context) { thousand(ctx, api.GangRequired, 12) })
	}
}

// statesOfLarge is how many writes of status the TrainJob takes.
const statesOfLarge = 3

// thousand runs a TrainJob of between 1,000 and 1,200 pods, and holds the number of Signalbox's writes, but for events.
func thousand(ctx context.Context, mode api.GangMode, limit int) {
	ginkgo.GinkgoHelper()
	g := onRacks(ctx)
	moreNodes(ctx, "a100", nodesOfKind, 2) // ten nodes of 110 pods
	g.runtime(ctx, "torch", "20s", asks(map[string]string{
		kueue.PodSetPreferredTopologyAnnotation: "rack", runFor: "20s",
	}))
	from := cluster.auditEnd()
	tj := g.submit(ctx, g.trainJob("thousand", "torch", 1200, least("1000"), gangs(mode), func(tj *api.TrainJob) {
		each := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
		tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: each}
		tj.Spec.Trainer.NumProcPerNode = ptr.To[int32](1)
	}))
	most := 0
	gomega.Eventually(func() bool {
		var pods corev1.PodList
		gomega.Expect(admin.List(ctx, &pods, client.InNamespace(g.namespace))).To(gomega.Succeed())
		most = max(most, len(pods.Items))
		return complete(ctx, tj)()
	}, "10m", "2s").Should(gomega.BeTrue())
	gomega.Eventually(condition(ctx, tj, kueue.WorkloadFinished)).Should(gomega.HavePrefix("True/"))
	gomega.Expect(most).To(gomega.And(gomega.BeNumerically(">=", 1000), gomega.BeNumerically("<", 1200)))
	gomega.Expect(user.Delete(ctx, tj)).To(gomega.Succeed())
	gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }, "2m").Should(gomega.BeEmpty())
	writes := cluster.requests(from, func(r request) bool {
		return r.Writes() && !r.DryRun() && component(r) == "signalbox" && r.ObjectRef.Namespace == g.namespace &&
			r.ObjectRef.Resource != "events" && r.ResponseStatus.Code < 300
	})
	ginkgo.AddReportEntry(fmt.Sprintf("thousand: %d pods, gang %s, %d writes", most, mode, len(writes)), summary(writes))
	states := 0
	for _, w := range writes {
		if w.ObjectRef.Resource == "trainjobs" && w.ObjectRef.Subresource == "status" {
			states++
		}
	}
	// That it waits, starts and runs is written where it lasts, which a slow machine makes it do.
	gomega.Expect(states).To(gomega.BeNumerically("<=", statesOfLarge+1), "%v", summary(writes))
	gomega.Expect(len(writes)-states).To(gomega.BeNumerically("<=", limit-statesOfLarge), "%v", summary(writes))
}
