package gang

import (
	"fmt"
	"strings"
	"testing"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetac "sigs.k8s.io/jobset/client-go/applyconfiguration/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

func specOf(t *testing.T, text string) *jobset.JobSetSpec {
	t.Helper()
	var spec jobset.JobSetSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

// rj returns a ReplicatedJob as YAML.
func rj(name string, replicas, parallelism int, rest string) string {
	return fmt.Sprintf("- {name: %s, replicas: %d, template: {spec: {parallelism: %d, template: {spec: {containers: "+
		"[]}}}}%s}\n", name, replicas, parallelism, rest)
}

func TestGroupsOf(t *testing.T) {
	after := func(waits ...string) string { return ", dependsOn: [" + strings.Join(waits, ", ") + "]" }
	const a, b = "{name: a, status: Complete}", "{name: b, status: Complete}"
	cases := map[string]struct {
		reason, jobs, policy string
		want                 string // "name:replicatedJobs=pods", or what the error says
		annotations          map[string]string
	}{
		"one": {"pods are parallelism × replicas", rj("node", 2, 3, ""), "", "node:node=6", nil},
		"together": {"what waits for nothing starts at once", rj("a", 1, 1, "") + rj("b", 1, 2, ""), "", "a:a,b=3",
			nil},
		"one after other": {"a gang never waits for pods that are created later",
			rj("a", 1, 1, "") + rj("node", 1, 4, after(a)), "",
			"a:a=1 node:node=4", nil},
		"two after two": {"the same waits, in whatever order, are the same start",
			rj("a", 1, 1, "") + rj("b", 1, 1, "") + rj("c", 1, 2, after(a, b)) + rj("d", 1, 3, after(b, a)), "",
			"a:a,b=2 c:c,d=5", nil},
		"ready, complete": {"another status is another time",
			rj("a", 1, 1, "") + rj("c", 1, 2, after(a)) + rj("d", 1, 3, after("{name: a, status: Ready}")), "",
			"a:a=1 c:c=2 d:d=3", nil},
		"in order": {"each starts when the one before is ready", rj("a", 1, 1, "") + rj("b", 1, 2, ""),
			"startupPolicy: {startupPolicyOrder: InOrder}\n", "a:a=1 b:b=2", nil},
		"no pods": {"no pod is created, so none is waited for", rj("a", 0, 1, "") + rj("b", 1, 2, ""), "", "b:b=2", nil},
		"fewer to do": {"a Job never runs more pods than it has completions",
			`- {name: a, replicas: 2, template: {spec: {parallelism: 5, completions: 3, template: {spec: {containers: []}}}}}` +
				"\n", "", "a:a=6", nil},
		"more to do": {"its last pods would be created alone",
			`- {name: a, replicas: 1, template: {spec: {parallelism: 2, completions: 3, template: {spec: {containers: []}}}}}` +
				"\n", "", "replicatedJobs[a].template.spec.completions is 3, more than its parallelism 2", nil},
		"a group of its own": {"a pod is in one group",
			"- {name: a, replicas: 1, template: {spec: {template: {spec: {containers: []," +
				" schedulingGroup: {podGroupName: mine}}}}}}\n", "",
			`replicatedJobs[a].template.spec.template.spec.schedulingGroup.podGroupName is "mine"`, nil},
		"two schedulers": {"one scheduler places a group", rj("a", 1, 1, "") +
			`- {name: b, replicas: 1, template: {spec: {template: {spec: {containers: [], schedulerName: other}}}}}` + "\n", "",
			`replicatedJobs[b].template.spec.template.spec.schedulerName is "other", but that of replicatedJobs[a]`, nil},
		"exclusive": {"JobSet refuses pods until the first is placed", rj("a", 1, 2, ""), "",
			`annotation alpha.jobset.sigs.k8s.io/exclusive-topology of the JobSet or of replicatedJobs[a] is "rack"`,
			map[string]string{jobset.ExclusiveKey: "rack"}},
		"exclusive, alone": {"it waits for no other", rj("a", 4, 1, ""), "", "a:a=4",
			map[string]string{jobset.ExclusiveKey: "rack"}},
		"exclusive by node labels": {"JobSet admits all pods", rj("a", 1, 2, ""), "", "a:a=2",
			map[string]string{jobset.ExclusiveKey: "rack", jobset.NodeSelectorStrategyKey: "true"}},
		"failing indexes": {"one that has failed for good would be missing for ever",
			"- {name: a, replicas: 1, template: {spec: {parallelism: 2, backoffLimitPerIndex: 1," +
				" template: {spec: {containers: []}}}}}\n", "",
			"replicatedJobs[a].template.spec.backoffLimitPerIndex is 1", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			groups, err := groupsOf(specOf(t, c.policy+"replicatedJobs:\n"+c.jobs), c.annotations)
			var got []string
			for _, g := range groups {
				got = append(got, fmt.Sprintf("%s:%s=%d", g.Name, strings.Join(g.ReplicatedJobs, ","), g.Pods))
			}
			text := strings.Join(got, " ")
			if err != nil {
				text = err.Error()
			}
			if text != c.want && (err == nil || !strings.Contains(text, c.want)) {
				t.Errorf("%s: got %s, want %s", c.reason, text, c.want)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "train", UID: "u", Generation: 2}}
	var groups []Group
	for n := range 10 {
		groups = append(groups, Group{Name: fmt.Sprintf("step-%d", n), ReplicatedJobs: []string{fmt.Sprintf("step-%d", n)},
			Pods: 2})
	}
	p := newPlan(job, api.GangPolicyGang, groups)
	if again := newPlan(job, api.GangPolicyGang, groups); again.base != p.base || !strings.HasPrefix(p.base, "train-") {
		t.Errorf("one start has one name: got %s and %s", p.base, again.base)
	}
	restarted := job.DeepCopy()
	restarted.Generation = 4
	namesake := job.DeepCopy()
	namesake.UID = "v"
	for reason, other := range map[string]*plan{
		"another start has another name":    newPlan(restarted, api.GangPolicyGang, groups),
		"another TrainJob has another name": newPlan(namesake, api.GangPolicyGang, groups),
		"another policy is another object":  newPlan(job, api.GangPolicyBasic, groups),
		"other groups are other objects":    newPlan(job, api.GangPolicyGang, groups[:1]),
	} {
		if other.base == p.base || p.has(other.podGroup(other.groups[0])) {
			t.Errorf("%s: got %s for both", reason, p.base)
		}
	}
	workloads := map[string]int{}
	for n, g := range groups {
		workloads[p.workload(n)]++
		if !p.has(p.podGroup(g)) || !p.has(p.workload(n)) {
			t.Errorf("the plan doesn't know its own %s", g.Name)
		}
	}
	if workloads[p.base] != maxTemplates || workloads[p.base+"-2"] != 2 {
		t.Errorf("a Workload holds %d templates: got %v", maxTemplates, workloads)
	}
	if (*plan)(nil).has(p.base) {
		t.Error("no plan has nothing")
	}
}

func TestPlanIsReadBack(t *testing.T) {
	spec := specOf(t, "replicatedJobs:\n"+rj("a", 1, 1, "")+rj("b", 1, 2, "")+
		rj("node", 2, 3, ", dependsOn: [{name: a, status: Complete}]"))
	groups, err := groupsOf(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(&api.TrainJob{ObjectMeta: metav1.ObjectMeta{Name: "train"}}, api.GangPolicyBasic, groups)
	data, err := yaml.Marshal(&jobset.JobSet{Spec: *spec})
	if err != nil {
		t.Fatal(err)
	}
	var applied jobsetac.JobSetApplyConfiguration
	if err := yaml.Unmarshal(data, &applied); err != nil {
		t.Fatal(err)
	}
	p.applyTo(&applied)
	if data, err = yaml.Marshal(applied); err != nil {
		t.Fatal(err)
	}
	var js jobset.JobSet
	if err := yaml.Unmarshal(data, &js); err != nil {
		t.Fatal(err)
	}
	if !Has(&js) {
		t.Fatal("the JobSet doesn't say that it has groups")
	}
	back := planOf(&js)
	if back.base != p.base || back.policy != p.policy || fmt.Sprint(back.groups) != fmt.Sprint(p.groups) {
		t.Errorf("got %+v, want %+v", back, p)
	}
	if planOf(&jobset.JobSet{Spec: *spec}) != nil {
		t.Error("a JobSet without groups has no plan")
	}
}

func TestSettingOf(t *testing.T) {
	defaults := Setting{Mode: api.GangOff, Policy: api.GangPolicyGang, From: "default"}
	cases := map[string]struct {
		reason            string
		job, runtime      map[string]string
		want, from, error string
	}{
		"no annotation": {"the default holds", nil, nil, "off gang", "default", ""},
		"the runtime": {"before the default", nil, map[string]string{api.GangModeAnnotation: "preferred"}, "preferred gang",
			"runtime torch.metadata.annotations[" + api.GangModeAnnotation + "]", ""},
		"both": {"the TrainJob before its runtime", map[string]string{api.GangModeAnnotation: "off"},
			map[string]string{api.GangModeAnnotation: "required"}, "off gang",
			"metadata.annotations[" + api.GangModeAnnotation + "]", ""},
		"one each": {"each field by itself", map[string]string{api.GangPolicyAnnotation: "basic"},
			map[string]string{api.GangModeAnnotation: "required"}, "required basic",
			"runtime torch.metadata.annotations[" + api.GangModeAnnotation + "]", ""},
		"wrong": {"the path and the value are named", map[string]string{api.GangModeAnnotation: "yes"}, nil, "", "",
			`metadata.annotations[signalbox.dev/gang-scheduling]: Unsupported value: "yes"`},
		"empty": {"nothing is not a value", map[string]string{api.GangPolicyAnnotation: ""}, nil, "", "",
			`metadata.annotations[signalbox.dev/gang-scheduling-policy]: Unsupported value: ""`},
		"a wrong runtime": {"the runtime is named", nil, map[string]string{api.GangModeAnnotation: "yes"}, "", "",
			`runtime torch.metadata.annotations[signalbox.dev/gang-scheduling]`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Annotations: c.job}}
			job.Spec.RuntimeRef.Name = "torch"
			runtime := &trainerapi.TrainingRuntimeSpec{}
			runtime.Template.Annotations = c.runtime
			s, err := SettingOf(job, runtime, defaults)
			if c.error != "" {
				if err == nil || !strings.Contains(err.Error(), c.error) {
					t.Errorf("%s: got %v, want %s", c.reason, err, c.error)
				}
				return
			}
			if got := fmt.Sprintf("%s %s", s.Mode, s.Policy); err != nil || got != c.want || s.From != c.from {
				t.Errorf("%s: got %s from %s, %v, want %s from %s", c.reason, got, s.From, err, c.want, c.from)
			}
		})
	}
}

func TestConditionOf(t *testing.T) {
	p := &plan{base: "train-1", groups: []Group{{Name: "node", Pods: 9}, {Name: "launcher", Pods: 1}}}
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
	cases := map[string]struct {
		reason         string
		node, launcher *metav1.Condition
		pods           []corev1.Pod
		want           string
		// minute is that of the condition's LastTransitionTime.
		minute    int
		explained bool
	}{
		"nothing said": {"there is no condition before kube-scheduler has tried", nil, nil, nil, "", 0, true},
		"refused": {"the message is that of the pod that didn't fit", said(metav1.ConditionFalse, 3), nil,
			[]corev1.Pod{pod("train-1-node", "waiting for minCount pods"), pod("other", "1/8 nodes are available"),
				pod("train-1-node", no)},
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: " + no +
				"; gang launcher (1 pod) comes later", 3, true},
		"no pod says": {"the PodGroup's message is used until a pod has one", said(metav1.ConditionFalse, 3), nil, nil,
			"False Unschedulable gang node (9 pods) can't be placed, since 2026-11-21T10:03:00Z: general" +
				"; gang launcher (1 pod) comes later", 3, false},
		"the first": {"a later group isn't missing", said(metav1.ConditionTrue, 4), nil, nil,
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) comes later", 4, true},
		"both": {"the time is the last one's", said(metav1.ConditionTrue, 4), said(metav1.ConditionTrue, 6), nil,
			"True Scheduled gang node (9 pods) is placed; gang launcher (1 pod) is placed", 6, true},
		"the second refused": {"the refused group matters", said(metav1.ConditionTrue, 4),
			said(metav1.ConditionFalse, 6), []corev1.Pod{pod("train-1-launcher", no)},
			"False Unschedulable gang launcher (1 pod) can't be placed, since 2026-11-21T10:06:00Z: " + no, 6, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			states := map[string]podGroupState{
				"train-1-node":     {name: "train-1-node", scheduled: c.node},
				"train-1-launcher": {name: "train-1-launcher", scheduled: c.launcher},
			}
			got, explained := conditionOf(p, states, c.pods)
			text := ""
			if got != nil {
				text = fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message)
				if at := at(c.minute); !got.LastTransitionTime.Equal(&at) {
					t.Errorf("%s: got the time %s", c.reason, got.LastTransitionTime)
				}
			}
			if text != c.want || explained != c.explained {
				t.Errorf("%s: got %q, %t; want %q, %t", c.reason, text, explained, c.want, c.explained)
			}
		})
	}
}

