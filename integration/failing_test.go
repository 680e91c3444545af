package integration_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
	workloadfinish "sigs.k8s.io/kueue/pkg/workload/finish"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
)

// chapter is what happens to a TrainJob.
type chapter struct {
	name   string
	happen func(*harness)
}

// chapters are the life of a TrainJob: what happens to it, one after the other.
var chapters = []chapter{
	{"is created", func(h *harness) { h.create(newTrainJob("job")) }},
	{"is admitted", func(h *harness) { h.admit() }},
	{"has a JobSet", func(h *harness) { h.pod(h.build("job")) }},
	{"is preempted", func(h *harness) { h.evict(kueue.WorkloadEvictedByPreemption) }},
	{"its pods end", func(h *harness) {
		js := &jobset.JobSet{}
		h.must(h.store.Get(h.t.Context(), types.NamespacedName{Namespace: team, Name: "job"}, js))
		h.must(h.store.DeleteAllOf(h.t.Context(), &corev1.Pod{}, client.InNamespace(team)))
		h.collect(js)
	}},
	{"is admitted again", func(h *harness) { h.admit() }},
	{"is stopped", func(h *harness) { h.annotate(api.StopAnnotation, "") }},
	{"is resumed", func(h *harness) { h.annotate(api.StopAnnotation, "-"); h.admit() }},
	{"completes", func(h *harness) { h.end("job", trainerapi.TrainJobComplete) }},
}

// dispatches are the life of a TrainJob of MultiKueue in the cluster that it is from, as far as its status is written
// there.
var dispatches = []chapter{
	{"is created", func(h *harness) { h.create(away("away")) }},
	{"has quota here", func(h *harness) { h.reserve(kueue.CheckStatePending, "") }},
	{"is refused by a worker", func(h *harness) { h.finish("RuntimesDiffer", "here, image differs") }},
}

// TestWhatFailsIsToldElsewhere does as TestWhatFailsIsTold for a TrainJob that no worker runs yet.
func TestWhatFailsIsToldElsewhere(t *testing.T) {
	for i := range dispatches {
		eachFails(t, "dispatched", dispatches[:i+1], func(t *testing.T) *harness { return withMultiKueue(t, true) })
	}
}

// TestWhatFailsIsTold lets each request fail for good that a TrainJob's life takes, one at a time and for each of the
// reasons that an API server has. It holds that its user reads what fails, and that it goes on when that has ended.
func TestWhatFailsIsTold(t *testing.T) {
	for _, d := range []*dialect.Dialect{dialect.Bundled, dialect.Kubeflow23} {
		for i := range chapters {
			eachFails(t, "beside "+d.Name, chapters[:i+1], func(t *testing.T) *harness { return newHarness(t, d) })
		}
	}
}

// eachFails lets each request fail that the last chapter of a life takes.
func eachFails(t *testing.T, where string, life []chapter, begin func(*testing.T) *harness) {
	t.Helper()
	last := life[len(life)-1]
	until := func(t *testing.T) *harness {
		h := begin(t)
		for _, before := range life[:len(life)-1] {
			before.happen(h)
			h.pass(time.Minute)
		}
		return h
	}
	good := until(t)
	good.did = map[string]bool{}
	last.happen(good)
	good.pass(time.Minute)
	for _, request := range slices.Sorted(maps.Keys(good.did)) {
		t.Run(fmt.Sprintf("%s %s/%s", last.name, where, request), func(t *testing.T) {
			h := until(t)
			last.happen(h)
			h.fail[request] = apierrors.NewForbidden(schema.GroupResource{}, "it", fmt.Errorf("a quota of objects"))
			h.failsFor(request, 2*time.Minute)
			delete(h.fail, request)
			h.comesTo(good.outcome())
		})
	}
}

// failsFor holds that a TrainJob of which a request fails says so, if that keeps it from anything.
func (h *harness) failsFor(request string, d time.Duration) {
	h.t.Helper()
	events, failed := h.pass(d)
	job := h.trainJob("job")
	told := slices.Contains(events, integration.ReasonReconcileFailed) || h.blocked("job") != ""
	if failed == nil || request == "get TrainJob" {
		return
	}
	if !told {
		h.t.Errorf("nobody is told of %q; events %v", failed, events)
	}
	if strings.HasSuffix(request, " TrainJob/status") || conditionOf(job, trainerapi.TrainJobComplete) != nil {
		return
	}
	c := conditionOf(job, api.ConditionBlocked)
	state := api.StateOf(&job.Status.TrainJobStatus)
	if c == nil || !strings.Contains(c.Message, "a quota of objects") || state != api.StateBlocked {
		h.t.Errorf("condition %v and state %s don't say what fails: %v", c, state, failed)
	}
}

// TestFailureToldLater holds that what fails is told although telling it has failed too, and that what is told is what
// fails now.
func TestFailureToldLater(t *testing.T) {
	h := newHarness(t, dialect.Bundled)
	h.create(newTrainJob("job"))
	of := func(what string) error {
		return apierrors.NewForbidden(schema.GroupResource{}, "it", fmt.Errorf("%s", what))
	}
	h.fail["create Workload"], h.fail["patch TrainJob/status"] = of("one"), of("another")
	h.fail["update TrainJob/status"] = of("another")
	h.pass(time.Minute)
	delete(h.fail, "patch TrainJob/status")
	delete(h.fail, "update TrainJob/status")
	h.pass(time.Minute)
	says := func(what string) {
		t.Helper()
		if c := conditionOf(h.trainJob("job"), api.ConditionBlocked); c == nil || !strings.Contains(c.Message, what) {
			t.Errorf("got %v, want %q", c, what)
		}
	}
	says("one")
	h.fail["create Workload"] = of("third")
	h.pass(3 * time.Minute)
	says("third")
}

// comesTo holds what a TrainJob comes to within two hours, with quota whenever it asks for some: what the API server
// rejects is tried once an hour.
func (h *harness) comesTo(want string) {
	h.t.Helper()
	for range 120 {
		if h.pass(time.Minute); h.outcome() == want {
			return
		}
		if all := h.workloads(); h.suspended("job") && len(all) == 1 && !workload.HasQuotaReservation(&all[0]) &&
			!workload.IsOnHold(&all[0]) && !workloadfinish.IsFinished(&all[0]) {
			h.admit()
		}
	}
	h.t.Errorf("when it is mended: %s, want %s", h.outcome(), want)
}

// pass lets time pass, as the manager does: with reconciles every few seconds. It returns all events, and the last
// one's error.
func (h *harness) pass(d time.Duration) (events []string, failed error) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: team, Name: "job"}}
	step := max(d/4, 3*time.Second)
	for end := h.clock.Now().Add(d); h.clock.Now().Before(end); h.clock.Step(step) {
		_, failed = h.reconcile("job")
		h.reconciler.Concluded(h.t.Context(), request, failed)
		events = append(events, h.events...)
	}
	return events, failed
}

// outcome describes what a TrainJob has come to.
func (h *harness) outcome() string {
	return fmt.Sprintf("blocked %q, suspended %t", h.blocked("job"), h.suspended("job"))
}
