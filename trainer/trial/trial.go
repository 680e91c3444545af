// Package trial finds, before a TrainJob is queued, whether its namespace takes the pods that it will have. The API
// server knows all that matters to that (Pod Security, ServiceAccounts, priority classes, RuntimeClasses, LimitRanges,
// webhooks and policies, mounts and environment), and is asked with a dry run.
package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"weak"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	// ReasonPodsRefused: the TrainJob's namespace doesn't take pods as the TrainJob needs them. The message has who
	// refuses them and why; change the TrainJob, the runtime, or what the namespace allows.
	ReasonPodsRefused = "PodsRefused"

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
	// mostFlavors is with how many flavors a pod is tried.
	mostFlavors = 16
	// verdicts is how many answers are remembered.
	verdicts = 4096
)

// Placement is what else a TrainJob needs, as integration.Placement says.
type Placement interface {
	Startable(context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective) error
}

// Trainer is what makes the pods.
type Trainer interface {
	Placement
	// ReplicatedJobs returns those of the JobSet that the Trainer builds of a TrainJob.
	ReplicatedJobs(
		context.Context, *api.TrainJob, *trainerapi.TrainingRuntimeSpec, *overrides.Effective,
	) ([]jobset.ReplicatedJob, error)
}

// Installed is an installed Kubeflow Trainer, which builds what is in Effective.Built.
type Installed struct{ Placement }

// ReplicatedJobs implements Trainer.
func (Installed) ReplicatedJobs(
	_ context.Context, _ *api.TrainJob, _ *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) ([]jobset.ReplicatedJob, error) {
	return effective.Built, nil
}

// Trial tries pods. It implements integration.Placement.
type Trial struct {
	client  client.Client
	live    client.Reader
	clock   clock.Clock
	trainer Trainer
	// verdicts are the answers, by namespace and by what TrainJobs run. Of a burst of them, one asks.
	verdicts *lru.Cache
	asking   singleflight.Group
}

// New returns a Trial of a Trainer's pods, after what else the Trainer needs. It asks with a client, and reads
// ResourceQuotas without a cache.
func New(c client.Client, live client.Reader, clk clock.Clock, trainer Trainer) *Trial {
	return &Trial{client: c, live: live, clock: clk, trainer: trainer, verdicts: lru.New(verdicts)}
}

// verdict is an answer; refused is nil where the namespace would take the pods.
type verdict struct {
	refused error
	at      time.Time
}

type shape struct {
	of        weak.Pointer[overrides.Effective]
	namespace string
}

// Startable implements integration.Placement. What it finds is an *admission.BlockedError; that the API server doesn't
// answer is an *admission.PendingError.
func (t *Trial) Startable(
	ctx context.Context, job *api.TrainJob, runtime *trainerapi.TrainingRuntimeSpec, effective *overrides.Effective,
) error {
	if err := t.trainer.Startable(ctx, job, runtime, effective); err != nil {
		return err
	}
	key, patience := shape{weak.Make(effective), job.Namespace}, refusedRetry
	if t.clock.Since(job.CreationTimestamp.Time) < newFor {
		patience = newRetry
	}
	answer, err := t.answer(key, patience, []any{runtime, effective.ReplicatedJobs}, func() (verdict, error) {
		jobs, err := t.trainer.ReplicatedJobs(ctx, job, runtime, effective)
		if err != nil {
			return verdict{}, err
		}
		return t.ask(ctx, job, jobs)
	})
	if err != nil {
		return err
	}
	refused := answer.refused
	if refused == nil {
		return nil
	}
	refused = fmt.Errorf("the TrainJob would never have all its pods: %w; change the TrainJob, its runtime, or what "+
		"namespace %s allows", refused, job.Namespace)
	if patience == newRetry {
		return &admission.PendingError{RetryAfter: newRetry, Err: refused}
	}
	return &admission.BlockedError{Reason: ReasonPodsRefused, RetryAfter: refusedRetry, Err: refused}
}

