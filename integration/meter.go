package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/store"
	"github.com/signalbox-dev/signalbox/store/ledger"
)

// meter records what the Workloads of TrainJobs held quota for. It is nil where nobody asks for that.
type meter struct {
	cache, live client.Reader
	ledger      *ledger.Ledger
	clock       clock.PassiveClock
	writer      *store.Writer

	// saved is what TrainJobs that run have saved, by the UIDs of their Workloads: a TrainJob that is deleted may be gone
	// before its pods have ended. Without it, that is unknown.
	saved *lru.Cache
	// accounted is which version of a Workload was accounted last, and when: the cache may not have its release yet.
	accounted *lru.Cache
	// untold is since when a run can't be told to its TrainJob.
	untold *lru.Cache
	// parted is the attempt before which what a Workload has held was accounted last.
	parted *lru.Cache
}

// accountedAt is when a version of a Workload was accounted.
type accountedAt struct {
	version string
	at      time.Time
}

// accountAgain is after how long the same version of a Workload is accounted again, because it wasn't released.
const accountAgain = time.Second

// savedOf is of how many TrainJobs it is kept.
const savedOf = 8192

func newMeter(cache, live client.Reader, kept *store.Store, clk clock.PassiveClock) *meter {
	if kept.Ledger == nil {
		return nil
	}
	return &meter{cache: cache, live: live, ledger: kept.Ledger, clock: clk, writer: kept.Writer,
		saved: lru.New(savedOf), accounted: lru.New(savedOf), parted: lru.New(savedOf),
		untold: lru.New(savedOf)}
}

// saw remembers what a TrainJob has saved, one of whose Workloads may hold quota.
func (m *meter) saw(job *api.TrainJob, workloads []*kueue.Workload) {
	holder := holderOf(workloads)
	if m != nil && holder != nil && job.Status.Checkpoint != nil {
		m.saved.Add(holder.UID, job.Status.Checkpoint)
	}
}

// noteOf returns whose a TrainJob is.
func (m *meter) noteOf(job *api.TrainJob) usage.Note {
	n := usage.Note{User: usage.Fitting(job.Annotations[api.UserAnnotation], usage.MaxText)}
	if m.ledger.TeamLabel != "" {
		n.Team = job.Labels[m.ledger.TeamLabel]
	}
	return n
}

// sign has a new Workload of a TrainJob say whose it is.
func (m *meter) sign(ctx context.Context, wl *kueue.Workload) error {
	job, err := m.trainJobOf(ctx, wl)
	if err != nil || job == nil || managed.Elsewhere(job) {
		return err
	}
	metav1.SetMetaDataAnnotation(&wl.ObjectMeta, usage.Annotation, m.noteOf(job).String())
	return nil
}

// trainJobOf returns the TrainJob that controls a Workload; nil if it is gone, or if nothing of that kind controls it.
func (m *meter) trainJobOf(ctx context.Context, wl *kueue.Workload) (*api.TrainJob, error) {
	owner := metav1.GetControllerOfNoCopy(wl)
	if !managed.IsTrainJob(owner) {
		return nil, nil
	}
	job := &api.TrainJob{}
	err := m.cache.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: owner.Name}, job)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the TrainJob of Workload %s: %w", wl.Name, err)
	}
	if err != nil || job.UID != owner.UID {
		return nil, nil
	}
	return job, nil
}

// before records what a Workload has held before it is written, if it loses quota by that.
func (m *meter) before(ctx context.Context, o client.Object, loses func(*kueue.Workload) bool) error {
	if wl, is := o.(*kueue.Workload); is && loses(wl) {
		return ofRecord(m.account(ctx, wl))
	}
	return nil
}

// ofRecord returns an error whose kind is nobody's: that a record, its kind or its namespace isn't found isn't to be
// taken for a Workload that isn't. It is tried again.
func ofRecord(err error) error {
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsConflict(err) {
		return err
	}
	return errors.New(err.Error())
}

// account records what a Workload has held until now, if it holds quota, or until another one has replaced it. sent is
// what is about to be written, by which it may lose it. What is recorded twice, or goes on to hold quota, counts once.
func (m *meter) account(ctx context.Context, sent *kueue.Workload) error {
	wl, err := m.stored(ctx, sent)
	if err != nil || wl == nil || usage.Reserved(wl).IsZero() || !managed.IsTrainJob(metav1.GetControllerOfNoCopy(wl)) {
		return err
	}
	now := m.clock.Now()
	if last, known := m.accounted.Get(wl.UID); known && last.(accountedAt).version == wl.ResourceVersion &&
		now.Sub(last.(accountedAt).at) < accountAgain {
		return nil
	}
	job, err := m.trainJobOf(ctx, wl)
	if err != nil || countedElsewhere(job, wl) {
		return err
	}
	run := m.runOf(job, wl, sent, now)
	if run == nil {
		return nil
	}
	if err := m.ledger.Add(ctx, run, m.holding(ctx, wl.Namespace)); err != nil {
		return err
	}
	if err := m.tell(ctx, job, run); err != nil {
		return err
	}
	m.accounted.Add(wl.UID, accountedAt{wl.ResourceVersion, now})
	return nil
}

