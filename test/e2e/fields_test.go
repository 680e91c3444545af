package e2e

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueueconstants "sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	podconstants "sigs.k8s.io/kueue/pkg/controller/jobs/pod/constants"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration"
)

// ownKey is a label and an annotation that no controller reads.
const ownKey = "example.com/own"

// readKeys are labels and annotations that a controller acts on, on one of the four kinds. docs/security.md has the
// table.
var readKeys = []string{
	batchv1.JobCompletionIndexAnnotation, batchv1.JobIndexFailureCountAnnotation, batchv1.JobTrackingFinalizer,
	batchv1.JobIndexIgnoredFailureCountAnnotation, batchv1.ControllerUidLabel, batchv1.JobNameLabel,
	jobset.JobSetNameKey, jobset.JobSetUIDKey, jobset.ReplicatedJobNameKey, jobset.JobIndexKey, jobset.JobKey,
	jobset.ExclusiveKey, jobset.NodeSelectorStrategyKey, jobset.NamespacedJobKey, jobset.InPlaceRestartAttemptKey,
	jobset.DisableInPlaceRestartKey, "jobset.sigs.k8s.io/restart-attempt", "jobset.sigs.k8s.io/priority",
	kueue.WorkloadAnnotation, kueue.WorkloadSliceNameAnnotation, kueue.PodIndexOffsetAnnotation, sliceAnnotation,
	kueue.PodSetUnconstrainedTopologyAnnotation, kueue.PodSetRequiredTopologyAnnotation,
	kueue.MultiKueueOriginLabel, kueueconstants.PodSetLabel, kueueconstants.ManagedByKueueLabelKey,
	kueueconstants.AdmissionGatedByAnnotation, kueueconstants.ElasticJobAnnotation, constants.QueueLabel,
	constants.PrebuiltWorkloadLabel, constants.JobUIDLabel, constants.WorkloadPriorityClassLabel,
	constants.ProvReqAnnotationPrefix + "key", constants.MaxExecTimeSecondsLabel,
	constants.SafeToForcefullyDeleteAnnotationKey, constants.JobOwnerGVKAnnotation, constants.JobOwnerNameAnnotation,
	constants.PriorityBoostAnnotationKey, constants.WorkloadAllowedResourceFlavorAnnotation,
	constants.ConcurrentAdmissionParentLabelKey, podconstants.SuspendedByParentAnnotation,
	podconstants.IsGroupWorkloadAnnotationKey, api.DeactivateAnnotation, integration.DispatchAnnotation,
	"trainer.kubeflow.org/trainjob-ancestor-step", "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name",
}

// openFields are the fields that a user may change, by kind, subresource and a prefix of the path, and why.
var openFields = map[string]string{
	"pods metadata.labels[" + ownKey:               "only affinities read it, which change no count",
	"pods metadata.annotations[" + ownKey:          "no controller reads it",
	"pods metadata.generateName":                   "read on creation only",
	"pods/status metadata.labels[" + ownKey:        "as above",
	"pods/status metadata.annotations[" + ownKey:   "as above",
	"pods/status metadata.generateName":            "as above",
	"pods/status status.nominatedNodeName":         "a scheduler's, which binds nothing",
	"jobs metadata.annotations[" + ownKey:          "no controller reads it",
	"jobs metadata.generateName":                   "read on creation only",
	"jobsets metadata.annotations[" + ownKey:       "no controller reads it",
	"jobsets metadata.generateName":                "read on creation only",
	"workloads metadata.annotations[" + ownKey:     "no controller reads it",
	"workloads metadata.generateName":              "read on creation only",
	"workloads spec.active":                        "evicts; a webhook keeps the quota until the last pod has ended",
	"workloads spec.priority":                      "Kueue lets users change it",
	"workloads spec.preemptionGates":               "keeps the Workload itself from preempting others",
	"workloads/status status.requeueState":         "delays the Workload itself",
	"workloads/status status.accumulated":          "ends the Workload itself earlier or later",
	"workloads/status status.schedulingStats":      "counts evictions; no decision reads it",
	"workloads/status status.resourceRequests":     "shown while the Workload waits; its usage is the admission's",
	"workloads/status status.nominatedClusterName": "an external dispatcher's of MultiKueue; quota is reserved before",
	"workloads/status status.unhealthyNodes":       "evicts the Workload itself, or replaces a node within its quota",
}

