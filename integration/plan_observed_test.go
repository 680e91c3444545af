package integration

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

// wantSteps compares steps as values.
func wantSteps(t *testing.T, reason string, got []step, want ...step) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", reason, got, want)
	}
}

// The changes of observation.

func runs(o *observed) { o.job.Spec.Suspend, o.stage = ptr.To(false), stageRunning }

func ends(o *observed) {
	runs(o)
	o.stage = stageEnded
	o.job.Status.Conditions = append(o.job.Status.Conditions, is(trainerapi.TrainJobComplete, time.Minute))
}

func withJobSet(o *observed) {
	o.jobSet = &jobset.JobSet{}
	o.jobSet.Name, o.jobSet.UID, o.jobSet.Spec.Suspend = "job", "js-uid", ptr.To(true)
	o.jobSet.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{Name: "node", Replicas: 1}}
}

// withEntry returns a change that gives the TrainJob an entry of so long ago that an admission has written.
func withEntry(since time.Duration) func(*observed) {
	return func(o *observed) {
		at := ago(since)
		o.job.Spec.RuntimePatches = []trainerapi.RuntimePatch{{Manager: overrides.Manager, Time: &at,
			TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{
				Spec: &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{{Name: "node",
					Template: &trainerapi.JobTemplatePatch{Spec: &trainerapi.JobSpecPatch{
						Template: &trainerapi.PodTemplatePatch{Spec: &trainerapi.PodSpecPatch{
							NodeSelector: map[string]string{"pool": "a"}}}}}}}}}}}}
	}
}

// withClearedEntry returns a change that gives the TrainJob an entry that was cleared so long ago.
func withClearedEntry(since time.Duration) func(*observed) {
	return func(o *observed) {
		withEntry(since)(o)
		cleared := admission.Neutral(&o.job.Spec.RuntimePatches[0])
		cleared.Time = ptr.To(ago(since))
		o.job.Spec.RuntimePatches[0] = cleared
	}
}

func blockedBy(reason string) func(*observed) {
	return func(o *observed) {
		o.queue.blocked = &admission.BlockedError{Reason: reason, Err: errors.New("why"), RetryAfter: time.Minute}
	}
}

// withChoice gives the TrainJob a runtime and what it runs of that.
func withChoice(o *observed) {
	spec := &trainerapi.TrainingRuntimeSpec{}
	rj := jobset.ReplicatedJob{Name: "node", Replicas: 1}
	spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{rj}
	o.queue.choice = &store.Choice{Spec: spec, Settings: spec}
	built := []jobset.ReplicatedJob{rj}
	o.queue.effective = &overrides.Effective{ReplicatedJobs: built, Built: built}
}

// isAdmitted returns a change that admits the Workload so long ago.
func isAdmitted(since time.Duration) func(*observed) {
	return func(o *observed) {
		wl := o.workloads.own[0]
		wl.Status.Conditions = []metav1.Condition{is(kueue.WorkloadQuotaReserved, since), is(kueue.WorkloadAdmitted, since)}
		wl.Status.Admission = &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{{Name: "node",
			Count: ptr.To[int32](2)}}}
		o.queue.start = &startFacts{}
	}
}

func earlier(o *observed) {
	wl := o.workloads.own[0].DeepCopy()
	wl.Name, wl.DeletionTimestamp = "earlier", ptr.To(ago(time.Minute))
	wl.Status.Conditions = []metav1.Condition{is(kueue.WorkloadQuotaReserved, time.Hour)}
	o.workloads.earlier = []*kueue.Workload{wl}
}

func toDeactivate(o *observed) {
	o.workloads.own[0].Annotations = map[string]string{api.DeactivateAnnotation: "user"}
}

// dispatches gives the TrainJob to another cluster.
func dispatches(o *observed) { o.job.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName) }

func TestLabelsOfMetrics(t *testing.T) {
	resource := schema.GroupResource{Group: "trainer.kubeflow.org", Resource: "trainjobs"}
	for want, err := range map[string]error{
		"started":  nil,
		"conflict": fmt.Errorf("starting: %w", apierrors.NewConflict(resource, "a", errors.New("it has changed"))),
		"refused":  fmt.Errorf("starting: %w", apierrors.NewForbidden(resource, "a", errors.New("by a webhook"))),
		"failed":   errors.New("connection refused"),
	} {
		if got := resultOf(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
	if got := resultOf(apierrors.NewInternalError(errors.New("no answer of a webhook"))); got != "failed" {
		t.Errorf("an internal error: got %q", got)
	}
	for reason, want := range map[jobframework.StopReason]string{
		"WorkloadEvictedDueToPreempted":           "Preempted",
		jobframework.StopReasonWorkloadDeleted:    "WorkloadDeleted",
		jobframework.StopReasonNoMatchingWorkload: "NoMatchingWorkload",
	} {
		if got := evictionOf(reason); got != want {
			t.Errorf("%s: got %q, want %q", reason, got, want)
		}
	}
}
