package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// chaosSeconds is for how long `make chaos` breaks things; 0 outside of it, where the spec isn't declared.
func chaosSeconds() int {
	seconds, err := strconv.Atoi(os.Getenv("SIGNALBOX_CHAOS_SECONDS"))
	if err != nil {
		return 0
	}
	return seconds
}

// chaos is a run of random faults. A seed repeats the order of faults and of submissions, not their effects.
type chaos struct {
	*ground
	random   *rand.Rand
	mu       sync.Mutex
	jobs     []*api.TrainJob
	deleted  map[types.UID]bool
	runtimes []string
	classes  []string
	hostile  *hostileUsers
}

// honestQuota is the GPUs of the honest users' queue.
const honestQuota = 64

var _ = ginkgo.Describe("Chaos", ginkgo.Label("chaos"), func() {
	seconds := chaosSeconds()
	if seconds == 0 {
		return
	}
	ginkgo.It("loses nothing, doubles nothing, and takes no quota that isn't there", func(ctx context.Context) {
		seed, err := strconv.ParseUint(os.Getenv("SIGNALBOX_CHAOS_SEED"), 10, 64)
		gomega.Expect(err).NotTo(gomega.HaveOccurred(), "SEED is a whole number")
		low, high := makePriorities(ctx)
		c := &chaos{
			ground:  newGround(ctx, map[string]int64{"a100": honestQuota / 2, "h100": honestQuota / 2}),
			random:  rand.New(rand.NewPCG(seed, seed)),
			deleted: map[types.UID]bool{}, classes: []string{low, high},
		}
		c.makeRuntimes(ctx)
		c.hostile = newHostileUsers(ctx, c, seed)
		watching, stop := context.WithCancel(ctx)
		ginkgo.DeferCleanup(stop)
		go c.hostile.watchQuota(watching)
		// Watches come back one after the other when the API server does, and JobSet and the Job controller, delayed, report
		// late that pods have ended.
		audited.patience(45*time.Second, 90*time.Second)
		watched.collectsWithin(time.Minute) // a garbage collector that was restarted lists everything first
		end := time.Now().Add(time.Duration(seconds) * time.Second)
		var writers sync.WaitGroup
		writers.Go(func() { c.submitUntil(ctx, end, rand.New(rand.NewPCG(seed, 1))) })
		writers.Go(func() { c.meddleUntil(ctx, end, rand.New(rand.NewPCG(seed, 2))) })
		writers.Go(func() { c.hostile.actUntil(ctx, end) })
		faults := c.breakUntil(end)
		writers.Wait()
		ended, h := c.settle(ctx), c.hostile
		ginkgo.AddReportEntry(fmt.Sprintf("chaos: seed %d, %d s, %d faults: %d honest, %d hostile TrainJobs, %d hostile "+
			"requests, %d of them accepted; of the honest ones %d ended, %d deleted: 0 lost, 0 doubled, 0 over, 0 held; %d "+
			"pods of JobSets that were gone", seed, seconds, faults, len(c.jobs), h.added.Load(), h.requests.Load(),
			h.accepted.Load(), ended, len(c.deleted), watched.strayPods()))
	})
})

// makeRuntimes makes one runtime of each kind of TrainJob.
func (c *chaos) makeRuntimes(ctx context.Context) {
	ginkgo.GinkgoHelper()
	of := func(name, duration string, change ...func(*api.TrainingRuntime)) {
		c.runtime(ctx, name, duration, change...)
		c.runtimes = append(c.runtimes, name)
	}
	of("short", "500ms")
	of("longer", "4s")
	of("slow", "2s", slowly("2s"))
	of("staged", "1s", func(rt *api.TrainingRuntime) {
		spec := &rt.Spec.Template.Spec
		spec.ReplicatedJobs[0].DependsOn = []jobset.DependsOn{
			{Name: "dataset-initializer", Status: jobset.DependencyComplete}}
		spec.ReplicatedJobs = []jobset.ReplicatedJob{step("dataset-initializer", "dataset-initializer", "500ms"),
			spec.ReplicatedJobs[0]}
		spec.FailurePolicy = &jobset.FailurePolicy{MaxRestarts: 1}
	})
	of("failing", "1s", func(rt *api.TrainingRuntime) {
		rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.BackoffLimit = ptr.To[int32](0)
		rt.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Annotations[fails] = "true"
	})
}

