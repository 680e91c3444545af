package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/simulate"
)

// Facts is all that is known of a TrainJob. What the user may not read is nil.
type Facts struct {
	Now      time.Time
	Job      *api.TrainJob
	Workload *kueue.Workload
	JobSet   *jobset.JobSet
	// Pods are the TrainJob's own.
	Pods []corev1.Pod
	// Events are those of the TrainJob, its Workload, its JobSet and its pods.
	Events []corev1.Event
	// Cluster has the queues and the other Workloads; what the user may not read is missing from it.
	Cluster simulate.Cluster
	Read
	Health
}

// Read is what the user may read.
type Read struct {
	// QueuesRead and ClusterQueuesRead are set if LocalQueues and ClusterQueues were read, OwnRead and OthersRead if the
	// Workloads of the TrainJob's namespace and of all others were.
	QueuesRead, ClusterQueuesRead, OwnRead, OthersRead bool
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
	for i := range f.Cluster.LocalQueues {
		if lq := &f.Cluster.LocalQueues[i]; lq.Namespace == f.Job.Namespace && lq.Name == f.queueName() {
			return lq
		}
	}
	return nil
}

// clusterQueue returns the TrainJob's ClusterQueue; nil if it isn't known.
func (f *Facts) clusterQueue() *kueue.ClusterQueue {
	lq := f.localQueue()
	if lq == nil {
		return nil
	}
	return clusterQueueNamed(&f.Cluster, string(lq.Spec.ClusterQueue))
}

func clusterQueueNamed(c *simulate.Cluster, name string) *kueue.ClusterQueue {
	for i := range c.ClusterQueues {
		if c.ClusterQueues[i].Name == name {
			return &c.ClusterQueues[i]
		}
	}
	return nil
}

// condition returns a condition of the Workload; nil if there is none.
func (f *Facts) condition(name string) *metav1.Condition {
	if f.Workload == nil {
		return nil
	}
	return apimeta.FindStatusCondition(f.Workload.Status.Conditions, name)
}

func (f *Facts) is(name string) bool {
	c := f.condition(name)
	return c != nil && c.Status == metav1.ConditionTrue
}

// state returns the TrainJob's state. Kubeflow Trainer's CRD has none: it follows from the Workload then.
func (f *Facts) state() api.TrainJobState {
	if f.Job.Status.State != "" {
		return f.Job.Status.State
	}
	status := f.Job.Status.TrainJobStatus.DeepCopy()
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

// State returns the state of a TrainJob by the facts that are known of it.
func (f *Facts) State() api.TrainJobState { return f.state() }

// Position returns the TrainJob's place in its ClusterQueue, from 1, and how many wait there; 0 if it isn't known.
func (f *Facts) Position() (place, waiting int) {
	if !f.OthersRead || f.Workload == nil || f.is(kueue.WorkloadQuotaReserved) {
		return 0, 0
	}
	ahead := f.ahead()
	return len(ahead) + 1, len(ahead) + 1 + len(f.behind())
}
