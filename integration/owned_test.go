package integration

import (
	"context"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
)

func TestStale(t *testing.T) {
	js := &jobset.JobSet{Spec: jobset.JobSetSpec{ReplicatedJobs: []jobset.ReplicatedJob{{Name: "node"}}}}
	template := &js.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	template.Tolerations = []corev1.Toleration{{Key: "spot"}}
	cases := map[string]struct {
		reason string
		change func(*batchv1.Job)
		want   bool
	}{
		"as the template says": {"it can be resumed", func(*batchv1.Job) {}, false},
		"another selector": {"JobSet would merge it into the next flavor's", func(j *batchv1.Job) {
			j.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "a100"}
		}, true},
		"another toleration": {"the same", func(j *batchv1.Job) { j.Spec.Template.Spec.Tolerations = nil }, true},
		"another gate": {"the same", func(j *batchv1.Job) {
			j.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		}, true},
		"of no ReplicatedJob": {"a Job that the JobSet doesn't have any more", func(j *batchv1.Job) { j.Labels = nil }, true},
		"resumed": {"JobSet doesn't merge into a Job that runs", func(j *batchv1.Job) {
			j.Labels, j.Spec.Suspend = nil, nil
		}, false},
		"completed": {"it isn't resumed", func(j *batchv1.Job) {
			j.Labels, j.Status.CompletionTime = nil, &metav1.Time{Time: now}
		}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			child := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{jobset.ReplicatedJobNameKey: "node"}}}
			child.Spec.Suspend = ptr.To(true)
			child.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot"}}
			c.change(child)
			if got := stale(child, js); got != c.want {
				t.Errorf("%s: got %t", c.reason, got)
			}
		})
	}
}

// indexed adds the indexes of a manager's cache to a fake one.
type indexed struct{ *fake.ClientBuilder }

func (i indexed) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(o, field, extract)
	return nil
}

// TestOwnedRunsWithItsOwner holds that a TrainJob of an AppWrapper, which Kueue manages, runs while that is admitted,
// and is suspended otherwise. jobframework finds the AppWrapper's Workload by an index of the manager's cache.
func TestOwnedRunsWithItsOwner(t *testing.T) {
	config := &configapi.Default().Kueue
	_ = jobframework.RegisterExternalJobType(config.OwnerKinds[0]) // once in a process
	for name, admitted := range map[string]bool{"admitted": true, "not admitted": false} {
		t.Run(name, func(t *testing.T) {
			owner := &unstructured.Unstructured{}
			owner.SetAPIVersion("workload.codeflare.dev/v1beta2")
			owner.SetKind("AppWrapper")
			owner.SetNamespace("ns")
			owner.SetName("wrapper")
			owner.SetUID("wrapper-uid")
			owner.SetLabels(map[string]string{constants.QueueLabel: "queue"})
			ref := *metav1.NewControllerRef(owner, owner.GroupVersionKind())
			job := trainJobIn("ns", "job", runningJob)
			job.OwnerReferences = []metav1.OwnerReference{ref}
			wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "wl",
				OwnerReferences: []metav1.OwnerReference{ref}}}
			if admitted {
				wl.Status.Conditions = []metav1.Condition{is(kueue.WorkloadQuotaReserved, 0), is(kueue.WorkloadAdmitted, 0)}
			}
			scheme := kinds(t)
			scheme.AddKnownTypeWithName(owner.GroupVersionKind(), &unstructured.Unstructured{})
			b := fake.NewClientBuilder().WithScheme(scheme).
				WithObjects(owner, job, wl, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
			empty, err := reconcilerOf(t, dialect.Bundled, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := empty.setupIndexes(t.Context(), indexed{b}); err != nil {
				t.Fatal(err)
			}
			c, clk := b.Build(), clocktesting.NewFakeClock(now)
			r, err := NewReconciler(Config{Client: c, Reader: c, Store: store.New(c, c, clk, true), Kueue: config,
				Recorder: events.NewFakeRecorder(10), Trainer: dialect.Bundled, Clock: clk})
			if err != nil {
				t.Fatal(err)
			}
			key := types.NamespacedName{Namespace: "ns", Name: "job"}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Errorf("got %v", err)
			}
			var after api.TrainJob
			if err := c.Get(t.Context(), key, &after); err != nil {
				t.Fatal(err)
			}
			if suspended := ptr.Deref(after.Spec.Suspend, false); suspended == admitted {
				t.Errorf("suspended: %t", suspended)
			}
		})
	}
}