// fieldProbe sends changes of one object as one user, as dry runs.
type fieldProbe struct {
	as       client.Client
	resource string
	object   client.Object
	// holds counts what held a change.
	mu    sync.Mutex
	holds map[string]int
	// open are changes that went through.
	open []string
	// invalid are the changes, by subresource and path, that no user can make.
	invalid map[fieldTry]bool
}

// fieldTry is a change by the subresource that it is sent to and its path.
type fieldTry struct{ subResource, path string }

var deniedBy = regexp.MustCompile(`ValidatingAdmissionPolicy '(signalbox-[a-z-]+)'|(admission webhook)`)

// try sends one change; a conflict with a controller's write is sent again with the version of now.
func (p *fieldProbe) try(ctx context.Context, subResource string, c fieldChange) error {
	before := c.object.GetResourceVersion()
	for range 20 {
		sent := c.object.DeepCopyObject().(client.Object)
		sent.SetResourceVersion(before)
		var err error
		if subResource == "" {
			err = p.as.Update(ctx, sent, client.DryRunAll)
		} else {
			err = p.as.SubResource(subResource).Update(ctx, sent, client.DryRunAll)
		}
		if apierrors.IsConflict(err) {
			now := p.object.DeepCopyObject().(client.Object)
			if err := admin.Get(ctx, client.ObjectKeyFromObject(now), now); err != nil {
				return err
			}
			before = now.GetResourceVersion()
			continue
		}
		return p.judge(subResource, c.path, sent, err)
	}
	return fmt.Errorf("%s %s: a conflict at each attempt", p.resource, c.path)
}

func (p *fieldProbe) judge(subResource, path string, answered client.Object, err error) error {
	holder, invalid := "", false
	switch {
	case err == nil:
		if sameFields(p.object, answered) {
			holder = "the API server ignores it"
		}
	case apierrors.IsForbidden(err):
		holder = "RBAC or admission"
		if m := deniedBy.FindStringSubmatch(err.Error()); m != nil {
			holder = m[1] + m[2]
		}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		holder = "the API server's validation"
		invalid = true
	default:
		return fmt.Errorf("%s/%s %s: %w", p.resource, subResource, path, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if invalid {
		p.invalid[fieldTry{subResource, path}] = true
	}
	if holder != "" {
		p.holds[holder]++
		return nil
	}
	where := strings.TrimSuffix(p.resource+"/"+subResource, "/") + " "
	for prefix := range openFields {
		if strings.HasPrefix(where+path, prefix) {
			p.holds["open: "+prefix]++
			return nil
		}
	}
	p.open = append(p.open, where+path)
	return nil
}

// sameFields reports whether an answer is what was there before, but for what the API server counts.
func sameFields(before, answered client.Object) bool {
	plain := func(o client.Object) client.Object {
		o = o.DeepCopyObject().(client.Object)
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		o.SetGeneration(0)
		o.GetObjectKind().SetGroupVersionKind(before.GetObjectKind().GroupVersionKind())
		return o
	}
	return equality.Semantic.DeepEqual(plain(before), plain(answered))
}

// sends reports whether a subresource takes a change; what it would ignore isn't sent.
func sends(subResource, path string) bool {
	switch subResource {
	case "":
		return !strings.HasPrefix(path, "status")
	case "status":
		return strings.HasPrefix(path, "status") || strings.HasPrefix(path, "metadata")
	case "resize":
		return strings.HasPrefix(path, "spec.") && strings.Contains(path, "esources")
	}
	return strings.HasPrefix(path, "spec."+"ephemeralContainers")
}

// run sends all changes to each subresource, but for those that are known to be invalid.
func (p *fieldProbe) run(ctx context.Context, changes []fieldChange, subResources []string) {
	ginkgo.GinkgoHelper()
	type work struct {
		subResource string
		change      fieldChange
	}
	known := maps.Clone(p.invalid)
	queue := make(chan work)
	var failed atomic.Value
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for w := range queue {
				if err := p.try(ctx, w.subResource, w.change); err != nil {
					failed.Store(err)
				}
			}
		})
	}
	for _, sub := range subResources {
		for _, c := range changes {
			if sends(sub, c.path) && !known[fieldTry{sub, c.path}] {
				queue <- work{sub, c}
			}
		}
	}
	close(queue)
	workers.Wait()
	gomega.Expect(failed.Load()).To(gomega.BeNil())
	slices.Sort(p.open)
	gomega.Expect(p.open).To(gomega.BeEmpty(), "nothing holds these changes of %s, and openFields doesn't name them",
		p.resource)
}

