// Package trial finds, before a TrainJob is queued, whether its namespace takes what it needs: its JobSet, what is
// created before that, and its pods. The API server knows all that matters to that (Pod Security, ServiceAccounts,
// priority classes, RuntimeClasses, LimitRanges, webhooks and policies, mounts and environment), and is asked with dry
// runs. What the namespace's ResourceQuotas allow is compared with all that a TrainJob has at a time.
package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
	"weak"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	// ReasonPodsRefused: the TrainJob's namespace doesn't take pods as the TrainJob needs them. The message has who
	// refuses them and why; change the TrainJob, the runtime, or what the namespace allows.
	ReasonPodsRefused = "PodsRefused"
	// ReasonInvalidJobSet: the JobSet that the TrainJob needs is rejected, or what its pods mount. The message has the
	// reason and who rejects it; change the TrainJob or the runtime.
	ReasonInvalidJobSet = "InvalidJobSet"

	// fieldManager is the bundled Trainer's.
	fieldManager = "signalbox-trainer"

	// refusedRetry is after which time a namespace is asked again that doesn't take a pod, and acceptedFor for how long
	// it isn't asked that does.
	refusedRetry = time.Minute
	acceptedFor  = 5 * time.Minute
	// newFor is for how long a TrainJob is new: what was applied with it, a ServiceAccount say, may come after it, as the
	// ServiceAccount of a new namespace does. Meanwhile, a namespace is asked again after newRetry.
	newFor   = 5 * time.Second
	newRetry = time.Second
	// unansweredRetry is after which time the API server is asked again that gave no answer.
	unansweredRetry = 5 * time.Second
	// verdicts is how many answers are remembered.
	verdicts = 4096
)

// Trainer is what makes the objects of a TrainJob.
type Trainer interface {
	// Startable rejects, with an *admission.BlockedError or an *admission.PendingError, what no trial is needed for. Of
	// other TrainJobs it returns what distinguishes them from those that run the same in their namespace.
	Startable(
		context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective,
	) (Own, error)
	// Needs returns what a TrainJob needs when it is admitted.
	Needs(
		context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective, Own,
	) (*Needs, error)
	// Room rejects a TrainJob whose annotations have no room for a pinned runtime of that many bytes.
	Room(job *api.TrainJob, pin int) error
}

// Own is what distinguishes a TrainJob from those that run the same in their namespace.
type Own struct {
	// Controller is what controls it: Kueue's webhook for JobSets looks for their owners' owners.
	Controller string
	// Claims are the names of its claims that are there already, separated by commas.
	Claims string
	// fewest is with how few nodes it may be admitted.
	fewest int32
}

// Needs is what a TrainJob needs.
type Needs struct {
	// ReplicatedJobs are the JobSet's. Fewest are those of a TrainJob that is admitted with the fewest nodes that it may
	// have, in the same order.
	ReplicatedJobs, Fewest []jobset.ReplicatedJob
	// Objects are the JobSet, the last of them, and what is created before it; none where the Trainer creates them with
	// the TrainJob.
	Objects []Object
	// Pin is the size of the pinned runtime in bytes.
	Pin int
}

// Object is an object of a TrainJob.
type Object struct {
	*unstructured.Unstructured
	// Untried is set for one that is there already, or whose form is fixed.
	Untried bool
}

// Installed is an installed Kubeflow Trainer, which builds what is in Effective.Built, and creates it with the
// TrainJob.
type Installed struct {
	// Unsupported rejects what only the bundled Trainer has.
	Unsupported interface {
		Startable(context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective) error
	}
}

// Startable implements Trainer.
func (i Installed) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) (Own, error) {
	return Own{}, i.Unsupported.Startable(ctx, job, runtime, effective)
}

// Needs implements Trainer.
func (Installed) Needs(
	_ context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective, _ Own,
) (*Needs, error) {
	return &Needs{ReplicatedJobs: effective.Built, Fewest: fewest(job, runtime, effective)}, nil
}

// Room implements Trainer.
func (Installed) Room(*api.TrainJob, int) error { return nil }

// Trial tries all that a TrainJob needs. It implements integration.Placement.
type Trial struct {
	client  client.Client
	live    client.Reader
	clock   clock.Clock
	trainer Trainer
	// verdicts are the answers, by namespace and by what TrainJobs run. Of a burst of them, one asks.
	verdicts *lru.Cache
	asking   singleflight.Group
}

// New returns a Trial of what a Trainer makes. It asks with a client, and reads ResourceQuotas without a cache.
func New(c client.Client, live client.Reader, clk clock.Clock, trainer Trainer) *Trial {
	return &Trial{client: c, live: live, clock: clk, trainer: trainer, verdicts: lru.New(verdicts)}
}

// verdict is an answer; reason is "" where the namespace would take what a TrainJob needs.
type verdict struct {
	reason  string
	refused error
	pin     int
	at      time.Time
}

// shape is whom an answer is for.
type shape struct {
	of        weak.Pointer[overrides.Effective]
	namespace string
	own       Own
}

