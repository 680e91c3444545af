package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

func controlledBy(apiVersion, kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}}
}

func TestPodLost(t *testing.T) {
	failed := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason}}}}}}
	}
	disrupted := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}}
	for reason, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"its node is gone":                   {disrupted, true},
		"the kubelet doesn't know":           {failed("ContainerStatusUnknown"), true},
		"containerd doesn't know":            {failed("Unknown"), true},
		"its program has failed":             {failed("Error"), false},
		"it uses more memory than its limit": {failed("OOMKilled"), false},
		"it runs":                            {&corev1.Pod{}, false},
	} {
		if got := PodLost(c.pod); got != c.want || PodLost(RetainPod(c.pod)) != c.want {
			t.Errorf("%s: got %t, want %t", reason, got, c.want)
		}
	}
}

func TestPodEnded(t *testing.T) {
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: someTime} }
	cases := map[string]struct {
		reason string
		change []func(*corev1.Pod)
		want   bool
	}{
		"running": {reason: "it uses its node"},
		"waiting for a node": {
			reason: "it may be bound at any time", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		},
		"succeeded": {
			reason: "its containers have ended",
			change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }}, want: true,
		},
		"failed": {
			reason: "the same", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
			want: true,
		},
		"terminating": {
			reason: "its containers run until the grace period ends",
			change: []func(*corev1.Pod){deleted, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](30) }},
		},
		"deleted by the kubelet": {
			reason: "only a finalizer keeps it",
			change: []func(*corev1.Pod){deleted, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](0) }},
			want:   true,
		},
		"deleted, and never placed": {
			reason: "the API server binds no pod that is being deleted",
			change: []func(*corev1.Pod){deleted, func(p *corev1.Pod) { p.Spec.NodeName = "" }}, want: true,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			for _, change := range c.change {
				change(pod)
			}
			if got := PodEnded(pod); got != c.want {
				t.Errorf("%s: got %v", c.reason, got)
			}
		})
	}
}

// Whose pods count is decided by the UIDs of their owners, whatever their labels say.
func TestPodsRunning(t *testing.T) {
	const batch, sets = "batch/v1", "jobset.x-k8s.io/v1alpha2"
	key := types.NamespacedName{Namespace: "ns", Name: "tj"}
	own := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tj", UID: "js"}}
	pod := func(name string, owners []metav1.OwnerReference, label types.UID) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: owners,
				Labels: map[string]string{
					jobset.JobSetNameKey: "tj",
					jobset.JobSetUIDKey:  string(label),
				}},
			Spec: corev1.PodSpec{NodeName: "n"},
		}
	}
	job := func(name string, owners []metav1.OwnerReference) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: owners},
		}
	}
	stale := own.DeepCopy() // as a cache shows what is gone
	stale.OwnerReferences = controlledBy("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj", "tj")
	objects := []client.Object{
		job("tj-node-0", controlledBy(sets, "JobSet", "tj", "js")), job("mine", nil),
		job("old", controlledBy(sets, "JobSet", "tj", "before")),
		pod("real", controlledBy(batch, "Job", "tj-node-0", "tj-node-0"), "js"),
		pod("labelled", nil, "js"),
		pod("of-my-job", controlledBy(batch, "Job", "mine", "mine"), "js"),
		pod("of-a-controller-of-mine", controlledBy("example.com/v1", "Job", "tj-node-0", "tj-node-0"), "js"),
		pod("of-the-last-run", controlledBy(batch, "Job", "old", "old"), "before"),
		pod("of-a-job-that-is-gone", controlledBy(batch, "Job", "gone", "gone"), "before"),
	}
	cases := map[string]struct {
		reason       string
		own, present *jobset.JobSet
		want         []string
	}{
		"with its JobSet": {
			"its own, and those that an earlier JobSet has left", own, own,
			[]string{"of-a-job-that-is-gone", "of-the-last-run", "real"},
		},
		"without": {
			"the JobSet of the name is somebody else's", nil, own, []string{"of-a-job-that-is-gone", "of-the-last-run"},
		},
		"gone, and still in the cache": {
			"its pods are still its own", nil, stale, []string{"of-a-job-that-is-gone", "of-the-last-run", "real"},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c := newStored(t, append(slices.Clone(objects), test.present)...).api()
			running, err := NewPods(c, c).Running(context.Background(), Owner{key, "tj", test.own})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range running {
				got = append(got, p.Name)
			}
			if slices.Sort(got); !slices.Equal(got, test.want) {
				t.Errorf("%s: got %v, want %v", test.reason, got, test.want)
			}
		})
	}
}

// TestLost holds that a JobSet has lost the pods that are its own by their controllers, whatever others name it, and
// that a lost pod counts that is gone.
func TestLost(t *testing.T) {
	lost := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	}
	live := newStored(t, jobOfSet("j", "a"), jobOfSet("forged", "b"))
	p := NewPods(newStored(t).api(), live.api())
	name := func() string {
		got, err := p.Lost(t.Context(), setOf("a", "uid"))
		if err != nil {
			t.Fatal(err)
		}
		if got == nil {
			return ""
		}
		return got.Name
	}
	if name() != "" {
		t.Error("it has lost none")
	}
	for i := range 3 * rememberedLost {
		p.SawLost(podOf(fmt.Sprint("forged-", i), "forged", "a", lost))
	}
	if got := name(); got != "" {
		t.Errorf("a label says nothing: got %q", got)
	}
	p = NewPods(newStored(t).api(), live.api())
	p.SawLost(podOf("forged", "forged", "a", lost))
	p.SawLost(podOf("gone", "j", "a", lost))
	if got := name(); got != "gone" {
		t.Errorf("it has lost one that is gone: got %q", got)
	}
	p = NewPods(newStored(t, podOf("there", "j", "a", lost), podOf("runs", "j", "a")).api(), live.api())
	if got := name(); got != "there" {
		t.Errorf("it has lost one that is there: got %q", got)
	}
	runs, ended := podOf("evicted", "j", "a", lost), podOf("evicted", "j", "a", lost)
	ended.Status.Phase, ended.DeletionTimestamp = corev1.PodSucceeded, new(metav1.Now())
	p = NewPods(newStored(t, podOf("there", "j", "a", lost)).api(), live.api())
	p.SawLost(runs)
	if got := name(); got != "there" {
		t.Errorf("the first: got %q", got)
	}
	p.SawLost(ended)
	if got := name(); got != "evicted" {
		t.Errorf("one that was cut short comes first: got %q", got)
	}
	p = NewPods(newStored(t, podOf("there", "j", "a", lost)).api(), live.api())
	live.fail["get PartialObjectMetadata"], live.fail["get Job"] = errDown, errDown
	if got, err := p.Lost(t.Context(), setOf("a", "uid")); !errors.Is(err, errDown) {
		t.Errorf("whose it is isn't known: got %v, %v", got, err)
	}
}

// TestJobNamed holds that a Job counts by its controller.
func TestJobNamed(t *testing.T) {
	s := newStored(t, jobOfSet("j", "a"))
	if job, err := NewPods(s.api(), s.api()).JobNamed(t.Context(), jobKey); err != nil || job == nil || job.Name != "j" {
		t.Errorf("got %v, %v", job, err)
	}
	other := jobOfSet("j", "a")
	other.OwnerReferences = nil
	s = newStored(t, other)
	if job, err := NewPods(s.api(), s.api()).JobNamed(t.Context(), jobKey); err != nil || job != nil {
		t.Errorf("it is anybody's: got %v, %v", job, err)
	}
}
