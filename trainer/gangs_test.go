package trainer

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func gangOptions(mode api.GangMode, served bool) func(*options) {
	return func(o *options) { o.gangMode, o.gangsServed = mode, served }
}

// kinds are requests without names, which hold a hash.
func kinds(requests []string) string {
	var short []string
	for _, r := range requests {
		words := strings.Fields(r)
		short = append(short, words[0]+" "+words[1])
	}
	return strings.Join(short, ", ")
}

func TestGangs(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "PodGroup"}, "x", nil)
	cases := map[string]struct {
		reason  string
		mode    api.GangMode
		served  bool
		arrange func(*harness)
		sent    string
		event   string
		again   time.Duration
		err     string
		grouped bool
	}{
		"required": {reason: "groups come before the pods", mode: api.GangRequired, served: true,
			sent: "create Workload, create PodGroup, create PodGroup, create JobSet", grouped: true},
		"preferred": {reason: "groups come before the pods", mode: api.GangPreferred, served: true,
			sent: "create Workload, create PodGroup, create PodGroup, create JobSet", grouped: true},
		"required, not served": {reason: "it isn't started without", mode: api.GangRequired, again: 10 * time.Second,
			sent:  "patch TrainJob/status",
			event: creationFailed + "gang scheduling is required"},
		"preferred, not served": {reason: "it does without", mode: api.GangPreferred, sent: "create JobSet",
			event: "Warning GangSchedulingSkipped Its pods are placed one by one: the API server doesn't serve Workloads and " +
				"PodGroups"},
		"off": {reason: "nobody asked", mode: api.GangOff, served: true, sent: "create JobSet"},
		"required, refused": {reason: "it isn't started without", mode: api.GangRequired, served: true,
			sent:  "create Workload, create PodGroup",
			event: creationFailed + "making PodGroup", err: "making PodGroup",
			arrange: func(h *harness) { h.fail["create PodGroup"] = invalid }},
		"preferred, refused": {reason: "it does without", mode: api.GangPreferred, served: true,
			sent:    "create Workload, create PodGroup, create JobSet",
			event:   "Warning GangSchedulingSkipped Its pods are placed one by one: making PodGroup",
			arrange: func(h *harness) { h.fail["create PodGroup"] = invalid }},
		"skipped, and not started": {reason: "what isn't there isn't told", mode: api.GangPreferred, sent: "create JobSet",
			again:   100 * time.Millisecond,
			arrange: func(h *harness) { h.fail["create JobSet"] = conflict("job") }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, gangOptions(c.mode, c.served))
			h.put(h.pinned(h.trainJob("torch", started)))
			if c.arrange != nil {
				c.arrange(h)
			}
			result, err := h.try("job", false)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) ||
				result.RequeueAfter != c.again {
				t.Errorf("%s: got %+v, %v", c.reason, result, err)
			}
			if got := kinds(h.requests()); got != c.sent {
				t.Errorf("%s: sent %q, want %q", c.reason, got, c.sent)
			}
			if c.event == "" {
				h.wantEvents(c.reason)
			} else {
				h.wantEvents(c.reason, c.event)
			}
			js := &jobset.JobSet{}
			if !h.get(js, "job") {
				return
			}
			for _, rj := range js.Spec.ReplicatedJobs {
				if group := rj.Template.Spec.Template.Spec.SchedulingGroup; (group != nil) != c.grouped {
					t.Errorf("%s: replicatedJob %s has group %v", c.reason, rj.Name, group)
				}
			}
		})
	}
}

