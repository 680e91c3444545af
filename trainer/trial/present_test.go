package trial

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// stepOf is the ReplicatedJob of a TrainJob's JobSet, which has its name and what Kueue adds with the start.
func stepOf(name string) *jobset.ReplicatedJob {
	rj := &jobs(2).ReplicatedJobs[1]
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	rj.Template.Spec.Template.Annotations = map[string]string{
		"kueue.x-k8s.io/workload": "trainjob-" + name + "-" + hash[:5]}
	rj.Template.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{
		PodGroupName: ptr.To(name + "-" + hash[:10] + "-node")}
	c := &rj.Template.Spec.Template.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "PET_MASTER_ADDR", Value: name + "-node-0-0." + name}}
	return rj
}

func (g *ground) takes(namespace, name string) error {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return g.TakesPods(context.Background(), job, stepOf(name))
}

// TestTakesPods holds what is said of a pod that is missing: a ResourceQuota that is used up counts, and what isn't
// known blocks nobody.
func TestTakesPods(t *testing.T) {
	const byPolicy = "ValidatingAdmissionPolicy 'pods' with binding 'all' denied request: no"
	for name, c := range map[string]struct {
		answer        error
		reason, says  string
		pending       bool
		policyOfUsers bool
	}{
		"taken":          {},
		"a pod is there": {answer: apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, "check")},
		"a quota that is used up": {answer: forbidden("check", "exceeded quota: q, requested: pods=1, used: pods=2"),
			reason: admission.ReasonQuotaExceeded, says: "raise the ResourceQuota"},
		"Pod Security": {answer: forbidden("check", `violates PodSecurity "restricted:latest"`),
			reason: admission.ReasonPodsRefused, says: "change what namespace team allows"},
		"no ServiceAccount": {answer: forbidden("check", "error looking up service account team/gone"),
			reason: admission.ReasonPodsRefused, says: "a pod of its ReplicatedJob node can't be created"},
		"a webhook": {answer: apierrors.NewBadRequest(`admission webhook "a.b" denied the request: no`),
			reason: admission.ReasonPodsRefused, says: "a.b"},
		"a policy":            {answer: forbidden("check", byPolicy), reason: admission.ReasonPodsRefused, says: "'pods'"},
		"a policy of users":   {answer: forbidden("check", byPolicy), policyOfUsers: true, pending: true},
		"a webhook that acts": {answer: apierrors.NewBadRequest(`admission webhook "a.b" does not support dry run`), pending: true},
		"no right to ask":     {answer: forbidden("", `User "manager" cannot create resource "pods"`), pending: true},
		"no answer":           {answer: context.DeadlineExceeded, pending: true},
		"a webhook that is down": {answer: apierrors.NewInternalError(errors.New("failed calling webhook")),
			pending: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			if c.policyOfUsers {
				p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
				p.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "request.userInfo.username == 'a'"}}
				g = newGround(nil, p)
			}
			g.answer = c.answer
			err := g.takes("team", "job")
			blocked, pending := (*admission.BlockedError)(nil), (*admission.PendingError)(nil)
			switch {
			case c.pending != errors.As(err, &pending), (c.reason != "") != errors.As(err, &blocked):
				t.Errorf("got %v", err)
			case blocked != nil && (blocked.Reason != c.reason || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %s: %v, want %s: %s", blocked.Reason, err, c.reason, c.says)
			case err == nil && (c.reason != "" || c.pending):
				t.Error("it isn't taken")
			}
		})
	}
}

