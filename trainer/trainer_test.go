package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainerconfig "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// template is a runtime with an initializer onto a volume, a trainer and a sidecar.
const template = `
  spec:
    replicatedJobs:
    - name: dataset-initializer
      replicas: 1
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
        spec: {template: {spec: {
          volumes: [{name: initializer, %s}],
          containers: [{name: dataset-initializer, image: init, volumeMounts: [{name: initializer, mountPath: /workspace}]}]}}}
    - name: node
      replicas: 1
      dependsOn: [{name: dataset-initializer, status: Complete}]
      template:
        metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
        spec: {template: {spec: {containers: [{name: node, image: train}, {name: sidecar, image: side}]}}}
    - name: launcher
      replicas: 1
      template: {spec: {template: {spec: {containers: [{name: node, image: launch}]}}}}
`

const lastingVolume, lostVolume = "persistentVolumeClaim: {claimName: data}", "emptyDir: {}"

func runtimeOf(t testing.TB, policy, volume string) *trainerapi.TrainingRuntimeSpec {
	t.Helper()
	var spec trainerapi.TrainingRuntimeSpec
	text := "mlPolicy: " + policy + "\ntemplate:" + fmt.Sprintf(template, volume)
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

func jobOf(t testing.TB, name, text string) *api.TrainJob {
	t.Helper()
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid"}}
	job.Spec.RuntimeRef = trainerapi.RuntimeRef{
		APIGroup: &trainerapi.GroupVersion.Group,
		Kind:     ptr.To(trainerapi.TrainingRuntimeKind),
		Name:     name,
	}
	if err := yaml.UnmarshalStrict([]byte(text), job); err != nil {
		t.Fatal(err)
	}
	return job
}

func testClient(t testing.TB) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme, jobset.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var objects []client.Object
	for name, policy := range map[string]string{
		"torch": "{numNodes: 2, torch: {}}", "mpi": "{numNodes: 2, mpi: {numProcPerNode: 1, runLauncherAsNode: " +
			"true}}", "flux": "{numNodes: 2, flux: {numProcPerNode: 1}}",
	} {
		objects = append(
			objects,
			&api.TrainingRuntime{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec:       *runtimeOf(t, policy, lastingVolume),
			},
		)
	}
	objects = append(objects, &api.ClusterTrainingRuntime{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "old",
			Labels: map[string]string{"trainer.kubeflow.org/support": "deprecated"},
		}, Spec: *runtimeOf(t, "{torch: {}}", lostVolume)})
	objects = append(objects, &jobset.JobSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       "ns",
			Name:            "active",
			OwnerReferences: []metav1.OwnerReference{{UID: "uid", Controller: ptr.To(true)}},
		},
		Status: jobset.JobSetStatus{ReplicatedJobsStatus: []jobset.ReplicatedJobStatus{{Name: "node", Active: 2}}},
	})
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func testBuilder(t testing.TB, c client.Client) *Builder {
	t.Helper()
	b, err := NewBuilder(context.Background(), c, &trainerconfig.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func testWebhook(t testing.TB) *Webhook {
	t.Helper()
	c := testClient(t)
	return NewWebhook(WebhookConfig{
		Client: c, Live: c, Builder: testBuilder(t, c), Clock: clock.RealClock{},
		Limits: overrides.Limits{Pods: 5000, SpecBytes: 1 << 20, Elements: 1 << 20, GracePeriodSeconds: 3600},
		Reader: review.Reader{Decoder: webhookadmission.NewDecoder(c.Scheme()), Trusted: []string{"signalbox"}},
	})
}

func TestBuildLeavesOutWhatIsDone(t *testing.T) {
	const succeeded = "status: {jobsStatus: [{name: dataset-initializer, succeeded: 1}, {name: launcher, succeeded: 1}]}"
	b := testBuilder(t, testClient(t))
	cases := map[string]struct{ reason, volume, job, want string }{
		"first run": {
			"everything is to be done",
			lastingVolume,
			"{}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"done, lasting": {
			"the initializer is not run again, and nobody waits for it",
			lastingVolume,
			succeeded,
			"node launcher",
		},
		"done, lost": {
			"what it wrote went with the JobSet",
			lostVolume,
			succeeded,
			"dataset-initializer node<dataset-initializer launcher",
		},
		"failed": {
			"it has not succeeded",
			lastingVolume,
			"status: {jobsStatus: [{name: dataset-initializer, failed: 1}]}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"no initializer": {
			"only what others wait for is an initializer",
			lastingVolume,
			"status: {jobsStatus: [{name: launcher, succeeded: 1}]}",
			"dataset-initializer node<dataset-initializer launcher",
		},
		"writes elsewhere": {
			"another volume of its own would be lost",
			lastingVolume + "}, {name: other, emptyDir: {}",
			succeeded,
			"dataset-initializer node<dataset-initializer launcher",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := runtimeOf(t, "{torch: {}}", c.volume)
			if name == "writes elsewhere" {
				container := &spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
				container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "other", MountPath: "/other"})
			}
			spec.Template.Spec.SuccessPolicy = &jobset.SuccessPolicy{
				Operator:             jobset.OperatorAll,
				TargetReplicatedJobs: []string{"dataset-initializer", "node"},
			}
			_, js, err := b.Build(context.Background(), jobOf(t, "torch", c.job), spec)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, rj := range js.Spec.ReplicatedJobs {
				text := *rj.Name
				for _, d := range rj.DependsOn {
					text += "<" + *d.Name
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
			if left := len(js.Spec.ReplicatedJobs) == 2; left == slices.Contains(
				js.Spec.SuccessPolicy.TargetReplicatedJobs,
				"dataset-initializer",
			) {
				t.Errorf("policies name only what is there: got %v", js.Spec.SuccessPolicy.TargetReplicatedJobs)
			}
		})
	}
}

func TestBuild(t *testing.T) {
	b := testBuilder(t, testClient(t))
	job := jobOf(t, "mpi", "spec: {suspend: false}")
	before := job.DeepCopy()
	side, js, err := b.Build(context.Background(), job, runtimeOf(t, "{numNodes: 2, mpi: {}}", lostVolume))
	if err != nil {
		t.Fatal(err)
	}
	if len(side) != 2 || len(js.OwnerReferences) != 1 || *js.OwnerReferences[0].UID != "uid" || *js.Spec.Suspend {
		t.Errorf(
			"an MPI TrainJob has a Secret, a ConfigMap and a JobSet that it owns: got %d side objects and %+v",
			len(side),
			js,
		)
	}
	named, err := b.SideObjects(context.Background(), job, runtimeOf(t, "{numNodes: 2, mpi: {}}", lostVolume))
	if err != nil || len(named) != 2 || named[0].GetName()+named[1].GetName() != "job-mpi-ssh-authjob-mpi-hostfile" {
		t.Errorf("what was made is named, whether it is there or not: got %v, %v", named, err)
	}
	if a, err := json.Marshal(job); err != nil || string(a) != string(must(json.Marshal(before))) {
		t.Error("building changes nothing of the TrainJob")
	}
	spec := runtimeOf(t, "{flux: {numProcPerNode: 1}}", lostVolume)
	if _, _, err := b.Build(context.Background(), jobOf(t, "flux", "{}"), spec); err != nil {
		t.Errorf("a Flux TrainJob without spec.trainer is built: got %v", err)
	}
	_, _, err = b.Build(context.Background(), job, &trainerapi.TrainingRuntimeSpec{})
	if err == nil || !strings.Contains(err.Error(), "has no replicatedJobs") {
		t.Errorf("a runtime without ReplicatedJobs is an error: got %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestStatusOf(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(c string) string { return c + `, lastTransitionTime: "2026-11-20T11:00:00Z"` }
	js := func(status string) string { return "spec: {replicatedJobs: [{name: node}]}\nstatus: " + status }
	const wl = "metadata: {name: wl}\nspec: {queueName: q}\nstatus: "
	cases := map[string]struct {
		reason, job, js, wl string
		state               api.TrainJobState
		want                string // conditions and counts
	}{
		"suspended by its user": {
			"Trainer's condition",
			"spec: {suspend: true}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended",
		},
		"queued": {
			"Kueue has said nothing yet",
			"spec: {suspend: true}",
			"",
			wl + "{}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Pending(Workload wl waits in LocalQueue q)",
		},
		"Kueue says why": {
			"its word is passed on",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'False', reason: Inadmissible, message: too big}]}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Inadmissible(too big)",
		},
		"quota reserved": {
			"it waits for admission checks",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'True', reason: QuotaReserved}]}",
			api.StateQuotaReserved,
			"Suspended=True/Suspended QuotaReserved=True/QuotaReserved",
		},
		"admitted": {
			"it is about to start",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: QuotaReserved, status: 'True', reason: A}, {type: Admitted, status: 'True', reason: B}]}",
			api.StateAdmitted,
			"Suspended=True/Suspended QuotaReserved=True/A Admitted=True/B",
		},
		"blocked": {
			"what the integration says stays",
			"spec: {suspend: true}\nstatus: {conditions: [{type: Blocked, status: 'True', reason: RuntimeNotFound}]}",
			"",
			"",
			api.StateBlocked,
			"Blocked=True/RuntimeNotFound Suspended=True/Suspended",
		},
		"never suspended": {
			"it has no such condition, as with Trainer",
			"spec: {suspend: false}",
			"",
			"",
			api.StateStarting,
			"",
		},
		"started": {
			"it says Resumed from the time of its entry",
			"spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager, time: " +
				"'2026-11-20T11:59:00Z'}]}\nstatus: {conditions: [{type: Suspended, status: 'True', reason: Suspended}]}",
			"",
			"",
			api.StateStarting,
			"Suspended=False/Resumed@11:59",
		},
		"runs": {
			"counts are the JobSet's",
			"spec: {suspend: false}",
			js("{replicatedJobsStatus: [{name: node, ready: 1, active: 1}]}"),
			"",
			api.StateRunning,
			"node:a1r1s0",
		},
		"stops": {
			"its pods have not ended",
			"spec: {suspend: true}",
			js("{replicatedJobsStatus: [{name: node, active: 1}]}"),
			"",
			api.StateStopping,
			"Suspended=True/Suspended node:a1r0s0",
		},
		"stopped": {
			"what has succeeded is still true",
			"spec: {suspend: true}\nstatus: {jobsStatus: [{name: init, succeeded: 1, ready: 0, active: 0, failed: 0, " +
				"suspended: 0}, {name: node, succeeded: 0, ready: 1, active: 1, failed: 0, suspended: 0}]}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended init:a0r0s1 node:a0r0s0",
		},
		"left out": {
			"what was not run again keeps its count",
			"spec: {suspend: false}\nstatus: {jobsStatus: [{name: init, succeeded: 1}]}",
			js("{replicatedJobsStatus: [{name: node, ready: 1, active: 1}]}"),
			"",
			api.StateRunning,
			"node:a1r1s0 init:a0r0s1",
		},
		"complete": {
			"the JobSet's end is the TrainJob's",
			"spec: {suspend: false}",
			js("{conditions: [{type: Completed, status: 'True', reason: AllJobsCompleted, message: done}]}"),
			"",
			api.StateComplete,
			"Complete=True/AllJobsCompleted(done)",
		},
		"failed": {
			"the JobSet's end is the TrainJob's",
			"spec: {suspend: false}",
			js("{conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}"),
			"",
			api.StateFailed,
			"Failed=True/FailedJobs",
		},
		"failed, JobSet gone": {
			"an end stays",
			"spec: {suspend: false}\nstatus: {conditions: [{type: Failed, status: 'True', reason: FailedJobs}]}",
			"",
			"",
			api.StateFailed,
			"Failed=True/FailedJobs",
		},
		"overdue": {
			"the deadline counts from the start",
			"spec: {suspend: false, activeDeadlineSeconds: 3601}\nstatus: {conditions: [{" + at(
				"type: Suspended, status: 'False', reason: Resumed",
			) + "}]}\nmetadata: {creationTimestamp: '2026-11-20T01:00:00Z'}",
			"",
			"",
			api.StateStarting,
			"Suspended=False/Resumed@11:00",
		},
		"past its deadline": {
			"the deadline has passed",
			"spec: {suspend: false, activeDeadlineSeconds: 3599}\nstatus: {conditions: [{" + at(
				"type: Suspended, status: 'False', reason: Resumed",
			) + "}]}",
			"",
			"",
			api.StateFailed,
			"Suspended=False/Resumed@11:00 Failed=True/DeadlineExceeded",
		},
		"deadline, suspended": {
			"time stands still while it is suspended",
			"spec: {suspend: true, activeDeadlineSeconds: 1}\nmetadata: {creationTimestamp: '2026-11-20T01:00:00Z'}",
			"",
			"",
			api.StateSuspended,
			"Suspended=True/Suspended",
		},
		"evicted": {
			"with Kueue's reason",
			"spec: {suspend: true}",
			"",
			wl + "{conditions: [{type: Evicted, status: 'True', reason: Preempted, message: by x}, {type: QuotaReserved, " +
				"status: 'False', reason: Pending}]}",
			api.StateQueued,
			"Suspended=True/Suspended QuotaReserved=False/Pending Evicted=True/Preempted(by x)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(t, "torch", c.job)
			job.Generation = 3
			var set *jobset.JobSet
			if c.js != "" {
				set = &jobset.JobSet{}
				if err := yaml.UnmarshalStrict([]byte(c.js), set); err != nil {
					t.Fatal(err)
				}
			}
			var load *kueue.Workload
			if c.wl != "" {
				load = &kueue.Workload{}
				if err := yaml.UnmarshalStrict([]byte(c.wl), load); err != nil {
					t.Fatal(err)
				}
			}
			status := statusOf(job, set, load, now)
			if got := describeStatus(status); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			if got := api.StateOf(status); got != c.state {
				t.Errorf("%s: state %s, want %s", c.reason, got, c.state)
			}
			for _, condition := range status.Conditions {
				if condition.ObservedGeneration != 3 {
					t.Errorf("condition %s has no generation", condition.Type)
				}
			}
			again := job.DeepCopy()
			again.Status.TrainJobStatus = *status
			if got := statusOf(again, set, load, now.Add(time.Millisecond)); describeStatus(got) != describeStatus(status) {
				t.Errorf("a second look changes %q to %q", describeStatus(status), describeStatus(got))
			}
		})
	}
}

