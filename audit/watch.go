package audit

import (
	"context"
	"fmt"
	"slices"
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

// Watcher audits a cluster by watches of its own. It reports only what the API server confirms: after an outage, the
// watch of one kind may be minutes behind that of another.
type Watcher struct {
	reader cache.Cache
	// live must not be a cache.
	live client.Reader
	// ofJobSets selects the pods and Jobs of JobSets.
	ofJobSets labels.Selector
}

// NewWatcher returns a Watcher of the pods and Jobs of JobSets, and of all TrainJobs, Workloads and JobSets. The scheme
// must have their kinds.
func NewWatcher(config *rest.Config, scheme *runtime.Scheme) (*Watcher, error) {
	named, err := labels.NewRequirement(jobset.JobSetNameKey, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	ofJobSets := labels.NewSelector().Add(*named)
	only := cache.ByObject{Label: ofJobSets}
	reader, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultUnsafeDisableDeepCopy: new(true),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: only, &batchv1.Job{}: only},
	})
	if err != nil {
		return nil, fmt.Errorf("making the watches: %w", err)
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making the client: %w", err)
	}
	return &Watcher{reader: reader, live: live, ofJobSets: ofJobSets}, nil
}

// Objects returns the objects in the cache. It is an error if Run has not been called.
func (w *Watcher) Objects(ctx context.Context) (Objects, error) { return w.objects(ctx, w.reader) }

func (w *Watcher) objects(ctx context.Context, reader client.Reader) (Objects, error) {
	var (
		trainJobs api.TrainJobList
		workloads kueue.WorkloadList
		jobSets   jobset.JobSetList
		jobs      batchv1.JobList
		pods      corev1.PodList
	)
	// Pods are read first, because quota is reserved before they are created.
	for _, list := range []client.ObjectList{&pods, &jobs, &jobSets, &workloads, &trainJobs} {
		var options []client.ListOption
		if list == &pods || list == &jobs {
			options = append(options, client.MatchingLabelsSelector{Selector: w.ofJobSets})
		}
		if err := reader.List(ctx, list, options...); err != nil {
			return Objects{}, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	return Objects{trainJobs.Items, workloads.Items, jobSets.Items, jobs.Items, pods.Items}, nil
}

// confirmed returns the findings that the API server confirms now. The others, all of them if it doesn't answer, must
// last again.
func (w *Watcher) confirmed(ctx context.Context, lasting *Lasting, findings []Finding) []Finding {
	if len(findings) == 0 {
		return nil
	}
	objects, err := w.objects(ctx, w.live)
	if err != nil {
		lasting.restart(findings)
		return nil
	}
	now := Look(objects)
	var confirmed, others []Finding
	for _, f := range findings {
		if slices.Contains(now, f) {
			confirmed = append(confirmed, f)
		} else {
			others = append(others, f)
		}
	}
	lasting.restart(others)
	return confirmed
}

// Run audits the cluster at an interval until the context ends or done returns true, and calls report for each finding
// that has lasted, once. After each audit it calls done, unless that is nil, with the number of audits and of findings
// that have not lasted yet. An error of the watches ends it.
func (w *Watcher) Run(ctx context.Context, interval time.Duration, lasting *Lasting, report func(Finding),
	done func(audits, pending int) bool) error {
	started := make(chan error, 1)
	go func() { started <- w.reader.Start(ctx) }()
	kinds := []client.Object{&corev1.Pod{}, &batchv1.Job{}, &jobset.JobSet{}, &kueue.Workload{}, &api.TrainJob{}}
	for _, o := range kinds {
		if _, err := w.reader.GetInformer(ctx, o); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	if !w.reader.WaitForCacheSync(ctx) {
		return context.Cause(ctx)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for audits := 1; ; {
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
			for _, f := range w.confirmed(ctx, lasting, lasting.Next(Look(objects), now)) {
				report(f)
			}
			if done != nil && done(audits, lasting.Pending()) {
				return nil
			}
			audits++
		}
	}
}
