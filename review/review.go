// Package review is the kit of the webhooks: a request's objects, each decoded once, the patches that restore a field,
// and rejections.
package review

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// Reader reads requests about TrainJobs.
type Reader struct {
	Decoder webhookadmission.Decoder
	// Trusted are the users that write as the integration.
	Trusted []string
	Limits  Limits
}

// Limits bound the objects of requests.
type Limits struct {
	// Elements is the most elements that the lists of an object may have in all, so that decoding it costs no more than
	// its bytes allow.
	Elements int
	// Bytes is the largest size of a TrainJob without its status, as JSON. Its status, the integration's entry and the
	// pinned runtime need the rest of what the API server stores (1.5 MiB): a TrainJob without room for them can't be
	// started, stopped or finished.
	Bytes int
}

// LimitsFor returns the limits beside those of a TrainJob's spec: its metadata and its status have lists too, and up to
// 256 KiB of annotations, the most that Kubernetes allows.
func LimitsFor(specBytes, specElements int) Limits {
	return Limits{Elements: 2*specElements + 8<<10, Bytes: min(specBytes+512<<10, 1<<20)}
}

// CheckElements rejects the text of an object that would cost more to decode than its bytes allow.
func (l Limits) CheckElements(text []byte) error {
	n, err := Elements(text)
	if err == nil && n > l.Elements {
		err = fmt.Errorf("the object has %d list elements; at most %d are read (limits.elements of Signalbox's "+
			"configuration bounds those of its spec)", n, l.Elements)
	}
	return err
}

// checkRoom rejects a change that makes a TrainJob larger than it may be.
func (l Limits) checkRoom(before, after []byte) error {
	if len(after) <= l.Bytes {
		return nil
	}
	size := func(text []byte) int { return len(text) - len(Member(text, "status")) }
	if n := size(after); n > l.Bytes && n > size(before) {
		return fmt.Errorf("the TrainJob has %d bytes, and may have at most %d, so that there is room for its status and "+
			"what its start adds; remove labels, annotations or managed fields, or move files to a ConfigMap", n, l.Bytes)
	}
	return nil
}

// Request is a request to create or update a TrainJob.
type Request struct {
	// Old is the TrainJob before an update; nil on creation.
	Old *api.TrainJob
	// New is the TrainJob as it was sent.
	New *api.TrainJob
	// User who sent it.
	User string
	// Trusted is set if the integration sent it.
	Trusted bool

	sent, stored func() (map[string]any, error)
}

