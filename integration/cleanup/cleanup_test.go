package cleanup

import (
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/constants"
	kueueindexer "sigs.k8s.io/kueue/pkg/controller/core/indexer"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// waiter is a TrainJob that waits for the others.
func waiter(noted string) *api.TrainJob {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "waiter", Annotations: map[string]string{
		api.AfterAnnotation: "job=ok,another=any", api.AfterEndedAnnotation: noted,
		constants.AdmissionGatedByAnnotation: after.Gate}}}
	job.Spec.Suspend = ptr.To(true)
	return job
}

// TestReconcile holds which TrainJobs are deleted that ended an hour ago, and when the others are looked at again.
func TestReconcile(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{api.AddToScheme, jobset.AddToScheme, kueue.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	says := func(value string) func(*api.TrainJob) {
		return func(job *api.TrainJob) { job.Annotations = map[string]string{api.TTLAnnotation: value} }
	}
	ofRuntime := func() *jobset.JobSet {
		return &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job",
			Annotations: map[string]string{api.TTLAnnotation: "60"}, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob", Name: "job", UID: "job", Controller: ptr.To(true)}}}}
	}
	holding := func(reserved metav1.ConditionStatus, owner string) *kueue.Workload {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "wl"}}
		wl.OwnerReferences = []metav1.OwnerReference{{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob",
			Name: "job", UID: types.UID(owner), Controller: ptr.To(true)}}
		wl.Status.Conditions = []metav1.Condition{{Type: kueue.WorkloadQuotaReserved, Status: reserved}}
		return wl
	}
	pinned := func(job *api.TrainJob) {
		rt := &trainerapi.TrainingRuntimeSpec{}
		rt.Template.Annotations = map[string]string{api.TTLAnnotation: "60"}
		pin, err := store.Pin(rt)
		if err != nil {
			t.Fatal(err)
		}
		job.Annotations = map[string]string{store.PinAnnotation: pin}
	}
	another := ofRuntime()
	another.OwnerReferences[0].UID = "earlier"
	for name, c := range map[string]struct {
		change   func(*api.TrainJob)
		jobSet   *jobset.JobSet
		workload *kueue.Workload
		waiter   *api.TrainJob
		goes     bool
		told     bool // though it stays
		again    time.Duration
	}{
		"nothing says":              {change: func(*api.TrainJob) {}},
		"its time is over":          {change: says("3600"), goes: true},
		"it has a second left":      {change: says("3601"), again: time.Second},
		"it can't be read":          {change: says("1h"), told: true},
		"its pods still end":        {change: says("0"), workload: holding(metav1.ConditionTrue, "job"), again: recheck},
		"its quota is free":         {change: says("0"), workload: holding(metav1.ConditionFalse, "job"), goes: true},
		"an earlier one's pods end": {change: says("0"), workload: holding(metav1.ConditionTrue, "earlier"), goes: true},
		"another waits for it":      {change: says("0"), waiter: waiter(""), again: recheck},
		"another has waited for it": {change: says("0"), waiter: waiter("job=ok"), goes: true},
		"it was created again": {change: func(job *api.TrainJob) {
			says("0")(job)
			job.Status.Conditions[0].Type = trainerapi.TrainJobFailed
		}, waiter: waiter("job=ok"), goes: true},
		"its JobSet is gone": {change: pinned, goes: true},
		"its pin can't be read": {change: func(job *api.TrainJob) {
			job.Annotations = map[string]string{store.PinAnnotation: "x"}
		}},
		"its runtime says":             {change: func(*api.TrainJob) {}, jobSet: ofRuntime(), goes: true},
		"it says otherwise":            {change: says("7200"), jobSet: ofRuntime(), again: time.Hour},
		"an earlier one's runtime did": {change: func(*api.TrainJob) {}, jobSet: another},
		"another cluster's": {change: func(job *api.TrainJob) {
			says("0")(job)
			job.Labels = map[string]string{kueue.MultiKueueOriginLabel: "here"}
		}},
		"it is being deleted": {change: func(job *api.TrainJob) {
			says("0")(job)
			job.DeletionTimestamp, job.Finalizers = ptr.To(metav1.NewTime(now)), []string{"example.com/keep"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "job"}}
			job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobComplete, Status: metav1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
			c.change(job)
			objects := []client.Object{job}
			if c.jobSet != nil {
				objects = append(objects, c.jobSet)
			}
			if !hasEnded(job) || hasEnded(&api.TrainJob{}) {
				t.Error("who has ended is looked at, and nobody else")
			}
			if c.waiter != nil {
				objects = append(objects, c.waiter)
			}
			if c.workload != nil {
				objects = append(objects, c.workload)
			}
			kind := trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind)
			stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
				WithIndex(&kueue.Workload{}, kueueindexer.OwnerReferenceIndexKey(kind), func(o client.Object) (names []string) {
					for _, owner := range o.GetOwnerReferences() {
						names = append(names, owner.Name)
					}
					return names
				}).WithIndex(&api.TrainJob{}, after.Index, after.IndexOf).Build()
			sink := kevents.NewFakeRecorder(9)
			r := New(stored, sink, clocktesting.NewFakePassiveClock(now))
			key := client.ObjectKeyFromObject(job)
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			if err != nil || result.RequeueAfter != c.again {
				t.Errorf("got %v, %v; want to be asked again after %v", result, err, c.again)
			}
			if gone := apierrors.IsNotFound(stored.Get(t.Context(), key, &api.TrainJob{})); gone != c.goes {
				t.Errorf("it is gone: got %v, want %v", gone, c.goes)
			}
			if told := len(sink.Events) > 0; told != (c.goes || c.told) {
				t.Errorf("what happens is told: got %v", told)
			}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Errorf("one that is gone is nothing to do for: got %v", err)
			}
		})
	}
}

// TestChanged holds that what was changed after it was looked at isn't deleted.
func TestChanged(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "job"}}
	stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(job).Build()
	sink := kevents.NewFakeRecorder(9)
	r := New(stored, sink, clocktesting.NewFakePassiveClock(time.Now()))
	seen := job.DeepCopy()
	seen.ResourceVersion = "1"
	if err := r.delete(t.Context(), seen); !apierrors.IsConflict(err) || len(sink.Events) > 0 {
		t.Errorf("it is looked at once more: got %v", err)
	}
	if err := stored.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		t.Errorf("it is there: got %v", err)
	}
}

// TestUnreadable holds that a JobSet that can't be read, and may say something, deletes nothing, and that the next try
// does.
func TestUnreadable(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "job"}}
	job.Status.Conditions = []metav1.Condition{{Type: trainerapi.TrainJobFailed, Status: metav1.ConditionTrue}}
	stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(job).Build() // its scheme has no JobSets
	r := New(stored, kevents.NewFakeRecorder(9), clocktesting.NewFakePassiveClock(time.Now()))
	key := client.ObjectKeyFromObject(job)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err == nil {
		t.Error("it is tried again")
	}
	if err := stored.Get(t.Context(), key, job); err != nil {
		t.Errorf("it is there: got %v", err)
	}
}
