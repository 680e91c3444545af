package integration

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
)

// TestReclaims holds that what a TrainJob gives back is written at once, and then not more often than every ten
// seconds.
func TestReclaims(t *testing.T) {
	both := []kueue.ReclaimablePod{{Name: "dataset", Count: 1}, {Name: "model", Count: 1}}
	cases := map[string]struct {
		why    string
		stored []kueue.ReclaimablePod
		last   time.Duration // since the last was given back; 0 if nothing was
		change func(*observed)
		want   reclaim
	}{
		"the first": {why: "nothing was given back yet", want: reclaim{both, true, 0}},
		"the next soon": {"seven seconds are left", both[:1], 3 * time.Second, nil,
			reclaim{both[:1], false, 7 * time.Second}},
		"the next": {"ten seconds are over", both[:1], 10 * time.Second, nil, reclaim{both, true, 0}},
		"said":     {"the Workload says so", both, 3 * time.Second, nil, reclaim{both, false, 0}},
		"not in the cache": {"what was written is not yet in the cache", nil, time.Second, nil,
			reclaim{nil, false, 9 * time.Second}},
		"restarted": {"a count isn't lowered", both, time.Minute, func(o *observed) {
			o.jobSet.Status.ReplicatedJobsStatus = nil
		}, reclaim{both, false, 0}},
		"waits": {"it holds no quota", both, time.Second, func(o *observed) {
			o.workloads.own[0].Status.Conditions = nil
			o.jobSet.Status.ReplicatedJobsStatus = nil
		}, reclaim{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := observation(dialect.Bundled, withJobSet, runs, func(o *observed) {
				for _, step := range []string{"dataset", "model"} {
					o.jobSet.Spec.ReplicatedJobs = append(o.jobSet.Spec.ReplicatedJobs,
						jobset.ReplicatedJob{Name: step, Replicas: 1})
					o.jobSet.Status.ReplicatedJobsStatus = append(o.jobSet.Status.ReplicatedJobsStatus,
						jobset.ReplicatedJobStatus{Name: step, Succeeded: 1})
				}
				wl := o.workloads.own[0]
				wl.Spec.PodSets = append(wl.Spec.PodSets,
					kueue.PodSet{Name: "dataset", Count: 1}, kueue.PodSet{Name: "model", Count: 1})
				wl.Status.ReclaimablePods = c.stored
				wl.Status.Conditions = append(wl.Status.Conditions, is(kueue.WorkloadQuotaReserved, time.Hour))
				if c.last > 0 {
					o.memory.reclaimed = o.now.Add(-c.last)
				}
				if c.change != nil {
					c.change(o)
				}
			})
			if got := reclaims(o); !equality.Semantic.DeepEqual(got.pods, c.want.pods) ||
				got.changed != c.want.changed || got.later != c.want.later {
				t.Errorf("%s: got %+v, want %+v", c.why, got, c.want)
			}
		})
	}
}

// TestReclaimRemembered holds that a write that failed is tried again at once, and what waits is written in time.
func TestReclaimRemembered(t *testing.T) {
	remembered := func(p plan) (r remember) {
		for _, s := range p.Steps {
			if s, ok := s.(remember); ok {
				r = s
			}
		}
		return r
	}
	o := observation(dialect.Bundled, withJobSet, runs)
	written := &asked{reclaim: reclaim{changed: true}}
	if got := remembered(afterwards(o, written, false)).reclaimed; !got.Equal(o.now) {
		t.Errorf("it was written at %v; remembered is %v", o.now, got)
	}
	if got := remembered(afterwards(o, written, true)).reclaimed; !got.IsZero() {
		t.Errorf("the write failed; remembered is %v", got)
	}
	if got := afterwards(o, &asked{reclaim: reclaim{later: time.Second}}, false).Again; got != time.Second {
		t.Errorf("more is given back after a second; the next reconcile is after %v", got)
	}
}

// TestReclaimableIfChanged holds that the pods of a finished initializer count again if it runs again because it was
// changed, and that the integration's own entry is no change.
func TestReclaimableIfChanged(t *testing.T) {
	init := jobset.ReplicatedJob{Name: "init", Replicas: 1}
	pod := &init.Template.Spec.Template.Spec
	pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod.Containers = []corev1.Container{{Name: "c", VolumeMounts: mounts}}
	then := jobset.ReplicatedJob{
		Name: "node", Replicas: 1, DependsOn: []jobset.DependsOn{{Name: "init", Status: jobset.DependencyComplete}}}
	then.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "node"}}
	spec := &trainerapi.TrainingRuntimeSpec{}
	spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{init, then}
	entry := func(manager, value string) trainerapi.RuntimePatch {
		return trainerapi.RuntimePatch{Manager: manager, TrainingRuntimeSpec: &trainerapi.TrainingRuntimeSpecPatch{
			Template: &trainerapi.JobSetTemplatePatch{Spec: &trainerapi.JobSetSpecPatch{
				ReplicatedJobs: []trainerapi.ReplicatedJobPatch{{Name: "init", Template: &trainerapi.JobTemplatePatch{
					Spec: &trainerapi.JobSpecPatch{Template: &trainerapi.PodTemplatePatch{Spec: &trainerapi.PodSpecPatch{
						NodeSelector: map[string]string{"gpu": value}}}}}}}}}}}
	}
	cases := map[string]struct {
		change func(*observed)
		want   int
	}{
		"the same":       {func(*observed) {}, 1},
		"another flavor": {func(o *observed) { o.job.Spec.RuntimePatches[0] = entry(overrides.Manager, "h100") }, 1},
		"an entry more": {func(o *observed) {
			o.job.Spec.RuntimePatches = append(o.job.Spec.RuntimePatches, entry("a.com/a", "h100"))
		}, 0},
		"the runtime": {func(o *observed) {
			changed := spec.DeepCopy()
			changed.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "other"
			o.queue.choice = &store.Choice{Spec: changed, Settings: changed}
		}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := observation(dialect.Bundled, func(o *observed) {
				o.job.Spec.RuntimePatches = []trainerapi.RuntimePatch{entry(overrides.Manager, "a100")}
				o.job.Status.JobsStatus = []trainerapi.JobStatus{{Name: "init", Succeeded: ptr.To[int32](1)}}
				o.job.Status.Initializers = dialect.Bundled.Initializers(o.job, spec)
				o.queue.choice = &store.Choice{Spec: spec, Settings: spec}
				c.change(o)
				e, err := dialect.Bundled.Compute(o.job, o.queue.choice.Spec, dialect.Bundled.Entries(o.job))
				if err != nil {
					t.Fatal(err)
				}
				o.queue.effective = e
			})
			if got := reclaims(o); len(got.pods) != c.want {
				t.Errorf("got %+v", got.pods)
			}
		})
	}
}
