package explain

import (
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	utilpriority "sigs.k8s.io/kueue/pkg/util/priority"
	utilqueue "sigs.k8s.io/kueue/pkg/util/queue"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// Facts is all that is known of a TrainJob. What the user may not read is nil.
type Facts struct {
	Now      time.Time
	Job      *api.TrainJob
	Workload *kueue.Workload
	JobSet   *jobset.JobSet
	// Pods are the TrainJob's own.
	Pods []corev1.Pod
	Beside
	// Queues are the queues and all Workloads; what the user may not read is missing from them.
	Queues *Queues
	// Decision is what a simulation says of the Workload; nil if there was none.
	Decision *simulate.Decision
	Read
	Health
}

// Beside is what there is beside a TrainJob and its pods.
type Beside struct {
	// Events are those of the TrainJob, its Workload, its JobSet, its Jobs and its pods.
	Events []corev1.Event
	// Dependencies are the TrainJobs that it runs after, each followed by those that it waits for itself.
	Dependencies []Dependency
}

// Dependency is a TrainJob that another runs after.
type Dependency struct {
	Name string `json:"name"`
	// Of is the TrainJob that runs after it.
	Of string `json:"of"`
	// When is how it has to end, and State its state; "Missing" if there is none of the name.
	When  after.When `json:"when"`
	State string     `json:"state"`
	// Depth is 0 for those that the TrainJob itself runs after.
	Depth int `json:"depth"`
}

// Read is what the user may read.
type Read struct {
	// QueuesRead and ClusterQueuesRead are set if LocalQueues and ClusterQueues were read, OwnRead and OthersRead if the
	// Workloads of the TrainJob's namespace and of all others were.
	QueuesRead, ClusterQueuesRead, OwnRead, OthersRead bool
	// Assumed is set if the simulation had to assume something, such as the labels of flavors: then Kueue's own message
	// counts more.
	Assumed bool
	// Missing are the rights that the user lacks, such as "list clusterqueues.kueue.x-k8s.io".
	Missing []string
}

// Health is what is known of the controllers.
type Health struct {
	// KueueSeen is when Kueue's leader has last renewed its Lease; nil if that isn't known.
	KueueSeen *time.Time
	// WebhookDown is a webhook for TrainJobs that doesn't answer; "" if all do, or if that isn't known.
	WebhookDown string
}

// queueName returns the name of the TrainJob's LocalQueue; "" if it is in none.
func (f *Facts) queueName() string {
	if f.Workload != nil && f.Workload.Spec.QueueName != "" {
		return string(f.Workload.Spec.QueueName)
	}
	return f.Job.Labels[constants.QueueLabel]
}

// localQueue returns the TrainJob's LocalQueue; nil if there is none.
func (f *Facts) localQueue() *kueue.LocalQueue {
	return f.Queues.locals[utilqueue.NewLocalQueueReference(f.Job.Namespace, kueue.LocalQueueName(f.queueName()))]
}

// clusterQueueName returns the ClusterQueue that holds the TrainJob's quota, or else that it waits in; "" if it isn't
// known. A LocalQueue may lead to another one meanwhile.
func (f *Facts) clusterQueueName() string {
	if f.Workload != nil && f.Workload.Status.Admission != nil {
		return string(f.Workload.Status.Admission.ClusterQueue)
	}
	if lq := f.localQueue(); lq != nil {
		return string(lq.Spec.ClusterQueue)
	}
	return ""
}

// clusterQueue returns the TrainJob's ClusterQueue; nil if it isn't known.
func (f *Facts) clusterQueue() *kueue.ClusterQueue { return f.Queues.clusters[f.clusterQueueName()] }

// condition returns a condition of the Workload; nil if there is none.
func (f *Facts) condition(name string) *metav1.Condition {
	if f.Workload == nil {
		return nil
	}
	return apimeta.FindStatusCondition(f.Workload.Status.Conditions, name)
}

func (f *Facts) is(name string) bool { return isTrue(f.condition(name)) }

func isTrue(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }

// State returns the TrainJob's state. Kubeflow Trainer's CRD has none: it follows from the Workload then.
func (f *Facts) State() api.TrainJobState {
	if f.Job.Status.State != "" {
		return f.Job.Status.State
	}
	status := f.Job.Status.TrainJobStatus.DeepCopy()
	if f.suspended() { // a new one has no condition yet
		apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: trainerapi.TrainJobSuspended,
			Status: metav1.ConditionTrue, Reason: trainerapi.TrainJobSuspendedReason})
	}
	for _, name := range []string{api.ConditionQuotaReserved, api.ConditionAdmitted} {
		if c := f.condition(name); c != nil {
			apimeta.SetStatusCondition(&status.Conditions, *c)
		} else if name == api.ConditionQuotaReserved && f.Workload != nil {
			apimeta.SetStatusCondition(&status.Conditions,
				metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: "Pending"})
		}
	}
	return api.StateOf(status)
}

func (f *Facts) suspended() bool { return ptr.Deref(f.Job.Spec.Suspend, false) }

// Waiting is a Workload that waits in the same ClusterQueue.
type Waiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Priority  int32     `json:"priority"`
	Since     time.Time `json:"since"`
}

// Position returns the TrainJob's place in its ClusterQueue, from 1, and how many wait there; 0 if it isn't known.
func (f *Facts) Position() (place, waiting int) {
	lq := f.localQueue()
	if !f.OthersRead || f.Workload == nil || lq == nil {
		return 0, 0
	}
	line := f.Queues.lines[string(lq.Spec.ClusterQueue)]
	if at, waits := f.Queues.places[f.Workload.UID]; waits {
		return at + 1, len(line)
	}
	return 0, 0
}

// ahead returns the first Workloads that Kueue considers before the TrainJob's.
func (f *Facts) ahead(most int) []Waiting {
	place, _ := f.Position()
	if place < 2 {
		return nil
	}
	var ahead []Waiting
	by := f.Queues.Ordering()
	for _, wl := range f.Queues.lines[string(f.localQueue().Spec.ClusterQueue)][:min(most, place-1)] {
		ahead = append(ahead, Waiting{wl.Namespace, simulate.Owner(wl), utilpriority.Priority(wl),
			by.GetQueueOrderTimestamp(wl).Time})
	}
	return ahead
}
