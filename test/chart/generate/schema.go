package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// narrower is what a value's default doesn't say of what it may be, by chart.
var narrower = map[string]map[string]map[string]any{"signalbox": {
	"replicas":                           {"minimum": 1},
	"image.pullPolicy":                   {"enum": []string{"IfNotPresent", "Always", "Never"}},
	"image.digest":                       {"pattern": "^(sha256:[0-9a-f]{64})?$"},
	"trainer.gangScheduling.mode":        {"enum": []string{"required", "preferred", "off"}},
	"trainer.gangScheduling.policy":      {"enum": []string{"gang", "basic"}},
	"webhook.failurePolicy":              {"enum": []string{"Fail", "Ignore"}},
	"webhook.timeoutSeconds":             {"minimum": 1, "maximum": 30},
	"webhook.port":                       {"minimum": 1, "maximum": 65535},
	"webhook.url":                        {"pattern": "^(https://.+)?$"},
	"metrics.port":                       {"minimum": 0, "maximum": 65535},
	"certificates.source":                {"enum": []string{"internal", "cert-manager", "existing"}},
	"verbosity":                          {"minimum": 0, "maximum": 5},
	"kueue.waitForPodsReady":             {"type": []string{"boolean", "null"}},
	"podDisruptionBudget.maxUnavailable": {"type": []string{"integer", "string"}},
	"extraObjects":                       {"items": map[string]any{"type": []string{"object", "string"}}},
}, "signalbox-runtimes": {
	"runtimes": {"items": map[string]any{"type": "string"}},
	"images":   {"additionalProperties": map[string]any{"type": "string"}},
}}

// schema writes the JSON schema of the values: what each may be follows from its default, and nothing else may be said.
func schema(chart, name string, values *yaml.Node) error {
	s := narrowed{limits: narrower[name], used: map[string]bool{}}
	root, err := s.object(values, "")
	if err != nil {
		return err
	}
	for path := range s.limits {
		if !s.used[path] {
			return fmt.Errorf("values.yaml has no %s, which the schema narrows", path)
		}
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Values of the chart " + name
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(chart, "values.schema.json"), string(data)+"\n")
}

// narrowed is a schema that is being made, with what of its limits has been used.
type narrowed struct {
	limits map[string]map[string]any
	used   map[string]bool
}

func (s narrowed) object(node *yaml.Node, prefix string) (map[string]any, error) {
	properties := map[string]any{"global": map[string]any{"type": "object"}}
	if prefix != "" {
		properties = map[string]any{}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := prefix + key.Value
		says, described := strings.CutPrefix(key.HeadComment, "# -- ")
		if !described {
			inner, err := s.object(value, path+".")
			if err != nil {
				return nil, err
			}
			properties[key.Value] = inner
			continue
		}
		property := map[string]any{"description": says}
		switch {
		case value.Tag == "!!null":
			property["type"] = []string{"object", "null"}
		case value.Kind == yaml.MappingNode:
			property["type"] = "object"
			if last := strings.ToLower(key.Value); strings.HasSuffix(last, "labels") || strings.HasSuffix(last, "annotations") ||
				last == "nodeselector" {
				property["additionalProperties"] = map[string]any{"type": "string"}
			}
		case value.Kind == yaml.SequenceNode:
			property["type"] = "array"
		case value.Tag == "!!int":
			property["type"] = "integer"
		case value.Tag == "!!bool":
			property["type"] = "boolean"
		case value.Tag == "!!str":
			property["type"] = "string"
		default:
			return nil, fmt.Errorf("values.yaml: %s is of tag %s", path, value.Tag)
		}
		for name, limit := range s.limits[path] {
			property[name] = limit
			s.used[path] = true
		}
		properties[key.Value] = property
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}