// Startable implements integration.Placement. What it finds is an *admission.BlockedError; that the API server doesn't
// answer is an *admission.PendingError.
func (t *Trial) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) error {
	own, err := t.trainer.Startable(ctx, job, runtime, effective)
	if err != nil {
		return err
	}
	if least, err := overrides.MinNodes(job, runtime); err == nil {
		own.fewest = least // an invalid one is rejected elsewhere
	}
	key, patience := shape{weak.Make(effective), job.Namespace, own}, refusedRetry
	if t.clock.Since(job.CreationTimestamp.Time) < newFor {
		patience = newRetry
	}
	of := []any{runtime, effective.ReplicatedJobs, effective.Annotations, job.Spec.RuntimeRef.Name, usersPatches(job)}
	answer, err := t.answer(key, patience, of, func() (verdict, error) {
		needs, err := t.trainer.Needs(ctx, job, runtime, effective, own)
		if err != nil {
			return verdict{}, err
		}
		return t.ask(ctx, job, needs)
	})
	switch {
	case err != nil:
		return err
	case answer.reason == "":
		return t.trainer.Room(job, answer.pin)
	case answer.reason == ReasonInvalidJobSet:
		err = fmt.Errorf("what is built of %s and the TrainJob is refused, so that the TrainJob would never have pods: %w; "+
			"change one of the two", store.Describe(job), answer.refused)
	default:
		err = fmt.Errorf("the TrainJob would never have all its pods: %w; change the TrainJob, its runtime, or what "+
			"namespace %s allows", answer.refused, job.Namespace)
		if patience == newRetry {
			return &admission.PendingError{RetryAfter: newRetry, Err: err}
		}
	}
	return &admission.BlockedError{Reason: answer.reason, RetryAfter: refusedRetry, Err: err}
}

// usersPatches returns what the users change of the runtime: beside pods, the labels of the JobSet, for example.
func usersPatches(job *api.TrainJob) []trainerapi.RuntimePatch {
	var all []trainerapi.RuntimePatch
	for _, patch := range job.Spec.RuntimePatches {
		if patch.Manager != overrides.Manager {
			patch.Time = nil
			all = append(all, patch)
		}
	}
	return all
}

// answer returns what the API server says of a shape. Beside Kubeflow Trainer, each TrainJob has an Effective of its
// own, because what is built has its name. TrainJobs share an answer if they are equal but for that. What they run is
// encoded once for each Effective, and again when its answer is outdated.
func (t *Trial) answer(
	key shape, patience time.Duration, of []any, ask func() (verdict, error),
) (verdict, error) {
	if known, found := t.verdicts.Get(key); found && !t.outdated(known.(verdict), patience) {
		return known.(verdict), nil
	}
	content, err := json.Marshal(append(of, key.namespace, key.own, key.own.fewest))
	if err != nil {
		return verdict{}, err
	}
	equal := sha256.Sum256(content)
	answer, err, _ := t.asking.Do(string(equal[:]), func() (any, error) {
		if known, found := t.verdicts.Get(equal); found && !t.outdated(known.(verdict), patience) {
			return known, nil
		}
		v, err := ask()
		if err == nil {
			t.verdicts.Add(equal, v)
		}
		return v, err
	})
	if err != nil {
		return verdict{}, err
	}
	t.verdicts.Add(key, answer)
	return answer.(verdict), nil
}

// outdated reports whether an answer has to be asked for again; patience is for how long one stands that refuses.
func (t *Trial) outdated(v verdict, patience time.Duration) bool {
	if v.reason != "" {
		return t.clock.Since(v.at) >= patience
	}
	return t.clock.Since(v.at) >= acceptedFor
}

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
	for _, a := range t.attempts(job, needs, pods) {
		switch err := a.try(ctx); {
		case err == nil || apierrors.IsAlreadyExists(err) || store.SkipsDryRuns(err) || isFull(err):
		case mayNot(err):
			ctrl.LoggerFrom(ctx).Error(err, "Not all is tried before a TrainJob is queued; install the RBAC of this release",
				"untried", a.what)
		case !refuses(err):
			return v, t.unanswered(job, a.what, err)
		case t.byItsUser(ctx, err):
			ctrl.LoggerFrom(ctx).Info("Queued, although a dry run is refused by a policy that looks at who creates an object",
				"what", a.what, "refusal", err.Error())
		default:
			v.reason, v.refused = a.reason, fmt.Errorf("%s is refused: %w", a.what, err)
			return v, nil
		}
	}
	refused, err := t.exceeds(ctx, job.Namespace, needs, pods)
	if refused != nil {
		v.reason, v.refused = ReasonPodsRefused, refused
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
				func(ctx context.Context) error { return t.tryJob(ctx, job, rj) }})
		}
		all = append(all, attempt{ReasonPodsRefused, "a pod of its ReplicatedJob " + rj.Name,
			func(ctx context.Context) (err error) {
				pods[i], err = t.tryPod(ctx, job, rj)
				return err
			}})
	}
	return all
}

// tryObject creates an object, and keeps nothing. Its name is always the same, so that a message about it is; that one
// is there is found after all else. Fields that the installed JobSet doesn't have (volumeClaimPolicies before v0.11) are
// an error: without them, the TrainJob would be another than the runtime says. The object becomes what is returned.
func (t *Trial) tryObject(ctx context.Context, o *Object) error {
	name := o.GetName()
	tried := o.DeepCopy()
	tried.SetName("check")
	err := t.client.Create(ctx, tried, client.DryRunAll, client.FieldOwner(fieldManager),
		client.FieldValidation(metav1.FieldValidationStrict))
	if err == nil {
		o.Unstructured = tried
		o.SetName(name)
	}
	return err
}

// refuses reports whether an error says that the object itself is invalid or forbidden.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsRequestEntityTooLargeError(err) || apimeta.IsNoMatchError(err)
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

// mayNot reports whether the manager has no right to create an object; what a request creates has no name yet when the API
// server looks for rights.
func mayNot(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Name == ""
}

// quotaExceeded is what the API server says of a ResourceQuota that is used up; there is no reason of its own
// (k8s.io/apiserver v0.36, plugin/resourcequota). A webhook that quotes these words gets its pods refused later.
var quotaExceeded = regexp.MustCompile(`is forbidden: exceeded quota: `)

func isFull(err error) bool {
	return apierrors.IsForbidden(err) && quotaExceeded.MatchString(err.Error())
}
