package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/constants"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// +kubebuilder:webhook:path=/mutate-trainjob,mutating=true,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=mtrainjob.signalbox.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-trainjob,mutating=false,failurePolicy=fail,sideEffects=None,groups=trainer.kubeflow.org,resources=trainjobs,verbs=create;update,versions=v1alpha1,name=vtrainjob.signalbox.dev,admissionReviewVersions=v1

// Webhook queues TrainJobs: it suspends them on creation, keeps suspend and the integration's entry out of other hands,
// and validates Kueue's labels. It answers with patches of single fields, so that nothing else of a TrainJob changes.
type Webhook struct {
	client    client.Client
	decoder   webhookadmission.Decoder
	installed *Installed
	manageAll bool
	selector  labels.Selector
	limits    overrides.Limits
	// ownerKinds may own TrainJobs, and only ownerUsers may create TrainJobs that they own.
	ownerKinds []schema.GroupVersionKind
	ownerUsers []string
	// self are the users that write as the integration; the first is the manager itself.
	self []string
}

// NewWebhook returns the webhook of the reconciler; self are the users that it writes as, and Kueue's own.
func NewWebhook(r *Reconciler, decoder webhookadmission.Decoder, self []string) *Webhook {
	return &Webhook{client: r.client, decoder: decoder, installed: r.installed, manageAll: r.manageAll, selector: r.selector, limits: r.limits, ownerKinds: r.ownerKinds, ownerUsers: r.ownerUsers, self: self}
}

// Register serves the webhook.
func (w *Webhook) Register(mgr ctrl.Manager) {
	server := mgr.GetWebhookServer()
	server.Register("/mutate-trainjob", &webhook.Admission{Handler: webhookadmission.HandlerFunc(w.mutate)})
	server.Register("/mutate-workload", &webhook.Admission{Handler: webhookadmission.HandlerFunc(w.mutateWorkload)})
	server.Register("/validate-trainjob", &webhook.Admission{Handler: webhookadmission.HandlerFunc(w.validate)})
}

// review is a request with its objects decoded.
type review struct {
	old, new *job // old is nil on creation
	raw      []byte
	rawOld   []byte
	integral bool // the request is the integration's own
}

// integral tells whether a request is the integration's own.
func (w *Webhook) integral(request webhookadmission.Request) bool {
	return slices.Contains(w.self, request.UserInfo.Username)
}

func (w *Webhook) decode(request webhookadmission.Request) (*review, error) {
	rv := &review{new: &job{}, raw: request.Object.Raw, rawOld: request.OldObject.Raw, integral: w.integral(request)}
	if err := w.decoder.Decode(request, &rv.new.TrainJob); err != nil {
		return nil, err
	}
	if rv.new.Namespace == "" {
		rv.new.Namespace = request.Namespace
	}
	if request.Operation == admissionv1.Update {
		rv.old = &job{}
		if err := w.decoder.DecodeRaw(request.OldObject, &rv.old.TrainJob); err != nil {
			return nil, err
		}
	}
	return rv, nil
}

// goes reports whether a request only removes finalizers from a TrainJob that is being deleted. Such a request is never denied.
// Other changes are: a finalizer keeps the TrainJob, and Kubeflow Trainer v2.3.0 starts it if suspend is false.
func (rv *review) goes() bool {
	return !rv.new.DeletionTimestamp.IsZero() && (rv.old == nil || equality.Semantic.DeepEqual(rv.old.Spec, rv.new.Spec) &&
		maps.Equal(rv.old.Labels, rv.new.Labels) && maps.Equal(rv.old.Annotations, rv.new.Annotations))
}

func (w *Webhook) mutate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	d := w.installed.Dialect()
	if w.integral(request) && request.Operation == admissionv1.Update && d.Keyed() {
		return webhookadmission.Allowed("") // its own writes are exactly what they should be; beside Kubeflow Trainer each start comes by here
	}
	rv, err := w.decode(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rv.goes() {
		return webhookadmission.Allowed("") // not worth a look
	}
	// Before anything is computed of it. A mutating webhook is called first.
	if !rv.integral && (rv.old == nil || !equality.Semantic.DeepEqual(rv.old.Spec, rv.new.Spec)) {
		if errs := w.limits.CheckSize(&rv.new.TrainJob); len(errs) > 0 {
			return refused(rv.new, errs)
		}
	}
	if rv.integral && rv.old != nil {
		// Exactly what it should be, but for a list that its Record is to come into.
		patch, err := render(d, rv)
		if err != nil {
			return webhookadmission.Errored(http.StatusInternalServerError, err)
		}
		return webhookadmission.Patched("", patch...)
	}
	patch, err := w.defaults(ctx, d, rv)
	if err != nil {
		return webhookadmission.Errored(http.StatusInternalServerError, err)
	}
	return webhookadmission.Patched("", patch...)
}

