package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Watcher audits a cluster by watches of its own. It reports only what the API server confirms: after an outage, the
// watch of one kind may be minutes behind that of another.
type Watcher struct {
	reader cache.Cache
	// live must not be a cache.
	live client.Reader
	// ofJobSets selects the pods and Jobs of JobSets.
	ofJobSets labels.Selector
	// answersWithin is how long the API server may take to list everything once.
	answersWithin time.Duration
}

// answersWithin is Watcher.answersWithin outside of tests, and how long one response may take.
const answersWithin = 5 * time.Minute

// NewWatcher returns a Watcher of the pods and Jobs of JobSets, and of all TrainJobs, Workloads, JobSets,
// ResourceFlavors and nodes. The scheme must have their kinds.
func NewWatcher(config *rest.Config, scheme *runtime.Scheme) (*Watcher, error) {
	ofJobSets, err := labels.Parse(jobset.JobSetNameKey) // it exists
	if err != nil {
		return nil, err
	}
	only := cache.ByObject{Label: ofJobSets}
	// The cache's requests have no timeout, because watches are among them. Discovery has one, so that an API server
	// that doesn't respond doesn't block it forever.
	limited := rest.CopyConfig(config)
	limited.Timeout = answersWithin
	live, err := client.New(limited, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("creating the client: %w", err)
	}
	reader, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: live.RESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(), DefaultUnsafeDisableDeepCopy: new(true),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: only, &batchv1.Job{}: only, node(): {Transform: onlyLabels},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the watches: %w", err)
	}
	return &Watcher{reader: reader, live: live, ofJobSets: ofJobSets, answersWithin: answersWithin}, nil
}

// node returns a node of which only the metadata is requested: kubelets report kilobytes of status for each.
func node() *metav1.PartialObjectMetadata {
	n := &metav1.PartialObjectMetadata{}
	n.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return n
}

// onlyLabels drops what the audit doesn't compare of a node.
func onlyLabels(object any) (any, error) {
	if n, ok := object.(*metav1.PartialObjectMetadata); ok { // otherwise it is the marker of a missed deletion
		n.ObjectMeta = metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}
	}
	return object, nil
}

// Objects returns the objects in the cache. It is an error if Run has not been called.
func (w *Watcher) Objects(ctx context.Context) (Objects, error) { return w.read(ctx, w.reader) }

// read lists every kind. Pods are read first, because quota is reserved before they are created.
func (w *Watcher) read(ctx context.Context, reader client.Reader, options ...client.ListOption) (Objects, error) {
	var (
		pods      corev1.PodList
		jobs      batchv1.JobList
		jobSets   jobset.JobSetList
		workloads kueue.WorkloadList
		trainJobs api.TrainJobList
		flavors   kueue.ResourceFlavorList
		nodes     metav1.PartialObjectMetadataList
	)
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	for _, kind := range []struct {
		name string
		list client.ObjectList
		of   labels.Selector
	}{
		{"pods", &pods, w.ofJobSets}, {"Jobs", &jobs, w.ofJobSets}, {"JobSets", &jobSets, labels.Everything()},
		{"Workloads", &workloads, labels.Everything()}, {"TrainJobs", &trainJobs, labels.Everything()},
		{"ResourceFlavors", &flavors, labels.Everything()}, {"nodes", &nodes, labels.Everything()},
	} {
		all := append(slices.Clip(options), client.MatchingLabelsSelector{Selector: kind.of})
		if err := reader.List(ctx, kind.list, all...); err != nil {
			return Objects{}, fmt.Errorf("listing %s: %w", kind.name, err)
		}
	}
	return Objects{trainJobs.Items, workloads.Items, jobSets.Items, jobs.Items, pods.Items, flavors.Items,
		nodes.Items}, nil
}

// confirmed returns the findings that the API server confirms now. The others, all of them if it doesn't answer, must
// last again.
func (w *Watcher) confirmed(ctx context.Context, lasting *Lasting, findings []Finding) []Finding {
	if len(findings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.answersWithin)
	defer cancel()
	objects, err := w.read(ctx, w.live)
	if err != nil {
		lasting.restart(findings, time.Now())
		return nil
	}
	now := Look(objects)
	confirmed := func(f *Finding) bool { return slices.Contains(now, *f) }
	lasting.restart(utilslices.Pick(findings, func(f *Finding) bool { return !confirmed(f) }), time.Now())
	return utilslices.Pick(findings, confirmed)
}

// start starts the watches, and returns when the cache has all objects. The channel gets the error that ends them.
func (w *Watcher) start(ctx context.Context) (<-chan error, error) {
	within, cancel := context.WithTimeoutCause(ctx, w.answersWithin, fmt.Errorf(
		"the API server has not listed all that the audit compares within %s", w.answersWithin))
	defer cancel()
	// A watch without rights is retried forever, and the cache is never complete.
	if _, err := w.read(within, w.live, client.Limit(1)); apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return nil, fmt.Errorf("the audit needs rights to list and watch what it compares: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.reader.Start(ctx) }()
	kinds := []client.Object{
		&corev1.Pod{}, &batchv1.Job{}, &jobset.JobSet{}, &kueue.Workload{}, &api.TrainJob{}, &kueue.ResourceFlavor{}, node(),
	}
	for _, o := range kinds {
		if _, err := w.reader.GetInformer(within, o, cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("watching %T: %w", o, err)
		}
	}
	if !w.reader.WaitForCacheSync(within) {
		return nil, context.Cause(within)
	}
	return ended, nil
}

// Run audits the cluster at an interval until the context ends or done returns true, and calls report for each finding
// that has lasted, once. After each audit it calls done, unless that is nil, with the number of audits and with
// lasting.Pending. An error of the watches ends it.
func (w *Watcher) Run(ctx context.Context, interval time.Duration, lasting *Lasting, report func(Finding),
	done func(audits int, pending map[Finding]time.Time) bool) error {
	ended, err := w.start(ctx)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for audits := 1; ; audits++ {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case now := <-ticker.C:
			objects, err := w.Objects(ctx)
			if err != nil {
				return err
			}
			for _, f := range w.confirmed(ctx, lasting, lasting.Next(Look(objects), now)) {
				report(f)
			}
			if done != nil && done(audits, lasting.Pending()) {
				return nil
			}
		}
	}
}
