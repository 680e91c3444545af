package integration

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// The ways in which TrainJobs are started.
const (
	oneWrite  = "one-write"
	twoWrites = "two-writes"
)

// seconds are the buckets of what takes moments on a good day and hours on a bad one.
var seconds = []float64{0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

var (
	starts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_trainjob_starts_total",
		Help: "Starts of TrainJobs. Label way is one-write (one write sets the entry and clears suspend) or two-writes " +
			"(Kubeflow Trainer before v2.2.1). Label field is the field of the spec that has the entry. Label result is " +
			"started, conflict (the TrainJob had changed; the start is decided again), " +
			"refused (by the API server or a webhook) or failed.",
	}, []string{"way", "field", "result"})
	admissionToStart = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "signalbox_admission_to_start_seconds",
		Help: "Seconds from the admission of a TrainJob's Workload, or from when the last of its pods had ended if it is " +
			"started again, to the write that starts the TrainJob. Kueue records the time of admissions in whole seconds.",
		Buckets: seconds,
	})
	startToReady = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "signalbox_start_to_pods_ready_seconds",
		Help: "Seconds from the write that starts a TrainJob until all of its pods have been ready or have succeeded. " +
			"TrainJobs that were started before this process don't count.",
		Buckets: seconds,
	})
	entryConflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_entry_conflicts_total",
		Help: "TrainJobs that were not started because another entry of their overrides conflicts with the admission. " +
			"Their event names both.",
	})
	evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_trainjob_evictions_total",
		Help: "TrainJobs that were stopped. reason: Kueue's reason of the Workload's eviction, or StoppedByUser, " +
			"WorkloadDeleted, NoMatchingWorkload or NotAdmitted.",
	}, []string{"reason"})
	endsNotWritten = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_trainjob_ends_not_written_total",
		Help: "TrainJobs whose JobSet had ended a minute before, and whose Trainer had not written that into the status. " +
			"Their quota was released. Event EndNotWritten names them.",
	})
	snapshotsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "signalbox_runtime_snapshots_dropped_total",
		Help: "Kubeflow Trainer's snapshots of runtimes that were deleted because the runtime was edited before the " +
			"TrainJob first ran.",
	})
)

func init() {
	metrics.Registry.MustRegister(
		starts, admissionToStart, startToReady, entryConflicts, evictions, endsNotWritten, snapshotsDropped)
	// A rate sees the first of a kind only where there was a zero before.
	for _, reason := range []string{
		kueue.WorkloadEvictedByPreemption, kueue.WorkloadEvictedByPodsReadyTimeout,
		kueue.WorkloadEvictedByAdmissionCheck, kueue.WorkloadEvictedByClusterQueueStopped,
		kueue.WorkloadEvictedByLocalQueueStopped, kueue.WorkloadEvictedDueToNodeFailures, kueue.WorkloadDeactivated,
	} {
		evictions.WithLabelValues(reason)
	}
}

// countFromZero creates the counters of a Trainer's starts, so that a rate sees the first of each.
func countFromZero(ways []string, spec string) {
	for _, way := range ways {
		for _, result := range []string{"started", "conflict", "refused", "failed"} {
			starts.WithLabelValues(way, spec, result)
		}
	}
}

func resultOf(err error) string {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil:
		return "started"
	case apierrors.IsConflict(err):
		return "conflict"
	case errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500:
		return "refused"
	}
	return "failed"
}

// evictionOf returns the reason of an eviction in Kueue's terms; jobframework puts its own before it.
func evictionOf(reason jobframework.StopReason) string {
	return strings.TrimPrefix(string(reason), string(jobframework.StopReasonWorkloadEvicted)+"DueTo")
}

// overduePods counts pods that run on after their grace period when it is asked.
type overduePods struct {
	client client.Reader
	clock  clock.PassiveClock
}

var podsOverdue = prometheus.NewDesc("signalbox_pods_overdue",
	"Pods of JobSets that still run 30 seconds after their grace period. Those of TrainJobs hold quota until they have "+
		"ended.",
	nil, nil)

func (o overduePods) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- podsOverdue }

func (o overduePods) Collect(out chan<- prometheus.Metric) {
	var pods corev1.PodList
	if err := listed(o.client, &pods); err != nil {
		out <- prometheus.NewInvalidMetric(podsOverdue, err)
		return
	}
	n := 0
	for i := range pods.Items {
		if overdue(&pods.Items[i], o.clock.Now()) >= 0 && !store.PodEnded(&pods.Items[i]) {
			n++
		}
	}
	out <- prometheus.MustNewConstMetric(podsOverdue, prometheus.GaugeValue, float64(n))
}

// countedJobs counts TrainJobs when it is asked: those that can't be queued, and those in each of the states.
type countedJobs struct {
	client client.Reader
	states []api.TrainJobState
}

var (
	jobsBlocked = prometheus.NewDesc("signalbox_trainjobs_blocked",
		"TrainJobs that can't be queued. reason: that of their condition Blocked.", []string{"reason"}, nil)
	trainJobs = prometheus.NewDesc("signalbox_trainjobs",
		"TrainJobs by their state, as kubectl get trainjob shows it; with the bundled Trainer only, whose status has it.",
		[]string{"state"}, nil)
)

func (c countedJobs) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- jobsBlocked
	descriptions <- trainJobs
}

func (c countedJobs) Collect(out chan<- prometheus.Metric) {
	var jobs api.TrainJobList
	if err := listed(c.client, &jobs); err != nil {
		out <- prometheus.NewInvalidMetric(jobsBlocked, err)
		return
	}
	n := map[string]int{ReasonStopRejected: 0, ReasonStartRejected: 0, ReasonLastRunKept: 0, ReasonWorkloadKept: 0}
	states := map[api.TrainJobState]int{}
	for i := range jobs.Items {
		job := &jobs.Items[i]
		states[api.StateOf(&job.Status.TrainJobStatus)]++
		if blocked := blockedCondition(job); blocked != nil {
			n[blocked.Reason]++
		}
	}
	for reason, jobs := range n {
		out <- prometheus.MustNewConstMetric(jobsBlocked, prometheus.GaugeValue, float64(jobs), reason)
	}
	for _, state := range c.states {
		out <- prometheus.MustNewConstMetric(trainJobs, prometheus.GaugeValue, float64(states[state]), string(state))
	}
}

// listed lists from the cache what is to be counted.
func listed(cached client.Reader, list client.ObjectList) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return cached.List(ctx, list, client.UnsafeDisableDeepCopy)
}

// collect serves what is counted when it is asked for, for as long as this process leads.
func collect(mgr ctrl.Manager, collector prometheus.Collector) error {
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if err := metrics.Registry.Register(collector); err != nil {
			return err
		}
		<-ctx.Done()
		metrics.Registry.Unregister(collector)
		return nil
	}))
}
