package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"weak"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/overrides/dialect"
	"github.com/signalbox-dev/signalbox/store"
)

// Startable implements integration.Placement. What it finds is an *admission.BlockedError; that the API server doesn't
// answer is an *admission.PendingError.
func (t *Trial) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) error {
	own, needsOf, err := t.trainer.Startable(ctx, job, runtime, effective)
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
	of := func() []any {
		return []any{runtime, effective.ReplicatedJobs, effective.Annotations, job.Spec.RuntimeRef.Name, usersPatches(job)}
	}
	answer, err := t.answer(key, patience, of, func() (verdict, error) {
		needs, err := needsOf()
		if err != nil {
			return verdict{}, err
		}
		v, err := t.ask(ctx, job, needs)
		if errors.As(err, &v.pending) {
			return v, nil
		}
		return v, err
	})
	switch {
	case err != nil:
		return err
	case answer.pending != nil:
		return answer.pending
	case answer.reason == "":
		return checkRoom(job, answer.pin)
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

// checkRoom rejects a TrainJob whose annotations have no room for a pinned runtime of that many bytes; 0 for none.
func checkRoom(job *api.TrainJob, pin int) error {
	total := pin + len(store.PinAnnotation)
	for key, value := range job.Annotations {
		if key != store.PinAnnotation {
			total += len(key) + len(value)
		}
	}
	const limit = apimachineryvalidation.TotalAnnotationSizeLimitB - 4<<10 // a bit is for kubectl and others
	if pin > 0 && total > limit {
		return &admission.BlockedError{Reason: ReasonTooLarge, Err: fmt.Errorf(
			"%s takes %d bytes, compressed, in annotation %s, and the TrainJob's annotations together may have %d; make the "+
				"runtime smaller, or take annotations away",
			store.Describe(job), pin, store.PinAnnotation, limit)}
	}
	return nil
}

// usersPatches returns what the users change of the runtime, in whatever field: beside pods, the labels of the JobSet,
// for example.
func usersPatches(job *api.TrainJob) []*trainerapi.TrainingRuntimeSpecPatch {
	var all []*trainerapi.TrainingRuntimeSpecPatch
	for _, entry := range dialect.Bundled.Others(job) {
		all = append(all, entry.Patch)
	}
	return all
}

// answer returns what the API server says of a shape. Beside Kubeflow Trainer, each TrainJob has an Effective of its
// own, because what is built has its name. TrainJobs share an answer if they are equal but for that. What they run is
// encoded once for each Effective, and again when its answer is outdated.
func (t *Trial) answer(
	key shape, patience time.Duration, of func() []any, ask func() (verdict, error),
) (verdict, error) {
	if known, found := t.verdicts.Get(key); found && !t.outdated(known.(verdict), patience) {
		return known.(verdict), nil
	}
	content, err := json.Marshal(append(of(), key.namespace, key.own, key.own.fewest))
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
	switch {
	case v.pending != nil:
		return t.clock.Since(v.at) >= v.pending.RetryAfter
	case v.reason != "":
		return t.clock.Since(v.at) >= patience
	}
	return t.clock.Since(v.at) >= acceptedFor
}
