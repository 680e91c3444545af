package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// gangs sets how a TrainJob's pods are to be placed.
func gangs(mode api.GangMode) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		metav1.SetMetaDataAnnotation(&tj.ObjectMeta, api.GangModeAnnotation, string(mode))
	}
}

// gpusEach sets how many GPUs each node of a TrainJob asks for.
func gpusEach(n int64) func(*api.TrainJob) {
	return func(tj *api.TrainJob) {
		some := corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
		tj.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: some, Limits: some}
	}
}

// groupsOfPods are the PodGroups that the pods of a TrainJob name, each with how many do.
func groupsOfPods(ctx context.Context, tj *api.TrainJob) map[string]int {
	ginkgo.GinkgoHelper()
	named := map[string]int{}
	for _, p := range podsOf(ctx, tj) {
		if s := p.Spec.SchedulingGroup; s != nil {
			named[ptr.Deref(s.PodGroupName, "")]++
		}
	}
	return named
}

// boundOf is how many pods are on a node and have not ended of the TrainJobs whose names begin so.
func (g *ground) boundOf(ctx context.Context, prefix string) func() int {
	return func() int {
		ginkgo.GinkgoHelper()
		var list corev1.PodList
		gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
		n := 0
		for _, p := range list.Items {
			if strings.HasPrefix(p.Name, prefix) && p.Spec.NodeName != "" &&
				p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				n++
			}
		}
		return n
	}
}

// end lets the pods come to their ends of the TrainJobs whose names begin so.
func (g *ground) end(ctx context.Context, prefix string) {
	ginkgo.GinkgoHelper()
	var list corev1.PodList
	gomega.Expect(admin.List(ctx, &list, client.InNamespace(g.namespace))).To(gomega.Succeed())
	for i := range list.Items {
		pod := &list.Items[i]
		if !strings.HasPrefix(pod.Name, prefix) {
			continue
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"0s"}}}`, runFor)
		err := admin.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch)))
		gomega.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
	}
}

// complete lets a TrainJob come to its end, and waits until it has.
func (g *ground) complete(ctx context.Context, tj *api.TrainJob) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() bool {
		g.end(ctx, tj.Name+"-")
		return complete(ctx, tj)()
	}).Should(gomega.BeTrue())
}

// moreNodes makes another node of a kind for the running spec.
func moreNodes(ctx context.Context, kind string, from, n int) {
	ginkgo.GinkgoHelper()
	for i := from; i < from+n; i++ {
		node := makeNode(ctx, kind, i)
		ginkgo.DeferCleanup(func(ctx context.Context) { gomega.Expect(admin.Delete(ctx, node)).To(gomega.Succeed()) })
	}
}

// withInitializers puts two initializers before the runtime's trainer. The model's runs for the given time; the trainer
// waits until it has come so far.
func withInitializers(rt *api.TrainingRuntime, model string, until jobset.DependsOnStatus) {
	node := rt.Spec.Template.Spec.ReplicatedJobs[0]
	node.DependsOn = []jobset.DependsOn{
		{Name: "dataset-initializer", Status: jobset.DependencyComplete},
		{Name: "model-initializer", Status: until},
	}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{
		step("dataset-initializer", "dataset-initializer", "1s"), step("model-initializer", "model-initializer", model), node,
	}
}

// halves looks at every pod of a namespace, and keeps when a pod of one TrainJob was bound while another had some of
// its pods bound and not all.
type halves struct {
	mu    sync.Mutex
	bound map[string]map[string]bool // by TrainJob: the pods that have ever been bound
	of    int
	found []string
	ended atomic.Bool
}

func watchHalves(ctx context.Context, g *ground, of int) *halves {
	ginkgo.GinkgoHelper()
	h := &halves{bound: map[string]map[string]bool{}, of: of}
	events, err := admin.Watch(ctx, &corev1.PodList{}, client.InNamespace(g.namespace))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	ginkgo.DeferCleanup(events.Stop)
	go func() {
		defer func() { h.ended.Store(true) }()
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted && pod.Spec.NodeName != "" {
				h.see(pod.Labels[jobset.JobSetNameKey], pod.Name)
			}
		}
	}()
	return h
}

func (h *halves) see(job, pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bound[job] == nil {
		h.bound[job] = map[string]bool{}
	}
	if h.bound[job][pod] {
		return
	}
	h.bound[job][pod] = true
	for other, pods := range h.bound {
		if other != job && len(pods) < h.of {
			h.found = append(h.found, fmt.Sprintf("%s had %d of %d pods bound when %s had %d",
				other, len(pods), h.of, job, len(h.bound[job])))
		}
	}
}

// whole is how many TrainJobs have had all their pods bound.
func (h *halves) whole() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, pods := range h.bound {
		if len(pods) == h.of {
			n++
		}
	}
	return n
}

func (h *halves) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found
}
