package audit

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Watcher looks at what runs in a cluster by watches of its own.
type Watcher struct{ reader cache.Cache }

// NewWatcher returns a Watcher. It watches the pods and Jobs of JobSets, and all TrainJobs, Workloads and JobSets; the scheme
// has their kinds.
func NewWatcher(config *rest.Config, scheme *runtime.Scheme) (*Watcher, error) {
	ofJobSets, err := labels.NewRequirement(jobset.JobSetNameKey, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	only := cache.ByObject{Label: labels.NewSelector().Add(*ofJobSets)}
	reader, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultUnsafeDisableDeepCopy: new(true),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: only, &batchv1.Job{}: only},
	})
	if err != nil {
		return nil, fmt.Errorf("making the watches: %w", err)
	}
	return &Watcher{reader: reader}, nil
}

// Objects returns what the watches show now.
func (w *Watcher) Objects(ctx context.Context) (Objects, error) {
	var (
		trainJobs api.TrainJobList
		workloads kueue.WorkloadList
		jobSets   jobset.JobSetList
		jobs      batchv1.JobList
		pods      corev1.PodList
	)
	// What runs is read first: what was admitted for it was there before.
	for _, list := range []client.ObjectList{&pods, &jobs, &jobSets, &workloads, &trainJobs} {
		if err := w.reader.List(ctx, list); err != nil {
			return Objects{}, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	return Objects{trainJobs.Items, workloads.Items, jobSets.Items, jobs.Items, pods.Items}, nil
}

// Run looks every so often, until the context ends or done says so, and tells each finding that has lasted once. done, which
// may be nil, is asked after each look with their number and with how many findings have not lasted yet.
func (w *Watcher) Run(ctx context.Context, every time.Duration, lasting *Lasting, tell func(Finding), done func(looks, pending int) bool) error {
	started := make(chan error, 1)
	go func() { started <- w.reader.Start(ctx) }()
	for _, o := range []client.Object{&corev1.Pod{}, &batchv1.Job{}, &jobset.JobSet{}, &kueue.Workload{}, &api.TrainJob{}} {
		if _, err := w.reader.GetInformer(ctx, o); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	if !w.reader.WaitForCacheSync(ctx) {
		return context.Cause(ctx)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for looks := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-started:
			return err
		case now := <-ticker.C:
			objects, err := w.Objects(ctx)
			if err != nil {
				return err
			}
			for _, f := range lasting.Next(Look(objects), now) {
				tell(f)
			}
			if done != nil && done(looks, lasting.Pending()) {
				return nil
			}
			looks++
		}
	}
}
