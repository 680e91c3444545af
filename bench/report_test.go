package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/trainer/v2/pkg/constants"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// TestInTurns holds that what one run has measured twice counts twice, but for peaks of memory; and what is said of a
// ratio of medians.
func TestInTurns(t *testing.T) {
	const key = "admitted → started"
	waiting := func(n int, ms float64, peak int64) waitingRun {
		return waitingRun{Waiting: n, LatencyMs: map[string][]float64{key: {ms}}, Peak: map[string]int64{"kueue": peak << 20}}
	}
	burst := func(seconds float64, peak int64) burstRun {
		return burstRun{Jobs: 100, Seconds: seconds, Peak: map[string]int64{"kueue": peak << 20}}
	}
	c := &comparison{}
	c.compare(map[string][]*loadRun{"bundled": {{
		Profile: "bundled",
		Bursts:  []burstRun{burst(10, 1), burst(20, 2)},
		Waiting: []waitingRun{waiting(100, 400, 3), waiting(100, 500, 4), waiting(9, 100, 5), waiting(9, 200, 6)},
	}}})
	for _, want := range []struct {
		group, name string
		measured    []float64
	}{
		{"A burst of 100", "TrainJobs per second", []float64{5, 10}},
		{"A burst of 100", "peak memory of kueue, MiB", []float64{1}},
		{waitingGroup(100), key + ", p99, ms", []float64{400, 500}},
		{waitingGroup(100), "peak memory of kueue, MiB", []float64{3}},
		{"How it grows over 9 waiting", key + ", p99, with 100 waiting: times", []float64{2, 5}},
	} {
		f := c.find(want.group, want.name)
		if f == nil || !slices.Equal(f.Measured["bundled"], want.measured) {
			t.Errorf("%s, %s: got %+v, want %v", want.group, want.name, f, want.measured)
		}
	}
	if f := c.find("How it grows over 9 waiting", key+", p99, with 100 waiting: times"); f.Missed["bundled"] != 1 {
		t.Errorf("two measurements each promise nothing: got %v", f.Missed)
	}
}

