package gang

import (
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		"one scheduler": {"the default has a name", rj("a", 1, 1, "") +
			`- {name: b, replicas: 1, template: {spec: {template: {spec: {containers: [], schedulerName: default-scheduler}}}}}` +
			"\n", "", "a:a,b=2", nil},
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

// Kubernetes 1.37 refuses a group whose pods differ in their priority, or have one of the system's; 1.36 places it.
func TestPriorities(t *testing.T) {
	with := func(name, fields string) string {
		return fmt.Sprintf("- {name: %s, replicas: 1, template: {spec: {template: {spec: {containers: []%s}}}}}\n",
			name, fields)
	}
	cases := map[string]struct{ jobs, want string }{
		"none":  {with("a", "") + with("b", ", preemptionPolicy: PreemptLowerPriority"), ""},
		"equal": {with("a", ", priorityClassName: low") + with("b", ", priorityClassName: low"), ""},
		"classes": {with("a", ", priorityClassName: low") + with("b", "") + with("c", ", preemptionPolicy: Never"),
			`replicatedJobs[b].template.spec.template.spec.priorityClassName is "", but that of replicatedJobs[a], which ` +
				`starts with it, is "low"`},
		"preemption": {with("a", "") + with("b", ", preemptionPolicy: Never"),
			`replicatedJobs[b].template.spec.template.spec.preemptionPolicy is "Never", but that of replicatedJobs[a]`},
		"the system's": {with("a", ", priorityClassName: system-cluster-critical"),
			`replicatedJobs[a].template.spec.template.spec.priorityClassName is "system-cluster-critical"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			onEach(t, api.GangRequired, func(t *testing.T, s *cluster) {
				_, err := s.start(t, c.jobs)
				if refused := c.want != "" && s.version != v1alpha2; refused != (err != nil) ||
					refused && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
			})
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
