package gang

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

type conditionCase struct {
	reason         string
	node, launcher *metav1.Condition
	pods           []corev1.Pod
	want           string
	// minute is that of the condition's LastTransitionTime.
	minute    int
	explained bool
}

func TestConditionOf(t *testing.T) {
	p := &plan{base: "train-1", groups: []Group{
		{Name: "node", Pods: 9, ReplicatedJobs: []string{"node"}},
		{Name: "launcher", Pods: 1, ReplicatedJobs: []string{"launcher"}}}}
	at := func(minute int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 11, 21, 10, minute, 0, 0, time.UTC))
	}
	said := func(status metav1.ConditionStatus, minute int) *metav1.Condition {
		reason := map[metav1.ConditionStatus]string{metav1.ConditionTrue: "Scheduled",
			metav1.ConditionFalse: schedulingv1alpha2.PodGroupReasonUnschedulable}[status]
		return &metav1.Condition{Status: status, Reason: reason, Message: "general", LastTransitionTime: at(minute)}
	}
	pod := func(group, message string) corev1.Pod {
		return corev1.Pod{
			Spec: corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable, Message: message}}},
		}
	}
	const no = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
	const general137 = "pod group is unschedulable, minCount (9) cannot be satisfied: 1 scheduled, 0 remaining"
	cases := map[string]conditionCase{
		"nothing said": {"there is no condition before kube-scheduler has tried", nil, nil, nil, "", 0, true},
		"refused": {"the message is that of the pod that didn't fit", said(metav1.ConditionFalse, 3), nil,
			[]corev1.Pod{pod("train-1-node", "waiting for minCount pods"), pod("other", "1/8 nodes are available"),
				pod("train-1-node", general137), pod("train-1-node", no)},
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: " + no +
				"; gang launcher (1 pod) comes later", 3, true},
		"no pod says": {"the PodGroup's message is used until a pod has one", said(metav1.ConditionFalse, 3), nil, nil,
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: general" +
				"; gang launcher (1 pod) comes later", 3, false},
		"gated": {"it was tried without the pods that have gates", said(metav1.ConditionFalse, 3), nil,
			[]corev1.Pod{pod("train-1-node", general137), gatedPod("train-1-node")}, "", 0, false},
		"gated, and gone soon": {"it won't be tried", said(metav1.ConditionFalse, 3), nil,
			[]corev1.Pod{pod("train-1-node", no), failedPod(gatedPod("train-1-node"))},
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: " + no +
				"; gang launcher (1 pod) comes later", 3, true},
		"gated, of another": {"other pods' gates don't matter", said(metav1.ConditionFalse, 3), nil,
			[]corev1.Pod{pod("train-1-node", no), gatedPod("train-1-launcher")},
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: " + no +
				"; gang launcher (1 pod) comes later", 3, true},
		"the first": {"a later group isn't missing", said(metav1.ConditionTrue, 4), nil, nil,
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) comes later", 4, true},
		"both": {"the time is the last one's", said(metav1.ConditionTrue, 4), said(metav1.ConditionTrue, 6), nil,
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) is placed", 6, true},
		"the second refused": {"the refused group matters", said(metav1.ConditionTrue, 4),
			said(metav1.ConditionFalse, 6), []corev1.Pod{pod("train-1-launcher", no)},
			"False Unschedulable gang launcher (1 pod) can't be placed, since 2026-11-21T10:06:00Z: " + no, 6, true},
	}
	late := pod("train-1-node", "")
	late.CreationTimestamp, late.Status.Conditions = at(7), nil
	waits, tells, before := late, late, pod("train-1-node", no)
	waits.Status.Conditions = pod("", "waiting for minCount pods from a gang to appear").Status.Conditions
	tells.Status.Conditions = pod("", no).Status.Conditions
	before.CreationTimestamp = at(2)
	lateGated := gatedPod("train-1-node")
	lateGated.CreationTimestamp = at(7)
	victim := corev1.Pod{Spec: before.Spec, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: "preempting to accommodate a higher priority pod", LastTransitionTime: at(8)}}}}
	maps.Copy(cases, map[string]conditionCase{
		"preempted": {"its pods are gone soon", said(metav1.ConditionTrue, 4), nil, []corev1.Pod{before, victim, victim},
			"False PreemptionByScheduler gang node (9 pods) is preempted by kube-scheduler, since 2026-11-21T10:08:00Z: " +
				"preempting to accommodate a higher priority pod; gang launcher (1 pod) comes later", 8, true},
		"a new pod": {"kube-scheduler may place it at once", said(metav1.ConditionTrue, 4), nil, []corev1.Pod{late},
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) comes later", 4, false},
		"a new pod that waits": {"the others aren't there yet", said(metav1.ConditionTrue, 4), nil, []corev1.Pod{waits, late},
			"False Unschedulable gang node (9 pods) was placed, and new pods of it can't be, since 2026-11-21T10:07:00Z: " +
				"they wait for the rest of the gang; gang launcher (1 pod) comes later", 7, false},
		"a new pod without room": {"the PodGroup's condition doesn't change again", said(metav1.ConditionTrue, 4), nil,
			[]corev1.Pod{waits, tells}, "False Unschedulable gang node (9 pods) was placed, and new pods of it can't be, " +
				"since 2026-11-21T10:07:00Z: " + no + "; gang launcher (1 pod) comes later", 7, false},
		"a new pod with a gate": {"Kueue opens it", said(metav1.ConditionTrue, 4), nil, []corev1.Pod{lateGated},
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) comes later", 4, false},
		"a pod of before": {"its condition is about to change", said(metav1.ConditionTrue, 4), nil, []corev1.Pod{before},
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) comes later", 4, true},
	})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			states := map[string]podGroupState{
				"train-1-node":     {name: "train-1-node", scheduled: c.node},
				"train-1-launcher": {name: "train-1-launcher", scheduled: c.launcher},
			}
			// At a time long before: pods that aren't there may still be seen.
			out := outlookOf(&Groups{plan: p, states: states, pods: byPodGroup(c.pods), now: at(0).Add(-time.Hour),
				jobSet: succeeded("node", "launcher")})
			got, text := out.Condition, ""
			if got != nil {
				text = fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message)
				if at := at(c.minute); !got.LastTransitionTime.Equal(&at) {
					t.Errorf("%s: got the time %s", c.reason, got.LastTransitionTime)
				}
			}
			if text != c.want || (out.Again == 0) != c.explained {
				t.Errorf("%s: got %q, %v; want %q, %t", c.reason, text, out.Again, c.want, c.explained)
			}
			if refused := got != nil && got.Status == metav1.ConditionFalse; refused != (len(out.refused) > 0) {
				t.Errorf("%s: got %v as refused", c.reason, out.refused)
			}
		})
	}
}