func describeStatus(status *trainerapi.TrainJobStatus) string {
	var texts []string
	for _, c := range status.Conditions {
		text := fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason)
		if c.Message != "" && c.Type != trainerapi.TrainJobSuspended &&
			c.Reason != trainerapi.TrainJobDeadlineExceededReason {
			text += "(" + c.Message + ")"
		}
		if c.Reason == trainerapi.TrainJobResumedReason {
			text += c.LastTransitionTime.UTC().Format("@15:04")
		}
		texts = append(texts, text)
	}
	for _, s := range status.JobsStatus {
		texts = append(
			texts,
			fmt.Sprintf("%s:a%dr%ds%d", s.Name, ptr.Deref(s.Active, -1), ptr.Deref(s.Ready, -1), ptr.Deref(s.Succeeded, -1)),
		)
	}
	return strings.Join(texts, " ")
}

func TestUrgent(t *testing.T) {
	is := func(condition string) *trainerapi.TrainJobStatus {
		s := &trainerapi.TrainJobStatus{}
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue})
		return s
	}
	if !urgent(&trainerapi.TrainJobStatus{}, is(trainerapi.TrainJobComplete)) ||
		urgent(is(trainerapi.TrainJobComplete), is(trainerapi.TrainJobComplete)) ||
		urgent(&trainerapi.TrainJobStatus{}, is(api.ConditionAdmitted)) {
		t.Error("an end is urgent, once; an admission can wait for what comes with it")
	}
}

