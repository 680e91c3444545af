package trial

import (
	"errors"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
)

// TestPolicies holds that a policy that asks for what a flavor brings keeps nobody from the queue, and another does.
func TestPolicies(t *testing.T) {
	pool := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "pool"},
		Spec: kueue.ResourceFlavorSpec{NodeLabels: map[string]string{"pool": "a"}}}
	plain := &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}
	for says, flavors := range map[string][]client.Object{
		"": {plain, pool}, "needs a pool": {plain},
	} {
		g := newGround(nil, flavors...)
		g.accepts = func(pod *corev1.Pod) bool {
			return pod.Spec.NodeSelector["pool"] != "" || pod.Spec.Containers[0].Name == "data"
		}
		g.answer = forbidden("check", "ValidatingAdmissionPolicy 'pools' with binding 'all' denied request: needs a pool")
		err := g.startable("team", jobs(2))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%d flavors: got %v", len(flavors), err)
		}
	}
	g := newGround(nil, pool)
	g.accepts = func(pod *corev1.Pod) bool { return pod.Spec.NodeSelector["pool"] != "" }
	g.answer = forbidden("check", "ValidatingAdmissionPolicy 'pools' with binding 'all' denied request: needs a pool")
	nothing := jobs(2)
	for i := range nothing.ReplicatedJobs {
		pod := &nothing.ReplicatedJobs[i].Template.Spec.Template.Spec
		for j := range pod.Containers {
			pod.Containers[j].Resources = corev1.ResourceRequirements{}
		}
	}
	if err := g.startable("team", nothing); err == nil || !strings.Contains(err.Error(), "needs a pool") {
		t.Errorf("pods that request nothing get no flavor: got %v", err)
	}
	g = newGround(nil, pool)
	g.answer = forbidden("check", `violates PodSecurity "restricted:latest"`)
	if err := g.startable("team", jobs(2)); err == nil {
		t.Error("Pod Security doesn't look at nodes")
	}
}

// TestPoliciesOfWhatRuns holds that a policy that every pod of a JobSet satisfies keeps nobody from the queue, and what
// isn't satisfied by what runs does. One that looks at who creates pods can't be tried.
func TestPoliciesOfWhatRuns(t *testing.T) {
	policy := func(expression string) *admissionregistrationv1.ValidatingAdmissionPolicy {
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
		p.Spec.Validations = []admissionregistrationv1.Validation{{Expression: expression}}
		return p
	}
	labeled := func(key string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool { return pod.Labels[key] != "" }
	}
	const byPolicy = "ValidatingAdmissionPolicy 'pods' with binding 'all' denied request: no"
	for name, c := range map[string]struct {
		says    string
		policy  *admissionregistrationv1.ValidatingAdmissionPolicy
		accepts func(*corev1.Pod) bool
		refused bool
	}{
		"a Job's label":    {byPolicy, policy("has(object.metadata.labels)"), labeled("batch.kubernetes.io/job-name"), false},
		"an older one":     {byPolicy, policy("has(object.metadata.labels)"), labeled("controller-uid"), false},
		"a JobSet's label": {byPolicy, policy("has(object.metadata.labels)"), labeled(jobset.JobSetNameKey), false},
		"a Job's by a webhook": {`admission webhook "a.b" denied the request: no`, nil,
			labeled(jobset.ReplicatedJobNameKey), false},
		"a Job as the owner": {byPolicy, policy("object.metadata.ownerReferences[0].kind == 'Job'"),
			func(pod *corev1.Pod) bool { return metav1.GetControllerOf(pod).Kind == "Job" }, false},
		"another label":              {byPolicy, policy("has(object.metadata.labels)"), labeled("cost-center"), true},
		"who creates it":             {byPolicy, policy("request.userInfo.username.endsWith(':job-controller')"), nil, false},
		"who may create it":          {byPolicy, policy("authorizer.requestResource.check('x').allowed()"), nil, false},
		"a policy that is gone":      {byPolicy, nil, nil, true},
		"a webhook, of who knows":    {`admission webhook "a.b" denied the request: no`, nil, nil, true},
		"a webhook that names a CEL": {`admission webhook "a.b" denied the request: userInfo`, nil, nil, true},
		"a webhook that quotes one": {`admission webhook "a.b" denied the request: ` + byPolicy,
			policy("request.userInfo.username == 'a'"), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			if c.policy != nil {
				g = newGround(nil, c.policy)
			}
			g.answer, g.accepts = forbidden("check", c.says), c.accepts
			if err := g.startable("team", jobs(2)); (err != nil) != c.refused {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestWherePodsAreKueues holds that Kueue's webhook for pods, which looks for the Job of a Job's pod, keeps nobody from
// the queue: there is no Job yet.
func TestWherePodsAreKueues(t *testing.T) {
	g := newGround(nil)
	missing := apierrors.NewNotFound(schema.GroupResource{Group: "batch", Resource: "jobs"}, "job-node-0")
	missing.ErrStatus.Message = `admission webhook "mpod.kb.io" denied the request: Job.batch "job-node-0" not found`
	g.ofJobs = missing
	if err := g.startable("team", jobs(2)); err != nil {
		t.Errorf("a pod of the TrainJob is taken: got %v", err)
	}
	g.answer = forbidden("check", "ValidatingAdmissionPolicy 'pods' with binding 'all' denied request: pods are of Jobs")
	if err := g.startable("other", jobs(2)); err != nil {
		t.Errorf("a policy may ask for what can't be tried: got %v", err)
	}
	g.answer = forbidden("check", `violates PodSecurity "restricted:latest"`)
	if err := g.startable("third", jobs(2)); err == nil {
		t.Error("the API server refuses it itself")
	}
}

// TestPolicyUnread holds that nothing is decided while it isn't known what a policy looks at.
func TestPolicyUnread(t *testing.T) {
	g := newGround(nil)
	g.answer = forbidden("check", "ValidatingAdmissionPolicy 'pods' with binding 'all' denied request: no")
	g.read = apierrors.NewServiceUnavailable("down")
	if err := g.startable("team", jobs(2)); !errors.As(err, new(*admission.PendingError)) {
		t.Errorf("got %v", err)
	}
	g.read = apierrors.NewForbidden(schema.GroupResource{}, "pods", errors.New("no rights"))
	g.clock.Step(unansweredRetry)
	if err := g.startable("team", jobs(2)); !errors.As(err, new(*admission.BlockedError)) {
		t.Errorf("without the right, the refusal counts: got %v", err)
	}
}
