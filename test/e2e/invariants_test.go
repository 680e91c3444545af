package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
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
	// went with its JobSet. The garbage collector deletes it, within the time of collected.
	strays    int
	collected time.Duration
}

// collectsWithin is how long the garbage collector may take for a pod whose JobSet is gone.
func (i *invariants) collectsWithin(d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.collected = d
}

func watchInvariants() *invariants {
	ctx, cancel := context.WithCancel(context.Background())
	i := &invariants{
		cancel: cancel, jobs: map[types.NamespacedName]*api.TrainJob{},
		starts: map[types.UID]int{}, stops: map[types.UID]int{}, collected: 10 * time.Second,
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
	record, err := legacy.RecordOf(tj)
	if err != nil || current().Foreign(record) && record.Time != nil {
		return // the Trainer was upgraded while it ran
	}
	own := current().Own(tj)
	if own != nil && record != nil && !rendered(tj, record) {
		i.fail("TrainJob %s runs at version %s without the integration's elements %v", key, tj.ResourceVersion, record.Own)
	}
	if own == nil || own.TrainingRuntimeSpec == nil || len(own.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs) == 0 {
		i.fail("TrainJob %s runs at version %s without the integration's entry", key, tj.ResourceVersion)
	}
}

// rendered reports whether the list of overrides has the integration's elements.
func rendered(tj *api.TrainJob, record *legacy.Record) bool {
	u, err := toUnstructured(tj)
	if err != nil {
		return false
	}
	list, _, err := unstructured.NestedSlice(u.Object, "spec", record.Field)
	return err == nil && record.Rendered(list)
}

// stray reports whether a pod is of a JobSet that is gone. It holds that the pod goes too, in time.
func (i *invariants) stray(ctx context.Context, pod *corev1.Pod) bool {
	js := &jobset.JobSet{}
	err := admin.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[jobset.JobSetNameKey]}, js)
	if client.IgnoreNotFound(err) != nil || string(js.UID) == pod.Labels[jobset.JobSetUIDKey] {
		return false
	}
	i.mu.Lock()
	i.strays++
	within := i.collected
	i.mu.Unlock()
	time.AfterFunc(within, func() {
		there := &corev1.Pod{}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(pod), there); err == nil && there.UID == pod.UID {
			i.fail("pod %s/%s is there %s after it was made of a JobSet that was gone", pod.Namespace, pod.Name, within)
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
	if tj == nil || len(settingFaults(tj, pod)) > 0 {
		// One of the two watches may be behind, for long after the API server was away: what is stored decides.
		tj = &api.TrainJob{}
		if err := i.stored(ctx, key, tj); err != nil {
			return // gone again, or a JobSet that no TrainJob owns
		}
	}
	if runsWith(tj) == nil || i.stray(ctx, pod) {
		return
	}
	for _, fault := range settingFaults(tj, pod) {
		i.fail("pod %s/%s %s", pod.Namespace, pod.Name, fault)
	}
}

// stored reads an object as soon as the API server answers.
func (i *invariants) stored(ctx context.Context, key types.NamespacedName, o client.Object) error {
	return retry.OnError(wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 8},
		func(err error) bool { return !apierrors.IsNotFound(err) && ctx.Err() == nil },
		func() error { return admin.Get(ctx, key, o) })
}

// runsWith returns the integration's entry that a queued TrainJob runs with; nil if it doesn't run.
func runsWith(tj *api.TrainJob) *trainerapi.RuntimePatch {
	if tj.Labels[constants.QueueLabel] == "" || ptr.Deref(tj.Spec.Suspend, false) {
		return nil
	}
	return current().Own(tj)
}

// settingFaults returns what a new pod has of other settings than the entry that its TrainJob runs with.
func settingFaults(tj *api.TrainJob, pod *corev1.Pod) (faults []string) {
	own := runsWith(tj)
	if own == nil {
		return nil
	}
	_, spec := overrides.PodPatch(own.TrainingRuntimeSpec, pod.Labels[jobset.ReplicatedJobNameKey])
	if spec == nil {
		return nil
	}
	selector := maps.Clone(pod.Spec.NodeSelector)
	delete(selector, zoneLabel) // RuntimeClasses and policies of the table of namespaces add it
	if !maps.Equal(selector, spec.NodeSelector) {
		faults = append(faults, fmt.Sprintf("has node selector %v, its TrainJob's entry %v", pod.Spec.NodeSelector,
			spec.NodeSelector))
	}
	for _, t := range spec.Tolerations {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(have corev1.Toleration) bool { return have.MatchToleration(&t) }) {
			faults = append(faults, fmt.Sprintf("lacks toleration %v of its TrainJob's entry", t))
		}
	}
	for _, have := range pod.Spec.Tolerations {
		if have.Key == "gpu" && !slices.ContainsFunc(spec.Tolerations,
			func(t corev1.Toleration) bool { return have.MatchToleration(&t) }) {
			faults = append(faults, fmt.Sprintf("has toleration %v, which its TrainJob's entry doesn't", have))
		}
	}
	return faults
}