// submitUntil submits TrainJobs of all kinds, sizes and priorities.
func (c *chaos) submitUntil(ctx context.Context, end time.Time, random *rand.Rand) {
	defer ginkgo.GinkgoRecover()
	gangMode := os.Getenv("SIGNALBOX_CHAOS_GANGS") != ""
	for n := 0; time.Now().Before(end); n++ {
		tj := c.trainJob(fmt.Sprintf("job-%d", n), c.runtimes[random.IntN(len(c.runtimes))], int32(1+random.IntN(3)),
			priority(c.classes[random.IntN(2)]))
		if gangMode {
			gangs(api.GangRequired)(tj)
		}
		wait := time.Duration(200+random.IntN(800)) * time.Millisecond
		for time.Now().Before(end.Add(time.Minute)) {
			err := user.Create(ctx, tj)
			if err == nil || apierrors.IsAlreadyExists(err) && admin.Get(ctx, client.ObjectKeyFromObject(tj), tj) == nil {
				break // an answer that was lost
			}
			time.Sleep(200 * time.Millisecond) // whoever is to answer is down
		}
		if tj.UID != "" {
			c.mu.Lock()
			c.jobs = append(c.jobs, tj)
			c.mu.Unlock()
		}
		time.Sleep(wait)
		for c.unfinished(ctx) > maxUnfinished && time.Now().Before(end) {
			time.Sleep(time.Second)
		}
	}
}

// maxUnfinished bounds the TrainJobs that wait or run at a time, so that a long run doesn't end with an hour of
// waiting.
const maxUnfinished = 150

// unfinished returns how many TrainJobs have not finished; 0 if the API server doesn't answer.
func (c *chaos) unfinished(ctx context.Context) int {
	var list api.TrainJobList
	if err := admin.List(ctx, &list, client.InNamespace(c.namespace)); err != nil {
		return 0
	}
	return len(slices.DeleteFunc(list.Items, func(tj api.TrainJob) bool {
		return over(&tj) || metav1.HasLabel(tj.ObjectMeta, hostileLabel)
	}))
}

// over reports whether a TrainJob has finished.
func over(tj *api.TrainJob) bool {
	return slices.ContainsFunc([]string{trainerapi.TrainJobComplete, trainerapi.TrainJobFailed}, func(name string) bool {
		return apimeta.IsStatusConditionTrue(tj.Status.Conditions, name)
	})
}

// meddleUntil writes to TrainJobs, deletes some, deactivates Workloads, and closes and opens the queue.
func (c *chaos) meddleUntil(ctx context.Context, end time.Time, random *rand.Rand) {
	defer ginkgo.GinkgoRecover()
	for time.Now().Before(end) {
		time.Sleep(time.Duration(300+random.IntN(1000)) * time.Millisecond)
		c.mu.Lock()
		if len(c.jobs) == 0 {
			c.mu.Unlock()
			continue
		}
		tj := c.jobs[random.IntN(len(c.jobs))]
		c.mu.Unlock()
		switch random.IntN(10) {
		case 0:
			// Whether a request whose answer was lost was carried out is seen at the end.
			if err := user.Delete(ctx, tj.DeepCopy(), client.Preconditions{UID: &tj.UID}); err != nil &&
				!apierrors.IsNotFound(err) {
				ginkgo.GinkgoLogr.Info("deleting a TrainJob", "error", err.Error())
			}
			c.mu.Lock()
			c.deleted[tj.UID] = true
			c.mu.Unlock()
		case 1:
			policy := []kueue.StopPolicy{kueue.HoldAndDrain, kueue.Hold}[random.IntN(2)]
			c.stopPolicy(ctx, policy)
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
			c.stopPolicy(ctx, kueue.None)
		default:
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"meddled":"%d"}},"spec":{"suspend":%t}}`, random.IntN(100), random.IntN(2) == 0)
			if err := user.Patch(ctx, tj.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
				ginkgo.GinkgoLogr.Info("patching a TrainJob", "error", err.Error())
			}
		}
	}
}

// stopPolicy is tried until the API server takes it.
func (c *chaos) stopPolicy(ctx context.Context, policy kueue.StopPolicy) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() error {
		return admin.Patch(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: c.queue}},
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"stopPolicy":%q}}`, policy)))
	}, "2m").Should(gomega.Succeed())
}

