package integration

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"gomodules.xyz/jsonpatch/v2"
	kjson "sigs.k8s.io/json"

	"github.com/signalbox-dev/signalbox/review"
)

// canonical returns the operations that bring the values of a TrainJob's spec into the form in which Trainer's webhook
// writes them. That webhook decodes an object and encodes it again if it changes anything, so a GPU count of 8 becomes
// "8". Trainer then rejects the update as an edit of an immutable field. Values therefore get that form when the
// TrainJob is created; nothing is added or removed.
func canonical(sent map[string]any, typed any) ([]jsonpatch.Operation, error) {
	encoded, err := json.Marshal(typed)
	if err != nil {
		return nil, err
	}
	var written struct {
		Spec map[string]any `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encoded, &written); err != nil {
		return nil, err
	}
	return replacements("/spec", sent, written.Spec), nil
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
