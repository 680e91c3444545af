package integration

import (
	"fmt"
	"reflect"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"github.com/signalbox-dev/signalbox/overrides"
)

// sameForm returns the patches that bring an immutable part of the spec that was sent again into the form in which it is
// stored: a GPU count of 8 is stored as "8" (see canonical), and the CRD takes the one for an edit of the other.
func sameForm(rv *review) ([]jsonpatch.Operation, error) {
	var before, sent struct {
		Spec map[string]any `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rv.rawOld, &before); err != nil {
		return nil, fmt.Errorf("reading spec: %w", err)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rv.raw, &sent); err != nil {
		return nil, fmt.Errorf("reading spec: %w", err)
	}
	was, is := &rv.old.Spec, &rv.new.Spec
	var patch []jsonpatch.Operation
	for name, equal := range map[string]bool{
		"trainer":     was.Trainer != nil && equality.Semantic.DeepEqual(was.Trainer, is.Trainer),
		"initializer": was.Initializer != nil && equality.Semantic.DeepEqual(was.Initializer, is.Initializer),
	} {
		if equal && !reflect.DeepEqual(before.Spec[name], sent.Spec[name]) {
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/"+name, before.Spec[name]))
		}
	}
	return patch, nil
}

// keepOwn returns the entries of an update by somebody else, with the integration's as it stood before and last in the
// list, where no other overrides it; nil where they are so already. It works on what was sent, not on what our types
// know of it, so that the other entries stay as they are.
func keepOwn(rv *review) ([]any, error) {
	own := overrides.Bundled.Own(&rv.old.TrainJob)
	if own == nil && overrides.Bundled.Own(&rv.new.TrainJob) == nil {
		return nil, nil // Trainer's webhook, or ours, has the rest
	}
	_, moved := overrides.OwnLast(rv.new.Spec.RuntimePatches)
	before, err := rawEntries(rv.rawOld)
	if err != nil {
		return nil, err
	}
	sent, err := rawEntries(rv.raw)
	if err != nil || reflect.DeepEqual(before, sent) {
		return nil, err // as it stood, in the order in which it stood
	}
	isOwn := func(entry any) bool {
		e, ok := entry.(map[string]any)
		return ok && e["manager"] == overrides.Manager
	}
	if was, is := slices.IndexFunc(before, isOwn), slices.IndexFunc(sent, isOwn); was >= 0 && is >= 0 && !moved && reflect.DeepEqual(before[was], sent[is]) {
		return nil, nil // it stands where it is to stand, with all that our types don't know
	}
	kept := slices.DeleteFunc(sent, isOwn)
	if kept == nil {
		kept = []any{}
	}
	if i := slices.IndexFunc(before, isOwn); i >= 0 {
		kept = append(kept, before[i])
	}
	return kept, nil
}

// hasList tells whether an object's spec has a field.
func hasList(raw []byte, field string) bool {
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(raw, &object) == nil && object.Spec[field] != nil
}

func hasSpec(raw []byte) bool {
	var object struct {
		Spec map[string]any `json:"spec"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(raw, &object) == nil && object.Spec != nil
}

func rawEntries(raw []byte) ([]any, error) {
	var object struct {
		Spec struct {
			RuntimePatches []any `json:"runtimePatches"`
		} `json:"spec"`
	}
	// As the API server reads it: a whole number stays one, however large.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil {
		return nil, fmt.Errorf("reading spec.runtimePatches: %w", err)
	}
	return object.Spec.RuntimePatches, nil
}
