package integration

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/admission/after"
	"github.com/signalbox-dev/signalbox/admission/boost"
	"github.com/signalbox-dev/signalbox/admission/usage"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/store/events"
)

// step is one thing that a reconcile does: one of the types below. Steps are values, so that decisions can be compared
// in tests; how each is done is in act.go and act_workload.go.
type step any

// start starts the TrainJob on what its Workload was admitted for.
type start struct {
	start    *admission.Start
	workload *kueue.Workload
	message  string // jobframework's, about the admission
	events   []events.Event
}

// suspend stops the TrainJob, and changes nothing else.
type suspend struct {
	reason   string // for the log
	eviction string // for the metric of evictions; "" if it isn't one
}

// stop is a suspend that jobframework has asked for.
type stop struct {
	suspend
	event *events.Event // nil for none
}

// announce says until when a preempted TrainJob runs on, to those who wait for its quota and to its users, or that it
// doesn't any more.
type announce struct {
	workload *kueue.Workload
	until    time.Time // zero if it is stopped
	saved    string    // before
}

// noteBegin notes when the pods of a run began, or that they were made again, on its Workload: what is recorded of it
// depends on that.
type noteBegin struct {
	workload *kueue.Workload
	note     usage.Note
}

// setBoost writes the boost of a Workload whose TrainJob runs or starts.
type setBoost struct {
	workload *kueue.Workload
	mark     boost.Mark
}

// unboost takes the boost from a Workload, if it is still Signalbox's.
type unboost struct{ workload *kueue.Workload }

// createSlice creates the Workload by which a TrainJob grows.
type createSlice struct{ slice *kueue.Workload }

// withdraw deletes a Workload that doesn't stand for its TrainJob, unless Kueue has admitted it meanwhile.
type withdraw struct{ workload *kueue.Workload }

// finalize gives a slice back the finalizer that keeps its quota.
type finalize struct{ workload *kueue.Workload }

// failStart reports a start that has failed for good.
type failStart struct{ event events.Event }

// tell sends an event.
type tell struct{ event events.Event }

// count adds one to a counter.
type count struct{ counter prometheus.Counter }

// remember changes what this process remembers of the TrainJob. What is zero stays as it is.
type remember struct {
	workload            string // that was made
	finished, reclaimed time.Time
	setback             *setback
	// stops is set if a stop that was rejected isn't any more.
	stops bool
}

// writeStatus writes the conditions Blocked and StopOverdue, and sends the events of those that are new.
type writeStatus struct {
	status *api.TrainJobStatus
	events []events.Event
}

// clearEntry empties the entry of the last admission.
type clearEntry struct{}

// migrate moves what the TrainJob said to a previous Trainer into the present one's fields.
type migrate struct{ record *legacy.Record }

// deleteSnapshot deletes Kubeflow Trainer's snapshot of a runtime that was edited.
type deleteSnapshot struct{ object *corev1.ConfigMap }

// deleteJobSet deletes a JobSet that Kubeflow Trainer creates again.
type deleteJobSet struct {
	jobSet     *jobset.JobSet
	foreground bool
	// rebuilt is the state of runtime and entries for which it is deleted; "" if that is not to be remembered.
	rebuilt string
}

// deleteJob deletes a suspended Job of the last admission; JobSet creates it again from its template.
type deleteJob struct{ job *batchv1.Job }

// finishWorkload ends the Workload of a TrainJob that can't be started.
type finishWorkload struct {
	workload        *kueue.Workload
	reason, message string
}

// lookAgain changes a Workload so that Kueue reconciles it.
type lookAgain struct{ workload *kueue.Workload }

// deleteWorkload deletes a Workload that was admitted for something else; the next is for what is to run.
type deleteWorkload struct {
	workload *kueue.Workload
	event    *events.Event // nil for none
}

// releaseWorkload removes the finalizer that keeps a Workload, and its quota if it isn't finished.
type releaseWorkload struct{ workload *kueue.Workload }

// heed notes how those have ended that a TrainJob waits for, or opens its gate.
type heed struct{ verdict after.Verdict }

// deactivate deactivates a Workload whose pods have ended.
type deactivate struct{ workload *kueue.Workload }

// activate activates the Workload of a TrainJob that its user had stopped.
type activate struct{ workload *kueue.Workload }

// hold keeps a Workload out of its queue, and takes its quota. None of its TrainJob runs.
type hold struct {
	workload *kueue.Workload
	message  string
}

// unhold queues a Workload again that was put on hold while its TrainJob was blocked or stopped.
type unhold struct{ workload *kueue.Workload }
