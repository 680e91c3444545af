// Package trial finds, before a TrainJob is queued, whether its namespace takes what it needs: its JobSet, what is
// created before that, and its pods. The API server knows all that matters to that (Pod Security, ServiceAccounts,
// priority classes, RuntimeClasses, LimitRanges, webhooks and policies, mounts and environment), and is asked with dry
// runs. What the namespace's ResourceQuotas allow is compared with all that a TrainJob has at a time.
package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
	"weak"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
