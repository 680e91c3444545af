package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

type runtimeObject = runtime.Object

// invariants sees every version of every TrainJob and pod, as the API server's watch gives them, and holds:
//   - a queued TrainJob is never unsuspended without the integration's whole entry;
//   - a pod is born with exactly the node selector of the entry that its TrainJob runs with, and with all its
//     tolerations; one that JobSet makes of a JobSet that is gone is deleted before long;
//   - a TrainJob is started once for each time that it was stopped, and no more.
type invariants struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	broken []string
	jobs   map[types.NamespacedName]*api.TrainJob
	starts map[types.UID]int
	stops  map[types.UID]int
	// strays are the pods of JobSets that are gone: JobSet's controller, whose watch is behind, makes a Job again that
	// went with its JobSet. The garbage collector deletes it.
	strays int
}

func watchInvariants() *invariants {
	ctx, cancel := context.WithCancel(context.Background())
	i := &invariants{
		cancel: cancel, jobs: map[types.NamespacedName]*api.TrainJob{},
		starts: map[types.UID]int{}, stops: map[types.UID]int{},
	}
	go i.follow(ctx, &api.TrainJobList{}, func(_ watch.EventType, o client.Object) { i.trainJob(o.(*api.TrainJob)) })
	go i.follow(ctx, &corev1.PodList{}, func(t watch.EventType, o client.Object) {
		if t == watch.Added { // later, Kueue names the node of a pod that it had gated
			i.pod(ctx, o.(*corev1.Pod))
		}
	})
	return i
}

func (i *invariants) stop() { i.cancel() }

// follow sees every version from now on. A watch ends now and then, when a CRD changes for one; it goes on where it
// ended, or from what is there where that is too long ago.
func (i *invariants) follow(ctx context.Context, list client.ObjectList, see func(watch.EventType, client.Object)) {
	version := ""
	for ctx.Err() == nil {
		events, err := admin.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			version = ""
			continue
		}
		for e := range events.ResultChan() {
			o, ok := e.Object.(client.Object)
			if !ok {
				version = ""
				break
			}
			version = o.GetResourceVersion()
			if e.Type == watch.Added || e.Type == watch.Modified {
				see(e.Type, o)
			}
		}
		events.Stop()
	}
}

func (i *invariants) fail(format string, args ...any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = append(i.broken, fmt.Sprintf(format, args...))
}

// violations returns what was found since the last call.
func (i *invariants) violations() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	broken := i.broken
	i.broken = nil
	return broken
}

func (i *invariants) strayPods() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.strays
}

func (i *invariants) startsOf(tj *api.TrainJob) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.starts[tj.UID]
}

func (i *invariants) trainJob(tj *api.TrainJob) {
	runs := !ptr.Deref(tj.Spec.Suspend, false)
	key := client.ObjectKeyFromObject(tj)
	i.mu.Lock()
	before := i.jobs[key]
	i.jobs[key] = tj
	if before != nil && before.UID == tj.UID && ptr.Deref(before.Spec.Suspend, false) == runs {
		if runs {
			i.starts[tj.UID]++
		} else {
			i.stops[tj.UID]++
		}
	}
	starts, stops := i.starts[tj.UID], i.stops[tj.UID]
	i.mu.Unlock()
	if tj.Labels[constants.QueueLabel] == "" || !runs {
		return
	}
	if starts > stops+1 {
		i.fail("TrainJob %s was started %d times and stopped %d times", key, starts, stops)
	}
	record, err := overrides.RecordOf(tj)
	if err != nil || dialect().Foreign(record) && record.Time != nil {
		return // the Trainer was upgraded while it ran
	}
	own := dialect().Own(tj)
	if own != nil && record != nil && !rendered(tj, record) {
		i.fail("TrainJob %s runs at version %s without the integration's elements %v", key, tj.ResourceVersion, record.Own)
	}
	if own == nil || own.TrainingRuntimeSpec == nil || len(own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs) == 0 {
		i.fail("TrainJob %s runs at version %s without the integration's entry", key, tj.ResourceVersion)
	}
}

// rendered reports whether the list of overrides has the integration's elements.
func rendered(tj *api.TrainJob, record *overrides.Record) bool {
	u, err := toUnstructured(tj)
	if err != nil {
		return false
	}
	list, _, err := unstructured.NestedSlice(u.Object, "spec", record.Field)
	return err == nil && len(list)-len(overrides.Without(list, record.Own)) == len(record.Own)
}

// stray reports whether a pod is of a JobSet that is gone. It holds that the pod goes too, within ten seconds.
func (i *invariants) stray(ctx context.Context, pod *corev1.Pod) bool {
	js := &jobset.JobSet{}
	err := admin.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[jobset.JobSetNameKey]}, js)
	if client.IgnoreNotFound(err) != nil || string(js.UID) == pod.Labels[jobset.JobSetUIDKey] {
		return false
	}
	i.mu.Lock()
	i.strays++
	i.mu.Unlock()
	time.AfterFunc(10*time.Second, func() {
		there := &corev1.Pod{}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(pod), there); err == nil && there.UID == pod.UID {
			i.fail("pod %s/%s is there ten seconds after it was made of a JobSet that was gone", pod.Namespace, pod.Name)
		}
	})
	return true
}

func (i *invariants) pod(ctx context.Context, pod *corev1.Pod) {
	name := pod.Labels[jobset.JobSetNameKey]
	if name == "" || pod.Spec.NodeName != "" { // of a JobSet, and not an old one that a new watch shows
		return
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: name}
	i.mu.Lock()
	tj := i.jobs[key]
	i.mu.Unlock()
	if tj == nil { // one of the two watches is behind
		tj = &api.TrainJob{}
		if err := admin.Get(ctx, key, tj); err != nil {
			return // gone again, or a JobSet that no TrainJob owns
		}
	}
	own := dialect().Own(tj) // once: another Trainer may be installed meanwhile
	if tj.Labels[constants.QueueLabel] == "" || own == nil || ptr.Deref(tj.Spec.Suspend, false) {
		return
	}
	if i.stray(ctx, pod) {
		return
	}
	_, spec := overrides.PodPatch(own.TrainingRuntimeSpec, pod.Labels[jobset.ReplicatedJobNameKey])
	if spec == nil {
		return
	}
	selector := maps.Clone(pod.Spec.NodeSelector)
	delete(selector, zoneLabel) // RuntimeClasses and policies of the table of namespaces add it
	if !maps.Equal(selector, spec.NodeSelector) {
		i.fail("pod %s/%s has node selector %v, its TrainJob's entry %v",
			pod.Namespace, pod.Name, pod.Spec.NodeSelector, spec.NodeSelector)
	}
	for _, t := range spec.Tolerations {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(have corev1.Toleration) bool { return have.MatchToleration(&t) }) {
			i.fail("pod %s/%s lacks toleration %v of its TrainJob's entry", pod.Namespace, pod.Name, t)
		}
	}
	for _, have := range pod.Spec.Tolerations {
		if have.Key == "gpu" && !slices.ContainsFunc(spec.Tolerations,
			func(t corev1.Toleration) bool { return have.MatchToleration(&t) }) {
			i.fail("pod %s/%s has toleration %v, which its TrainJob's entry doesn't", pod.Namespace, pod.Name, have)
		}
	}
}