// runOf returns the present run of a Workload until now; nil if it holds no quota. It is of the team whose the TrainJob
// was when the run began: users may change the label at the end.
func (m *meter) runOf(job *api.TrainJob, wl, sent *kueue.Workload, now time.Time) *usage.Run {
	run := usage.RunOf(wl, m.facts(job, wl, sent), now)
	if run != nil && job != nil {
		note := m.noteOf(job)
		run.Team, run.User = cmp.Or(run.Team, note.Team), note.User
	}
	return run
}

// part records what a run has held before its pods were made again, once for each attempt, even if that can't be noted:
// what it saves later doesn't make useful what was lost.
func (m *meter) part(ctx context.Context, wl *kueue.Workload, attempt string) error {
	if last, known := m.parted.Get(wl.UID); known && last == attempt {
		return nil
	}
	if err := m.account(ctx, wl); err != nil {
		return err
	}
	m.parted.Add(wl.UID, attempt)
	m.accounted.Remove(wl.UID) // it isn't released
	return nil
}

// tellFor is for how long a run that can't be told to its TrainJob holds its quota.
const tellFor = time.Minute

// tell adds a run to the status of its TrainJob, unless that is gone. That it is rejected, or fails for long, changes
// nothing of what happens.
func (m *meter) tell(ctx context.Context, job *api.TrainJob, run *usage.Run) error {
	if job == nil {
		return nil
	}
	used := usage.Count(job.Status.Usage, run)
	if equality.Semantic.DeepEqual(used, job.Status.Usage) {
		return nil
	}
	err := client.IgnoreNotFound(m.writer.Usage(ctx, job, used))
	if err == nil {
		m.untold.Remove(run.Key)
		return nil
	}
	since, known := m.untold.Get(run.Key)
	if !known {
		since = run.Until
		m.untold.Add(run.Key, since)
	}
	if store.Rejected(err) || run.Until.Sub(since.(time.Time)) >= tellFor {
		ctrl.LoggerFrom(ctx).Info("What a TrainJob has used can't be written into its status", "reason", err.Error())
		return nil
	}
	return err
}

// stored returns a Workload before it is written; nil if it is gone.
func (m *meter) stored(ctx context.Context, sent *kueue.Workload) (*kueue.Workload, error) {
	for _, from := range []client.Reader{m.cache, m.live} { // it may be younger than the cache
		wl := &kueue.Workload{}
		err := from.Get(ctx, client.ObjectKeyFromObject(sent), wl)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading Workload %s: %w", sent.Name, err)
		}
		if err == nil {
			return wl, nil
		}
	}
	return nil, nil
}

// countedElsewhere reports whether another cluster counts what a Workload holds, because the TrainJob runs there.
func countedElsewhere(job *api.TrainJob, wl *kueue.Workload) bool {
	if job != nil {
		return managed.Elsewhere(job)
	}
	return wl.Status.ClusterName != nil || len(wl.Status.NominatedClusterNames) > 0
}

// facts returns what is known of a run beside its Workload. job is nil for a TrainJob that is gone.
func (m *meter) facts(job *api.TrainJob, wl, sent *kueue.Workload) (f usage.Facts) {
	var saved *api.Checkpoint
	if seen, known := m.saved.Get(wl.UID); known {
		saved = seen.(*api.Checkpoint)
	}
	c := apimeta.FindStatusCondition(sent.Status.Conditions, kueue.WorkloadFinished)
	f.Succeeded = c != nil && c.Status == metav1.ConditionTrue && c.Reason == kueue.WorkloadFinishedReasonSucceeded
	if job != nil {
		saved = cmp.Or(job.Status.Checkpoint, saved)
		// The other pods of one that has failed may run on for a while.
		if end := endOf(job); end != nil && end.Type == trainerapi.TrainJobComplete {
			f.Succeeded, f.Ended = true, end.LastTransitionTime.Time
		}
	}
	if saved != nil {
		f.Reports, f.Saved = true, saved.Time.Time
	}
	return f
}

// holding returns what looks up the runs of a namespace that hold quota; nil if that isn't known.
func (m *meter) holding(ctx context.Context, namespace string) func() sets.Set[string] {
	ctx = context.WithoutCancel(ctx)
	return func() sets.Set[string] {
		held := sets.New[string]()
		var list kueue.WorkloadList
		if err := m.cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil
		}
		for i := range list.Items {
			if podsets.HoldsQuota(&list.Items[i]) {
				held.Insert(usage.Key(&list.Items[i]))
			}
		}
		return held
	}
}
