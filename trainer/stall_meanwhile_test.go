package trainer

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// TestStallMeanwhile holds that what happens while a TrainJob is judged counts: nothing follows from what isn't so any
// more.
func TestStallMeanwhile(t *testing.T) {
	annotate := func(key, value string) func(*harness) {
		return func(h *harness) { h.edit("job", func(j *api.TrainJob) { j.Annotations[key] = value }) }
	}
	for name, meanwhile := range map[string]func(*harness){
		"it reports": func(h *harness) { h.reports(50) },
		"its annotation is removed": func(h *harness) {
			h.edit("job", func(j *api.TrainJob) {
				delete(j.Annotations,
					api.StalledAfterAnnotation)
			})
		},
		"it may take longer":        annotate(api.StalledAfterAnnotation, "2h"),
		"nothing is to follow":      annotate(api.StalledAfterAnnotation, "30m"),
		"its annotation is invalid": annotate(api.StalledAfterAnnotation, "soon"),
		"its user stops it":         annotate(api.StopAnnotation, "me"),
		"it is suspended": func(h *harness) {
			h.edit("job",
				func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
		},
		"it ends": func(h *harness) {
			job := h.job("job")
			job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue}}
			if err := h.store.Status().Update(h.t.Context(), job); err != nil {
				h.t.Fatal(err)
			}
		},
	} {
		for _, value := range []string{"30m,stop", "30m,restart"} {
			for _, stale := range []bool{false, true} {
				t.Run(name+" "+value, func(t *testing.T) {
					h := hasStalled(t, value, admitted)
					if stale {
						h.freeze(&api.TrainJob{}, "job")
					}
					meanwhile(h)
					before := h.job("job")
					h.reconcile("job")
					h.thaw()
					after := h.job("job")
					if after.Annotations[api.StopAnnotation] != before.Annotations[api.StopAnnotation] ||
						after.Status.Lost != nil || len(h.events()) > 0 && name != "its annotation is invalid" {
						t.Errorf("stale %t: got %v, %+v", stale, after.Annotations, after.Status.Lost)
					}
				})
			}
		}
	}
}

// TestStallCompletes holds that a training that ends while its restart is under way isn't run again.
func TestStallCompletes(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		h := hasStalled(t, "30m,restart", admitted)
		h.reconcile("job")
		if lost := h.job("job").Status.Lost; lost == nil || !lost.Restarting {
			t.Fatalf("its restart is recorded: got %+v", lost)
		}
		if suspended {
			h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
		}
		js := &jobset.JobSet{}
		h.get(js, "job")
		js.Status.TerminalState = string(jobset.JobSetCompleted)
		js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetCompleted), Status: metav1.ConditionTrue}}
		if err := h.store.Status().Update(t.Context(), js); err != nil {
			t.Fatal(err)
		}
		h.requests()
		h.reconcile("job")
		h.wantRequests("its end is written, and nothing is stopped or deleted", statusPatch)
		if job := h.job("job"); job.Status.State != api.StateComplete || ptr.Deref(job.Spec.Suspend, false) != suspended {
			t.Errorf("suspended %t: got %+v", suspended, job.Status)
		}
	}
}

// TestStallRefused holds that a stop that the API server refuses is tried again, and said when it is done.
func TestStallRefused(t *testing.T) {
	h := hasStalled(t, "30m,stop", admitted)
	h.fail[jobPatch] = apierrors.NewServiceUnavailable("down")
	if _, err := h.try("job", false); err == nil {
		t.Error("the error is passed on")
	}
	h.wantEvents("nothing was done")
	delete(h.fail, jobPatch)
	h.requests()
	h.reconcile("job")
	h.wantRequests("again", jobPatch)
	h.wantEvents("then", "Warning StalledStopped")
}

// TestStallUnanswered holds that what was done though its response was lost isn't done again.
func TestStallUnanswered(t *testing.T) {
	for value, request := range map[string]string{"30m,stop": jobPatch, "30m,restart": statusPatch} {
		h := hasStalled(t, value, admitted)
		h.freeze(&api.TrainJob{}, "job")
		h.lost[request] = apierrors.NewServerTimeout(schema.GroupResource{Resource: "trainjobs"}, "patch", 1)
		if _, err := h.try("job", false); err == nil {
			t.Errorf("%s: the error is passed on", value)
		}
		delete(h.lost, request)
		once := h.job("job")
		h.reconcile("job") // from a stale cache
		h.thaw()
		h.requests()
		h.reconcile("job")
		now := h.job("job")
		if value == "30m,stop" {
			h.wantRequests("it is stopped already")
			continue
		}
		if once.Status.Lost.Restarts != 1 || now.Status.Lost.Restarts != 1 {
			t.Errorf("it is counted once: got %+v", now.Status.Lost)
		}
	}
}

// TestStallIgnored holds that an annotation that was stored though it is invalid is ignored, and said once.
func TestStallIgnored(t *testing.T) {
	h := watching(t, "", admitted)
	h.edit("job", func(j *api.TrainJob) { j.Annotations[api.StalledAfterAnnotation] = "soon" })
	h.waits("it is said", 30*time.Second)
	h.wantStall("it is ignored", "False/InvalidAnnotation since 12:00:32")
	h.wantEvents("it is said", `Warning InvalidAnnotation annotation signalbox.dev/stalled-after is ignored: "soon" must be`)
	for range 3 {
		h.clock.Step(24 * time.Hour)
		h.restart()
		h.reconcile("job")
	}
	h.wantRequests("once")
	h.wantEvents("once")
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	h.wantRequests("it is stopped", statusPatch, "delete JobSet job foreground uid version")
}