// specIn returns a function that returns the spec of an object, decoded once, as the API server does it: a whole number
// stays one, however large. It is nil if the object has no spec.
func specIn(object []byte) func() (map[string]any, error) {
	return sync.OnceValues(func() (map[string]any, error) {
		var read struct {
			Spec map[string]any `json:"spec"`
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(object, &read); err != nil {
			return nil, fmt.Errorf("reading spec: %w", err)
		}
		return read.Spec, nil
	})
}

// Read decodes a request. An error is about what was sent.
func (r Reader) Read(request webhookadmission.Request) (*Request, error) {
	if err := r.check(request); err != nil {
		return nil, err
	}
	rq := &Request{
		New: &api.TrainJob{}, User: request.UserInfo.Username, Trusted: r.Trusts(request),
		sent: specIn(request.Object.Raw), stored: specIn(request.OldObject.Raw),
	}
	if err := r.Decoder.Decode(request, rq.New); err != nil {
		return nil, err
	}
	if rq.New.Namespace == "" {
		rq.New.Namespace = request.Namespace
	}
	if request.Operation == admissionv1.Update {
		rq.Old = &api.TrainJob{}
		if err := r.Decoder.DecodeRaw(request.OldObject, rq.Old); err != nil {
			return nil, err
		}
	}
	return rq, nil
}

func (r Reader) check(request webhookadmission.Request) error {
	for _, object := range []runtime.RawExtension{request.Object, request.OldObject} {
		if len(object.Raw) == 0 {
			continue
		}
		if err := r.Limits.CheckElements(object.Raw); err != nil {
			return err
		}
	}
	if r.Trusts(request) {
		return nil
	}
	return r.Limits.checkRoom(request.OldObject.Raw, request.Object.Raw)
}

// Trusts reports whether the integration sent a request.
func (r Reader) Trusts(request webhookadmission.Request) bool {
	return slices.Contains(r.Trusted, request.UserInfo.Username)
}

// Created reports whether the request creates a TrainJob.
func (r *Request) Created() bool { return r.Old == nil }

// Sent returns the fields of the spec that was sent, with those that the types of this version don't know; nil if there
// is no spec.
func (r *Request) Sent() (map[string]any, error) { return r.sent() }

// Stored returns the fields of the spec before an update, as Sent does.
func (r *Request) Stored() (map[string]any, error) { return r.stored() }

// HasSpec reports whether a spec was sent. None of the CRD's rules holds for a TrainJob without one.
func (r *Request) HasSpec() bool {
	spec, err := r.Sent()
	return err == nil && spec != nil
}

// OnlyFinalizers reports whether a request changes at most the finalizers of a TrainJob that is being deleted. Such a
// request is never rejected. Other changes may be: a finalizer keeps the TrainJob, and Kubeflow Trainer v2.3.0 starts
// it if suspend is false. A creation is never one of them: with server-side apply its sender can set the time of
// deletion, and Kubernetes 1.36 stores it.
func (r *Request) OnlyFinalizers() bool {
	return r.Old != nil && !r.Old.DeletionTimestamp.IsZero() && equality.Semantic.DeepEqual(r.Old.Spec, r.New.Spec) &&
		maps.Equal(r.Old.Labels, r.New.Labels) && maps.Equal(r.Old.Annotations, r.New.Annotations)
}

// SpecChanged reports whether a request creates a spec or changes it.
func (r *Request) SpecChanged() bool {
	return r.Old == nil || !equality.Semantic.DeepEqual(r.Old.Spec, r.New.Spec)
}

// AnnotationChanged reports whether a request adds, changes or removes an annotation.
func (r *Request) AnnotationChanged(name string) bool {
	return !ptr.Equal(annotationOf(r.Old, name), annotationOf(r.New, name))
}

// annotationOf returns an annotation; nil if the TrainJob, which may be nil, has none of that name.
func annotationOf(job *api.TrainJob, name string) *string {
	if job == nil {
		return nil
	}
	if value, has := job.Annotations[name]; has {
		return &value
	}
	return nil
}

// Restore returns the patch that gives an annotation the value it had before the update, or removes one that it didn't
// have; nil if the request leaves it. It changes New accordingly.
func (r *Request) Restore(name string) []jsonpatch.Operation {
	return r.Annotate(name, annotationOf(r.Old, name))
}

// Annotate returns the patch that gives an annotation the value, or removes it if value is nil; nil if the request has
// it so. It changes New accordingly.
func (r *Request) Annotate(name string, value *string) []jsonpatch.Operation {
	const annotations = "/metadata/annotations"
	is := annotationOf(r.New, name)
	switch {
	case value == nil && is != nil:
		delete(r.New.Annotations, name)
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", annotations+"/"+Escape(name), nil)}
	case value != nil && r.New.Annotations == nil:
		r.New.Annotations = map[string]string{name: *value}
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", annotations, map[string]string{name: *value})}
	case !ptr.Equal(is, value):
		r.New.Annotations[name] = *value
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", annotations+"/"+Escape(name), *value)}
	}
	return nil
}

// Escape returns a key as a part of a JSON pointer (RFC 6901).
func Escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// Reject returns the rejection of a TrainJob with all that is wrong with it.
func Reject(job *api.TrainJob, errs field.ErrorList, warnings ...string) webhookadmission.Response {
	kind := trainerapi.GroupVersion.WithKind(trainerapi.TrainJobKind).GroupKind()
	status := apierrors.NewInvalid(kind, job.Name, errs).Status()
	return webhookadmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed: false, Result: &status, Warnings: warnings,
	}}
}