// succeeded returns a JobSet whose Jobs have all succeeded.
func succeeded(replicatedJobs ...string) *jobset.JobSet {
	js := &jobset.JobSet{}
	for _, name := range replicatedJobs {
		js.Spec.ReplicatedJobs = append(js.Spec.ReplicatedJobs, jobset.ReplicatedJob{Name: name, Replicas: 1})
		js.Status.ReplicatedJobsStatus = append(js.Status.ReplicatedJobsStatus,
			jobset.ReplicatedJobStatus{Name: name, Succeeded: 1})
	}
	return js
}

// gatedPod returns a pod of a group that waits for its scheduling gates to be opened, or to be tried afterwards.
func gatedPod(group string) corev1.Pod {
	return corev1.Pod{
		Spec: corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}},
	}
}

func failedPod(pod corev1.Pod) corev1.Pod {
	pod.Status.Phase = corev1.PodFailed
	return pod
}

// A PodGroup of which pods are gone stays placed for kube-scheduler.
func TestPodsAreGone(t *testing.T) {
	p := &plan{base: "train-1", groups: []Group{{Name: "node", Pods: 9, ReplicatedJobs: []string{"node"}}}}
	placed := metav1.NewTime(time.Date(2026, 11, 21, 10, 4, 0, 0, time.UTC))
	pod := func(phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{Status: corev1.PodStatus{Phase: phase}, Spec: corev1.PodSpec{NodeName: "a",
			SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To("train-1-node")}}}
	}
	const gone = " of its pods are gone; the Job controller creates others, up to 10 min after they failed"
	cases := map[string]struct {
		reason string
		pods   []corev1.Pod
		after  time.Duration // since the placement
		before string        // reason of the condition as it is
		done   bool          // whether the Jobs have succeeded
		want   string
	}{
		"all": {reason: "nothing of it runs", after: time.Minute,
			want: "False PodsMissing gang node (9 pods) was placed, and 9" + gone},
		"some": {reason: "what has succeeded doesn't come again", after: time.Minute,
			pods: []corev1.Pod{pod(corev1.PodRunning), pod(corev1.PodRunning), pod(corev1.PodSucceeded), pod(corev1.PodFailed)},
			want: "False PodsMissing gang node (9 pods) was placed, and 6" + gone},
		"after a preemption": {reason: "why they are gone stays known", after: time.Minute, before: "PreemptionByScheduler",
			want: "False PreemptionByScheduler gang node (9 pods) was preempted by kube-scheduler, and 9" + gone},
		"for another reason": {reason: "that is over", after: time.Minute, before: "Unschedulable",
			want: "False PodsMissing gang node (9 pods) was placed, and 9" + gone},
		"not seen yet": {reason: "the cache may not have them", after: time.Second,
			want: "True Scheduled gang node (9 pods) is placed"},
		"done": {reason: "pods of a Job that has succeeded may be deleted", after: time.Minute, done: true,
			want: "True Scheduled gang node (9 pods) is placed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job, js := &api.TrainJob{}, succeeded("node")
			job.Status.Conditions = []metav1.Condition{{Type: api.ConditionGangScheduled, Reason: c.before}}
			if !c.done {
				js.Status.ReplicatedJobsStatus = nil
			}
			out := outlookOf(&Groups{plan: p, job: job, jobSet: js, pods: byPodGroup(c.pods), now: placed.Add(c.after),
				states: map[string]podGroupState{"train-1-node": {name: "train-1-node",
					scheduled: &metav1.Condition{Status: metav1.ConditionTrue, LastTransitionTime: placed}}}})
			got := out.Condition
			if text := fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message); text != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, text, c.want)
			}
			if again := c.after < patience; again == (out.Again == 0) {
				t.Errorf("%s: looked at again: got %v, want %t", c.reason, out.Again, again)
			}
		})
	}
}

