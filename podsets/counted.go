package podsets

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueuemath "sigs.k8s.io/kueue/pkg/util/math"
	"sigs.k8s.io/kueue/pkg/util/resource"
	"sigs.k8s.io/kueue/pkg/workload"
)

// Counting is what Kueue's count of PodSets depends on beside the PodSets.
type Counting struct {
	// Resources are those of Kueue's configuration: which it excludes, and which it transforms. Nil for none.
	Resources *kueueconfig.Resources
	// LimitRanges are those of the namespace. They default what containers request.
	LimitRanges []corev1.LimitRange
	// RuntimeClasses are those that the pods name. They have an overhead.
	RuntimeClasses []nodev1.RuntimeClass
}

// RuntimeClasses returns the names of those that PodSets name, sorted.
func RuntimeClasses(podSets []kueue.PodSet) []string {
	names := sets.New[string]()
	for i := range podSets {
		if name := ptr.Deref(podSets[i].Template.Spec.RuntimeClassName, ""); name != "" {
			names.Insert(name)
		}
	}
	return sets.List(names)
}

// Of returns what Kueue counts of each PodSet, as if so many pods ran as its count says. It is what the API server
// makes of the pods when they are created, by LimitRanges and RuntimeClasses, and Kueue's functions compute it.
func (c Counting) Of(podSets []kueue.PodSet) []workload.PodSetResources {
	wl := &kueue.Workload{Spec: kueue.WorkloadSpec{PodSets: make([]kueue.PodSet, len(podSets))}}
	for i := range podSets {
		podSets[i].DeepCopyInto(&wl.Spec.PodSets[i])
		fillRequests(&wl.Spec.PodSets[i].Template.Spec)
	}
	// What Kueue logs is about RuntimeClasses that don't exist: their pods can't be created either.
	workload.AdjustResources(ctrl.LoggerInto(context.Background(), logr.Discard()), given{Counting: c}, wl)
	var options []workload.InfoOption
	if c.Resources != nil {
		options = append(options, workload.WithExcludedResourcePrefixes(c.Resources.ExcludeResourcePrefixes),
			workload.WithResourceTransformations(c.Resources.Transformations))
	}
	return workload.NewInfo(wl, options...).TotalRequests
}

// Pod returns what Kueue counts of one pod.
func (c Counting) Pod(spec *corev1.PodSpec) corev1.ResourceList {
	return c.Of([]kueue.PodSet{{Count: 1, Template: corev1.PodTemplateSpec{Spec: *spec}}})[0].Requests.ToResourceList(nil)
}

// Total returns what a Workload asks for, all its pods together: what Kueue has counted, as its admission or its status
// says, or else what it would count.
func (c Counting) Total(wl *kueue.Workload) corev1.ResourceList {
	total := corev1.ResourceList{}
	add := func(part corev1.ResourceList) { total = resource.MergeResourceListKeepSum(total, part) }
	switch {
	case wl.Status.Admission != nil:
		for _, assignment := range wl.Status.Admission.PodSetAssignments {
			add(assignment.ResourceUsage)
		}
	case len(wl.Status.ResourceRequests) > 0:
		for _, request := range wl.Status.ResourceRequests {
			add(request.Resources)
		}
	default:
		for _, podSet := range c.Of(wl.Spec.PodSets) {
			add(podSet.Requests.ToResourceList(nil))
		}
	}
	return total
}

// Times returns how often a quantity above 0 fits in another. What an int64 can't hold in thousandths, more than 8 Pi,
// counts as the most that it can, where Quantity.MilliValue returns 0.
func Times(one, in apiresource.Quantity) int64 {
	if in.Cmp(one) < 0 {
		return 0
	}
	return kueuemath.SafeMilliValue(in) / kueuemath.SafeMilliValue(one)
}

// fillRequests has a limit without a request be requested, as the API server has it in pods. Kueue v0.19.2 does so
// after it has applied LimitRanges, and the API server before: of `limits: {cpu: 4}` and a LimitRange's defaultRequest
// of 100m, Kueue counts 100m, and the pod takes 4.
func fillRequests(spec *corev1.PodSpec) { workload.UseLimitsAsMissingRequestsInPod(spec) }

// given is a client that has a Counting's objects.
type given struct {
	client.Client
	Counting
}

// Get implements client.Reader.
func (g given) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	for i := range g.RuntimeClasses {
		if into, ok := object.(*nodev1.RuntimeClass); ok && g.RuntimeClasses[i].Name == key.Name {
			g.RuntimeClasses[i].DeepCopyInto(into)
			return nil
		}
	}
	return apierrors.NewNotFound(nodev1.Resource("runtimeclasses"), key.Name)
}

// List implements client.Reader.
func (g given) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if into, ok := list.(*corev1.LimitRangeList); ok {
		into.Items = g.LimitRanges
	}
	return nil
}
