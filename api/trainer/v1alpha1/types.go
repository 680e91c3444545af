// Package v1alpha1 is the API of the bundled Trainer: group trainer.kubeflow.org, a superset of Kubeflow Trainer
// v2.3.0's. Kubeflow Trainer's own Go types are embedded, so that any manifest and any client made for it works
// unchanged; what is declared here is only what is added. The CRDs in config/crd are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=trainer.kubeflow.org
package v1alpha1

import (
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// TrainJob represents configuration of a training job.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Queue",type=string,JSONPath=`.metadata.labels.kueue\.x-k8s\.io/queue-name`
// +kubebuilder:printcolumn:name="Flavor",type=string,JSONPath=`.status.flavor`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`,priority=1
// +kubebuilder:printcolumn:name="Checkpoint",type=date,JSONPath=`.status.checkpoint.time`,priority=1
// +kubebuilder:printcolumn:name="Stalled",type=string,JSONPath=`.status.queue.conditions[?(@.type=="Stalled")].status`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", message="metadata.name must match RFC 1035 DNS label format"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63", message="metadata.name must be no more than 63 characters"
type TrainJob struct {
	metav1.TypeMeta `json:",inline"`

	// metadata of the TrainJob.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the TrainJob.
	// +optional
	Spec TrainJobSpec `json:"spec,omitzero"`

	// status of TrainJob.
	// +optional
	Status TrainJobStatus `json:"status,omitzero"`
}

// Upstream returns the TrainJob as Kubeflow Trainer's type. The two share maps, slices and pointers: a change of one
// changes the other.
func (j *TrainJob) Upstream() *trainerapi.TrainJob {
	return &trainerapi.TrainJob{
		TypeMeta: j.TypeMeta, ObjectMeta: j.ObjectMeta, Spec: j.Spec.TrainJobSpec, Status: j.Status.TrainJobStatus,
	}
}

// TrainJobStatus represents the current status of TrainJob.
type TrainJobStatus struct {
	trainerapi.TrainJobStatus `json:",inline"`

	// state sums the conditions up in one word.
	// +optional
	State TrainJobState `json:"state,omitempty"`

	// flavor is the ResourceFlavor that the TrainJob is admitted on; the names of several are joined by commas.
	// +optional
	Flavor string `json:"flavor,omitempty"`

	// nodes is the number of nodes of a partially admitted TrainJob, such as "8 of 16". It is empty for others.
	// +optional
	Nodes string `json:"nodes,omitempty"`

	// startTime is when a TrainJob that was suspended last started; activeDeadlineSeconds counts from it. It is empty
	// while the TrainJob is suspended.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// queue is what Kueue and the gangs say about the TrainJob. While the TrainJob runs, it is the only place for these
	// conditions: clients that know Kubeflow Trainer take any entry in status.conditions for "not running".
	// +optional
	Queue *QueueStatus `json:"queue,omitempty"`

	// initializers are hashes of what the finished initializers were when they ran, by the names of their ReplicatedJobs.
	// One that is something else now, and what waits for it, runs again at the next start.
	// +optional
	Initializers map[string]string `json:"initializers,omitempty"`

	// lost is about pods that were lost with their nodes, and about restarts.
	// +optional
	Lost *Loss `json:"lost,omitempty"`

	// checkpoint is what the training process has last reported as saved. It is empty for one that reports none.
	// +optional
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`

	// usage is what the TrainJob has held of quota, by runs that have ended. It is empty if usage isn't recorded.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// avoided are nodes on which pods of the TrainJob were lost, didn't start, or failed at once. It keeps off them for
	// nodes.avoidFor of the configuration, which is off by default.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Avoided []AvoidedNode `json:"avoided,omitempty"`
}

// Usage is what a TrainJob has held of quota. A run is one time that it holds quota.
type Usage struct {
	// runs is how often it has held quota.
	Runs int64 `json:"runs"`

	// run is the last run: the UID of its Workload, and when its quota was reserved.
	Run string `json:"run"`

	// until is up to when the last run is counted.
	Until metav1.MicroTime `json:"until"`

	// resources are in thousandths of a unit and a second: of GPUs and cores, or of GiB.
	// +listType=atomic
	// +optional
	Resources []UsedResource `json:"resources,omitempty"`
}

// UsedResource is what was held of a resource.
type UsedResource struct {
	// resource, such as nvidia.com/gpu.
	Resource string `json:"resource"`

	usageapi.Held `json:",inline"`
}

// AvoidedNode is a node that a TrainJob keeps off.
type AvoidedNode struct {
	// name of the node.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// reason is Lost, Rejected, NotStarted, NotStartedAlone or FailedEarly.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// message is the reason of the pod: ImagePullBackOff for example.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Message string `json:"message,omitempty"`

	// pod is the last one for which the node is remembered.
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`

	// time is when Signalbox saw that.
	Time metav1.Time `json:"time"`
}

// Checkpoint is work that a training process has saved.
type Checkpoint struct {
	// time is when Signalbox saw that the value had changed.
	Time metav1.Time `json:"time"`

	// value of the metric that annotation signalbox.dev/checkpoint-metric names, the last saved step for example.
	// +kubebuilder:validation:MaxLength=64
	Value string `json:"value"`
}

// QueueStatus is what Kueue and the gangs say about a TrainJob.
type QueueStatus struct {
	// conditions are QuotaReserved, Admitted and Evicted, with the reasons and messages of the TrainJob's Workload, and
	// GangScheduled and Stalled.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Loss says which run of a TrainJob has lost pods with their nodes, or has stalled and is restarted, and how often the
// TrainJob was restarted for either.
type Loss struct {
	// jobSet is the UID of the JobSet whose pods were lost last.
	JobSet types.UID `json:"jobSet"`

	// pod is the first that it has lost; "" if it has stalled.
	Pod string `json:"pod"`

	// restarts is how often the TrainJob was restarted after a loss or a stall.
	Restarts int32 `json:"restarts"`

	// restarting is set if the JobSet has failed or stalled and the TrainJob is restarted. It isn't omitted where it is
	// false: status is written by merge patches, which would leave it as it was. +optional
	Restarting bool `json:"restarting"`
}

const (
	// StopAnnotation on a TrainJob, with any value, stops it: its pods end, its quota is released, and its Workload is
	// on hold until the annotation is removed. It is for users who may change TrainJobs and not Workloads.
	StopAnnotation = "signalbox.dev/stop"
	// DeactivateAnnotation on a Workload names the user who deactivates it. Signalbox stops its TrainJob, and sets
	// spec.active to false when the last of its pods has ended. If the annotation is removed, the TrainJob starts again.
	DeactivateAnnotation = "signalbox.dev/deactivate"
	// RestartsAnnotation on a TrainJob limits how often it is restarted: after its JobSet has failed and pods were lost
	// with their nodes, after it has stalled, and for a node that it then keeps off. It is a whole number, 0 for never.
	// Other failures don't count. Default DefaultRestarts.
	RestartsAnnotation = "signalbox.dev/restarts-after-loss"
	// DefaultRestarts is the default of RestartsAnnotation.
	DefaultRestarts = 3
	// UserAnnotation on a TrainJob is the user who created it, as Signalbox's webhook writes it if usage.enabled is set.
	// What users write there themselves doesn't count.
	UserAnnotation = "signalbox.dev/user"
	// CheckpointMetricAnnotation on a TrainJob, or on its runtime, names the metric (status.trainerStatus.metrics) that
	// says what the training process has saved. When its value changes, status.checkpoint has it. Default none.
	CheckpointMetricAnnotation = "signalbox.dev/checkpoint-metric"
	// CheckpointWithinAnnotation on a TrainJob is for how long it runs on after a preemption until its next checkpoint, at
	// most preemption.checkpointWithin: a duration such as 90s; 0s stops it at once. Default preemption.checkpointWithin.
	CheckpointWithinAnnotation = "signalbox.dev/checkpoint-within"
	// StalledAfterAnnotation on a TrainJob, or on its runtime, is for how long a running TrainJob may report nothing: a
	// duration from 1m to 168h, then condition Stalled is True. With ",stop" or ",restart" after it, as in 30m,restart,
	// the TrainJob is stopped or restarted then. It needs trainer.progress. Default none.
	StalledAfterAnnotation = "signalbox.dev/stalled-after"
	// TTLAnnotation on a TrainJob, or on its runtime, is after how many seconds from its end the TrainJob is deleted, 0 or
	// more; with ",failed=" and another number after it, as in 3600,failed=86400, a failed one is deleted after that.
	// Default none: it stays.
	TTLAnnotation = "signalbox.dev/ttl-seconds-after-finished"
	// AfterAnnotation on a TrainJob names others of its namespace, each with how it has to end before the TrainJob is
	// admitted: ok, failed or any, as in prepare=ok,warmup=any. It is set on creation and doesn't change; it needs a queue,
	// and Kueue's feature gate AdmissionGatedBy. Default none.
	AfterAnnotation = "signalbox.dev/after"
	// AfterEndedAnnotation on a TrainJob is how those have ended that it runs after, as Signalbox notes it.
	AfterEndedAnnotation = "signalbox.dev/after-ended"
	// SweepLabel on a TrainJob is the sweep that it is one of, as kubectl signalbox sweep writes it.
	SweepLabel = "signalbox.dev/sweep"
	// SweepValuesAnnotation on a TrainJob of a sweep has its values, such as lr=1e-3,seed=1.
	SweepValuesAnnotation = "signalbox.dev/sweep-values"
	// AvoidedTaint is the key of the taint of a node that TrainJobs of several namespaces avoid, if nodes.taint of the
	// configuration is true.
	AvoidedTaint = "signalbox.dev/avoided"

	// GrowAnnotation "true" on a TrainJob lets it grow while it runs: one that was admitted with fewer nodes than it asks
	// for (kueue.x-k8s.io/job-min-parallelism) is restarted with more when its ClusterQueue has room. It needs grow.enabled.
	// Default false.
	GrowAnnotation = "signalbox.dev/grow"
	// MaxCheckpointWithin bounds preemption.checkpointWithin, as limits.terminationGracePeriodSeconds is bounded by
	// default: a victim keeps its quota meanwhile.
	MaxCheckpointWithin = time.Hour
)

// TrainJobState sums the conditions of a TrainJob up in one word.
//
// +kubebuilder:validation:Enum=Suspended;Queued;QuotaReserved;Admitted;Blocked;Starting;Running;Stopping;Complete;Failed
type TrainJobState string

// The states of a TrainJob.
const (
	// StateSuspended: the user has suspended the TrainJob, and it has no queue.
	StateSuspended TrainJobState = "Suspended"
	// StateQueued: the TrainJob waits for quota. Condition QuotaReserved has Kueue's reason.
	StateQueued TrainJobState = "Queued"
	// StateQuotaReserved: the TrainJob has quota and waits for admission checks. Condition Admitted has the reason.
	StateQuotaReserved TrainJobState = "QuotaReserved"
	// StateAdmitted: the TrainJob is about to start.
	StateAdmitted TrainJobState = "Admitted"
	// StateBlocked: the TrainJob can't be queued, or was started and can't go on. Condition Blocked has the reason.
	StateBlocked TrainJobState = "Blocked"
	// StateStarting: the TrainJob was started, and none of its ReplicatedJobs is ready.
	StateStarting TrainJobState = "Starting"
	// StateRunning: the pods of a ReplicatedJob are ready.
	StateRunning TrainJobState = "Running"
	// StateStopping: the TrainJob was evicted or suspended, and not all of its pods have ended.
	StateStopping TrainJobState = "Stopping"
	// StateComplete: the TrainJob has succeeded.
	StateComplete TrainJobState = "Complete"
	// StateFailed: the TrainJob has failed, and never runs again.
	StateFailed TrainJobState = "Failed"
)

// States are all states, in the order in which a TrainJob passes through them.
var States = []TrainJobState{
	StateSuspended, StateBlocked, StateQueued, StateQuotaReserved, StateAdmitted,
	StateStarting, StateRunning, StateStopping, StateComplete, StateFailed,
}

// TrainJobList is a collection of training jobs.
//
// +kubebuilder:object:root=true
type TrainJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TrainJob `json:"items"`
}

// TrainingRuntime represents a training runtime which can be referenced as part of TrainJob in the same namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
type TrainingRuntime struct {
	metav1.TypeMeta `json:",inline"`

	// metadata of the TrainingRuntime.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the TrainingRuntime.
	// +optional
	Spec trainerapi.TrainingRuntimeSpec `json:"spec,omitempty,omitzero"`
}

// TrainingRuntimeList is a collection of training runtimes.
//
// +kubebuilder:object:root=true
type TrainingRuntimeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TrainingRuntime `json:"items"`
}

// ClusterTrainingRuntime represents a training runtime which can be referenced as part of TrainJob from any namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:storageversion
type ClusterTrainingRuntime struct {
	metav1.TypeMeta `json:",inline"`

	// metadata of the ClusterTrainingRuntime.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec of the ClusterTrainingRuntime.
	// +optional
	Spec trainerapi.TrainingRuntimeSpec `json:"spec,omitempty,omitzero"`
}

// ClusterTrainingRuntimeList is a collection of cluster training runtimes.
//
// +kubebuilder:object:root=true
type ClusterTrainingRuntimeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterTrainingRuntime `json:"items"`
}
