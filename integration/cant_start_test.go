package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func usesNothing(a *kueue.PodSetAssignment) {
	a.ResourceUsage = corev1.ResourceList{gpu: resource.MustParse("0")}
}

// selecting returns the user's entry that selects nodes of a pool.
func selecting(pool string) []trainerapi.RuntimePatch {
	pod := &trainerapi.PodSpecPatch{NodeSelector: map[string]string{"pool": pool}}
	rj := trainerapi.ReplicatedJobPatch{Name: "node", Template: &trainerapi.JobTemplatePatch{
		Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Spec: pod}}}}
	spec := &trainerapi.JobSetSpecPatch{ReplicatedJobs: []trainerapi.ReplicatedJobPatch{rj}}
	return []trainerapi.RuntimePatch{{Manager: "example.com/user",
		TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{Template: &trainerapi.JobSetTemplatePatch{Spec: spec}}}}
}

// waitsForAdmission reports whether Kueue would admit the only Workload.
func (h *harness) waitsForAdmission() bool {
	all := h.workloads()
	return len(all) == 1 && !workload.HasQuotaReservation(&all[0]) && !workload.IsOnHold(&all[0]) &&
		!workloadfinish.IsFinished(&all[0]) && all[0].DeletionTimestamp.IsZero()
}

// TestChangesOfWhatCantStart holds that changes buy no attempts: whatever the owner of a TrainJob that can't start
// changes, and however often, it costs at most ten writes in its first hour. It is admitted three times at
// most, and holds no quota in between.
func TestChangesOfWhatCantStart(t *testing.T) {
	changes := map[string]func(job *api.TrainJob, n int){
		"nothing":     func(*api.TrainJob, int) {},
		"labels":      func(job *api.TrainJob, n int) { job.Labels["n"] = fmt.Sprint(n) },
		"annotations": func(job *api.TrainJob, n int) { job.Annotations = map[string]string{"n": fmt.Sprint(n)} },
		"the queue": func(job *api.TrainJob, n int) {
			job.Labels[constants.QueueLabel] = fmt.Sprint("queue-", n%2)
		},
		"the priority class": func(job *api.TrainJob, n int) {
			job.Labels[constants.WorkloadPriorityClassLabel] = fmt.Sprint("class-", n%2)
		},
		"what it runs": func(job *api.TrainJob, n int) {
			job.Spec.Trainer.Env = []corev1.EnvVar{{Name: "N", Value: fmt.Sprint(n)}}
		},
	}
	for failure, c := range map[string]struct {
		given  func(*harness)
		admits []func(*kueue.PodSetAssignment)
	}{
		"the start rejected": {func(h *harness) { h.fail["patch TrainJob"] = invalid }, nil},
		"admitted for less":  {func(*harness) {}, []func(*kueue.PodSetAssignment){usesNothing}},
		"in conflict": {func(h *harness) {
			job := h.trainJob("job")
			job.Spec.RuntimePatches = selecting("b")
			h.update(job)
		}, nil},
	} {
		for what, change := range changes {
			t.Run(failure+", changing "+what, func(t *testing.T) {
				h := newHarness(t, dialect.Bundled)
				for n := range 2 {
					h.create(&kueue.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("class-", n)},
						Value: int32(n)})
				}
				h.create(newTrainJob("job"))
				c.given(h)
				admitted, held := 0, 0
				var writes []string
				for n := range 48 { // ten seconds each, later two minutes
					if n > 0 {
						job := h.trainJob("job")
						change(job, n)
						job.Generation++
						h.update(job)
					}
					for range 3 {
						h.reconcile("job")
						for _, s := range h.sent {
							if h.fail["patch TrainJob"] == nil || !strings.HasPrefix(s, "patch TrainJob ") { // that isn't written
								writes = append(writes, fmt.Sprint(n, " ", s))
							}
						}
						if h.waitsForAdmission() {
							h.admit(c.admits...)
							admitted++
						}
					}
					for _, wl := range h.workloads() {
						if workload.HasQuotaReservation(&wl) && !workloadfinish.IsFinished(&wl) {
							held++
						}
					}
					if n < 20 {
						h.clock.Step(10 * time.Second)
					} else {
						h.clock.Step(2 * time.Minute)
					}
				}
				if admitted > 3 || held > 3 || len(writes) > 10 {
					t.Errorf("admitted %d times, holds quota at %d times, %d writes: %s", admitted, held, len(writes),
						strings.Join(writes, "\n"))
				}
			})
		}
	}
}