func TestV1Alpha2(t *testing.T) {
	job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}}
	groups := []Group{{Name: "node", Pods: 4}, {Name: "launcher", Pods: 1}}
	w := v1alpha2{}.workload(metav1.ObjectMeta{Name: "w"}, job, api.GangPolicyGang, groups).(*schedulingv1alpha2.Workload)
	if ref := w.Spec.ControllerRef; ref.APIGroup != "trainer.kubeflow.org" || ref.Kind != "TrainJob" ||
		ref.Name != "train" {
		t.Errorf("the Workload refers to its TrainJob: got %+v", ref)
	}
	if len(w.Spec.PodGroupTemplates) != 2 || w.Spec.PodGroupTemplates[0].SchedulingPolicy.Gang.MinCount != 4 {
		t.Errorf("got templates %+v", w.Spec.PodGroupTemplates)
	}
	for policy, minCount := range map[api.GangPolicy]int32{api.GangPolicyGang: 4, api.GangPolicyBasic: 0} {
		pg := v1alpha2{}.podGroup(metav1.ObjectMeta{Name: "p"}, "w", policy, groups[0]).(*schedulingv1alpha2.PodGroup)
		pg.Status.Conditions = []metav1.Condition{{Type: schedulingv1alpha2.PodGroupScheduled, Status: metav1.ConditionFalse}}
		if ref := pg.Spec.PodGroupTemplateRef.Workload; ref.WorkloadName != "w" || ref.PodGroupTemplateName != "node" {
			t.Errorf("the PodGroup says what it was made of: got %+v", ref)
		}
		if s := (v1alpha2{}).read(pg); s.minCount != minCount || s.placed() || !s.refused() {
			t.Errorf("policy %s: got %+v", policy, s)
		}
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
	pod.Status.Conditions[1].Status = corev1.ConditionTrue
	kept = &corev1.Pod{}
	Retain(kept, pod)
	if len(kept.Status.Conditions) != 0 {
		t.Errorf("a placed pod has no message: got %v", kept.Status.Conditions)
	}
}

