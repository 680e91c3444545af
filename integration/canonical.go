package integration

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	kjson "sigs.k8s.io/json"
)

// canonical returns the operations that bring the values of a TrainJob's spec into the form in which Trainer's webhook
// writes them: it reads an object into its types and writes it back when it changes anything, and quantities come back
// differently (a GPU count of 8 as "8"). Trainer then refuses the change, because it believes that an immutable field
// was edited; so the values get that form when the TrainJob is created. Nothing is added and nothing removed.
func canonical(raw []byte, typed any) ([]jsonpatch.Operation, error) {
	back, err := json.Marshal(typed)
	if err != nil {
		return nil, err
	}
	var sent, written struct {
		Spec any `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &sent); err != nil {
		return nil, fmt.Errorf("reading spec: %w", err)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(back, &written); err != nil {
		return nil, err
	}
	return replacements("/spec", sent.Spec, written.Spec), nil
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
		for key, value := range s {
			if other, found := w[key]; found {
				operations = append(operations, replacements(path+"/"+escape(key), value, other)...)
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

// escape writes a key as a part of a JSON pointer (RFC 6901).
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