// answer returns what the API server says of a shape. Beside Kubeflow Trainer, each TrainJob has an Effective of its
// own, because what is built has its name. TrainJobs share an answer if they are equal but for that: in their runtimes
// and their ReplicatedJobs.
func (t *Trial) answer(
	key shape, patience time.Duration, of []any, ask func() (verdict, error),
) (verdict, error) {
	if known, found := t.verdicts.Get(key); found && !t.outdated(known.(verdict), patience) {
		return known.(verdict), nil
	}
	content, err := json.Marshal(of)
	if err != nil {
		return verdict{}, err
	}
	equal := fmt.Sprintf("%s %x", key.namespace, sha256.Sum256(content))
	answer, err, _ := t.asking.Do(equal, func() (any, error) {
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
	if v.refused != nil {
		return t.clock.Since(v.at) >= patience
	}
	return t.clock.Since(v.at) >= acceptedFor
}

// ask asks for a pod of each ReplicatedJob, and compares all their pods with the ResourceQuotas. What a quota has room
// for now doesn't matter: what runs may end, or be preempted, before this TrainJob is admitted.
func (t *Trial) ask(ctx context.Context, job *api.TrainJob, jobs []jobset.ReplicatedJob) (verdict, error) {
	v := verdict{at: t.clock.Now()}
	pods := make([]*corev1.Pod, len(jobs))
	for i := range jobs {
		var err error
		pods[i], err = t.try(ctx, job, &jobs[i])
		switch {
		case err == nil || apierrors.IsAlreadyExists(err) || store.SkipsDryRuns(err) || isFull(err):
		case mayNot(err):
			ctrl.LoggerFrom(ctx).Error(err, "Pods aren't tried before a TrainJob is queued; install the RBAC of this release")
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err):
			v.refused = fmt.Errorf("a pod of its ReplicatedJob %s is refused: %w", jobs[i].Name, err)
			return v, nil
		default:
			return v, &admission.PendingError{RetryAfter: t.unanswered(job, err), Err: fmt.Errorf(
				"the API server doesn't say whether it would take a pod of ReplicatedJob %s: %w", jobs[i].Name, err)}
		}
	}
	var err error
	v.refused, err = t.exceeds(ctx, job.Namespace, jobs, pods)
	return v, err
}

// try creates a pod of a ReplicatedJob, and keeps nothing. A policy or a webhook may ask for what only the start adds:
// the node labels and tolerations of a flavor. So it is tried with those too.
func (t *Trial) try(
	ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob,
) (*corev1.Pod, error) {
	pod := podOf(job, rj)
	err := t.client.Create(ctx, pod, client.DryRunAll)
	if !byPolicy(err) {
		return pod, err
	}
	var flavors kueue.ResourceFlavorList
	if listErr := t.client.List(ctx, &flavors); listErr != nil {
		return pod, listErr
	}
	for i := range min(len(flavors.Items), mostFlavors) {
		flavor := &flavors.Items[i].Spec
		placed := podOf(job, rj)
		placed.Spec.NodeSelector = maps.Clone(placed.Spec.NodeSelector)
		if placed.Spec.NodeSelector == nil {
			placed.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(placed.Spec.NodeSelector, flavor.NodeLabels)
		placed.Spec.Tolerations = append(slices.Clone(placed.Spec.Tolerations), flavor.Tolerations...)
		if placedErr := t.client.Create(ctx, placed, client.DryRunAll); !byPolicy(placedErr) {
			return placed, placedErr
		}
	}
	return pod, err
}

// unanswered returns after which time is asked again.
func (t *Trial) unanswered(job *api.TrainJob, err error) time.Duration {
	if apierrors.IsNotFound(err) && t.clock.Since(job.CreationTimestamp.Time) < newFor {
		return newRetry // Kueue's webhook for pods looks for a new TrainJob in a cache
	}
	return unansweredRetry
}

// podOf returns a pod of a ReplicatedJob, without what JobSet and Kueue act on: their webhooks look for its Job. The
// TrainJob controls it, because there are policies against pods that nothing controls. Its name is always the same, so
// that a message about it is; that there is such a pod is found after all else.
func podOf(job *api.TrainJob, rj *jobset.ReplicatedJob) *corev1.Pod {
	template := rj.Template.Spec.Template.DeepCopy()
	pod := &corev1.Pod{Spec: template.Spec}
	pod.Namespace, pod.Name = job.Namespace, "check"
	owner := metav1.NewControllerRef(job, trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind))
	owner.BlockOwnerDeletion = nil // it would need the right to change finalizers
	pod.OwnerReferences = []metav1.OwnerReference{*owner}
	pod.Labels, pod.Annotations = foreign(template.Labels), foreign(template.Annotations)
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // JobSet's default
	}
	return pod
}

// foreign returns the labels or annotations that are neither JobSet's nor Kueue's.
func foreign(all map[string]string) map[string]string {
	for key := range all {
		if strings.Contains(key, "jobset.sigs.k8s.io/") || strings.HasPrefix(key, kueue.SchemeGroupVersion.Group+"/") {
			delete(all, key)
		}
	}
	return all
}

// mayNot reports whether the manager has no right to create pods; what a request creates has no name yet when the API
// server looks for rights.
func mayNot(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Name == ""
}

// What the API server says has no reason of its own: of a ResourceQuota that is used up (k8s.io/apiserver v0.36,
// plugin/resourcequota), of webhooks and of policies. A webhook that quotes these words gets its pods refused later.
var (
	quotaExceeded = regexp.MustCompile(`is forbidden: exceeded quota: `)
	denied        = regexp.MustCompile(`admission webhook "[^"]+" denied|ValidatingAdmissionPolicy '[^']+'`)
)

// byPolicy reports whether a policy or a webhook of the cluster refuses a pod, and not the API server itself.
func byPolicy(err error) bool { return err != nil && denied.MatchString(err.Error()) }

func isFull(err error) bool {
	return apierrors.IsForbidden(err) && quotaExceeded.MatchString(err.Error())
}
