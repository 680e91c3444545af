package store

import (
	"errors"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/kueue/pkg/constants"
)

// podOf is a running pod of a Job, labelled with the UID of a JobSet.
func podOf(name, job, set string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
		OwnerReferences: controlledBy(batchVersion, "Job", job, types.UID(job)),
		Labels:          map[string]string{jobset.JobSetNameKey: "job", jobset.JobSetUIDKey: set}},
		Spec: corev1.PodSpec{NodeName: "n"}}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// jobOfSet is a Job of a JobSet, by its UID.
func jobOfSet(name string, set types.UID, change ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
		Labels:          map[string]string{jobset.JobSetNameKey: "job"},
		OwnerReferences: controlledBy(setVersion, "JobSet", "job", set)}}
	for _, c := range change {
		c(job)
	}
	return job
}

func podNames(pods []corev1.Pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestPodsNamed(t *testing.T) {
	s := newStored(t, podOf("own", "j", "a"), podOf("earlier", "j", "b"), podOf("ended", "j", "a",
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		podOf("other", "j", "a", func(p *corev1.Pod) { p.Labels[jobset.JobSetNameKey] = "other" }),
		podOf("elsewhere", "j", "a", func(p *corev1.Pod) { p.Namespace = "else" }))
	p := NewPods(s.api(), s.api())
	if pods, err := p.Named(t.Context(), setOf("a", "uid")); err != nil || podNames(pods) != "ended own" {
		t.Errorf("by the JobSet's name and UID: got %s, %v", podNames(pods), err)
	}
	s.fail["list Pod"] = errDown
	if _, err := p.Named(t.Context(), setOf("a", "uid")); !errors.Is(err, errDown) {
		t.Errorf("the error is passed on: got %v", err)
	}
}

func TestPodsRunningNow(t *testing.T) {
	terminating := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &metav1.Time{Time: someTime}, &seconds,
				[]string{"a/b"}
		}
	}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	cases := map[string]struct {
		reason       string
		cached, live []client.Object
		own          *jobset.JobSet
		want         string
		fail         string // of the API server; the cache's begins with "cache"
	}{
		"none": {"nothing runs", nil, nil, nil, "", ""},
		"not cached": {"quota isn't released by a cache that is late", nil, []client.Object{podOf("p", "j", "a"),
			jobOfSet("j", "a")}, nil, "p", ""},
		"cached, gone": {"the cache is late the other way", []client.Object{podOf("p", "j", "a")}, nil, nil, "", ""},
		"terminating": {"its containers run until the grace period ends", nil,
			[]client.Object{podOf("p", "j", "a", terminating(30)), jobOfSet("j", "a")}, nil, "p", ""},
		"terminated": {"only a finalizer keeps it", nil, []client.Object{podOf("p", "j", "a", terminating(0)),
			jobOfSet("j", "a")}, nil, "", ""},
		"ended": {"its containers have ended", nil, []client.Object{podOf("p", "j", "a", ended),
			jobOfSet("j", "a")}, nil, "", ""},
		"of its own": {"it is the present one's", []client.Object{setOf("a", "uid")},
			[]client.Object{podOf("p", "j", "a"), jobOfSet("j", "a")}, setOf("a", "uid"), "p", ""},
		"of another's JobSet": {"the name is taken", []client.Object{setOf("a", "other")},
			[]client.Object{podOf("p", "j", "a"), jobOfSet("j", "a")}, nil, "", ""},
		"a Job of a namesake": {"it was created again by its name", nil, []client.Object{podOf("p", "j", "a"),
			jobOfSet("j", "a", func(j *batchv1.Job) { j.UID = "again" })}, nil, "p", ""},
		"a Job of no JobSet": {"labels are anybody's", nil, []client.Object{podOf("p", "j", "a"),
			jobOfSet("j", "a", func(j *batchv1.Job) { j.OwnerReferences = nil })}, nil, "", ""},
		"a Job of a kind like it": {"its version is another's", nil, []client.Object{podOf("p", "j", "a"),
			jobOfSet("j", "a", func(j *batchv1.Job) {
				j.OwnerReferences[0].APIVersion = "a/v1"
			})}, nil, "", ""},
		"no Job": {"the garbage collector has deleted that with its TrainJob", nil,
			[]client.Object{podOf("p", "j", "a", terminating(3600))}, nil, "p", ""},
		"no Job, for years": {"no pod of a TrainJob may take that long: its Job never existed", nil,
			[]client.Object{podOf("p", "j", "a", terminating(3601))}, nil, "", ""},
		"a Job, for years": {"its own Job shows whose it is", nil,
			[]client.Object{podOf("p", "j", "a", terminating(3601)), jobOfSet("j", "a")}, nil, "p", ""},
		"pods unread": {"that nothing runs isn't known", nil, nil, nil, "listing the pods: down", "list Pod"},
		"Job unread": {"whose the pod is isn't known", nil, []client.Object{podOf("p", "j", "a")}, nil,
			"reading Job j of pod p: down", "get Job"},
		"JobSet unread": {"whose the name is isn't known", nil, []client.Object{podOf("p", "j", "a")}, nil,
			"reading the JobSet: down", "cache JobSet"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cache, live := newStored(t, c.cached...), newStored(t, c.live...)
			if kind, ofCache := strings.CutPrefix(c.fail, "cache "); ofCache {
				cache.fail["get "+kind] = errDown
			}
			for _, request := range []string{"list Pod", "get Job"} {
				if c.fail == request {
					live.fail["get PartialObjectMetadata"], live.fail[request] = errDown, errDown
				}
			}
			p := NewPods(cache.api(), live.api())
			p.MaxGraceSeconds = 3600
			for range 2 { // the second by what it remembers of Jobs
				pods, err := p.RunningNow(t.Context(), Owner{jobKey, "uid", c.own})
				got := podNames(pods)
				if err != nil {
					got = err.Error()
				}
				if got != c.want {
					t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
				}
			}
		})
	}
}

