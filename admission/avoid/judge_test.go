package avoid

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// podOf is a pod as the cache has it; reason is its mark, "" for none.
func podOf(name, node string, phase corev1.PodPhase, reason string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	pod.Spec.NodeName, pod.Status.Phase = node, phase
	if reason != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: Condition, Reason: reason, Message: "why",
			LastTransitionTime: ago(0)}}
	}
	return pod
}

// before is a pod that shows what it shows since so long.
func before(pod corev1.Pod, since time.Duration) corev1.Pod {
	pod.Status.Conditions[0].LastTransitionTime = ago(since)
	return pod
}

func remembered(name, reason string, since time.Duration) api.AvoidedNode {
	return api.AvoidedNode{Name: name, Reason: reason, Pod: "of " + name, Time: ago(since)}
}

func show(nodes []api.AvoidedNode) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name+":"+n.Reason)
	}
	return strings.Join(all, " ")
}

// TestBlame holds which nodes are remembered: those whose fault it is, and what may be the program's only with a
// reason.
func TestBlame(t *testing.T) {
	const running, failed, pending = corev1.PodRunning, corev1.PodFailed, corev1.PodPending
	runs := podOf("other", "n9", running, "")
	initialized := podOf("init", "n8", corev1.PodSucceeded, "")
	initialized.Labels = map[string]string{jobset.ReplicatedJobNameKey: "dataset-initializer"}
	for name, c := range map[string]struct {
		marked []corev1.Pod
		others []corev1.Pod
		known  []api.AvoidedNode
		want   string
		open   bool
	}{
		"nothing":  {others: []corev1.Pod{runs}},
		"lost":     {marked: []corev1.Pod{podOf("a", "n1", running, Lost)}, want: "n1:Lost"},
		"rejected": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected)}, want: "n1:Rejected"},
		"two nodes": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected), podOf("b", "n2", running, Lost)},
			want: "n1:Rejected n2:Lost"},
		"two pods of a node": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected),
			podOf("b", "n1", failed, Rejected)}, want: "n1:Rejected"},
		"an image, others run": {marked: []corev1.Pod{podOf("a", "n1", pending, NotStarted)}, others: []corev1.Pod{runs},
			want: "n1:NotStarted"},
		"an image, others wait": {marked: []corev1.Pod{podOf("a", "n1", pending, NotStarted)},
			others: []corev1.Pod{podOf("b", "n2", pending, "")}, open: true},
		"an image, all have it": {marked: []corev1.Pod{podOf("a", "n1", pending, NotStarted),
			podOf("b", "n2", pending, NotStarted)}, open: true},
		"an image, alone": {marked: []corev1.Pod{podOf("a", "n1", pending, NotStarted)}, want: "n1:NotStartedAlone"},
		"an image, on a third": {marked: []corev1.Pod{podOf("a", "n3", pending, NotStarted)},
			known: []api.AvoidedNode{remembered("n1", NotStartedAlone, 2*time.Hour), remembered("n2", NotStartedAlone, 0)}},
		"it fails, others run": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly)}, others: []corev1.Pod{runs},
			want: "n1:FailedEarly"},
		"it fails, others ended": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly)},
			others: []corev1.Pod{podOf("b", "n2", corev1.PodSucceeded, "")}, want: "n1:FailedEarly"},
		"an image, after an initializer": {marked: []corev1.Pod{podOf("a", "n1", pending, NotStarted)},
			others: []corev1.Pod{initialized}, want: "n1:NotStartedAlone"},
		"it fails after an initializer": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly)},
			others: []corev1.Pod{initialized}},
		"it fails alone": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly)}},
		"all fail": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly), podOf("b", "n2", failed,
			FailedEarly)}},
		"two of three fail": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly),
			podOf("b", "n2", failed, FailedEarly)}, others: []corev1.Pod{runs}, want: "n1:FailedEarly n2:FailedEarly"},
		"three of four fail": {marked: []corev1.Pod{podOf("a", "n1", failed, FailedEarly),
			podOf("b", "n2", failed, FailedEarly), podOf("c", "n3", failed, FailedEarly)}, others: []corev1.Pod{runs},
			want: "n1:FailedEarly n2:FailedEarly"},
		"it fails wherever it is": {marked: []corev1.Pod{podOf("a", "n3", failed, FailedEarly)},
			others: []corev1.Pod{runs}, known: []api.AvoidedNode{remembered("n1", FailedEarly, 0),
				remembered("n2", FailedEarly, 0)}},
		"avoided already": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected)},
			known: []api.AvoidedNode{remembered("n1", Lost, 29*time.Minute)}},
		"avoided for not long": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected)},
			known: []api.AvoidedNode{remembered("n1", Lost, 31*time.Minute)}, want: "n1:Rejected"},
		"the pod is known": {marked: []corev1.Pod{podOf("of n1", "n1", failed, Rejected)},
			known: []api.AvoidedNode{remembered("n1", Rejected, 5*time.Hour)}},
		"another pod of that time": {marked: []corev1.Pod{before(podOf("a", "n1", failed, Rejected), 40*time.Minute)},
			known: []api.AvoidedNode{remembered("n1", Rejected, 40*time.Minute)}},
		"lost long ago": {marked: []corev1.Pod{before(podOf("a", "n1", failed, Lost), time.Hour)}},
		"it still waits": {marked: []corev1.Pod{before(podOf("a", "n1", pending, NotStarted), 2*time.Hour)},
			others: []corev1.Pod{runs}, want: "n1:NotStarted"},
		"five, and three are kept": {marked: []corev1.Pod{
			before(podOf("a", "n1", failed, Lost), time.Minute), podOf("b", "n2", failed, Lost),
			before(podOf("c", "n3", failed, Lost), time.Second), podOf("d", "n4", failed, Lost),
			podOf("e", "n5", failed, Lost)}, want: "n2:Lost n4:Lost n5:Lost"},
		"its time is forged": {marked: []corev1.Pod{podOf("a", "n1", failed, Rejected)},
			known: []api.AvoidedNode{remembered("n1", Lost, -5*time.Hour)}, want: "n1:Rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(c.known)
			got := policy.Blame(c.marked, slices.Concat(c.marked, c.others), c.known, now)
			if show(got) != c.want || !reflect.DeepEqual(before, c.known) {
				t.Errorf("got %s, want %s", show(got), c.want)
			}
			if open := Undecided(c.marked, slices.Concat(c.marked, c.others)); open != c.open {
				t.Errorf("it depends on the others: %t", open)
			}
		})
	}
}