// What kube-scheduler says of a gang is told: by the condition, and once by an event.
func TestGangThatIsNotPlaced(t *testing.T) {
	h := newHarness(t, gangOptions(api.GangRequired, true))
	h.put(h.pinned(h.trainJob("torch", started)))
	h.reconcile("job")
	h.requests()
	groups := &schedulingv1alpha2.PodGroupList{}
	if err := h.store.List(t.Context(), groups); err != nil || len(groups.Items) != 2 {
		t.Fatalf("got %d PodGroups, %v", len(groups.Items), err)
	}
	first := ""
	say := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		for i := range groups.Items {
			pg := &schedulingv1alpha2.PodGroup{}
			h.get(pg, groups.Items[i].Name)
			if !strings.Contains(pg.Labels["signalbox.dev/gang-part"], "first") {
				continue
			}
			first = pg.Name
			pg.Status.Conditions = []metav1.Condition{{Type: schedulingv1alpha2.PodGroupScheduled, Status: status,
				Reason: reason, Message: "general",
				LastTransitionTime: metav1.NewTime(h.clock.Now())}}
			if err := h.store.Status().Update(t.Context(), pg); err != nil {
				t.Fatal(err)
			}
		}
	}
	js := &jobset.JobSet{}
	h.get(js, "job")
	settle := func() {
		t.Helper()
		for range 3 {
			h.reconcile("job")
			h.clock.Step(2 * time.Minute)
		}
	}
	say(metav1.ConditionFalse, schedulingv1alpha2.PodGroupReasonUnschedulable)
	for _, name := range []string{"pod", "pod-2"} {
		h.put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{jobset.JobSetNameKey: "job",
				jobset.JobSetUIDKey: string(js.UID)}},
			Spec: corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To(first)}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable, Message: "0/8 nodes are available"}}},
		})
	}
	settle()
	h.wantRequests("the status", statusPatch)
	h.wantEvents("once", "Warning GangUnschedulable gang ")
	got := describeStatus(&h.job("job").Status)
	if !strings.Contains(got, "GangScheduled=False/Unschedulable(gang ") || !strings.Contains(got,
		"0/8 nodes are available") {
		t.Errorf("the reason is a pod's: got %q", got)
	}
	js.Status.ReplicatedJobsStatus = []jobset.ReplicatedJobStatus{{Name: "node", Active: 1}}
	if err := h.store.Status().Update(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	settle()
	h.wantRequests("the counts", statusPatch)
	h.wantEvents("it was told")
	say(metav1.ConditionTrue, "Scheduled")
	settle()
	h.wantRequests("the status", statusPatch)
	h.wantEvents("it is placed")
	if got := describeStatus(&h.job("job").Status); !strings.Contains(got, "GangScheduled=True/Scheduled") {
		t.Errorf("it is placed: got %q", got)
	}
	h.edit("job", func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
	h.reconcile("job")
	if got := kinds(h.requests()); got != "delete PodGroup, delete PodGroup, delete Workload, patch TrainJob/status, "+
		"delete JobSet" {
		t.Errorf("its groups go with its stop: got %q", got)
	}
	if got := describeStatus(&h.job("job").Status); strings.Contains(got, "GangScheduled") {
		t.Errorf("a TrainJob that doesn't run has no gangs: got %q", got)
	}
}

// An error of the gangs delays no stop and no end.
func TestGangsThatFail(t *testing.T) {
	down := apierrors.NewServiceUnavailable("down")
	cases := map[string]struct {
		reason, request string
		change          func(*harness)
		first, then     string // what is sent while the status can't be written, and afterwards
	}{
		"a stop": {"it is stopped", "list PodGroup", func(h *harness) {
			h.edit("job",
				func(j *api.TrainJob) { j.Spec.Suspend = ptr.To(true) })
		},
			"patch TrainJob/status, delete JobSet", ""},
		"pods unread": {"an end is told", "list Pod", func(h *harness) {
			js := &jobset.JobSet{}
			h.get(js, "job")
			js.Status.Conditions = []metav1.Condition{{Type: "Completed", Status: metav1.ConditionTrue, Reason: "Done"}}
			if err := h.store.Status().Update(h.t.Context(), js); err != nil {
				h.t.Fatal(err)
			}
		}, "patch TrainJob/status", "patch TrainJob/status"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, gangOptions(api.GangRequired, true))
			h.put(h.pinned(h.trainJob("torch", started)))
			h.reconcile("job")
			h.requests()
			c.change(h)
			h.fail[c.request] = down
			h.fail[statusPatch] = apierrors.NewServiceUnavailable("broken")
			_, err := h.try("job", false)
			for _, want := range []string{"down", "writing the status: broken"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("both errors are passed on: got %v, want %q", err, want)
				}
			}
			delete(h.fail, statusPatch)
			if got := kinds(h.requests()); got != c.first {
				t.Errorf("%s: sent %q, want %q", c.reason, got, c.first)
			}
			if _, err := h.try("job", false); err == nil || !strings.Contains(err.Error(), "down") {
				t.Errorf("the error is passed on: got %v", err)
			}
			if got := kinds(h.requests()); got != c.then {
				t.Errorf("%s: sent %q, want %q", c.reason, got, c.then)
			}
		})
	}
}

// The controller listens for what happens to gangs.
func TestChangedGangs(t *testing.T) {
	if newHarness(t).parts.reconciler.Changed() == nil {
		t.Error("nobody would hear of a gang that is placed")
	}
}

// gangCache is a cache of groups that is never stale and sends nothing.
type gangCache struct {
	client.Reader
	indexes map[string]client.IndexerFunc
}

func (c *gangCache) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	c.indexes[field] = of
	return nil
}

func (*gangCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return silent{}, nil
}

func (*gangCache) GetInformerForKind(context.Context, schema.GroupVersionKind,
	...cache.InformerGetOption) (cache.Informer,
	error) {
	return silent{}, nil
}

func (*gangCache) RemoveInformer(context.Context, client.Object) error { return nil }

func (*gangCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (*gangCache) WaitForCacheSync(context.Context) bool { return true }

// silent is an informer that sends nothing.
type silent struct{ cache.Informer }

func (silent) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

type indexerFunc func(field string, of client.IndexerFunc)

func (f indexerFunc) IndexField(_ context.Context, _ client.Object, field string, of client.IndexerFunc) error {
	f(field, of)
	return nil
}