func TestReleaseDue(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	pod := func(phase corev1.PodPhase, node string, age time.Duration) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       corev1.PodSpec{NodeName: node, SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	done, failed, runs := pod(corev1.PodSucceeded, "n", time.Hour), pod(corev1.PodFailed, "n", time.Hour),
		pod(corev1.PodRunning, "n", time.Hour)
	waits, fresh := pod(corev1.PodPending, "", time.Minute), pod(corev1.PodPending, "", 4*time.Second)
	other := waits
	other.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("other")}
	cases := map[string]struct {
		reason string
		status metav1.ConditionStatus
		pods   []corev1.Pod
		late   bool
		wait   time.Duration
	}{
		"a waiting one": {"the rest has succeeded", metav1.ConditionTrue, []corev1.Pod{done, done, failed, waits},
			true, 0},
		"beside one that runs": {"kube-scheduler counts two of three", metav1.ConditionTrue, []corev1.Pod{done, runs, waits},
			true, 0},
		"fresh": {"the other pods may be about to change", metav1.ConditionTrue, []corev1.Pod{done, done, fresh},
			false, 6 * time.Second},
		"a fresh one and not": {"the youngest counts", metav1.ConditionTrue, []corev1.Pod{done, waits, fresh}, false,
			6 * time.Second},
		"to come": {"the pod that replaces the failed one is not there yet", metav1.ConditionTrue,
			[]corev1.Pod{done, done, failed}, false, patience},
		"the end": {"pods end one after the other", metav1.ConditionTrue, []corev1.Pod{done, runs, runs}, false,
			0},
		"none has succeeded": {"all pods are created again", metav1.ConditionTrue, []corev1.Pod{failed, failed, waits}, false,
			0},
		"enough": {"kube-scheduler has what it waits for", metav1.ConditionTrue,
			[]corev1.Pod{done, runs, runs, waits}, false, 0},
		"made again": {"what has succeeded was placed, whatever a new PodGroup says", metav1.ConditionFalse,
			[]corev1.Pod{done, done, waits}, true, 0},
		"of another": {"only its own pods count", metav1.ConditionTrue, []corev1.Pod{done, done, other}, false, patience},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			late, _, wait := releaseDue(podGroupState{name: "g", minCount: 3, scheduled: &metav1.Condition{Status: c.status}},
				c.pods, now)
			if late != c.late || wait != c.wait {
				t.Errorf("%s: got %t, %s; want %t, %s", c.reason, late, wait, c.late, c.wait)
			}
		})
	}
	if late, _, _ := releaseDue(podGroupState{name: "g", scheduled: &metav1.Condition{Status: metav1.ConditionTrue}},
		[]corev1.Pod{done, waits}, now); late {
		t.Error("a group that is no gang is never released")
	}
}
