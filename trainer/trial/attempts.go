package trial

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

// attempt is one thing to try.
type attempt struct {
	reason string // if it is refused
	what   string
	try    func(context.Context) error
}

// ask tries all that a TrainJob needs, and compares it with the ResourceQuotas. What a quota has room for now doesn't
// matter: what runs may end, or be preempted, before this TrainJob is admitted.
func (t *Trial) ask(ctx context.Context, job *api.TrainJob, needs *Needs) (verdict, error) {
	v := verdict{at: t.clock.Now(), pin: needs.Pin}
	pods := make([]*corev1.Pod, len(needs.ReplicatedJobs))
	var larger error
	for _, a := range t.attempts(job, needs, pods) {
		switch err := a.try(ctx); {
		case isFull(err) && largerThanQuota(err):
			larger = cmp.Or(larger, fmt.Errorf("%s is refused: %w", a.what, err))
		case err == nil || apierrors.IsAlreadyExists(err) || store.SkipsDryRuns(err) || isFull(err):
		case mayNot(err):
			ctrl.LoggerFrom(ctx).Error(err, "Not all is tried before a TrainJob is queued; install the RBAC of this release",
				"untried", a.what)
		case !refuses(err):
			return v, t.unanswered(job, a.what, err)
		default:
			byUser, unread := t.byItsUser(ctx, err)
			if unread != nil {
				return v, t.unanswered(job, a.what, unread)
			}
			if !byUser {
				v.reason, v.refused = a.reason, fmt.Errorf("%s is refused: %w", a.what, err)
				return v, nil
			}
			ctrl.LoggerFrom(ctx).Info("Queued, although a dry run is refused by a policy that depends on who creates an object",
				"what", a.what, "refusal", err.Error())
		}
	}
	refused, err := t.exceeds(ctx, job.Namespace, needs, pods)
	if refused = cmp.Or(refused, larger); refused != nil {
		v.reason, v.refused = admission.ReasonPodsRefused, refused
	}
	return v, err
}

// attempts returns what is to be tried: the objects, what JobSet creates of them, and then pods, which are kept as the
// namespace would have them.
func (t *Trial) attempts(job *api.TrainJob, needs *Needs, pods []*corev1.Pod) []attempt {
	var all []attempt
	for i := range needs.Objects {
		if o := &needs.Objects[i]; !o.Untried {
			all = append(all, attempt{ReasonInvalidJobSet, o.GetKind() + " " + o.GetName(), func(ctx context.Context) error {
				return t.tryObject(ctx, o)
			}})
		}
	}
	if len(needs.Objects) > 0 && needs.service() {
		all = append(all, attempt{ReasonInvalidJobSet, "its Service", func(ctx context.Context) error {
			return t.client.Create(ctx, serviceOf(job), client.DryRunAll)
		}})
	}
	for i := range needs.ReplicatedJobs {
		rj := &needs.ReplicatedJobs[i]
		if len(needs.Objects) > 0 {
			all = append(all, attempt{ReasonInvalidJobSet, "a Job of its ReplicatedJob " + rj.Name,
				func(ctx context.Context) error { return t.tryJob(ctx, job, needs, i) }})
		}
		all = append(all, attempt{admission.ReasonPodsRefused, "a pod of its ReplicatedJob " + rj.Name,
			func(ctx context.Context) (err error) {
				pods[i], err = t.tryPod(ctx, job, rj)
				return err
			}})
	}
	return all
}

// tryObject creates an object, and keeps nothing. Its name is always the same, so that a message about it is; that one
// is there is found after all else. Fields that the installed JobSet doesn't have (volumeClaimPolicies before v0.11)
// are an error: without them, the TrainJob would be another than the runtime says. The object becomes what is returned.
func (t *Trial) tryObject(ctx context.Context, o *Object) error {
	name := o.GetName()
	tried := o.DeepCopy()
	tried.SetName("check")
	err := t.client.Create(ctx, tried, client.DryRunAll, client.FieldOwner(fieldManager),
		client.FieldValidation(metav1.FieldValidationStrict))
	if err == nil {
		o.Unstructured = tried
		o.SetName(name)
		o.taken = true
	}
	return err
}

// unanswered is the error of a dry run that says nothing of the object.
func (t *Trial) unanswered(job *api.TrainJob, what string, err error) error {
	after := unansweredRetry
	if apierrors.IsNotFound(err) && t.clock.Since(job.CreationTimestamp.Time) < newFor {
		after = store.ConflictDelay // Kueue's webhooks look for a new TrainJob in a cache
	}
	return &admission.PendingError{RetryAfter: after, Err: fmt.Errorf(
		"the API server doesn't say whether it would take %s: %w", what, err)}
}
