package admission

import (
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

func TestUnsettled(t *testing.T) {
	rt := must[trainerapi.TrainingRuntimeSpec](t, runtimeYAML)
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "job"}}
	effective, err := dialect.Bundled.Compute(job, &rt, nil)
	if err != nil {
		t.Fatal(err)
	}
	effective.Built[0].Template.Spec.Template.Spec.Containers[0].Args = []string{"new"}
	effective.Built[0].Template.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "a"}}
	edited := func(js *jobset.JobSet) {
		js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Args = []string{"old"}
	}
	settled := func() (*api.TrainJob, *jobset.JobSet) {
		tj := job.DeepCopy()
		tj.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobSuspended, Status: metav1.ConditionTrue}}
		tj.Status.JobsStatus = []trainerapi.JobStatus{{Name: "node", Suspended: ptr.To[int32](1)}}
		js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{*effective.Built[0].DeepCopy()}}}
		js.Status.Conditions = []metav1.Condition{{Type: string(jobset.JobSetSuspended), Status: metav1.ConditionTrue}}
		js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Suspended: 1}}
		return tj, js
	}
	cases := map[string]struct {
		reason string
		change func(*api.TrainJob, *jobset.JobSet) *jobset.JobSet
		want   string
	}{
		"settled": {
			"nobody is about to write it", func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet { return js }, "",
		},
		"no JobSet": {
			"Trainer has not seen the TrainJob", func(*api.TrainJob, *jobset.JobSet) *jobset.JobSet { return nil },
			"not created yet",
		},
		"another image": {
			"the JobSet was built from an earlier runtime",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
				js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Image = "old"
				return js
			},
			"does not follow",
		},
		"another selector": {
			"the JobSet was built from an earlier entry",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
				js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.NodeSelector = nil
				return js
			},
			"does not follow",
		},
		"other arguments": {
			"an edit that changes no quota is an edit too",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
				edited(js)
				return js
			},
			"does not follow",
		},
		"more than was asked for": {
			"Trainer adds environment and volumes, in any order",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
				pod := &js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "more"})
				pod.Containers[0].Env = append([]corev1.EnvVar{{Name: "MORE"}}, pod.Containers[0].Env...)
				return js
			},
			"",
		},
		"not seen": {
			"Trainer is about to write the condition",
			func(tj *api.TrainJob, js *jobset.JobSet) *jobset.JobSet { tj.Status.Conditions = nil; return js },
			"Trainer has not seen it",
		},
		"not suspended": {
			"JobSet is about to write its status, and Trainer after it",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet { js.Status.Conditions = nil; return js },
			"has not suspended its Jobs",
		},
		"Jobs missing": {"their making changes the status", func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
			js.Status.ReplicatedJobsStatus[0].Suspended = 0
			return js
		}, "not all created"},
		"no status": {"their making changes the status", func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
			js.Status.ReplicatedJobsStatus = nil
			return js
		}, "not all created"},
		"not mirrored": {"Trainer is about to write the status", func(tj *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
			tj.Status.JobsStatus[0].Suspended = nil
			return js
		}, "does not follow its JobSet"},
		"not at all": {
			"Trainer is about to write the status",
			func(tj *api.TrainJob, js *jobset.JobSet) *jobset.JobSet { tj.Status.JobsStatus = nil; return js },
			"does not follow its JobSet",
		},
		"one that depends": {
			"a ReplicatedJob that starts after others has no Jobs while it is suspended",
			func(_ *api.TrainJob, js *jobset.JobSet) *jobset.JobSet {
				js.Spec.ReplicatedJobs[0].DependsOn = []jobset.DependsOn{{Name: "first"}}
				js.Status.ReplicatedJobsStatus[0].Suspended = 1
				return js
			},
			"",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tj, js := settled()
			js = c.change(tj, js)
			if got := Unsettled(tj, js, effective, true); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestRunsWith(t *testing.T) {
	start, err := Decide(input(t))
	if err != nil {
		t.Fatal(err)
	}
	js := func(selector map[string]string, suspended bool, tolerations ...corev1.Toleration) *jobset.JobSet {
		rj := jobset.ReplicatedJob{Name: "node"}
		rj.Template.Spec.Template.Spec = corev1.PodSpec{NodeSelector: selector, Tolerations: tolerations}
		return &jobset.JobSet{
			Spec: jobset.JobSetSpec{Suspend: &suspended, ReplicatedJobs: []jobset.ReplicatedJob{{Name: "other"}, rj}},
		}
	}
	_, spec := overrides.PodPatch(start.Entry.TrainingRuntimeSpec, "node")
	cases := map[string]struct {
		reason string
		js     *jobset.JobSet
		want   bool
	}{
		"made with it": {"its pods are placed as it says", js(spec.NodeSelector, false, spec.Tolerations...), true},
		"suspended":    {"it does not run", js(spec.NodeSelector, true, spec.Tolerations...), false},
		"another selector": {
			"its pods are elsewhere", js(map[string]string{"gpu": "h100"}, false, spec.Tolerations...), false,
		},
		"without a toleration": {"its pods are nowhere", js(spec.NodeSelector, false, spec.Tolerations[1:]...), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := RunsWith(c.js, &start.Entry); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
	if !RunsWith(js(nil, false), nil) {
		t.Error("without an entry there is nothing to run with")
	}
}

func TestMissingJob(t *testing.T) {
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Name: "job"}}
	js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{
		{Name: "node", Replicas: 2},
		{Name: "late", Replicas: 1, DependsOn: []jobset.DependsOn{{Name: "node", Status: jobset.DependencyComplete}}},
	}
	cases := map[string]struct {
		reason string
		jobs   []string
		want   string
	}{
		"none":         {"the first is named", nil, "job-node-0"},
		"one":          {"each replica has a Job", []string{"job-node-0"}, "job-node-1"},
		"another name": {"it is another JobSet's", []string{"job-node-0", "other-node-1"}, "job-node-1"},
		"all":          {"what depends on others is made later", []string{"job-node-1", "job-node-0"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			jobs := make([]batchv1.Job, len(c.jobs))
			for i := range jobs {
				jobs[i].Name = c.jobs[i]
			}
			if got := MissingJob(js, jobs); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}
