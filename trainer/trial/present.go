package trial

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/admission"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/store"
)

const (
	// presentFor is for how long an answer about the present stands, whatever it is.
	presentFor = time.Minute
	// busyRetry is after which time to come back that another question is being asked.
	busyRetry = 5 * time.Second
)

// question is a hash of what is asked for, but for the name of the TrainJob: those that run the same share an answer.
type question [sha256.Size]byte

// reply is an answer: nil, an *admission.BlockedError or an *admission.PendingError.
type reply struct {
	err error
	at  time.Time
}

// TakesPods implements integration.Placement: it creates, by dry run, a pod of a started TrainJob's ReplicatedJob.
func (t *Trial) TakesPods(ctx context.Context, job *api.TrainJob, rj *jobset.ReplicatedJob) error {
	objects := []client.Object{ofJob(podOf(job, rj), job, rj)}
	return t.presently(job, objects, func() error {
		_, err := t.tryPod(ctx, job, rj)
		return t.says(ctx, job, "a pod of its ReplicatedJob "+rj.Name, err)
	})
}

// TakesJobs implements integration.Placement: it creates, by dry run, a Job of a started TrainJob's ReplicatedJob, and
// the Service, which JobSet creates before its first Jobs. Beside Kubeflow Trainer there is no right to do so.
func (t *Trial) TakesJobs(ctx context.Context, job *api.TrainJob, js *jobset.JobSet, rj *jobset.ReplicatedJob) error {
	if !t.trainer.CreatesJobSets() {
		return nil
	}
	objects := []client.Object{jobOf(job, rj, ofJobSet(job, checkUID))}
	if rj.Name == js.Spec.ReplicatedJobs[0].Name && (js.Spec.Network == nil ||
		ptr.Deref(js.Spec.Network.EnableDNSHostnames, true)) {
		objects = append(objects, serviceOf(job))
	}
	return t.presently(job, objects, func() error {
		for _, o := range objects {
			o.SetOwnerReferences([]metav1.OwnerReference{ofJobSet(job, js.UID)})
			err := t.client.Create(ctx, o, client.DryRunAll)
			what := "its Service"
			if _, isJob := o.(*batchv1.Job); isJob {
				what = "a Job of its ReplicatedJob " + rj.Name
			}
			if err := t.says(ctx, job, what, err); err != nil {
				return err
			}
		}
		return nil
	})
}

// presently returns the answer to the question whether a TrainJob's namespace takes objects, and asks it if there is
// none. That nobody answers is an answer: it isn't asked again at once.
func (t *Trial) presently(job *api.TrainJob, objects []client.Object, ask func() error) error {
	asked, err := questionOf(job, objects)
	if err != nil {
		return err
	}
	if known, found := t.replies.Get(asked); found && t.clock.Since(known.(reply).at) < presentFor {
		return known.(reply).err
	}
	if !t.busy.TryLock() {
		return &admission.PendingError{RetryAfter: busyRetry, Err: errors.New("another question is being asked")}
	}
	defer t.busy.Unlock()
	err = ask()
	t.replies.Add(asked, reply{err, t.clock.Now()})
	return err
}

// says returns what the error of a dry run says about a started TrainJob.
func (t *Trial) says(ctx context.Context, job *api.TrainJob, what string, err error) error {
	const fix = "%s can't be created: %w; %s" + admission.Retried
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if refuses(err) && !store.SkipsDryRuns(err) && !mayNot(err) {
		if isFull(err) {
			return &admission.BlockedError{Reason: admission.ReasonQuotaExceeded, Err: fmt.Errorf(fix, what, err,
				"raise the ResourceQuota, or end what uses it up")}
		}
		if byUser, unread := t.byItsUser(ctx, err); !byUser && unread == nil {
			return &admission.BlockedError{Reason: admission.ReasonPodsRefused, Err: fmt.Errorf(fix, what, err,
				"change what namespace "+job.Namespace+" allows")}
		}
	}
	ctrl.LoggerFrom(ctx).V(1).Info("A dry run doesn't say why a started TrainJob has no pods", "what", what,
		"error", err.Error())
	return &admission.PendingError{RetryAfter: presentFor, Err: err}
}

// shared returns an object without what each TrainJob has of its own by a hash: its Workload's name, which Kueue puts
// into the template of its pods, and its gang's. It also returns the ServiceAccount, which has to be there.
func shared(o client.Object) (without client.Object, account string) {
	without = o.DeepCopyObject().(client.Object)
	strip := func(annotations map[string]string, pod *corev1.PodSpec) {
		delete(annotations, kueue.WorkloadAnnotation)
		if pod.SchedulingGroup != nil {
			pod.SchedulingGroup.PodGroupName = nil
		}
		account = pod.ServiceAccountName
	}
	switch made := without.(type) {
	case *batchv1.Job:
		strip(made.Spec.Template.Annotations, &made.Spec.Template.Spec)
	case *corev1.Pod:
		strip(made.Annotations, &made.Spec)
	}
	return without, account
}

// questionOf returns the question whether a TrainJob's namespace takes objects. The name of a namespace or of a
// ServiceAccount may contain its name.
func questionOf(job *api.TrainJob, objects []client.Object) (question, error) {
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(job.Name) + `\b`)
	asked := []any{job.Namespace}
	for _, o := range objects {
		without, account := shared(o)
		content, err := json.Marshal(without)
		if err != nil {
			return question{}, fmt.Errorf("encoding what the TrainJob lacks: %w", err)
		}
		asked = append(asked, account, name.ReplaceAll(content, nil))
	}
	content, err := json.Marshal(asked)
	return sha256.Sum256(content), err
}