func TestPodsOnQuota(t *testing.T) {
	onQuota := func(p *corev1.Pod) { p.Labels[constants.PodSetLabel] = "node" }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	own, others := setOf("a", "uid"), setOf("a", "uid")
	others.OwnerReferences = nil
	present := []client.Object{own}
	running := []client.Object{podOf("p", "j", "a", onQuota), jobOfSet("j", "a")}
	cases := map[string]struct {
		reason       string
		cached, live []client.Object
		want         string
		fail         string // of the API server; the cache's begins with "cache"
	}{
		"of a TrainJob": {"its Job would replace it", present, running, "job", ""},
		"not cached":    {"the JobSet is younger than the cache", nil, running, "job", ""},
		"gone":          {"there is no such pod", present, nil, "", ""},
		"another":       {"its name is another", nil, append(running[1:2:2], podOf("q", "j", "a", onQuota)), "", ""},
		"no quota":      {"nobody queues its TrainJob", present, append(running[1:2:2], podOf("p", "j", "a")), "", ""},
		"ended":         {"it uses nothing", nil, append(running[1:2:2], podOf("p", "j", "a", onQuota, ended)), "", ""},
		"a JobSet's":    {"it is of no TrainJob", []client.Object{others}, running, "", ""},
		"a user's": {"labels are anybody's", present, []client.Object{podOf("p", "j", "a", onQuota,
			func(p *corev1.Pod) { p.OwnerReferences = nil })}, "", ""},
		"pod unread": {"whose it is isn't known", nil, nil, "reading pod p: down", "list Pod"},
		"Job unread": {"whose it is isn't known", nil, running[:1], "reading Job j of pod p: down",
			"get PartialObjectMetadata"},
		"JobSet unread": {"whose it is isn't known", nil, running[:1], "reading the JobSet: down", "cache JobSet"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cache, live := newStored(t, c.cached...), newStored(t, c.live...)
			if kind, ofCache := strings.CutPrefix(c.fail, "cache "); ofCache {
				cache.fail["get "+kind] = errDown
			} else if c.fail != "" {
				live.fail[c.fail], live.fail["get Job"] = errDown, errDown
			}
			got, err := NewPods(cache.api(), live.api()).OnQuota(t.Context(), types.NamespacedName{Namespace: "ns", Name: "p"})
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestPodsRunningUnread(t *testing.T) {
	cache := newStored(t)
	cache.fail["list Pod"] = errDown
	if _, err := NewPods(cache.api(), cache.api()).Running(t.Context(), Owner{jobKey, "uid", nil}); !errors.Is(err,
		errDown) {
		t.Errorf("the error is passed on: got %v", err)
	}
}

func TestRetainPod(t *testing.T) {
	pod := podOf("p", "j", "a", func(p *corev1.Pod) {
		p.ResourceVersion, p.Annotations, p.Labels["more"] = "5", map[string]string{"a": "b"}, "x"
		p.Labels[jobset.ReplicatedJobNameKey] = "node"
		p.OwnerReferences = append([]metav1.OwnerReference{{Kind: "Other"}}, p.OwnerReferences...)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: someTime}, ptr.To[int64](7)
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/topology"}, {Name: "example.com/mine"}}
		p.Spec.Containers = []corev1.Container{{Name: "c"}}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4"}
	})
	kept := RetainPod(pod)
	want := podOf("p", "j", "a", func(p *corev1.Pod) {
		p.ResourceVersion, p.DeletionTimestamp, p.DeletionGracePeriodSeconds = "5", &metav1.Time{Time: someTime},
			ptr.To[int64](7)
		p.Labels[jobset.ReplicatedJobNameKey] = "node"
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/mine"}}
		p.Status.Phase = corev1.PodRunning
	})
	if !equality.Semantic.DeepEqual(kept, want) {
		t.Errorf("got  %+v\nwant %+v", kept, want)
	}
	if alone := RetainPod(&corev1.Pod{}); len(alone.OwnerReferences) != 0 {
		t.Errorf("a pod of nobody has no owner: got %v", alone.OwnerReferences)
	}
}