// TestPartOfAnother holds that a TrainJob which Kueue would take for a part of another job isn't queued: Kueue would
// suspend its JobSet. One of a job without a queue is.
func TestPartOfAnother(t *testing.T) {
	owner := func(kind string, o client.Object) metav1.OwnerReference {
		version := batchv1.SchemeGroupVersion.String()
		if kind == "JobSet" {
			version = jobset.SchemeGroupVersion.String()
		}
		return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: o.GetName(), UID: o.GetUID(),
			Controller: ptr.To(true)}
	}
	meta := func(name string, queued bool, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: team, Name: name, OwnerReferences: owners}
		if queued {
			m.Labels = map[string]string{constants.QueueLabel: "queue"}
		}
		return m
	}
	for name, c := range map[string]struct {
		owner func(h *harness) metav1.OwnerReference
		want  string
	}{
		"a queued Job": {func(h *harness) metav1.OwnerReference {
			job := &batchv1.Job{ObjectMeta: meta("launcher", true)}
			h.create(job)
			return owner("Job", job)
		}, integration.ReasonPartOfAnother},
		"a queued JobSet": {func(h *harness) metav1.OwnerReference {
			js := &jobset.JobSet{ObjectMeta: meta("launcher", true)}
			h.create(js)
			return owner("JobSet", js)
		}, integration.ReasonPartOfAnother},
		"a Job of a queued JobSet": {func(h *harness) metav1.OwnerReference {
			js := &jobset.JobSet{ObjectMeta: meta("launcher", true)}
			h.create(js)
			job := &batchv1.Job{ObjectMeta: meta("launcher-a-0", false, owner("JobSet", js))}
			h.create(job)
			return owner("Job", job)
		}, integration.ReasonPartOfAnother},
		"a Job without a queue": {func(h *harness) metav1.OwnerReference {
			job := &batchv1.Job{ObjectMeta: meta("launcher", false)}
			h.create(job)
			return owner("Job", job)
		}, ""},
		"another Job of the name": {func(h *harness) metav1.OwnerReference {
			job := &batchv1.Job{ObjectMeta: meta("launcher", true)}
			h.create(job)
			ref := owner("Job", job)
			ref.UID = "earlier"
			return ref
		}, ""},
		"a Job that isn't there": {func(*harness) metav1.OwnerReference {
			return owner("Job", &batchv1.Job{ObjectMeta: meta("launcher", true)})
		}, ""},
		"a Workflow": {func(*harness) metav1.OwnerReference {
			return metav1.OwnerReference{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: "a", UID: "a",
				Controller: ptr.To(true)}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, dialect.Bundled)
			job := newTrainJob("job")
			job.OwnerReferences = []metav1.OwnerReference{c.owner(h)}
			h.create(job)
			h.settle("job")
			if got := h.blocked("job"); got != c.want || (len(h.workloads()) > 0) != (c.want == "") {
				t.Errorf("got %q, %d Workloads", got, len(h.workloads()))
			}
			job = h.trainJob("job")
			job.OwnerReferences = nil
			h.update(job)
			if h.settle("job"); h.blocked("job") != "" {
				t.Errorf("without an owner, got %q", h.blocked("job"))
			}
		})
	}
}

// TestSuspendedByAnother holds that a running TrainJob whose JobSet others have suspended gives its quota back, as one
// without pods does, and that one whose JobSet is resumed runs on.
func TestSuspendedByAnother(t *testing.T) {
	for name, d := range map[string]*dialect.Dialect{"bundled": dialect.Bundled} {
		for _, resumed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", resumed), func(t *testing.T) {
				h := newHarness(t, d)
				h.run()
				js := h.build("job")
				pod := h.pod(js)
				h.settle("job")
				js.Spec.Suspend = ptr.To(true)
				h.update(js)
				h.remove(pod)
				h.settle("job")
				h.clock.Step(4 * time.Minute)
				if h.settle("job"); h.suspended("job") {
					t.Fatal("it has five minutes")
				}
				if resumed {
					js.Spec.Suspend = ptr.To(false)
					h.update(js)
					pod.ResourceVersion = ""
					h.create(pod)
				}
				h.settle("job")
				h.clock.Step(2 * time.Minute)
				var told []string
				for range 3 {
					h.reconcile("job")
					told = append(told, h.events...)
				}
				if h.suspended("job") == resumed || slices.Contains(told, admission.ReasonNoPods) == resumed {
					t.Errorf("got %q, %v", h.blocked("job"), told)
				}
			})
		}
	}
}
