package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/signalbox-dev/signalbox/overrides/legacy"
)

// chance generates manifests from a seed.
type chance struct{ *rand.Rand }

func (c chance) one(of ...string) string { return of[c.IntN(len(of))] }

func (c chance) some(max int, of ...func() string) string {
	var parts []string
	for _, i := range c.Perm(len(of))[:c.IntN(min(max, len(of))+1)] {
		parts = append(parts, of[i]())
	}
	return strings.Join(parts, ", ")
}

func (c chance) pairs() string {
	keys := []string{"a", "b", "c"}
	var parts []string
	for _, i := range c.Perm(3)[:1+c.IntN(2)] {
		parts = append(parts, keys[i]+": "+c.one("x", "z", `"1"`))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func (c chance) metadata() string {
	return "{" + c.some(2, func() string { return "labels: " + c.pairs() }, func() string {
		return "annotations: " +
			c.pairs()
	}) + "}"
}

func (c chance) named(max int, names []string, rest func() string) string {
	var parts []string
	for _, i := range c.Perm(len(names))[:c.IntN(min(max, len(names))+1)] {
		parts = append(parts, "{name: "+names[i]+rest()+"}")
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (c chance) containers(names ...string) string {
	return c.named(2, names, func() string {
		env := c.named(2, []string{"A", "B", "C"}, func() string {
			return c.one(", value: x", ", value: z", ", valueFrom: {secretKeyRef: {name: s, key: k}}")
		})
		mounts := "[" + c.some(2, func() string { return "{name: v, mountPath: /v}" },
			func() string { return "{name: w, mountPath: /w, readOnly: true}" },
			func() string { return "{name: v, mountPath: /x}" }) + "]"
		return ", env: " + env + ", volumeMounts: " + mounts
	})
}

// spec is of the pods; more are fields that only some shapes have.
func (c chance) spec(more ...func() string) string {
	return c.some(5, append([]func() string{
		func() string { return "serviceAccountName: " + c.one("sa", "sb") },
		func() string { return "nodeSelector: " + c.pairs() },
		func() string { return "tolerations: [{key: " + c.one("p", "q") + ", operator: Exists}]" },
		func() string {
			return "volumes: " + c.named(2, []string{"v", "w"}, func() string {
				return c.one(", emptyDir: {}", ", emptyDir: {medium: Memory}", ", persistentVolumeClaim: {claimName: p}")
			})
		},
		func() string { return "initContainers: " + c.containers("fetch-identity") },
		func() string { return "containers: " + c.containers("trainer") },
		func() string {
			return "schedulingGates: " + c.named(2, []string{"g", "h"}, func() string { return "" })
		},
	}, more...)...)
}

func (c chance) affinity() string {
	return c.one("affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, "+
		"podAffinityTerm: {topologyKey: a}}]}}",
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "+
			"[{matchExpressions: [{key: a, operator: Exists}]}]}}}")
}

func (c chance) targets() string {
	return c.one("[{name: node}]", "[{name: node}]", "[{name: dataset-initializer}]",
		"[{name: dataset-initializer}, {name: node}]")
}

func (c chance) repeated(n int, of func() string) string {
	var parts []string
	for range 1 + c.IntN(n) {
		parts = append(parts, of())
	}
	return "[" + strings.Join(parts, ",\n    ") + "]"
}

// manifest is a TrainJob in one or more of the shapes.
func (c chance) manifest(name string) string {
	var fields []string
	secrets := func() string {
		return "imagePullSecrets: " + c.named(2, []string{"p", "q"}, func() string { return "" })
	}
	if c.IntN(5) == 0 {
		fields = append(fields, "podSpecOverrides: "+
			c.repeated(1, func() string { return "{targetJobs: " + c.targets() + comma(c.spec()) + "}" }))
		if c.IntN(2) == 0 {
			fields = append(fields, "labels: "+c.pairs())
		}
	} else {
		if c.IntN(4) > 0 {
			fields = append(fields, "podTemplateOverrides: "+c.repeated(3, func() string {
				return "{targetJobs: " + c.targets() + ", metadata: " + c.metadata() + ", spec: {" + c.spec(secrets, c.affinity) +
					"}}"
			}))
		}
		if c.IntN(3) == 0 {
			fields = append(fields, "templateOverrides: [{manager: example.com/team, pod: "+c.repeated(3, func() string {
				return fmt.Sprintf(`{time: "2026-01-0%dT00:00:00Z", targetJobs: %s, metadata: %s, spec: {%s}}`, 1+c.IntN(9),
					c.targets(), c.metadata(),
					c.spec(secrets, c.affinity, func() string { return "securityContext: {runAsUser: 5}" },
						func() string { return "terminationGracePeriodSeconds: 0" }))
			})+", job: "+c.repeated(2, func() string {
				return fmt.Sprintf(`{time: "2026-01-0%dT00:00:00Z", metadata: %s%s}`, 1+c.IntN(9), c.metadata(),
					c.one("", ", targetJobs: [{name: node}]"))
			})+"}]")
		}
	}
	if c.IntN(3) == 0 {
		fields = append(fields, "runtimePatches: [{manager: example.com/"+c.one("team", "other")+
			", trainingRuntimeSpec: {template: {metadata: "+c.metadata()+
			", spec: {replicatedJobs: [{name: node, template: {spec: {template: {metadata: "+c.metadata()+
			", spec: {nodeSelector: "+c.pairs()+"}}}}}]}}}}]")
	}
	fields = append(fields, "suspend: true")
	c.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata:\n  name: " + name +
		"\nspec:\n  runtimeRef: {name: pytorch-distributed-gpu}\n  " + strings.Join(fields, "\n  ") + "\n"
}

func comma(text string) string {
	if text == "" {
		return ""
	}
	return ", " + text
}

// commented returns a document with comments, each another, at chance ends of lines and on lines of their own.
func (c chance) commented(doc string) (text string, comments []string) {
	comment := func() string {
		comments = append(comments, fmt.Sprintf("# comment %d.", len(comments)))
		return comments[len(comments)-1]
	}
	for line := range strings.Lines(doc) {
		if c.IntN(6) == 0 {
			text += line[:len(line)-len(strings.TrimLeft(line, " "))] + comment() + "\n"
		}
		text += strings.TrimSuffix(line, "\n")
		if c.IntN(6) == 0 {
			text += " " + comment()
		}
		text += strings.Repeat("\n", 1+c.IntN(20)/19)
	}
	return text, comments
}

// TestConvertKeepsComments converts generated manifests with comments everywhere. Each comment is in what is written,
// which says the same as without comments.
func TestConvertKeepsComments(t *testing.T) {
	d := legacy.Manifests(false)
	for seed := range uint64(300) {
		c := chance{rand.New(rand.NewPCG(seed, 7))}
		doc := c.manifest("job")
		if c.IntN(3) > 0 {
			var err error
			if doc, err = inBlockStyle(doc); err != nil {
				t.Fatal(err)
			}
		}
		if c.IntN(4) == 0 {
			doc = "kind: List\napiVersion: v1\nitems:\n  - " + strings.ReplaceAll(strings.TrimSpace(doc), "\n", "\n    ") + "\n"
		}
		plain, _, err := rewrite(doc, d)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, doc)
		}
		in, comments := c.commented(doc)
		if c.IntN(4) == 0 {
			in = strings.ReplaceAll(in, "\n", "\r\n")
		}
		out, _, err := rewrite(in, d)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, in)
		}
		if root, err := parse(out); err != nil || !same(plain, root) {
			t.Errorf("seed %d: comments change what is said: %v\n%s\n%s", seed, err, in, out)
		}
		for _, comment := range comments {
			if !strings.Contains(out, comment) {
				t.Errorf("seed %d: %q is lost of\n%s\nin\n%s", seed, comment, in, out)
			}
		}
	}
}
