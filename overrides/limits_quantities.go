package overrides

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelpers "k8s.io/component-helpers/resource"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// mostDigits is how many digits a quantity may have before its point: as many as 64 bits hold. Adding 1 to 1e1000000
// takes time and memory for a million digits.
const mostDigits = 19

// hugeQuantity returns an error for a quantity with too many digits. It looks at the digits only: to compare the
// quantity would cost what it is to prevent.
func hugeQuantity(path *field.Path, q *resource.Quantity) *field.Error {
	digits, exponent := q.AsCanonicalBytes(nil)
	if n := int64(len(bytes.TrimPrefix(digits, []byte("-")))); exponent <= mostDigits && n+int64(exponent) <= mostDigits {
		return nil
	}
	return field.Invalid(path, q.String(), fmt.Sprintf("a quantity may have at most %d digits; request less", mostDigits))
}

func checkMagnitudes(path *field.Path, spec any) field.ErrorList {
	var errs field.ErrorList
	walk(path, spec, func(at *field.Path, _ string, value any) bool {
		q, ok := value.(*resource.Quantity)
		if !ok {
			return hasQuantities(reflect.TypeOf(value))
		}
		if err := hugeQuantity(at, q); err != nil {
			errs = append(errs, err)
		}
		return false
	})
	return errs
}

// quantityTypes has whether values of a type may have quantities, by reflect.Type. Most of a runtime can't, and each
// look at a queued TrainJob goes through it.
var quantityTypes sync.Map

func hasQuantities(of reflect.Type) bool {
	known, found := quantityTypes.Load(of)
	if !found {
		known = reachesQuantity(of, map[reflect.Type]bool{})
		quantityTypes.Store(of, known)
	}
	return known.(bool)
}

// reachesQuantity reports whether a type has quantities, beside those of types that were seen.
func reachesQuantity(of reflect.Type, seen map[reflect.Type]bool) bool {
	if of == reflect.TypeFor[resource.Quantity]() {
		return true
	}
	if seen[of] {
		return false
	}
	seen[of] = true
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return reachesQuantity(of.Elem(), seen)
	case reflect.Struct:
		for i := range of.NumField() {
			if of.Field(i).IsExported() && reachesQuantity(of.Field(i).Type, seen) {
				return true
			}
		}
	default:
	}
	return false
}

// checkContainerQuantities returns an error for each resource of a container that the API server rejects in a pod. It
// accepts them in a JobSet, so that a start would have no pods.
func checkContainerQuantities(path *field.Path, containers []corev1.Container) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		at := path.Key(containers[i].Name).Child("resources")
		resources := &containers[i].Resources
		errs = append(errs, CheckResources(at.Child("limits"), resources.Limits)...)
		errs = append(errs, CheckResources(at.Child("requests"), resources.Requests)...)
		for _, name := range slices.Sorted(maps.Keys(resources.Requests)) {
			request := resources.Requests[name]
			limit, limited := resources.Limits[name]
			fixed := !helper.IsOvercommitAllowed(core.ResourceName(name))
			switch order := request.Cmp(limit); {
			case !limited && fixed:
				errs = append(errs, field.Required(at.Child("limits").Key(string(name)), fmt.Sprintf(
					"%s can't be requested without a limit; set a limit of %s", name, request.String())))
			case limited && (order > 0 || order < 0 && fixed):
				most := "at most the limit"
				if fixed {
					most = "equal to the limit"
				}
				errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), request.String(),
					fmt.Sprintf("must be %s of %s; change one of the two", most, limit.String())))
			}
		}
	}
	return errs
}

// CheckResources returns an error for each resource of a list that no container may have (k8s.io/kubernetes v1.36.3,
// pkg/apis/core/validation, validateResourceRequirements).
func CheckResources(path *field.Path, list corev1.ResourceList) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q, of := list[name], core.ResourceName(name)
		at := path.Key(string(name))
		switch {
		case !helper.IsStandardContainerResourceName(of) && !helper.IsExtendedResourceName(of):
			errs = append(errs, field.Invalid(at, string(name), "is no resource of a container; use a name such as cpu, or "+
				"one with a domain such as nvidia.com/gpu"))
		case q.Sign() < 0:
			errs = append(errs, field.Invalid(at, q.String(), "must be 0 or more"))
		case helper.IsIntegerResourceName(of) && q.MilliValue()%1000 != 0:
			errs = append(errs, field.Invalid(at, q.String(), "must be a whole number"))
		case helper.IsHugePageResourceName(of) && !helper.IsHugePageResourceValueDivisible(of, q):
			errs = append(errs, field.Invalid(at, q.String(), "must be a multiple of the size of a page"))
		}
	}
	return errs
}

// checkPodQuantities returns an error for each other quantity of a pod that the API server rejects.
func checkPodQuantities(path *field.Path, pod *corev1.PodSpec) field.ErrorList {
	errs := CheckResources(path.Child("overhead"), pod.Overhead)
	for _, v := range pod.Volumes {
		at := path.Child("volumes").Key(v.Name)
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() < 0 {
			errs = append(errs, field.Invalid(at.Child("emptyDir", "sizeLimit"), v.EmptyDir.SizeLimit.String(),
				"must be 0 or more"))
		}
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		size := v.Ephemeral.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage]
		if size.Sign() <= 0 {
			errs = append(errs, field.Invalid(at.Child("ephemeral", "volumeClaimTemplate", "spec", "resources", "requests").
				Key(string(corev1.ResourceStorage)), size.String(), "must be more than 0"))
		}
	}
	return errs
}

// requestsOf returns what a pod requests. A limit without a request is one.
func requestsOf(spec *corev1.PodSpec) corev1.ResourceList {
	pod := &corev1.Pod{Spec: *spec.DeepCopy()}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			resources := &containers[i].Resources
			requests := corev1.ResourceList{}
			maps.Copy(requests, resources.Limits)
			maps.Copy(requests, resources.Requests)
			resources.Requests = requests
		}
	}
	return resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})
}

// checkSums returns an error if a TrainJob has too many pods, or requests more of a resource in all than Kueue counts:
// its sums are of 64 bits, of thousandths for CPU.
func (l Limits) checkSums(replicatedJobs []jobset.ReplicatedJob) field.ErrorList {
	path := field.NewPath("replicatedJobs")
	pods, total := int64(0), corev1.ResourceList{}
	for i := range replicatedJobs {
		rj := &replicatedJobs[i]
		count := int64(max(rj.Replicas, 1)) * int64(max(PodsPerJob(rj), 0))
		if pods += count; pods > int64(l.Pods) {
			return field.ErrorList{l.tooMany(path.Key(rj.Name), pods)}
		}
		for name, q := range requestsOf(&rj.Template.Spec.Template.Spec) {
			q.Mul(count)
			sum := total[name]
			sum.Add(q)
			total[name] = sum
		}
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(total)) {
		most := *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
		if name == corev1.ResourceCPU {
			most = *resource.NewMilliQuantity(math.MaxInt64, resource.DecimalSI)
		}
		if sum := total[name]; sum.Cmp(most) > 0 {
			errs = append(errs, field.Invalid(path, sum.String(), fmt.Sprintf(
				"the TrainJob requests more %s than can be counted, which is %s; request less", name, most.String())))
		}
	}
	return errs
}