func TestUnseen(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	job := &api.TrainJob{}
	job.Name, job.CreationTimestamp = "model", metav1.NewTime(created)
	unknown := apierrors.NewNotFound(
		schema.GroupResource{Group: trainerapi.GroupVersion.Group, Resource: "trainjobs"},
		"model",
	)
	for name, test := range map[string]struct {
		err   error
		after time.Duration
		want  bool
	}{
		"another's webhook doesn't know it yet": {fmt.Errorf("applying the JobSet: %w", unknown), time.Second, true},
		"nor will it":                           {fmt.Errorf("applying the JobSet: %w", unknown), unseenFor, false},
		"something else is missing": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "model"), time.Second, false,
		},
		"refused for what it is": {
			apierrors.NewForbidden(schema.GroupResource{}, "model", errors.New("no")), time.Second, false,
		},
		"made": {nil, time.Second, false},
	} {
		if got := unseen(job, test.err, created.Add(test.after)); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestFlavorOf(t *testing.T) {
	wl := &kueue.Workload{
		Status: kueue.WorkloadStatus{Admission: &kueue.Admission{PodSetAssignments: []kueue.PodSetAssignment{
			{
				Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "b", "nvidia.com/gpu": "a"},
			}, {Flavors: map[corev1.ResourceName]kueue.ResourceFlavorReference{"cpu": "b"}},
		}}},
	}
	if got := flavorOf(wl); got != "a,b" {
		t.Errorf("each flavor once, in order: got %q", got)
	}
	if flavorOf(nil) != "" || flavorOf(&kueue.Workload{}) != "" {
		t.Error("what is not admitted has no flavor")
	}
}