// unlimited returns a client like another of the user's that no rate limits.
func unlimited(name string) client.Client {
	ginkgo.GinkgoHelper()
	c := rest.CopyConfig(config(cluster.kubeconfig("")))
	c.Impersonate.UserName, c.QPS = name, -1
	as, err := client.New(c, client.Options{Scheme: admin.Scheme()})
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return as
}

// subResources returns those of a resource that take an update. pods/proxy isn't one: it changes no object.
func subResources(groupVersion, resource string) []string {
	ginkgo.GinkgoHelper()
	d, err := discovery.NewDiscoveryClientForConfig(config(cluster.kubeconfig("")))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	list, err := d.ServerResourcesForGroupVersion(groupVersion)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	var names []string
	for _, r := range list.APIResources {
		name, sub, _ := strings.Cut(r.Name, "/")
		if name == resource && sub != "proxy" && slices.Contains(r.Verbs, "update") {
			names = append(names, sub)
		}
	}
	return names
}

var _ = ginkgo.Describe("Each field of what runs on quota", func() {
	ginkgo.It("is held, or open for a reason, whoever changes it", func(ctx context.Context) {
		known := []string{"name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation",
			"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences",
			"finalizers", "managedFields"}
		for i := range reflect.TypeFor[metav1.ObjectMeta]().NumField() {
			name, _, _ := strings.Cut(reflect.TypeFor[metav1.ObjectMeta]().Field(i).Tag.Get("json"), ",")
			gomega.Expect(known).To(gomega.ContainElement(name), "add it to metadataChanges")
		}
		g := newGround(ctx, map[string]int64{"a100": 8})
		g.runtime(ctx, "torch", "forever")
		g.as(ctx, "submitter", []rbacv1.PolicyRule{may("trainer.kubeflow.org", "trainjobs")})
		g.author(ctx)
		g.master(ctx)
		tj, job := g.started(ctx, "mine", "torch")
		pod := podsOf(ctx, tj)[0]
		gomega.Eventually(func() corev1.PodPhase { return get(ctx, &pod).Status.Phase }).Should(
			gomega.Equal(corev1.PodRunning))
		start := time.Now()
		for _, of := range []struct {
			groupVersion, resource string
			object                 client.Object
			subResources           []string
		}{
			{"v1", "pods", &pod, []string{"", "ephemeralcontainers", "resize", "status"}},
			{"batch/v1", "jobs", job, []string{"", "status"}},
			{"jobset.x-k8s.io/v1alpha2", "jobsets",
				&jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: tj.Name}}, []string{"", "status"}},
			{"kueue.x-k8s.io/v1beta2", "workloads", workloadOf(ctx, tj), []string{"", "status"}},
		} {
			gomega.Expect(subResources(of.groupVersion, of.resource)).To(gomega.ConsistOf(of.subResources))
			object := get(ctx, of.object)
			keys := append(slices.Clone(readKeys), ownKey)
			changes := append(metadataChanges(object, keys), fieldChanges(object)...)
			invalid := map[fieldTry]bool{}
			for _, name := range []string{"submitter", "master", "author"} {
				sent := changes
				if name == "submitter" || name == "author" && of.resource != "pods" {
					sent = changes[:1] // RBAC doesn't look at fields
				}
				p := &fieldProbe{as: unlimited(name), resource: of.resource, object: object, holds: map[string]int{},
					invalid: invalid}
				p.run(ctx, sent, of.subResources)
				fmt.Printf("fields: %s as %s, %d changes:\n", of.resource, name, len(sent))
				for _, holder := range slices.Sorted(maps.Keys(p.holds)) {
					fmt.Printf("  %5d %s\n", p.holds[holder], holder)
				}
			}
		}
		fmt.Printf("fields: all in %s\n", time.Since(start).Round(time.Second))
		gomega.Expect(bound(ctx, tj)()).To(gomega.Equal(1))
	})
})