// defaults returns the patches of a create or an update by somebody else.
func (w *Webhook) defaults(ctx context.Context, d overrides.Dialect, rv *review) ([]jsonpatch.Operation, error) {
	var patch []jsonpatch.Operation
	if rv.old == nil {
		queued, err := w.defaultLabels(ctx, rv.new)
		if err != nil {
			return nil, err
		}
		patch = queued
	}
	if !hasSpec(rv.raw) {
		return patch, nil // the validating webhook refuses it
	}
	if rv.old != nil {
		kept, err := keep(d, rv)
		if err != nil {
			return nil, err
		}
		patch = append(patch, kept...)
	}
	managed, err := jobframework.WorkloadShouldBeSuspended(ctx, &rv.new.TrainJob, w.client, w.manageAll, w.selector)
	if err != nil {
		return nil, err
	}
	if !managed && !d.Keyed() { // keep has the rest
		return append(patch, rv.annotate(overrides.RecordAnnotation, rv.was(overrides.RecordAnnotation))...), nil
	}
	if !managed {
		return patch, nil
	}
	rendered, err := render(d, rv)
	if err != nil {
		return nil, err
	}
	patch = append(patch, rendered...)
	// Only the integration starts a job. A running one is stopped by its Workload; that a manifest that says
	// "suspend: true" is applied again does not stop it.
	suspend := rv.old == nil || ptr.Deref(rv.old.Spec.Suspend, false)
	if rv.old != nil && !suspend && jobframework.QueueNameForObject(&rv.old.TrainJob) != jobframework.QueueNameForObject(&rv.new.TrainJob) {
		suspend = ptr.Deref(rv.new.Spec.Suspend, false)
	}
	if suspend != ptr.Deref(rv.new.Spec.Suspend, false) {
		if rv.old != nil {
			refusals.WithLabelValues("suspend", "restored").Inc()
		}
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/suspend", suspend))
	}
	if rv.old == nil && d.Keyed() {
		values, err := canonical(rv.raw, &rv.new.TrainJob)
		return append(patch, values...), err
	}
	return patch, nil
}

// keep returns the patches that leave the integration's entry, and the runtime that the TrainJob is pinned to, as they
// stood before an update by somebody else.
func keep(d overrides.Dialect, rv *review) ([]jsonpatch.Operation, error) {
	var patch []jsonpatch.Operation
	if d.Keyed() {
		entries, err := keepOwn(rv)
		if err != nil {
			return nil, err
		}
		if entries != nil {
			refusals.WithLabelValues("entry", "restored").Inc()
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/runtimePatches", entries))
		}
	}
	if d.Keyed() { // before, spec.trainer may change
		same, err := sameForm(rv)
		if err != nil {
			return nil, err
		}
		patch = append(patch, same...)
	}
	for _, name := range ownAnnotations {
		if name == overrides.RecordAnnotation && !d.Keyed() {
			continue // render's
		}
		restored := rv.annotate(name, rv.was(name))
		if len(restored) > 0 {
			refusals.WithLabelValues("annotation", "restored").Inc()
		}
		patch = append(patch, restored...)
	}
	return patch, nil
}

// was returns what an annotation was before the update; nil where there was none.
func (rv *review) was(name string) *string {
	if rv.old == nil {
		return nil
	}
	if value, had := rv.old.Annotations[name]; had {
		return &value
	}
	return nil
}

// ownAnnotations are the integration's. Nobody else may bring, change or remove them.
var ownAnnotations = []string{overrides.PinAnnotation, overrides.RecordAnnotation}

// annotate returns the patch that gives an annotation the value, or takes it away where that is nil.
func (rv *review) annotate(name string, value *string) []jsonpatch.Operation {
	is, has := rv.new.Annotations[name]
	switch {
	case value == nil && has:
		delete(rv.new.Annotations, name)
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", "/metadata/annotations/"+escape(name), nil)}
	case value != nil && rv.new.Annotations == nil:
		rv.new.Annotations = map[string]string{name: *value}
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{name: *value})}
	case value != nil && (!has || is != *value):
		rv.new.Annotations[name] = *value
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations/"+escape(name), *value)}
	}
	return nil
}

