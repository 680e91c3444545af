// Package webhook reviews the requests of TrainJobs' users: it queues TrainJobs, keeps what is the integration's, and
// holds quota until pods have ended.
package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/integration/managed"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/podsets"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// +kubebuilder:webhook:path=/mutate-trainjob,mutating=true,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=mtrainjob.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainjob,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=vtrainjob.signalbox.dev,admissionReviewVersions=v1

// Webhook queues TrainJobs: it suspends them on creation, reverts other users' changes of suspend and of the
// integration's entry, and validates Kueue's labels. It answers with patches of single fields, so that nothing else of
// a TrainJob changes.
type Webhook struct{ Config }

// Config is what a Webhook is made of.
type Config struct {
	managed.Queues
	managed.Policy
	// OwnerIdentities are the users that may create TrainJobs with an owner of the Policy's kinds.
	OwnerIdentities []string
	Pods            *store.Pods
	// Reader trusts the users that the integration writes as, the manager's own first, and Kueue's.
	Reader  review.Reader
	Limits  overrides.Limits
	Reviews Reviews
	// Defaults reads and writes what jobframework defaults.
	Defaults client.Client
	// Signs is set if TrainJobs say who created them, and Gates if Kueue knows gates of admission.
	Signs, Gates bool
}

// New returns a Webhook.
func New(config Config) *Webhook { return &Webhook{config} }

// itself reports whether a user is the manager.
func (w *Webhook) itself(user string) bool {
	return len(w.Reader.Trusted) > 0 && user == w.Reader.Trusted[0]
}

// hasDefaultQueue returns how jobframework asks whether a namespace has a default LocalQueue. failed is set if that
// can't be found out.
func (w *Webhook) hasDefaultQueue(ctx context.Context, failed *error) func(namespace string) bool {
	return func(namespace string) bool {
		has, err := w.HasDefaultQueue(ctx, namespace)
		if err != nil {
			*failed = err
		}
		return has
	}
}

// +kubebuilder:webhook:path=/validate-eviction,mutating=false,failurePolicy=fail,sideEffects=None,groups="",resources=pods/eviction,verbs=create,versions=v1,name=veviction.signalbox.dev,admissionReviewVersions=v1

// validateEviction refuses the eviction of a pod that runs on a TrainJob's quota. Its Job replaces an evicted pod at
// once, while the pod may terminate for as long as its grace period: each eviction would run one pod more than was
// admitted. The chart's policies keep users from deleting such a pod, but an eviction deletes it without admission of
// the deletion (Kubernetes' pkg/registry/core/pod/storage/eviction.go). The webhook doesn't receive evictions by those
// who may drain nodes.
func (w *Webhook) validateEviction(
	ctx context.Context, request webhookadmission.Request,
) webhookadmission.Response {
	trainJob, err := w.Pods.OnQuota(ctx, types.NamespacedName{Namespace: request.Namespace, Name: request.Name})
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	if trainJob == "" {
		return webhookadmission.Allowed("")
	}
	return webhookadmission.Denied(fmt.Sprintf("pod %s runs on the quota of TrainJob %s: "+
		"once evicted, it would be replaced while it still runs, and more would run than was admitted; "+
		"suspend or delete the TrainJob instead. Whoever drains nodes needs the right to patch nodes, "+
		"or to be named in the chart's policies.exemptUsers", request.Name, trainJob))
}

// Kueue v0.19.2 counts nothing of a Workload from the moment at which spec.active is false, whatever still runs of it
// (pkg/controller/core/workload_controller.go, Update). So the webhook takes the deactivation of a Workload that holds
// quota as a wish, and the reconciler carries it out when the last pod has ended.

// +kubebuilder:webhook:path=/mutate-workload,mutating=true,failurePolicy=fail,sideEffects=None,groups=kueue.x-k8s.io,resources=workloads,verbs=update,versions=v1beta1;v1beta2,name=mworkload.signalbox.dev,admissionReviewVersions=v1

// mutateWorkload turns the deactivation of a TrainJob's Workload that holds quota into the annotation. It reads only
// what all versions of Workload have.
func (w *Webhook) mutateWorkload(_ context.Context, request webhookadmission.Request) webhookadmission.Response {
	before, unread := w.readWorkload(request.OldObject.Raw)
	after, err := w.readWorkload(request.Object.Raw)
	if err := cmp.Or(unread, err); err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	owner := metav1.GetControllerOfNoCopy(before)
	if w.itself(request.UserInfo.Username) || !workload.IsActive(before) || workload.IsActive(after) ||
		!managed.IsTrainJob(owner) || !podsets.HoldsQuota(before) {
		return webhookadmission.Allowed("")
	}
	const annotations = "/metadata/annotations"
	user := request.UserInfo.Username
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/active", true)}
	if after.Annotations == nil {
		patch = append(patch, jsonpatch.NewOperation("add", annotations, map[string]string{api.DeactivateAnnotation: user}))
	} else if after.Annotations[api.DeactivateAnnotation] == "" {
		patch = append(patch, jsonpatch.NewOperation("add", annotations+"/"+review.Escape(api.DeactivateAnnotation), user))
	}
	return webhookadmission.Patched("", patch...).WithWarnings(fmt.Sprintf(
		"the Workload is deactivated when the last pod of TrainJob %s has ended, so that its quota is not given away before",
		owner.Name))
}

// readWorkload reads what decides a deactivation, of any version of Workload. The rest isn't decoded: a topology may
// have thousands of domains.
func (w *Webhook) readWorkload(text []byte) (*kueue.Workload, error) {
	wl := &kueue.Workload{}
	if _, err := review.Elements(text); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		into any
		path []string
	}{
		{&wl.Annotations, []string{"metadata", "annotations"}},
		{&wl.OwnerReferences, []string{"metadata", "ownerReferences"}},
		{&wl.Spec.Active, []string{"spec", "active"}},
		{&wl.Status.Conditions, []string{"status", "conditions"}},
	} {
		member := review.Member(text, part.path...)
		if member == nil {
			continue
		}
		err := w.Reader.Limits.CheckElements(member)
		if err == nil {
			err = json.Unmarshal(member, part.into)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(part.path, "."), err)
		}
	}
	return wl, nil
}