// TestConfidence holds what the page says of its brackets.
func TestConfidence(t *testing.T) {
	for name, test := range map[string]struct {
		measured map[string][]float64
		want     string
	}{
		"one run each":    {map[string][]float64{"bundled": {1}, "builtin": {2}}, ""},
		"as many of each": {map[string][]float64{"bundled": {1, 2, 3, 4}, "builtin": {1, 2, 3, 4}}, "88 % of 4 runs."},
		"more of one than both": {map[string][]float64{"bundled": {1, 2, 3}, "builtin": {1, 2}},
			"75 % of 3 runs, 50 % of 2 runs."},
	} {
		got := (&figure{Measured: test.measured}).confidence()
		if test.want != "" {
			test.want = " Brackets are a confidence interval of the median: " + test.want
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestQueues holds that the quota is the same however many queues share it, and that as many TrainJobs of two GPUs as
// run at a time fit, wherever they are queued in turns.
func TestQueues(t *testing.T) {
	for _, q := range []queues{1, 20, 60, 200, 220} {
		total, fits := map[kueue.ResourceFlavorReference]int64{}, map[kueue.CohortReference]int64{}
		queued, behind := map[string]*kueue.ClusterQueue{}, map[string]string{}
		for _, o := range q.objects() {
			switch o := o.(type) {
			case *kueue.ClusterQueue:
				queued[o.Name] = o
				for _, f := range o.Spec.ResourceGroups[0].Flavors {
					total[f.Name] += f.Resources[0].NominalQuota.Value()
					fits[o.Spec.CohortName] += f.Resources[0].NominalQuota.Value()
				}
			case *kueue.LocalQueue:
				behind[o.Name] = string(o.Spec.ClusterQueue)
			}
		}
		if total["a100"] != quotaOfFlavor || total["h100"] != quotaOfFlavor {
			t.Errorf("%d queues: the quota is %v", q, total)
		}
		for i := range running {
			cohort := queued[behind[q.of(i)]].Spec.CohortName
			if fits[cohort] -= 2; fits[cohort] < 0 {
				t.Errorf("%d queues: TrainJob %d doesn't fit into cohort %q", q, i, cohort)
			}
		}
		if len(behind) != int(q) || len(queued) != q.clusters() {
			t.Errorf("%d queues: %d LocalQueues, %d ClusterQueues", q, len(behind), len(queued))
		}
	}
	for _, q := range []queues{0, -1, 2, 30} {
		if q.validate() == nil {
			t.Errorf("%d queues are taken", q)
		}
	}
}

// TestTrace holds which requests make the way of a TrainJob: the last answer before the start is its admission, and a
// TrainJob without a pod is left out.
func TestTrace(t *testing.T) {
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	var log strings.Builder
	ask := func(after int, user, verb, group, resource, name string) {
		kind, subresource, _ := strings.Cut(resource, "/")
		at := noon.Add(time.Duration(after) * time.Millisecond)
		fmt.Fprintf(&log, `{"verb":%q,"user":{"username":%q},"objectRef":{"apiGroup":%q,"resource":%q,"subresource":%q,`+
			`"namespace":"team","name":%q},"responseStatus":{"code":200},"requestReceivedTimestamp":%q,"stageTimestamp":%q}`+"\n",
			verb, user, group, kind, subresource, name, at.Add(-5*time.Millisecond).Format(time.RFC3339Nano),
			at.Format(time.RFC3339Nano))
	}
	for _, name := range []string{"bert", "waits-on"} {
		ask(0, "user", "create", "trainer.kubeflow.org", "trainjobs", name)
		ask(10, "signalbox", "create", "kueue.x-k8s.io", "workloads", "trainjob-"+name+"-0a1b2")
		ask(30, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-"+name+"-0a1b2")
	}
	ask(1000, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-bert-0a1b2")
	ask(1020, "signalbox", "patch", "trainer.kubeflow.org", "trainjobs", "bert")
	ask(1050, "signalbox", "create", "jobset.x-k8s.io", "jobsets", "bert")
	ask(1060, "jobset", "create", "", "services", "bert")
	ask(1070, "jobset", "create", "batch", "jobs", "bert-node-0")
	ask(1090, "kube-scheduler", "create", "", "pods/binding", "bert-node-0-0-x7k2p")
	ask(1100, "kwok", "patch", "", "pods/status", "bert-node-0-0-x7k2p")
	ask(1200, "kueue", "patch", "kueue.x-k8s.io", "workloads/status", "trainjob-bert-0a1b2")
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(log.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := trace(&out, path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"The way of 1 of 2 TrainJobs", "| admitted | 990 | 990 | 990 | 5 | 5 |", "| started | 20 |", "| pod bound | 20 |",
		"| **admitted → pod's status written** | 100 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := trace(&out, os.DevNull); err == nil {
		t.Error("an empty log has a way")
	}
}

// TestTrainings holds that each second of a process is useful or lost, and that it continues after what it saved.
func TestTrainings(t *testing.T) {
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	after := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	pod := func(uid string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			UID: types.UID(uid), Labels: map[string]string{jobset.JobSetNameKey: "train"},
		}, Status: corev1.PodStatus{Phase: phase}}
	}
	p := newTrainings()
	p.all["train"] = &training{gpus: 4, work: 50 * time.Second}
	p.see(watch.Added, pod("1", corev1.PodPending), after(0))
	p.see(watch.Modified, pod("1", corev1.PodRunning), after(5))
	if saved, _ := p.step(after(20)); len(saved) > 0 {
		t.Errorf("saved %v before it was time", saved)
	}
	if saved, _ := p.step(after(25)); saved["train"] != 20*time.Second {
		t.Errorf("saved %v, want 20 s", saved)
	}
	told := pod("1", corev1.PodRunning)
	told.DeletionTimestamp = &metav1.Time{Time: after(35)}
	p.see(watch.Modified, told, after(35))
	p.see(watch.Deleted, told, after(36))
	if p.heldLost != 44 {
		t.Errorf("%.0f GPU seconds were lost until the pod was gone, want 44", p.heldLost)
	}
	if want := (spent{Useful: 80, Lost: 40, Stops: 1}); p.spent != want {
		t.Errorf("after the stop %+v, want %+v", p.spent, want)
	}
	p.see(watch.Added, pod("2", corev1.PodRunning), after(100))
	p.step(after(120))
	if _, ended := p.step(after(129)); len(ended) > 0 {
		t.Errorf("%v ended before its work was done", ended)
	}
	if _, ended := p.step(after(200)); len(ended) != 1 {
		t.Errorf("ended: %v, want the one", ended)
	}
	if want := (spent{Useful: 200, Lost: 40, Stops: 1, Ended: 1}); p.spent != want {
		t.Errorf("at the end %+v, want %+v", p.spent, want)
	}
}

// TestTrainingsGrow holds that pods work together once all of them run, the faster the more, and stop when one does.
func TestTrainingsGrow(t *testing.T) {
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	p := newTrainings()
	p.all["train"] = &training{gpus: 2, work: time.Hour}
	see := func(at int, kind watch.EventType, nodes string, uids ...types.UID) {
		for _, uid := range uids {
			p.see(kind, trainingPod("", uid, nodes, corev1.PodRunning), began.Add(time.Duration(at)*time.Second))
		}
	}
	step := func(at int) map[string]time.Duration {
		saved, _ := p.step(began.Add(time.Duration(at) * time.Second))
		return saved
	}
	see(0, watch.Added, "1", "a")
	if saved := step(20); saved["train"] != 20*time.Second {
		t.Errorf("one pod saved %v, want 20 s", saved)
	}
	see(25, watch.Deleted, "1", "a")
	see(30, watch.Added, "3", "b", "c")
	if saved := step(60); len(saved) > 0 {
		t.Errorf("two of three pods have saved %v", saved)
	}
	see(60, watch.Added, "3", "d")
	if saved := step(80); saved["train"] != 80*time.Second {
		t.Errorf("three pods saved %v, want 80 s", saved)
	}
	see(90, watch.Deleted, "3", "c")
	see(92, watch.Deleted, "3", "b", "d")
	if want := (spent{Useful: 160, Lost: 70, Stops: 2}); p.spent != want || p.heldLost != 10+20+2*24 {
		t.Errorf("got %+v and %.0f GPU seconds lost until all were gone, want %+v and 78", p.spent, p.heldLost, want)
	}
}

func trainingPod(node string, uid types.UID, nodes string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Labels: map[string]string{jobset.JobSetNameKey: "train"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Env: []corev1.EnvVar{{Name: constants.TorchEnvNumNodes, Value: nodes}}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// TestLostTries holds that each pod on a broken node is rejected once, counts as a lost try, and never works.
func TestLostTries(t *testing.T) {
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	p := newTrainings()
	p.all["train"] = &training{gpus: 2, work: time.Hour}
	p.kubelets = kubelets{broken: sets.New("broken"), bound: sets.New[types.UID]()}
	for i, pod := range []*corev1.Pod{
		trainingPod("", "a", "1", corev1.PodPending), trainingPod("broken", "a", "1", corev1.PodPending),
		trainingPod("broken", "a", "1", corev1.PodPending), trainingPod("broken", "a", "1", corev1.PodFailed),
		trainingPod("", "b", "1", corev1.PodPending), trainingPod("broken", "c", "1", corev1.PodPending),
	} {
		p.see(watch.Modified, pod, began.Add(time.Duration(i)*time.Second))
	}
	if lost, again := p.lostTries(); len(p.starting) != 2 || !slices.Equal(lost, []int{2}) || len(again) > 0 {
		t.Errorf("%d start, lost %v, ran again after %v", len(p.starting), lost, again)
	}
	p.see(watch.Modified, trainingPod("sound", "d", "1", corev1.PodPending), began.Add(30*time.Second))
	p.see(watch.Modified, trainingPod("sound", "d", "1", corev1.PodRunning), began.Add(time.Minute))
	if _, again := p.lostTries(); !slices.Equal(again, []float64{59}) || p.spent.Stops != 0 || len(p.starting) != 3 {
		t.Errorf("ran again after %v, %d stops, %d started", again, p.spent.Stops, len(p.starting))
	}
}

// TestBeside holds that a page of trainings compares the medians of the first column with those of the last.
func TestBeside(t *testing.T) {
	run := func(column string, useful, more float64) *trainRun {
		r := &trainRun{Title: "Work", Says: "Some.", Columns: []string{"bundled", "builtin"}, Column: column}
		r.add("useful", useful)
		if more > 0 {
			r.add("more", more)
		}
		return r
	}
	_, page := beside([]*trainRun{
		run("builtin", 10, 0), run("bundled", 30, 1), run("bundled", 50, 1), run("builtin", 30, 0),
	})
	for _, want := range []string{
		"# Work\n", "Runs: 2 of bundled, 2 of builtin.", "| | bundled | builtin | bundled / builtin |",
		"| useful | 40.00 (30.00–50.00) | 20.00 (10.00–30.00) | 2.00 |", "| more | 1.00 |  |  |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}