// made returns an object of a TrainJob in a version.
func made(v *version, kind string, spec map[string]any) *unstructured.Unstructured {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "u"}}
	return (&groupObjects{version: v, job: job}).object(kind, "w", partLater, spec)
}

// The objects are those of Kubernetes' own types, and have no field that these don't have.
func TestV1Alpha2(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}}
	groups := []Group{{Name: "node", Pods: 4, priority: priority{class: "urgent"}}, {Name: "launcher", Pods: 1}}
	read := func(o *unstructured.Unstructured, into any) {
		t.Helper()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
			t.Fatal(err)
		}
	}
	var w schedulingv1alpha2.Workload
	read(made(v1alpha2, "Workload", v1alpha2.workloadSpec(job, api.GangPolicyGang, groups)), &w)
	if ref := w.Spec.ControllerRef; ref.APIGroup != "trainer.kubeflow.org" || ref.Kind != "TrainJob" ||
		ref.Name != "train" {
		t.Errorf("the Workload refers to its TrainJob: got %+v", ref)
	}
	if len(w.Spec.PodGroupTemplates) != 2 || w.Spec.PodGroupTemplates[0].SchedulingPolicy.Gang.MinCount != 4 {
		t.Errorf("got templates %+v", w.Spec.PodGroupTemplates)
	}
	for policy, minCount := range map[api.GangPolicy]int32{api.GangPolicyGang: 4, api.GangPolicyBasic: 0} {
		var pg schedulingv1alpha2.PodGroup
		made := made(v1alpha2, "PodGroup", v1alpha2.podGroupSpec("w", policy, groups[0]))
		read(made, &pg)
		if ref := pg.Spec.PodGroupTemplateRef.Workload; ref.WorkloadName != "w" || ref.PodGroupTemplateName != "node" {
			t.Errorf("the PodGroup says what it was made of: got %+v", ref)
		}
		if basic := pg.Spec.SchedulingPolicy.Basic != nil; basic != (minCount == 0) || pg.Spec.PriorityClassName != "" {
			t.Errorf("policy %s: got %+v", policy, pg.Spec)
		}
		made.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": schedulingv1alpha2.PodGroupScheduled, "status": "False"}}}
		if s := v1alpha2.read(made); s.minCount != minCount || s.placed() || !s.refused() {
			t.Errorf("policy %s: got %+v", policy, s)
		}
	}
}

