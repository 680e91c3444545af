package v1alpha1

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParse(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	cases := map[string]struct {
		reason, content, want string
	}{
		"nothing but the head": {"the defaults hold", head, ""},
		"no head":              {"another file is not a configuration", "concurrency: 3\n", `it is apiVersion "", kind ""`},
		"another version": {"the message says which version is read",
			"apiVersion: config.signalbox.dev/v2\nkind: Configuration\n", `reads apiVersion "config.signalbox.dev/v1alpha1"`},
		"no YAML": {"the parser's word is passed on", "{", "yaml"},
		"an unknown field": {"a slip of the pen is not ignored", head + "kueue: {manageJobsWithoutQueuename: true}\n",
			`unknown field "kueue.manageJobsWithoutQueuename"`},
		"a wrong type": {"the field is named", head + "concurrency: many\n", "concurrency"},
		"an address of profiles": {"the path and the value are named", head + "pprof: {bindAddress: here}\n",
			`pprof.bindAddress: Invalid value: "here"`},
		"an address": {"the path and the value are named", head + "health: {bindAddress: here}\n",
			`health.bindAddress: Invalid value: "here"`},
		"clients' CAs": {"a slip is not taken for none", head + "webhook: {clientCABundle: PEM}\n",
			`webhook.clientCABundle: Invalid value: "PEM": has no certificate in PEM`},
		"elements": {"a pin couldn't have them", head + "limits: {elements: 40000}\n",
			"limits.elements: Invalid value: 40000: must be at most 32768"},
		"metrics off": {"0 switches them off", head + `metrics: {bindAddress: "0"}` + "\n", ""},
		"a port": {"the path and the value are named", head + "webhook: {port: 0}\n",
			"webhook.port: Invalid value: 0"},
		"half a Secret": {"the path is named", head + "webhook: {certificates: {secret: {name: certs}, dnsNames: " +
			"[a]}}\n", `webhook.certificates.secret: Invalid value: "/certs"`},
		"no DNS name": {"the API server would trust no certificate",
			head + "webhook: {certificates: {secret: {namespace: a, name: certs}}}\n",
			"webhook.certificates.dnsNames: Required"},
		"concurrency": {"nothing would be reconciled", head + "concurrency: 0\n", "concurrency: Invalid value: 0"},
		"qps":         {"nothing would be sent", head + "clientConnection: {qps: 0}\n", "clientConnection.qps"},
		"burst":       {"nothing would be sent", head + "clientConnection: {burst: 0}\n", "clientConnection.burst"},
		"a selector": {"the path is named", head + "kueue: {managedJobsNamespaceSelector: {matchExpressions: " +
			"[{key: a, operator: Is}]}}\n", "kueue.managedJobsNamespaceSelector.matchExpressions[0].operator"},
		"no selector": {"null is not the same as all", head + "kueue: {managedJobsNamespaceSelector: null}\n",
			"kueue.managedJobsNamespaceSelector: Required"},
		"an owner kind": {"the index and the form are named", head + "kueue: {ownerKinds: [AppWrapper]}\n",
			"kueue.ownerKinds[0]"},
		"no switch": {"null is neither on nor off", head + "trainer: {enabled: null}\n",
			"trainer.enabled: Required"},
		"a progress port": {"the path and the value are named", head + "trainer: {progress: {port: 0}}\n",
			"trainer.progress.port: Invalid value: 0"},
		"a gang mode": {"the path, the value and the choice are named",
			head + "trainer: {gangScheduling: {mode: always}}\n",
			`trainer.gangScheduling.mode: Unsupported value: "always": supported values: "required", "preferred", "off"`},
		"a gang policy": {"the path is named", head + "trainer: {gangScheduling: {policy: none}}\n",
			`trainer.gangScheduling.policy: Unsupported value: "none"`},
		"gangs beside Kubeflow Trainer": {"Signalbox doesn't build its JobSets",
			head + "trainer: {enabled: false, gangScheduling: {mode: preferred}}\n",
			`trainer.gangScheduling.mode: Invalid value: "preferred"`},
		"checkpoints that nobody reports": {"what has to be set is named", head + "preemption: {checkpointWithin: 5m}\n",
			`preemption.checkpointWithin: Invalid value: "5m0s": needs trainer.enabled and trainer.progress.enabled`},
		"checkpoints that take too long": {"the bound is named",
			head + "trainer: {progress: {enabled: true}}\npreemption: {checkpointWithin: 2h}\n",
			`preemption.checkpointWithin: Invalid value: "2h0m0s": must be 0s to 1h0m0s`},
		"a day that is kept for too long": {"the bound is named", head + "usage: {retention: 8785h}\n",
			`usage.retention: Invalid value: "8785h0m0s": must be 24h to 8784h`},
		"a day that isn't kept": {"it is written until it is over", head + "usage: {retention: 23h}\n",
			"usage.retention: Invalid value"},
		"a team's label": {"users couldn't set it", head + "usage: {teamLabel: \"my team\"}\n",
			`usage.teamLabel: Invalid value: "my team"`},
		"usage": {"the retention has a default", head + "usage: {enabled: true, teamLabel: example.com/team}\n",
			""},
		"a minimum runtime that is too long": {"its name is part of the path",
			head + "preemption: {minimumRuntime: {default: 24h, clusterQueues: {vision: 25h}}}\n",
			`preemption.minimumRuntime.clusterQueues[vision]: Invalid value: "25h0m0s": must be 0s to 24h0m0s`},
		"a minimum runtime that is negative": {"its name is part of the path",
			head + "preemption: {minimumRuntime: {priorityClasses: {low: -1s}}}\n",
			`preemption.minimumRuntime.priorityClasses[low]: Invalid value: "-1s": must be 0s to 24h0m0s`},
		"a minimum runtime by no name": {"it would have no effect, silently",
			head + "preemption: {minimumRuntime: {clusterQueues: {Vision Team: 1h}}}\n",
			`preemption.minimumRuntime.clusterQueues: Invalid value: "Vision Team": is no name of an object`},
		"nodes avoided for too long": {"the bound is named", head + "nodes: {avoidFor: 169h}\n",
			`nodes.avoidFor: Invalid value: "169h0m0s": must be 0s to 168h0m0s`},
		"nodes beside Kubeflow Trainer": {"why it can't be is said",
			head + "trainer: {enabled: false}\nnodes: {avoidFor: 1h}\n",
			`nodes.avoidFor: Invalid value: "1h0m0s": needs trainer.enabled`},
		"a failure after an hour": {"the bound is named", head + "nodes: {failedWithin: 2h}\n",
			`nodes.failedWithin: Invalid value: "2h0m0s": must be 0s to 1h`},
		"no node at most": {"the bound is named", head + "nodes: {atMost: 0}\n",
			"nodes.atMost: Invalid value: 0: must be 1 to 64"},
		"one namespace": {"it may not decide for others", head + "nodes: {namespaces: 1}\n",
			"nodes.namespaces: Invalid value: 1: must be 2 or more"},
		"a taint of nothing": {"what has to be set is named", head + "nodes: {taint: true}\n",
			"nodes.taint: Invalid value: true: needs nodes.avoidFor"},
		"a default that is too long": {"the bound is named", head + "preemption: {minimumRuntime: {default: 48h}}\n",
			`preemption.minimumRuntime.default: Invalid value: "48h0m0s"`},
		"the cheapest, of those that report nothing": {"what has to be set is named",
			head + "preemption: {cheapestVictim: true}\n",
			"preemption.cheapestVictim: Invalid value: true: needs trainer.enabled and trainer.progress.enabled"},
		"a negative time": {"the path is named", head + "kueue: {afterDeactivated: -1s}\n", "kueue.afterDeactivated"},
	}
	for content, want := range map[string]string{
		"": "kubernetes.io/metadata.name notin (kube-system,kueue-system)",
		"kueue: {managedJobsNamespaceSelector: {}}\n":                                               "",
		"kueue: {managedJobsNamespaceSelector: {matchLabels: {a: b}}}\n":                            "a=b",
		"kueue: {managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}}\n": "a",
	} {
		config, err := Parse([]byte(head + content))
		if err != nil {
			t.Errorf("%s: %v", content, err)
			continue
		}
		if got, err := metav1.LabelSelectorAsSelector(config.Kueue.ManagedJobsNamespaceSelector); err != nil ||
			got.String() != want {
			t.Errorf("%s: got %v, %v, want %q", content, got, err, want)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config, err := Parse([]byte(c.content))
			if c.want == "" {
				if err != nil || config.Concurrency != 16 || config.Webhook.Port != 9443 {
					t.Errorf("%s: got %+v, %v", c.reason, config, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want it to say %q", c.reason, err, c.want)
			}
		})
	}
}

// TestGrow holds which settings of growth are refused.
func TestGrow(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	for content, want := range map[string]string{
		"": "", "grow: {policy: p}": "", "grow: {enabled: true, policy: p}": "", "grow: {enabled: true}": "grow.policy",
		"grow: {every: 10s, enabled: true, policy: p}": "", "grow: {every: 9s}": "grow.every",
		"grow: {every: 25h}": "grow.every",
	} {
		config, err := Parse([]byte(head + content))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
		if content == "" && (config.Grow.Enabled || config.Grow.Every.Duration != 30*time.Minute) {
			t.Errorf("the defaults are %+v", config.Grow)
		}
	}
}

// TestMetricsAreSecure holds that metrics are served in the clear only if the file says so.
func TestMetricsAreSecure(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\n"
	for content, want := range map[string]bool{
		"":                                 true,
		"metrics: {}\n":                    true,
		"metrics: {bindAddress: \":9\"}\n": true,
		"metrics: {secure: true}\n":        true,
		"metrics: {secure: false}\n":       false,
	} {
		config, err := Parse([]byte(head + content))
		if err != nil || config.Metrics.Secure != want {
			t.Errorf("%q: got %+v, %v, want secure %t", content, config, err, want)
		}
	}
}

// TestBoosts holds which settings need Kueue's feature gate: those that are on, by whatever name.
func TestBoosts(t *testing.T) {
	const head = "apiVersion: config.signalbox.dev/v1alpha1\nkind: Configuration\ntrainer: {progress: {enabled: true}}\n"
	for name, c := range map[string]struct{ content, want string }{
		"nothing is set":       {"", ""},
		"the default":          {"preemption: {minimumRuntime: {default: 10m}}", "preemption.minimumRuntime"},
		"a class":              {"preemption: {minimumRuntime: {priorityClasses: {low: 10m}}}", "preemption.minimumRuntime"},
		"a ClusterQueue":       {"preemption: {minimumRuntime: {clusterQueues: {gpu: 10m}}}", "preemption.minimumRuntime"},
		"nobody has a minimum": {"preemption: {minimumRuntime: {clusterQueues: {gpu: 0s}}}", ""},
		"the cheapest victim":  {"preemption: {cheapestVictim: true}", "preemption.cheapestVictim"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Parse([]byte(head + c.content))
			if err != nil {
				t.Fatal(err)
			}
			if got := config.Preemption.Boosts(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