func TestWebhookOnRequests(t *testing.T) {
	w := testWebhook(t)
	const entry = `{manager: a.com/a, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: {nodeSelector: {a: b}}}}}}]}}}}`
	cases := map[string]struct {
		reason, runtime, before, after, user, want string
	}{
		"fine": {
			"an entry for a job that is there",
			"torch",
			"",
			"spec: {runtimePatches: [" + entry + "]}",
			"",
			"",
		},
		"no runtime": {
			"path, value and way out",
			"missing",
			"",
			"{}",
			"",
			`spec.runtimeRef: Invalid value: "missing": there is no TrainingRuntime "missing" in namespace "ns"; create it before the TrainJob`,
		},
		"an unknown kind": {
			"path, value and what there is",
			"torch",
			"",
			"spec: {runtimeRef: {name: x, kind: Other}}",
			"",
			`spec.runtimeRef.kind: Unsupported value: "Other.trainer.kubeflow.org": supported values: "ClusterTrainingRuntime`,
		},
		"reserved variables": {
			"Trainer's plugins are asked too",
			"torch",
			"",
			"spec: {trainer: {env: [{name: PET_NNODES, value: x}]}}",
			"",
			"must not have reserved envs",
		},
		"stopped, no runtime": {
			"a running TrainJob can be stopped whatever became of its runtime",
			"missing",
			"spec: {suspend: false}",
			"spec: {suspend: true}",
			"",
			"",
		},
		"changed while it runs": {
			"the transition table",
			"torch",
			"spec: {suspend: false}",
			"spec: {suspend: false, runtimePatches: [" + entry + "]}",
			"",
			"spec.runtimePatches: Forbidden: the entry of a.com/a can't change while the TrainJob runs; suspend it " +
				"before, or in the same update",
		},
		"changed while active": {
			"the transition table",
			"torch",
			"metadata: {name: active}\nspec: {suspend: true}",
			"metadata: {name: active}\nspec: {suspend: true, runtimePatches: [" + entry + "]}",
			"",
			`replicatedJob "node" of the last run is still active (2)`,
		},
		"by the integration": {
			"its entry was computed on the runtime, wherever that is now",
			"missing",
			"spec: {suspend: true}",
			"spec: {suspend: false, runtimePatches: [{manager: kueue.x-k8s.io/manager}]}",
			"signalbox",
			"",
		},
		"no manager": {
			"path, value and way out",
			"torch",
			"",
			"spec: {runtimePatches: [{manager: me}]}",
			"",
			`spec.runtimePatches[0].manager: Invalid value: "me": must be a domain-prefixed path`,
		},
		"being deleted": {
			"it is let go",
			"missing",
			"",
			"metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}",
			"",
			"",
		},
		"an unreadable object": {"the decoder's word", "", "", "", "", "there is no content to decode"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.user == "" {
				c.user = "user"
			}
			request := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Namespace: "ns", UserInfo: authenticationv1.UserInfo{Username: c.user},
			}}
			raw := func(text string) runtime.RawExtension {
				job := jobOf(t, c.runtime, text)
				job.APIVersion, job.Kind = trainerapi.GroupVersion.String(), trainerapi.TrainJobKind
				return runtime.RawExtension{Raw: must(json.Marshal(job))}
			}
			if c.runtime != "" {
				request.Object = raw(c.after)
			}
			if c.before != "" {
				request.Operation, request.OldObject = admissionv1.Update, raw(c.before)
			}
			answer := w.mutate(context.Background(), request)
			if answer.Allowed {
				answer = w.validate(context.Background(), request)
			}
			if c.want == "" && !answer.Allowed ||
				c.want != "" && (answer.Allowed || !strings.Contains(answer.Result.Message, c.want)) {
				t.Errorf("%s: got allowed %t, %+v; want %q", c.reason, answer.Allowed, answer.Result, c.want)
			}
		})
	}
	deprecated := jobOf(t, "old", "spec: {runtimeRef: {kind: ClusterTrainingRuntime, name: old}}")
	request := webhookadmission.Request{
		AdmissionRequest: admissionv1.AdmissionRequest{
			Operation: admissionv1.Create,
			Object:    runtime.RawExtension{Raw: must(json.Marshal(deprecated))},
		},
	}
	if answer := w.validate(context.Background(), request); !answer.Allowed || len(answer.Warnings) != 1 ||
		!strings.Contains(answer.Warnings[0], `ClusterTrainingRuntime "old" is deprecated`) {
		t.Errorf("a deprecated runtime is warned of: got %+v", answer)
	}
}

