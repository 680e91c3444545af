package trial

import (
	"context"
	"fmt"
	"strings"
	"testing"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// object returns an object of a TrainJob, of what JSON says.
func object(t *testing.T, text string) Object {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return Object{Unstructured: o}
}

// TestObjects holds that all that a TrainJob has at a time is compared with a ResourceQuota, and tried.
func TestObjects(t *testing.T) {
	const js = `{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "job"},
		"spec": {"replicatedJobs": [{"name": "data"}, {"name": "node"}]}}`
	const unnamed = `{"network": {"enableDNSHostnames": false}, "rep`
	claim := object(t, `{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-job"},
		"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}}}`)
	there := Object{Unstructured: claim.Unstructured, Untried: true}
	config := object(t, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-mpi"}}`)
	for name, c := range map[string]struct {
		hard, amount, says string
		refused            string
		claim              Object
		js                 string
	}{
		"Jobs":               {hard: "count/jobs.batch", amount: "1", says: "2 of count/jobs.batch, of 1"},
		"room for Jobs":      {hard: "count/jobs.batch", amount: "2"},
		"JobSets":            {hard: "count/jobsets.jobset.x-k8s.io", amount: "0", says: "1 of count/jobsets"},
		"claims":             {hard: "persistentvolumeclaims", amount: "0", says: "1 of persistentvolumeclaims, of 0"},
		"counted claims":     {hard: "count/persistentvolumeclaims", amount: "0", says: "1 of count/persistentvolumeclaims"},
		"storage":            {hard: "requests.storage", amount: "9Gi", says: "10Gi of requests.storage, of 9Gi"},
		"a claim that fits":  {hard: "requests.storage", amount: "10Gi"},
		"one that is there":  {hard: "requests.storage", amount: "10Gi", claim: there},
		"there, and no room": {hard: "requests.storage", amount: "9Gi", claim: there, says: "10Gi of requests.storage"},
		"storage of a class": {hard: "fast.storageclass.storage.k8s.io/requests.storage", amount: "1Gi",
			says: "10Gi of fast."},
		"of another class":    {hard: "slow.storageclass.storage.k8s.io/requests.storage", amount: "1Gi"},
		"ConfigMaps":          {hard: "configmaps", amount: "0", says: "1 of configmaps, of 0"},
		"Services":            {hard: "services", amount: "0", says: "1 of services, of 0"},
		"counted Services":    {hard: "count/services", amount: "0", says: "1 of count/services, of 0"},
		"no Service":          {hard: "services", amount: "0", js: strings.Replace(js, `{"rep`, unnamed, 1)},
		"no load balancer":    {hard: "services.loadbalancers", amount: "0"},
		"pods that stay":      {hard: "count/pods", amount: "2", says: "3 of count/pods, of 2"},
		"pods at a time":      {hard: "pods", amount: "2"},
		"a refused JobSet":    {refused: "JobSet", says: "is refused: no"},
		"a refused claim":     {refused: "PersistentVolumeClaim", says: "is refused: no"},
		"one there isn't":     {refused: "PersistentVolumeClaim", claim: there},
		"a refused Job":       {refused: "Job", says: "a Job of its ReplicatedJob data is refused: no"},
		"a refused Service":   {refused: "Service", says: "its Service is refused: no"},
		"no Service, refused": {refused: "Service", js: strings.Replace(js, `{"rep`, unnamed, 1)},
		"a refused ConfigMap": {refused: "ConfigMap", says: "is refused: no"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil)
			if c.hard != "" {
				g = newGround(nil, quotaOf("q", corev1.ResourceList{corev1.ResourceName(c.hard): resource.MustParse(c.amount)}))
			}
			g.refused = c.refused
			if c.claim.Unstructured == nil {
				c.claim = claim
			}
			if c.js == "" {
				c.js = js
			}
			g.objects = []Object{c.claim, config, object(t, c.js)}
			err := g.startable("team", jobs(2))
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			g.objects = nil
			if err := g.startable("elsewhere", jobs(2)); err != nil {
				t.Errorf("another namespace has no such quota: got %v", err)
			}
		})
	}
}

// TestFewestNodes holds that a TrainJob that may be admitted with fewer nodes fits a ResourceQuota of as many, and that
// it shares no answer with one that may not.
func TestFewestNodes(t *testing.T) {
	g := newGround(nil, quotaOf("gpus", corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("8")}))
	g.runtime.MLPolicy = &trainerapi.MLPolicy{NumNodes: ptr.To[int32](4)}
	for least, fits := range map[string]bool{"": false, "3": false, "2": true, "1": true} {
		g.annotations = nil
		if least != "" {
			g.annotations = map[string]string{overrides.MinParallelismAnnotation: least}
		}
		if err := g.startable("team", jobs(4)); (err == nil) != fits {
			t.Errorf("at least %q nodes of four GPUs: got %v", least, err)
		}
	}
}

func TestPhases(t *testing.T) {
	after := func(name string, status jobset.DependsOnStatus, on ...string) jobset.ReplicatedJob {
		rj := jobset.ReplicatedJob{Name: name}
		for _, o := range on {
			rj.DependsOn = append(rj.DependsOn, jobset.DependsOn{Name: o, Status: status})
		}
		return rj
	}
	got := phases([]jobset.ReplicatedJob{
		after("a", ""), after("b", jobset.DependencyComplete, "a"), after("c", jobset.DependencyReady, "b"),
		after("d", ""), after("e", jobset.DependencyComplete, "c", "d"),
	})
	if fmt.Sprint(got) != "[[0 3] [1 2] [4]]" {
		t.Errorf("got %v", got)
	}
}

// TestMorePods holds that a TrainJob grows by no more pods than the ResourceQuotas of its namespace leave.
func TestMorePods(t *testing.T) {
	used := func(q *corev1.ResourceQuota, used corev1.ResourceList) *corev1.ResourceQuota {
		q.Status.Used = used
		return q
	}
	list := func(name corev1.ResourceName, value string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(value)}
	}
	for name, c := range map[string]struct {
		quotas []client.Object
		answer error
		want   int32
		fails  bool
	}{
		"no quota":      {want: 8},
		"room":          {quotas: []client.Object{used(quotaOf("q", list("pods", "20")), list("pods", "2"))}, want: 8},
		"room for some": {quotas: []client.Object{used(quotaOf("q", list("pods", "10")), list("pods", "7"))}, want: 3},
		"of two": {quotas: []client.Object{used(quotaOf("q", list("pods", "10")), list("pods", "7")),
			used(quotaOf("r", list("requests.nvidia.com/gpu", "9")), list("requests.nvidia.com/gpu", "0"))}, want: 2},
		"overused": {quotas: []client.Object{used(quotaOf("q", list("pods", "2")), list("pods", "7"))}, want: 0},
		"is full": {quotas: []client.Object{quotaOf("q", list("pods", "9"))},
			answer: forbidden("check", "exceeded quota: q, requested: pods=1, used: pods=2"), want: 0},
		"no answer": {quotas: []client.Object{quotaOf("q", list("pods", "9"))}, answer: context.DeadlineExceeded,
			fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGround(nil, c.quotas...)
			g.answer = c.answer
			job := &api.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job"}}
			got, err := g.MorePods(t.Context(), job, stepOf("job"), 8)
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %d, %v; want %d", got, err, c.want)
			}
		})
	}
}