func TestKubernetes137(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}}
	node := Group{Name: "node", Pods: 4, priority: priority{class: "urgent"}}
	const gang = "schedulingPolicy: {gang: {minCount: 4}}, disruptionMode: {all: {}}, priorityClassName: urgent"
	const metadata = "metadata: {namespace: team, name: w, labels: {signalbox.dev/gang-part: later}, ownerReferences: " +
		"[{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: train, uid: u, controller: true, " +
		"blockOwnerDeletion: true}]}"
	for want, got := range map[string]client.Object{
		"{apiVersion: scheduling.k8s.io/v1beta1, kind: Workload, " + metadata + ", spec: {controllerRef: {apiGroup: " +
			"trainer.kubeflow.org, kind: TrainJob, name: train}, podGroupTemplates: [{name: node, " + gang + "}]}}": //
		made(v1beta1, "Workload", v1beta1.workloadSpec(job, api.GangPolicyGang, []Group{node})),
		"{apiVersion: scheduling.k8s.io/v1beta1, kind: PodGroup, " + metadata + ", spec: {workloadRef: {workloadName: x, " +
			"templateName: node}, " + gang + "}}": //
		made(v1beta1, "PodGroup", v1beta1.podGroupSpec("x", api.GangPolicyGang, node)),
		"{apiVersion: scheduling.k8s.io/v1alpha3, kind: PodGroup, " + metadata + ", spec: {workloadRef: {workloadName: x, " +
			"templateName: node}, schedulingPolicy: {basic: {}}, priorityClassName: urgent}}": //
		made(v1alpha3, "PodGroup", v1alpha3.podGroupSpec("x", api.GangPolicyBasic, node)),
	} {
		var wanted map[string]any
		if err := yaml.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(got)
		var object map[string]any
		if err = errors.Join(err, yaml.Unmarshal(text, &object)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, object); diff != "" {
			t.Error(diff)
		}
	}
	pg := made(v1beta1, "PodGroup", v1beta1.podGroupSpec("x", api.GangPolicyGang, node))
	if s := v1beta1.read(pg); s.name != "w" || s.minCount != 4 || !s.later || s.placed() || s.refused() {
		t.Errorf("got %+v", s)
	}
	pg.Object["status"] = "of another shape"
	if s := v1beta1.read(pg); s.name != "w" || s.scheduled != nil {
		t.Errorf("got %+v", s)
	}
}

func TestRetain(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{NodeName: "n", SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse},
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no"},
		}},
	}
	kept := &corev1.Pod{}
	Retain(kept, pod)
	if kept.Spec.NodeName != "n" || *kept.Spec.SchedulingGroup.PodGroupName != "g" || len(kept.Status.Conditions) != 1 ||
		kept.Status.Conditions[0].Message != "no" {
		t.Errorf("got %+v", kept)
	}
	pod.Status.Conditions[0] = corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonPreemptionByScheduler}
	kept = &corev1.Pod{}
	Retain(kept, pod)
	if len(kept.Status.Conditions) != 2 {
		t.Errorf("a preempted pod says so: got %v", kept.Status.Conditions)
	}
	kept = &corev1.Pod{}
	gated := gatedPod("g")
	Retain(kept, &gated)
	if !untried(kept) {
		t.Errorf("a pod says that it has scheduling gates: got %v", kept.Status.Conditions)
	}
	pod.Status.Conditions[0].Reason = corev1.PodReasonTerminationByKubelet
	pod.Status.Conditions[1].Status = corev1.ConditionTrue
	kept = &corev1.Pod{}
	Retain(kept, pod)
	if len(kept.Status.Conditions) != 0 {
		t.Errorf("a placed pod has no message: got %v", kept.Status.Conditions)
	}
}