// breakUntil kills and restarts components, closes their connections and delays their watches, and returns the number
// of faults.
func (c *chaos) breakUntil(end time.Time) int {
	ginkgo.GinkgoHelper()
	components := []string{"signalbox", "signalbox", "signalbox", "kueue", "jobset", "kube-controller-manager",
		"kube-scheduler", "kube-apiserver", "etcd"}
	if !cluster.bundled() {
		components = append(components, "trainer", "trainer")
	}
	faults := 0
	for time.Now().Before(end) {
		component := components[c.random.IntN(len(components))]
		down, pause := time.Duration(c.random.IntN(2000))*time.Millisecond,
			time.Duration(1000+c.random.IntN(3000))*time.Millisecond
		action := []string{"kill", "kill", "stop", "cut", "stall", "stall"}[c.random.IntN(6)]
		if action == "cut" || action == "stall" {
			c.disturb(action, component, 4*down)
		} else {
			gomega.Expect(cluster.act(action, component)).To(gomega.Succeed(), "%s %s", action, component)
			time.Sleep(down)
			gomega.Eventually(func() error { return cluster.act("start", component) }, "2m").Should(gomega.Succeed(), "start %s",
				component)
		}
		faults++
		time.Sleep(pause)
	}
	return faults
}

// disturb closes the connections of a component to the API server, or delays its watch events and responses.
func (c *chaos) disturb(action, component string, lasting time.Duration) {
	ginkgo.GinkgoHelper()
	if component == "kube-apiserver" || component == "etcd" {
		component = "signalbox" // they have no relay
	}
	gomega.Expect(cluster.act(action, component)).To(gomega.Succeed(), "%s %s", action, component)
	if action == "stall" {
		time.Sleep(lasting)
		gomega.Expect(cluster.act("flow", component)).To(gomega.Succeed(), "flow %s", component)
	}
}

// settle waits until all is over, and returns how many TrainJobs have ended.
func (c *chaos) settle(ctx context.Context) int {
	ginkgo.GinkgoHelper()
	c.stopPolicy(ctx, kueue.None)
	ended := 0
	gomega.Eventually(func(g gomega.Gomega) {
		var list api.TrainJobList
		g.Expect(admin.List(ctx, &list, client.InNamespace(c.namespace))).To(gomega.Succeed())
		there := map[types.UID]bool{}
		ended = 0
		for i := range list.Items {
			tj := &list.Items[i]
			if metav1.HasLabel(tj.ObjectMeta, hostileLabel) {
				continue
			}
			there[tj.UID] = true
			g.Expect(over(tj)).To(gomega.BeTrue(), "TrainJob %s has not ended: %v", tj.Name, tj.Status.Conditions)
			ended++
		}
		for _, tj := range c.jobs {
			g.Expect(there[tj.UID] || c.deleted[tj.UID]).To(gomega.BeTrue(), "TrainJob %s is lost", tj.Name)
		}
	}, time.Duration(60+3*len(c.jobs)+3*int(c.hostile.added.Load()))*time.Second, "1s").Should(gomega.Succeed())
	gomega.Eventually(c.used(ctx), "2m").Should(gomega.BeZero(), "quota is held for nothing")
	gomega.Eventually(c.hostile.own.used(ctx), "3m").Should(gomega.BeZero(), "hostile users hold quota for nothing")
	gomega.Expect(c.hostile.over.Load()).To(gomega.BeNil())
	c.hostile.relent(ctx)
	gomega.Eventually(func(g gomega.Gomega) int {
		var pods corev1.PodList
		g.Expect(admin.List(ctx, &pods, client.InNamespace(c.namespace))).To(gomega.Succeed())
		return len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		}))
	}).Should(gomega.BeZero(), "pods that run on")
	late := func(v string) bool { return strings.Contains(v, lateQueue) } // it ran before it was queued
	gomega.Expect(append(slices.DeleteFunc(watched.violations(), late), audited.findings()...)).To(gomega.BeEmpty())
	// A garbage collector that was restarted takes its time.
	gomega.Eventually(func() error { // the last fault may not be over
		return admin.DeleteAllOf(ctx, &api.TrainJob{}, client.InNamespace(c.namespace))
	}, "2m").Should(gomega.Succeed())
	gomega.Eventually(func() []string { return c.list(ctx, &corev1.PodList{}) }, "5m").Should(gomega.BeEmpty(),
		"pods that nothing collects")
	return ended
}