func TestPinSurvives(t *testing.T) {
	spec := runtimeOf(t, "{numNodes: 2, torch: {}}", lastingVolume)
	pin := must(store.Pin(spec))
	job := jobOf(t, "torch", "{}")
	job.Annotations = map[string]string{store.PinAnnotation: pin}
	got, err := store.Pinned(job)
	if err != nil || string(must(json.Marshal(got))) != string(must(json.Marshal(spec))) {
		t.Errorf("what was pinned comes back: got %v, %v", got, err)
	}
	job.Annotations[store.PinAnnotation] = "x"
	if _, err := store.Pinned(job); err == nil || !strings.Contains(err.Error(), "it was not written by Signalbox") {
		t.Errorf("a forged pin is named: got %v", err)
	}
}

func TestDelayOf(t *testing.T) {
	status := func(conditions ...string) *trainerapi.TrainJobStatus {
		s := &trainerapi.TrainJobStatus{}
		for _, c := range conditions {
			kind, value, _ := strings.Cut(c, "=")
			apimeta.SetStatusCondition(
				&s.Conditions,
				metav1.Condition{Type: kind, Status: metav1.ConditionStatus(value), Reason: "Any"},
			)
		}
		return s
	}
	counts := status("Suspended=False")
	counts.JobsStatus = []trainerapi.JobStatus{{Name: "node", Active: ptr.To[int32](1), Ready: ptr.To[int32](0)}}
	cases := map[string]struct {
		reason        string
		before, after *trainerapi.TrainJobStatus
		others        int
		want          time.Duration
	}{
		"waits": {
			"somebody wants to know why",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			0,
			2 * time.Second,
		},
		"waits in a crowd": {
			"the API server is busy with starts",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			100,
			32 * time.Second,
		},
		"a great crowd": {
			"not for ever",
			status(),
			status("Suspended=True", "QuotaReserved=False"),
			10000,
			88 * time.Second,
		},
		"admitted": {
			"it is about to start",
			status("Suspended=True"),
			status("Suspended=True", "QuotaReserved=True", "Admitted=True"),
			0,
			4 * time.Second,
		},
		"counts": {"they change all the time", status("Suspended=False"), counts, 0, 4 * time.Second},
		"end": {
			"an end doesn't wait for anybody",
			status("Suspended=False"),
			status("Suspended=False", "Complete=True"),
			10000,
			0,
		},
		"evicted": {
			"nor does the reason of a stop",
			status("Admitted=True"),
			status("Admitted=False", "Evicted=True"),
			10000,
			0,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := delayOf(c.before, c.after, c.others); got != c.want {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		})
	}
}

func TestPend(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	r := NewReconciler(Config{Clock: clk})
	changed := &trainerapi.TrainJobStatus{Conditions: []metav1.Condition{{Type: "Any"}}}
	waited := func(name string) (time.Duration, int) {
		o := &observed{job: &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: name}}, now: clk.Now()}
		p := r.pend(o, changed)
		return clk.Since(p.since), p.others
	}
	for _, name := range []string{"a", "b", "c"} {
		waited(name)
	}
	clk.Step(time.Second)
	waited("a")
	r.settle(types.NamespacedName{Name: "b"})
	r.settle(types.NamespacedName{Name: "c"})
	clk.Step(time.Second)
	if waited, others := waited("a"); waited != 2*time.Second || others != 2 {
		t.Errorf("a crowd that gets less is still one: got %v and %d others, want 2s and 2", waited, others)
	}
	r.settle(types.NamespacedName{Name: "a"})
	if waited, others := waited("a"); waited != 0 || others != 0 {
		t.Errorf("what was written has waited: got %v and %d others, want 0s and 0", waited, others)
	}
}
