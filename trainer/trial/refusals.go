package trial

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// refuses reports whether an error says that the object itself is invalid or forbidden.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsRequestEntityTooLargeError(err) || apimeta.IsNoMatchError(err)
}

// mayNot reports whether the manager has no right to create an object; what a request creates has no name yet when the
// API server looks for rights.
func mayNot(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Name == ""
}

func isFull(err error) bool {
	return apierrors.IsForbidden(err) && quotaExceeded.MatchString(err.Error())
}

// quotaExceeded is what the API server says of a ResourceQuota that is used up; there is no reason of its own
// (k8s.io/apiserver v0.36, plugin/resourcequota). A webhook that quotes these words gets its pods refused later.
var quotaExceeded = regexp.MustCompile(`is forbidden: exceeded quota: `)

// quotaParts are the resources that an object requests of such a ResourceQuota, and its limits.
var quotaParts = regexp.MustCompile(`exceeded quota: [^,]+, requested: (.+), used: .+, limited: (.+)$`)

// largerThanQuota reports whether an object requests more than a ResourceQuota ever has: not even the first would be
// taken. Of an object that is refused, nothing else says what the namespace would have made of it, such as a claim's
// default StorageClass.
func largerThanQuota(err error) bool {
	parts := quotaParts.FindStringSubmatch(err.Error())
	if parts == nil {
		return false
	}
	requested, limits := amounts(parts[1]), amounts(parts[2])
	for name, q := range requested {
		if limit, found := limits[name]; found && q.Cmp(limit) > 0 {
			return true
		}
	}
	return false
}

// amounts reads resources in the form of a=1,b=2.
func amounts(text string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if q, err := resource.ParseQuantity(value); err == nil {
			list[corev1.ResourceName(name)] = q
		}
	}
	return list
}

// byPolicy reports whether a policy or a webhook of the cluster refuses a pod, and not the API server itself.
func byPolicy(err error) bool { return err != nil && denied.MatchString(err.Error()) }

// What the API server says of webhooks and of policies has no reason of its own.
var (
	denied       = regexp.MustCompile(`admission webhook "[^"]+" denied|ValidatingAdmissionPolicy '[^']+'`)
	deniedPolicy = regexp.MustCompile(`^[^:]*: ValidatingAdmissionPolicy '([^']+)' with binding`) // no webhook's quote
	readsUser    = regexp.MustCompile(`\buserInfo\b|\bauthorizer\b`)
)

// byItsUser reports whether a policy refuses an object that looks at who creates it. The Job controller creates pods,
// JobSet creates Jobs, and a dry run in their name would need the right to impersonate them. What a webhook looks at
// can't be known. An error is that it isn't known of the policy now.
func (t *Trial) byItsUser(ctx context.Context, refusal error) (bool, error) {
	found := deniedPolicy.FindStringSubmatch(refusal.Error())
	if found == nil {
		return false, nil
	}
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	err := t.live.Get(ctx, client.ObjectKey{Name: found[1]}, &policy)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil // it is gone, or there is no right: the refusal counts
	}
	if err != nil {
		return false, err
	}
	spec, err := json.Marshal(policy.Spec)
	return err == nil && readsUser.Match(spec), err
}