// TestBlameRests holds that, whatever its pods show, a TrainJob that goes on writes what it remembers once for it, and
// not again when some of it has expired.
func TestBlameRests(t *testing.T) {
	random := rand.New(rand.NewPCG(44, 2))
	for round := range 2000 {
		p := Policy{For: time.Hour, AtMost: 1 + random.IntN(4)}
		var marked []corev1.Pod
		for i := range random.IntN(8) {
			reason := []string{Lost, Rejected, NotStarted, FailedEarly}[random.IntN(4)]
			pod := podOf(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", random.IntN(6)), corev1.PodFailed, reason)
			marked = append(marked, before(pod, time.Duration(random.IntN(100))*time.Minute))
		}
		all := append(slices.Clone(marked), podOf("runs", "n9", corev1.PodRunning, ""))
		var known []api.AvoidedNode
		for i := range random.IntN(p.AtMost + 1) {
			known = append(known, remembered(fmt.Sprintf("n%d", i+3), Lost, time.Duration(random.IntN(100))*time.Minute))
		}
		writes := 0
		for minute := range 200 {
			at := now.Add(time.Duration(minute) * time.Minute)
			for range 3 {
				if blamed := p.Blame(marked, all, known, at); len(blamed) > 0 {
					known = p.Remember(known, blamed, at)
					writes++
				}
			}
			if len(known) > p.AtMost {
				t.Fatalf("round %d: it remembers %s", round, show(known))
			}
		}
		if writes > 2 {
			t.Fatalf("round %d: %d writes for pods that don't change, %s", round, writes, show(known))
		}
	}
}

// TestRemember holds that what is remembered is bounded, and that nothing is written for what has expired alone.
func TestRemember(t *testing.T) {
	var known []api.AvoidedNode
	for i := range 200 {
		known = policy.Remember(known, []api.AvoidedNode{remembered(fmt.Sprintf("n%d", i), Lost, 0)}, now)
	}
	if got := show(known); got != "n197:Lost n198:Lost n199:Lost" {
		t.Errorf("the latest are kept: got %s", got)
	}
	old := []api.AvoidedNode{remembered("old", Lost, time.Hour), remembered("n1", Lost, time.Minute)}
	if got := policy.Remember(old, nil, now); show(got) != "old:Lost n1:Lost" {
		t.Errorf("nothing is new: got %s", show(got))
	}
	if got := policy.Remember(old, []api.AvoidedNode{remembered("n1", Rejected, 0)}, now); show(got) != "n1:Rejected" {
		t.Errorf("each once, and none that has expired: got %s", show(got))
	}
}

// TestCounted holds which of what is remembered counts: status may have been written by anybody who may.
func TestCounted(t *testing.T) {
	known := []api.AvoidedNode{
		remembered("n1", Lost, 50*time.Minute), remembered("expired", Lost, time.Hour),
		remembered("future", Lost, -time.Hour),
		remembered("not a name", Lost, 0), remembered("n2", Lost, 0), remembered("n3", Lost, 10*time.Minute),
		remembered("n4", Lost, 59*time.Minute),
	}
	got := policy.Counted(known, now)
	if show(got) != "n2:Lost n3:Lost n1:Lost" {
		t.Errorf("got %s", show(got))
	}
	if left := policy.Left(got, now); left != 10*time.Minute {
		t.Errorf("got %s", left)
	}
	if got := (Policy{AtMost: 3}).Counted(known, now); got != nil {
		t.Errorf("it is off: got %v", got)
	}
}

// TestTally holds that a node is shared by namespaces and not by TrainJobs, and that no image alone counts, nor a node
// that isn't there, or is a new one.
func TestTally(t *testing.T) {
	job := func(namespace string, nodes ...api.AvoidedNode) api.TrainJob {
		j := api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		j.Status.Avoided = nodes
		return j
	}
	jobs := []api.TrainJob{
		job("a", remembered("n1", Lost, time.Minute), remembered("n2", Rejected, 0), remembered("new", Lost, time.Minute)),
		job("a", remembered("n2", Rejected, 0)),
		job("b", remembered("n1", Rejected, 0), remembered("n3", NotStartedAlone, 0), remembered("gone", Lost, 0)),
		job("c", remembered("n3", NotStartedAlone, 0), remembered("n1", Lost, 2*time.Hour)),
	}
	away := job("d", remembered("n2", Rejected, 0))
	away.Spec.ManagedBy = ptr.To(kueue.MultiKueueControllerName)
	jobs = append(jobs, away)
	var nodes []corev1.Node
	for _, name := range []string{"n1", "n2", "n3", "new"} {
		nodes = append(nodes, nodeOf(name, "a", 8))
	}
	nodes[3].CreationTimestamp = ago(0)
	every := func(api.AvoidedNode) bool { return true }
	for want, is := range map[string]func(api.AvoidedNode) bool{
		"n1:2 n2:1": Present(nodes), "gone:1 n1:2 n2:1 n3:2 new:1": every,
	} {
		counts := policy.Tally(jobs, is, now)
		var got []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			got = append(got, fmt.Sprintf("%s:%d", name, counts[name].Namespaces.Len()))
		}
		if all := strings.Join(got, " "); all != want || counts["n1"].TrainJobs != 2 || counts["n1"].Last.Reason != Rejected {
			t.Errorf("got %s, want %s; %+v", all, want, counts["n1"])
		}
	}
}
