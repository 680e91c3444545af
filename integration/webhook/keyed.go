package webhook

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
	"github.com/signalbox-dev/signalbox/review"
)

// keyed is the review of Trainers whose entries are keyed by manager.
type keyed struct{}

func (keyed) CompleteOwn(*review.Request) ([]jsonpatch.Operation, error) { return nil, nil }

func (keyed) Unqueued(*review.Request) []jsonpatch.Operation { return nil }

// Guarded implements Reviews.
func (keyed) Guarded() []string { return own }

// Queued brings the quantities of a new TrainJob, or of one that is resized, into Trainer's form.
func (keyed) Queued(rq *review.Request) ([]jsonpatch.Operation, error) {
	if !rq.Created() && !overrides.Resized(rq.Old, rq.New) {
		return nil, nil
	}
	sent, err := rq.Sent()
	if err != nil {
		return nil, err
	}
	return canonical(sent, rq.New)
}

// Keep restores the integration's entry and annotations, and the stored form of immutable fields, in an update by
// another client.
func (keyed) Keep(rq *review.Request) ([]jsonpatch.Operation, error) {
	var patch []jsonpatch.Operation
	entries, err := keepOwn(rq)
	if err != nil {
		return nil, err
	}
	if entries != nil {
		refusals.WithLabelValues("entry", "restored").Inc()
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/"+overrides.RuntimePatches, entries))
	}
	same, err := sameForm(rq)
	if err != nil {
		return nil, err
	}
	return append(append(patch, same...), keepAnnotations(rq, own)...), nil
}

func keepAnnotations(rq *review.Request, names []string) []jsonpatch.Operation {
	var patch []jsonpatch.Operation
	for _, name := range names {
		restored := rq.Restore(name)
		if len(restored) > 0 {
			refusals.WithLabelValues("annotation", "restored").Inc()
		}
		patch = append(patch, restored...)
	}
	return patch
}

// sameForm returns the patch that brings an immutable part of the spec, sent again, into the form in which it is
// stored. A GPU count of 8 is stored as "8" (see canonical), and the CRD rejects 8 as an edit of it.
func sameForm(rq *review.Request) ([]jsonpatch.Operation, error) {
	before, err := rq.Stored()
	if err != nil {
		return nil, err
	}
	sent, err := rq.Sent()
	if err != nil {
		return nil, err
	}
	was, is := &rq.Old.Spec, &rq.New.Spec
	var patch []jsonpatch.Operation
	for _, part := range []struct {
		name  string
		equal bool
	}{
		{"trainer", was.Trainer != nil && equality.Semantic.DeepEqual(was.Trainer, is.Trainer)},
		{"initializer", was.Initializer != nil && equality.Semantic.DeepEqual(was.Initializer, is.Initializer)},
	} {
		if part.equal && !reflect.DeepEqual(before[part.name], sent[part.name]) {
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/"+part.name, before[part.name]))
		}
	}
	return patch, nil
}

// keepOwn returns the entries of an update by another client, with the integration's unchanged and last in the list,
// where no other overrides it; nil if they are so already. It works on what was sent, not on what the types of this
// version know of it, so that the other entries don't change.
func keepOwn(rq *review.Request) ([]any, error) {
	if overrides.OwnIndex(rq.Old) < 0 && overrides.OwnIndex(rq.New) < 0 {
		return nil, nil
	}
	_, moved := overrides.OwnLast(rq.New.Spec.RuntimePatches)
	before, err := entriesOf(rq.Stored())
	if err != nil {
		return nil, err
	}
	sent, err := entriesOf(rq.Sent())
	if err != nil || reflect.DeepEqual(before, sent) {
		return nil, err
	}
	was, is := slices.IndexFunc(before, isOwn), slices.IndexFunc(sent, isOwn)
	if was >= 0 && is >= 0 && !moved && reflect.DeepEqual(before[was], sent[is]) {
		return nil, nil
	}
	kept := slices.DeleteFunc(slices.Clone(sent), isOwn)
	if kept == nil {
		kept = []any{}
	}
	if was >= 0 {
		kept = append(kept, before[was])
	}
	return kept, nil
}

// isOwn reports whether an entry, as JSON has it, is the integration's.
func isOwn(entry any) bool {
	e, ok := entry.(map[string]any)
	return ok && e["manager"] == overrides.Manager
}

func entriesOf(spec map[string]any, err error) ([]any, error) {
	if err != nil || spec[overrides.RuntimePatches] == nil {
		return nil, err
	}
	entries, ok := spec[overrides.RuntimePatches].([]any)
	if !ok {
		return nil, fmt.Errorf("reading spec.%s: it is not a list", overrides.RuntimePatches)
	}
	return entries, nil
}

// canonical returns the operations that bring the values of a TrainJob's spec into the form in which Trainer's webhook
// writes them. That webhook decodes an object and encodes it again if it changes anything, so a GPU count of 8 becomes
// "8". Trainer then rejects the update as an edit of an immutable field. Values therefore get that form when the
// TrainJob is created; nothing is added or removed.
func canonical(sent map[string]any, typed *api.TrainJob) ([]jsonpatch.Operation, error) {
	written, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return replacements("/spec", sent, written["spec"]), err
}

// replacements compares what both sides have and returns the leaves that differ.
func replacements(path string, sent, written any) []jsonpatch.Operation {
	var operations []jsonpatch.Operation
	switch s := sent.(type) {
	case map[string]any:
		w, ok := written.(map[string]any)
		if !ok {
			return nil
		}
		for _, key := range slices.Sorted(maps.Keys(s)) {
			if other, found := w[key]; found {
				operations = append(operations, replacements(path+"/"+review.Escape(key), s[key], other)...)
			}
		}
	case []any:
		w, ok := written.([]any)
		if !ok || len(w) != len(s) {
			return nil
		}
		for i := range s {
			operations = append(operations, replacements(path+"/"+strconv.Itoa(i), s[i], w[i])...)
		}
	default:
		if written != nil && sent != nil && sent != written {
			operations = append(operations, jsonpatch.NewOperation("replace", path, written))
		}
	}
	return operations
}

// Keyed returns the reviews for a Kubeflow Trainer whose entries are keyed by manager: v2.2 and later. The
// name is the Trainer's, for messages.
func Keyed(name string) Reviews { return keyedKubeflow{name: name} }

type keyedKubeflow struct {
	keyed
	ofKubeflow
	name string
}

// CheckSize also rejects a resize, which the CRD of Kubeflow Trainer from v2.2 on rejects without saying what to do.
func (t keyedKubeflow) CheckSize(rq *review.Request) field.ErrorList {
	errs := t.ofKubeflow.CheckSize(rq)
	if rq.Created() || !overrides.Resized(rq.Old, rq.New) {
		return errs
	}
	return append(errs, field.Forbidden(field.NewPath("spec", "trainer"), "it is immutable with "+t.name+
		"; create another TrainJob. The Trainer that Signalbox bundles supports resizing a queued TrainJob"))
}

// Bundled returns the reviews for the bundled Trainer. Its own webhook has the rest.
func Bundled() Reviews { return bundled{} }

type bundled struct{ keyed }

func (bundled) CheckSize(*review.Request) field.ErrorList { return nil }
func (bundled) Warnings(*review.Request) []string         { return nil }