// TestTakesPodsAsked holds that TrainJobs which run the same in a namespace ask once a minute together, whatever the
// answer is, and one at a time.
func TestTakesPodsAsked(t *testing.T) {
	for name, answer := range map[string]error{
		"taken": nil, "refused": forbidden("check", "exceeded quota: q"), "no answer": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			g.answer = answer
			ask := func(what, namespace, job string, asked int) {
				t.Helper()
				if err := g.takes(namespace, job); (err != nil) != (answer != nil) || len(g.asked) != asked {
					t.Errorf("%s: %v, asked %d times, want %d", what, err, len(g.asked), asked)
				}
				g.asked = nil
			}
			ask("the first", "team", "burst-1", 1)
			ask("again", "team", "burst-1", 0)
			ask("another of the burst", "team", "burst-12", 0)
			ask("in another namespace", "other", "burst-1", 1)
			ask("in a namespace of its name", "a", "a", 1)
			ask("and another", "b", "b", 1)
			g.clock.Step(presentFor - time.Second)
			ask("almost a minute later", "team", "burst-2", 0)
			g.clock.Step(time.Second)
			ask("a minute later", "team", "burst-2", 1)
		})
	}
	g := newGround(nil)
	g.busy.Lock()
	if err := g.takes("team", "job"); !errors.As(err, new(*admission.PendingError)) || len(g.asked) > 0 {
		t.Errorf("another question is being asked: got %v", err)
	}
	g.busy.Unlock()
	if err := g.takes("team", "job"); err != nil || len(g.asked) != 1 {
		t.Errorf("and then no more: got %v", err)
	}
}

// TestTakesJobs holds that a started TrainJob of which Jobs or the Service are missing says why, as of pods, and that
// nothing is asked beside Kubeflow Trainer.
func TestTakesJobs(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job"}}
	js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "js"}}
	js.Spec.ReplicatedJobs = jobs(2).ReplicatedJobs
	for name, c := range map[string]struct {
		refused, says string
		step          int
		unnamed       bool
	}{
		"taken":                    {},
		"a Job":                    {refused: "Job", says: "a Job of its ReplicatedJob data can't be created"},
		"a Job of the second":      {refused: "Job", says: "a Job of its ReplicatedJob node can't be created", step: 1},
		"the Service":              {refused: "Service", says: "its Service can't be created"},
		"the second has a Service": {refused: "Service", step: 1},
		"no Service":               {refused: "Service", unnamed: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, js := newGround(nil), js.DeepCopy()
			if g.refused = c.refused; c.unnamed {
				js.Spec.Network = &jobset.Network{EnableDNSHostnames: ptr.To(false)}
			}
			err := g.TakesJobs(t.Context(), job, js, &js.Spec.ReplicatedJobs[c.step])
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			g.refused = ""
			if again := g.TakesJobs(t.Context(), job, js, &js.Spec.ReplicatedJobs[c.step]); (again == nil) != (err == nil) {
				t.Errorf("it was asked again at once: %v", again)
			}
			g.refused = c.refused
			other := New(g.client, g.live, g.clock, Installed{})
			if err := other.TakesJobs(t.Context(), job, js, &js.Spec.ReplicatedJobs[c.step]); err != nil {
				t.Errorf("there is no right to ask: got %v", err)
			}
		})
	}
}

// TestTakesJobsAsked holds that TrainJobs which run the same ask once together about Jobs too: their pod templates have
// the names of Kueue's Workload and of the gang.
func TestTakesJobsAsked(t *testing.T) {
	g := newGround(nil)
	for _, name := range []string{"burst-1", "burst-12", "burst-2"} {
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}}
		js := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("js-" + name)}}
		js.Spec.ReplicatedJobs = []jobset.ReplicatedJob{*stepOf(name)}
		if err := g.TakesJobs(t.Context(), job, js, &js.Spec.ReplicatedJobs[0]); err != nil {
			t.Error(err)
		}
	}
	if g.others != 2 {
		t.Errorf("asked %d times, want for a Job and a Service", g.others)
	}
	// Of two ServiceAccounts with their TrainJobs' names, one may not be there.
	for _, name := range []string{"burst-1", "burst-2"} {
		rj := stepOf(name)
		rj.Template.Spec.Template.Spec.ServiceAccountName = name + "-12345"
		job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		if err := g.TakesPods(t.Context(), job, rj); err != nil {
			t.Error(err)
		}
	}
	if len(g.asked) != 2 {
		t.Errorf("asked about %d pods, each with a ServiceAccount of its own", len(g.asked))
	}
}
