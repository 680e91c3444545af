package trial

import (
	"errors"
	"regexp"

	"context"
	"encoding/json"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
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