// render brings a list of overrides that is not keyed by manager into line with the Record: the users' elements as they
// were sent, and after them the integration's. The Record is the integration's alone; whoever sends a list sends it for
// the users. It keeps what they have sent, for the day on which the CRD no longer has the list.
func render(d overrides.Dialect, rv *review) ([]jsonpatch.Operation, error) {
	if d.Keyed() || !hasSpec(rv.raw) {
		return nil, nil
	}
	before, record := &overrides.Record{}, &overrides.Record{}
	if rv.old != nil {
		// What can't be read was not written by us.
		if r, err := overrides.RecordOf(&rv.old.TrainJob); err == nil && r != nil {
			before, record = r, &overrides.Record{Field: r.Field, Time: r.Time, Own: r.Own, Users: r.Users}
		}
	}
	if rv.integral {
		if r, err := overrides.RecordOf(&rv.new.TrainJob); err == nil && r != nil {
			record = r
		}
	}
	if record.Field != "" && d.Foreign(record) {
		value, err := record.String()
		if err != nil {
			return nil, err
		}
		return rv.annotate(overrides.RecordAnnotation, &value), nil // to be migrated
	}
	var sent struct {
		Spec map[string]any `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rv.raw, &sent); err != nil {
		return nil, fmt.Errorf("reading spec: %w", err)
	}
	list, _ := sent.Spec[d.Field].([]any)
	users := list
	if before.Field == d.Field {
		users = before.Strip(list)
		if said, _ := before.Users[d.Field].([]any); len(before.Own)+len(said) > 0 && !hasList(rv.rawOld, d.Field) {
			// The CRD has been upgraded, and we don't know it yet: the Record is all that is left of the list.
			value, err := before.String()
			if err != nil {
				return nil, err
			}
			return rv.annotate(overrides.RecordAnnotation, &value), nil
		}
	}
	record.Field, record.Users = d.Field, map[string]any{}
	if len(users) > 0 {
		record.Users[d.Field] = users
	}
	for _, name := range []string{"labels", "annotations"} { // of the JobSet; later CRDs don't have them
		if value := sent.Spec[name]; value != nil {
			record.Users[name] = value
		}
	}
	var patch []jsonpatch.Operation
	switch all := append(slices.Clone(users), record.Own...); {
	case len(all) == 0 && len(list) > 0:
		patch = append(patch, jsonpatch.NewOperation("remove", "/spec/"+d.Field, nil))
	case len(all) > 0 && !reflect.DeepEqual(all, list):
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/"+d.Field, all))
	}
	if record.Empty() {
		return append(patch, rv.annotate(overrides.RecordAnnotation, nil)...), nil
	}
	value, err := record.String()
	if err != nil {
		return nil, err
	}
	return append(patch, rv.annotate(overrides.RecordAnnotation, &value)...), nil
}

// defaultLabels sets the queue and the priority class that a job without them gets, as Kueue does for its own jobs.
func (w *Webhook) defaultLabels(ctx context.Context, j *job) ([]jsonpatch.Operation, error) {
	before := j.Labels
	defaulted := j.DeepCopy()
	var lookup error
	exists := func(namespace string) bool {
		found, err := w.defaultQueueExists(ctx, namespace)
		lookup = err
		return found
	}
	if err := jobframework.ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector(ctx, w.client, defaulted, exists, w.selector); err != nil {
		return nil, err
	}
	if lookup != nil {
		return nil, lookup
	}
	if jobframework.QueueNameForObject(defaulted) != "" {
		jobframework.ApplyDefaultWorkloadPriorityClass(ctx, w.client, defaulted)
	}
	j.Labels = defaulted.Labels
	if len(defaulted.Labels) == len(before) {
		return nil, nil
	}
	if before == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/labels", defaulted.Labels)}, nil
	}
	var patch []jsonpatch.Operation
	for _, key := range []string{constants.QueueLabel, constants.WorkloadPriorityClassLabel} {
		if _, had := before[key]; !had && defaulted.Labels[key] != "" {
			patch = append(patch, jsonpatch.NewOperation("add", "/metadata/labels/"+escape(key), defaulted.Labels[key]))
		}
	}
	return patch, nil
}

func (w *Webhook) defaultQueueExists(ctx context.Context, namespace string) (bool, error) {
	var queue kueue.LocalQueue
	err := w.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: string(constants.DefaultLocalQueueName)}, &queue)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("looking for LocalQueue %s/%s: %w", namespace, constants.DefaultLocalQueueName, err)
	}
	return err == nil, nil
}

func (w *Webhook) validate(ctx context.Context, request webhookadmission.Request) webhookadmission.Response {
	if w.integral(request) && request.Operation == admissionv1.Update {
		return webhookadmission.Allowed("") // it never takes the spec away
	}
	rv, err := w.decode(request)
	if err != nil {
		return webhookadmission.Errored(http.StatusBadRequest, err)
	}
	if rv.goes() {
		return webhookadmission.Allowed("")
	}
	if !hasSpec(rv.raw) { // without it, none of the CRD's rules holds
		return refused(rv.new, field.ErrorList{field.Required(field.NewPath("spec"), "a TrainJob without it runs nothing; send the whole manifest")})
	}
	if rv.integral {
		return webhookadmission.Allowed("")
	}
	var errs field.ErrorList
	if rv.old == nil {
		errs = append(jobframework.ValidateJobOnCreate(rv.new), refuseOwn(w.installed.Dialect(), &rv.new.TrainJob)...)
		errs = append(errs, w.refuseOwned(rv.new, request.UserInfo.Username)...)
	} else {
		var lookup error
		errs = jobframework.ValidateJobOnUpdate(rv.old, rv.new, func(namespace string) bool {
			found, err := w.defaultQueueExists(ctx, namespace)
			lookup = err
			return found
		})
		if lookup != nil {
			return webhookadmission.Errored(http.StatusInternalServerError, lookup)
		}
		errs = append(errs, w.refuseUnqueued(rv)...)
		errs = append(errs, refuseAdopted(rv)...)
	}
	if len(errs) > 0 {
		return refused(rv.new, errs)
	}
	return webhookadmission.Allowed("")
}

func refused(j *job, errs field.ErrorList) webhookadmission.Response {
	name := trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind).GroupKind()
	status := apierrors.NewInvalid(name, j.Name, errs).Status()
	return webhookadmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status}}
}

// refuseUnqueued refuses to take a TrainJob out of its queue before its end: its Workload would stay behind with its quota,
// and nobody would look after it.
func (w *Webhook) refuseUnqueued(rv *review) field.ErrorList {
	finished := hasEnded(&rv.old.TrainJob)
	before, after := jobframework.QueueNameForObject(&rv.old.TrainJob), jobframework.QueueNameForObject(&rv.new.TrainJob)
	if w.manageAll || finished || before == "" || after != "" {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "labels").Key(constants.QueueLabel), "", fmt.Sprintf(
		"the TrainJob is in queue %q; name another queue, or delete the TrainJob", before))}
}

var ownersPath = field.NewPath("metadata", "ownerReferences")

// refuseOwned refuses a new TrainJob that names an owner of a kind which Kueue manages, except from that owner's
// controller: its quota would be the owner's, whose Workload doesn't stand for it.
func (w *Webhook) refuseOwned(j *job, user string) field.ErrorList {
	owner := metav1.GetControllerOfNoCopy(&j.TrainJob)
	if owner == nil || slices.Contains(w.ownerUsers, user) {
		return nil
	}
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	if !slices.ContainsFunc(w.ownerKinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind.GroupKind() }) {
		return nil
	}
	return field.ErrorList{field.Forbidden(ownersPath, fmt.Sprintf(
		"a TrainJob that %s %q owns runs on the owner's quota, so that only the owner's controller may create it, and %q is not listed in kueue.ownerIdentities of Signalbox's configuration; "+
			"create the TrainJob without an owner, or list the user", owner.Kind, owner.Name, user))}
}

// refuseAdopted refuses an update that gives a TrainJob another controller: whose quota it runs on is decided when it is
// created. To take the controller away is harmless: the TrainJob then needs quota of its own.
func refuseAdopted(rv *review) field.ErrorList {
	before, after := metav1.GetControllerOfNoCopy(&rv.old.TrainJob), metav1.GetControllerOfNoCopy(&rv.new.TrainJob)
	if after == nil || before != nil && before.UID == after.UID && before.Kind == after.Kind && before.Name == after.Name && before.APIVersion == after.APIVersion {
		return nil
	}
	return field.ErrorList{field.Forbidden(ownersPath, fmt.Sprintf(
		"%s %q can't become the controller of a TrainJob that is there already: whose quota it runs on is decided when it is created; create another TrainJob", after.Kind, after.Name))}
}

// refuseOwn refuses a new TrainJob that brings with it what is the integration's: its entry, or a pinned runtime.
func refuseOwn(d overrides.Dialect, trainJob *api.TrainJob) field.ErrorList {
	var errs field.ErrorList
	for _, name := range ownAnnotations {
		if _, found := trainJob.Annotations[name]; found && (d.Keyed() || name != overrides.RecordAnnotation) {
			refusals.WithLabelValues("annotation", "refused").Inc()
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations").Key(name),
				"the annotation is written when the TrainJob starts; take it out of the manifest"))
		}
	}
	if overrides.Bundled.Own(trainJob) == nil {
		return errs
	}
	refusals.WithLabelValues("entry", "refused").Inc()
	return append(errs, field.Forbidden(field.NewPath("spec", "runtimePatches").Key(overrides.Manager), fmt.Sprintf(
		"the entry of manager %q is written when the TrainJob is admitted; take it out of the manifest. If the manifest has none, Kueue's built-in "+
			"TrainJob integration has added it: take trainer.kubeflow.org/trainjob out of integrations.frameworks in Kueue's configuration", overrides.Manager)))
}
