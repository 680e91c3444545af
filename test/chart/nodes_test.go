package chart

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestNodes holds that nobody who doesn't use it gives rights to nodes, and that a right to write them is given for the
// taint alone.
func TestNodes(t *testing.T) {
	for values, want := range map[string]string{
		"":                                "",
		"config: {nodes: {avoidFor: 0s}}": "", "config: {nodes: {avoidFor: 0}}": "", "config: {nodes: {avoidFor: null}}": "",
		"config: {nodes: {avoidFor: 0h0m}}": "", "config: {nodes: null}": "",
		"config: {nodes: {atMost: 4}}":                                             "",
		"config: {nodes: {avoidFor: 1h}}":                                          "list watch",
		"config: {nodes: {avoidFor: 1h, taint: true}}":                             "list patch watch",
		"{trainer: {enabled: false, podGroups: []}, config: {nodes: {atMost: 4}}}": "",
	} {
		got, err := Render(repository, values)
		if err != nil {
			t.Fatal(err)
		}
		var roles []rbacv1.ClusterRole
		for _, document := range strings.Split(got, "\n---\n") {
			if !strings.Contains(document, "kind: CustomResourceDefinition") {
				roles = ofKind(t, roles, "ClusterRole", document)
			}
		}
		var verbs []string
		for _, role := range roles {
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "nodes") {
					verbs = append(verbs, rule.Verbs...)
				}
			}
		}
		if slices.Sort(verbs); strings.Join(verbs, " ") != want {
			t.Errorf("%s: rights to nodes %v, want %q", values, verbs, want)
		}
	}
}
