package overrides

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
)

// ValuesOf returns every value in the JSON of an object by its path. A list of named objects is keyed by name (mounts
// by their path); any other list is one value, which a merge replaces as a whole.
func ValuesOf(path string, object any) (map[string]string, error) {
	content, err := Generic(object)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	flatten(path, content, values)
	return values, nil
}

func flatten(path string, content any, into map[string]string) {
	switch c := content.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(c)) {
			flatten(path+"."+key, c[key], into)
		}
	case []any:
		flattenList(path, c, into)
	default:
		into[path] = AsJSON(c)
	}
}

func flattenList(path string, list []any, into map[string]string) {
	for _, item := range list {
		named, _ := item.(map[string]any)
		by := "mountPath"
		if named[by] == nil {
			by = "name"
		}
		if named[by] == nil || strings.HasSuffix(path, ".tolerations") {
			into[path] = AsJSON(list)
			return
		}
		at := fmt.Sprintf("%s[%v]", path, named[by])
		rest := maps.Clone(named)
		delete(rest, by)
		if len(rest) == 0 {
			into[at] = "{}" // it has nothing but the name
		}
		flatten(at, rest, into)
	}
}

// Generic returns a value in the types of decoded JSON.
func Generic(value any) (any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var plain any
	return plain, kjson.UnmarshalCaseSensitivePreserveInts(data, &plain)
}

// AsJSON returns the text of a value that was decoded from JSON.
func AsJSON(value any) string {
	data, _ := json.Marshal(value)
	return string(data)
}
