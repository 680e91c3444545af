package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/prometheus/procfs"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
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

// longList reports how long a list of many TrainJobs takes, and holds how it is read.
func longList(ctx context.Context, n int) {
	g := newGround(ctx, map[string]int64{"a100": 8}, func(cq *kueue.ClusterQueue) {
		cq.Spec.StopPolicy = ptr.To(kueue.Hold) // so that Kueue has nothing to decide
	})
	g.runtime(ctx, "torch", "forever")
	jobs := make(chan int)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			defer ginkgo.GinkgoRecover()
			for i := range jobs {
				g.submit(ctx, g.trainJob(fmt.Sprintf("job-%d", i), "torch", 1))
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
		return len(cluster.requests(from, func(r request) bool { return r.Writes() && r.ObjectRef.Namespace == g.namespace }))
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
	// The API server ends a request that takes a minute; those that are left are deleted by the next.
	gomega.Eventually(func() error {
		return admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(g.namespace))
	}, "20m", "1s").Should(gomega.Succeed())
	gomega.Eventually(func() []string { return g.list(ctx, &kueue.WorkloadList{}) }, "20m", "5s").Should(gomega.BeEmpty())
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
