package chart

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

const repository = "../.."

// sets are what the chart is rendered with.
var sets = map[string]string{
	"default":      "",
	"integration":  "trainer: {enabled: false}",
	"cert-manager": "certificates: {source: cert-manager}",
	"issuer": "certificates: {source: cert-manager, certManager: {issuerRef: {kind: ClusterIssuer, name: ours}}}\n" +
		"webhook: {url: \"https://signalbox.example.com:9443/\", clientCABundle: " + strconv.Quote(clientCA) + "}",
	"existing": "certificates: {source: existing, secretName: mine, caBundle: PEM}",
	"open":     "networkPolicy: {enabled: false}\nmetrics: {secure: false, serviceMonitor: {enabled: true}}",
	"single": "replicas: 1\nresources: {limits: {memory: 2Gi}}\npodDisruptionBudget: {enabled: true}\n" +
		"metrics: {port: 0}\nrbac: {aggregate: false}",
	"image": "image: {registry: registry.example.com, repository: team/signalbox, digest: \"sha256:" + digest +
		"\"}\nimagePullSecrets: [{name: pull}]\nserviceAccount: {create: false, name: theirs}",
	"everywhere": "kueue: {manageJobsWithoutQueueName: true, managedJobsNamespaceSelector: {}, waitForPodsReady: true, " +
		"featureGates: {PartialAdmission: false}}\nwebhook: {failurePolicy: Ignore}",
	"placed": "nodeSelector: {pool: system}\ntolerations: [{key: system, operator: Exists}]\n" +
		"topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]\n" +
		"affinity: {nodeAffinity: {}}\npriorityClassName: system-cluster-critical\npodLabels: {a: b}\n" +
		"podAnnotations: {c: d}\ncommonLabels: {team: ml}\n" +
		"env: [{name: HTTPS_PROXY, value: x}, {name: GOGC, value: \"50\"}]\n" +
		"networkPolicy: {metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], " +
		"webhooksFrom: [{ipBlock: {cidr: 10.0.0.0/28}}]}",
	"platforms": "hostNetwork: true\nwebhook: {port: 19443}\nmetrics: {port: 18080}\n" +
		"podSecurityContext: {runAsUser: null, runAsGroup: null}",
	"watched": "metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: " +
		"true}, dashboard: {enabled: true, annotations: {grafana_folder: Batch}}}\nreload: true\n" +
		"trainer: {progress: {enabled: true}, gangScheduling: {mode: preferred}}\n" +
		"multiKueue: {workerSubjects: [{kind: User, name: manager}]}\n" +
		"config: {concurrency: 9, clientConnection: {qps: 50}, pprof: {bindAddress: \"127.0.0.1:6060\"}, " +
		"usage: {enabled: true, teamLabel: team}, grow: {enabled: true}}",
	"page": "dashboard: {enabled: true, namespace: lab, allowChanges: true, tlsSecret: page}\n" +
		"podLabels: {a: b}\nimagePullSecrets: [{name: pull}]\nnodeSelector: {pool: system}\n" +
		"metrics: {podMonitor: {enabled: true, labels: {release: prometheus}, authorization: {credentials: {name: t, key: " +
		"token}}}}\n" +
		"extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}, \"apiVersion: v1\\nkind: ConfigMap" +
		"\\nmetadata: {name: {{ .Release.Name }}-theirs}\"]",
}

// clientCA is of no API server.
const clientCA = `-----BEGIN CERTIFICATE-----
MIIBQjCB9aADAgECAhQD3BY0PW8v3SWs/myZewltnETxdjAFBgMrZXAwFjEUMBIG
A1UEAwwLYXBpLXNlcnZlcnMwIBcNMjYxMTI3MDYxNTQ5WhgPMjEyNjExMDMwNjE1
NDlaMBYxFDASBgNVBAMMC2FwaS1zZXJ2ZXJzMCowBQYDK2VwAyEA1zp7gcO/vxGW
v5oJkk8cmsuLjlIwiI7SoOU2FWzCRgSjUzBRMB0GA1UdDgQWBBQsT/J+CcIqhe3j
7fedbpn976p/EDAfBgNVHSMEGDAWgBQsT/J+CcIqhe3j7fedbpn976p/EDAPBgNV
HRMBAf8EBTADAQH/MAUGAytlcANBADJXz7vQJYzgp5E/jqqdE9kYWUiRw+vtkQGA
WKRlq+TJlJm7qhFfE3ai7U+dZKF/33jqDXGoj8U9C0ll1PZ5WQM=
-----END CERTIFICATE-----
`

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestMonitors holds that what is made for the Prometheus operator has fields that the operator knows, and no others.
func TestMonitors(t *testing.T) {
	kinds := map[string]func() any{
		"ServiceMonitor": func() any { return &monitoringv1.ServiceMonitor{} },
		"PodMonitor":     func() any { return &monitoringv1.PodMonitor{} },
		"PrometheusRule": func() any { return &monitoringv1.PrometheusRule{} },
	}
	seen := map[string]bool{}
	for name, values := range sets {
		got, err := Render(repository, values+"\ncrds: {install: false}")
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(got, "\n---\n") {
			for kind, made := range kinds {
				if !strings.Contains(document, "\nkind: "+kind+"\n") {
					continue
				}
				seen[kind] = true
				if err := yaml.UnmarshalStrict([]byte(document), made()); err != nil {
					t.Errorf("%s: %s: %v", name, kind, err)
				}
			}
		}
	}
	if len(seen) != len(kinds) {
		t.Errorf("only %v are made", seen)
	}
}

// TestNetworkPolicy holds that the policy lets each port of the managers be reached, that of the webhooks from anywhere
// unless the values say otherwise, and that there is none where it would have no effect.
func TestNetworkPolicy(t *testing.T) {
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			got, err := Render(repository, values+"\ncrds: {install: false}")
			if err != nil {
				t.Fatal(err)
			}
			var (
				policies    []networkingv1.NetworkPolicy
				deployments []appsv1.Deployment
			)
			for _, document := range strings.Split(got, "\n---\n") {
				policies = ofKind(t, policies, "NetworkPolicy", document)
				deployments = ofKind(t, deployments, "Deployment", document)
			}
			deployments = slices.DeleteFunc(deployments, func(d appsv1.Deployment) bool { // the page is none of it
				return strings.HasSuffix(d.Name, "-dashboard")
			})
			if name == "open" || name == "platforms" {
				if len(policies) != 0 {
					t.Errorf("got %d policies, want none", len(policies))
				}
				return
			}
			if len(policies) != 1 || len(deployments) != 1 {
				t.Fatalf("got %d policies and %d Deployments, want one of each", len(policies), len(deployments))
			}
			from := map[string][]networkingv1.NetworkPolicyPeer{}
			for _, rule := range policies[0].Spec.Ingress {
				for _, port := range rule.Ports {
					from[port.Port.String()] = rule.From
				}
			}
			for _, port := range deployments[0].Spec.Template.Spec.Containers[0].Ports {
				peers, allowed := from[port.Name]
				if limited := name == "placed" && (port.Name == "webhook" || port.Name == "metrics"); !allowed ||
					limited != (len(peers) > 0) {
					t.Errorf("port %s: got allowed %t from %v", port.Name, allowed, peers)
				}
				delete(from, port.Name)
			}
			if len(from) != 0 {
				t.Errorf("the policy allows ports that no manager has: %v", from)
			}
			if selected := policies[0].Spec.PodSelector.MatchLabels; !labels.SelectorFromSet(selected).Matches(
				labels.Set(deployments[0].Spec.Template.Labels)) || len(selected) == 0 {
				t.Errorf("the policy selects %v, and the managers have %v", selected, deployments[0].Spec.Template.Labels)
			}
		})
	}
}

// ofKind appends the object of a document to all if it is of the kind. An unknown field is an error.
func ofKind[T any](t *testing.T, all []T, kind, document string) []T {
	t.Helper()
	var meta struct{ Kind string }
	if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
		t.Fatal(err)
	}
	if meta.Kind != kind {
		return all
	}
	var object T
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Fatal(err)
	}
	return append(all, object)
}

// TestPodGroups holds that the Trainer has the right to the PodGroups of the schedulers in trainer.podGroups, and of no
// other.
func TestPodGroups(t *testing.T) {
	for values, want := range map[string]string{
		"":                                              "scheduling.volcano.sh scheduling.x-k8s.io",
		"trainer: {podGroups: []}":                      "",
		"trainer: {podGroups: [volcano]}":               "scheduling.volcano.sh",
		"trainer: {podGroups: [coscheduling]}":          "scheduling.x-k8s.io",
		"trainer: {podGroups: null}":                    "",
		"trainer: {enabled: false, podGroups: []}":      "",
		"trainer: {podGroups: [coscheduling, volcano]}": "scheduling.volcano.sh scheduling.x-k8s.io",
	} {
		got, err := Render(repository, values+"\ncrds: {install: false}")
		if err != nil {
			t.Fatal(err)
		}
		var roles []rbacv1.ClusterRole
		for _, document := range strings.Split(got, "\n---\n") {
			roles = ofKind(t, roles, "ClusterRole", document)
		}
		var groups []string
		kubernetes := false
		for _, role := range roles {
			for _, rule := range role.Rules {
				if !slices.Contains(rule.Resources, "podgroups") || !slices.Contains(rule.Verbs, "create") {
					continue
				}
				if slices.Equal(rule.APIGroups, []string{"scheduling.k8s.io"}) {
					kubernetes = true // the Trainer's own gangs
					continue
				}
				groups = append(groups, rule.APIGroups...)
				if !slices.Equal(rule.Verbs, []string{"create", "delete", "get"}) {
					t.Errorf("%s: verbs %v", values, rule.Verbs)
				}
			}
		}
		slices.Sort(groups)
		if strings.Join(groups, " ") != want || kubernetes != !strings.Contains(values, "enabled: false") {
			t.Errorf("%s: rights to %v, want %q; to Kubernetes' own %t", values, groups, want, kubernetes)
		}
	}
}

// TestCRDsStay holds that all CRDs outlive the release, as Helm reads them: of two keys of the same name, the last.
func TestCRDsStay(t *testing.T) {
	for values, want := range map[string]int{"": 3, "config: {usage: {enabled: true}}": 4} {
		got, err := Render(repository, values)
		if err != nil {
			t.Fatal(err)
		}
		crds, kept := 0, 0
		for document := range strings.SplitSeq(got, "\n---\n") {
			if !strings.Contains(document, "\nkind: CustomResourceDefinition\n") {
				continue
			}
			var crd metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &crd); err != nil {
				t.Fatal(err)
			}
			if crds++; crd.Annotations["helm.sh/resource-policy"] == "keep" {
				kept++
			}
		}
		if crds != want || kept != want {
			t.Errorf("%q: got %d CRDs, of which %d outlive the release; want all %d", values, crds, kept, want)
		}
	}
}

// The manager reads every configuration that the chart renders.
func TestConfiguration(t *testing.T) {
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			got, err := Render(repository, values+"\ncrds: {install: false}")
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, document := range strings.Split(got, "\n---\n") {
				var object struct {
					Kind string
					Data map[string]string
				}
				if err := yaml.Unmarshal([]byte(document), &object); err != nil {
					t.Fatal(err)
				}
				content, has := object.Data["config.yaml"]
				if object.Kind != "ConfigMap" || !has {
					continue
				}
				found++
				if _, err := configapi.Parse([]byte(content)); err != nil {
					t.Errorf("%v in\n%s", err, content)
				}
			}
			if found != 1 {
				t.Errorf("got %d configurations, want 1", found)
			}
		})
	}
}

func TestSchema(t *testing.T) {
	for values, want := range map[string]string{
		"replicas: 0":                               "replicas",
		"replica: 2":                                "replica",
		"image: {pullPolicy: Sometimes}":            "image.pullPolicy",
		"webhook: {failurePolicy: Maybe}":           "webhook.failurePolicy",
		"webhook: {url: \"http://plain\"}":          "webhook.url",
		"webhook: {timeoutSeconds: 31}":             "webhook.timeoutSeconds",
		"certificates: {source: somewhere}":         "certificates.source",
		"trainer: {enabled: \"yes\"}":               "trainer.enabled",
		"trainer: {gangScheduling: {mode: always}}": "trainer.gangScheduling.mode",
		"metrics: {port: many}":                     "metrics.port",
		"verbosity: 9":                              "verbosity",
		"image: {digest: latest}":                   "image.digest",
	} {
		if _, err := Render(repository, values); err == nil ||
			!strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), want) {
			t.Errorf("%s: got %v, want it to name %s", values, err, want)
		}
	}
	if _, err := Render(repository, "trainer: {enabled: false, gangScheduling: {mode: preferred}}"); err == nil ||
		!strings.Contains(err.Error(), "trainer.gangScheduling.mode are the bundled Trainer's") {
		t.Errorf("gangs beside Kubeflow Trainer: got %v", err)
	}
	for values, want := range map[string]string{
		"metrics: {dashboard: {labels: {grafana_dashboard: 1}}}": "/metrics/dashboard/labels/grafana_dashboard",
		"config: {webhook: {port: 1}}": "config.webhook: the chart makes this field of its other " +
			"values",
		"config: {kueue: {waitForPodsReady: true}}": "config.kueue.waitForPodsReady: the chart makes this " +
			"field of kueue.waitForPodsReady",
		"webhook: {url: \"https://10.0.0.1:9443\"}":                       "webhook.url names an address",
		"policies: {enabled: false}\nconfig: {grow: {enabled: true}}":     "config.grow.enabled needs policies.enabled",
		"metrics: {podMonitor: {enabled: true}}":                          "metrics.podMonitor.authorization is empty",
		"metrics: {podMonitor: &on {enabled: true}, serviceMonitor: *on}": "would be scraped twice",
		"webhook: {port: 8081}":                                           "can't have the same port",
		"webhook: {port: 8080}":                                           "can't have the same port",
		"webhook: {port: 10443}\ntrainer: {progress: {enabled: true}}":    "can't have the same port",
	} {
		if _, err := Render(repository, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", values, err, want)
		}
	}
	for _, values := range []string{"config: null", "config: {grow: null}", "resources: null",
		"resources: {limits: null}", "env: null",
		"resources: {limits: {memory: 1G}}"} {
		if _, err := Render(repository, values); err != nil {
			t.Errorf("%s: %v", values, err)
		}
	}
	if _, err := Render(repository, "certificates: {source: existing}"); err == nil ||
		!strings.Contains(err.Error(), "certificates.caBundle: give the CA") {
		t.Errorf("a Secret without its CA: got %v", err)
	}
}

func TestLint(t *testing.T) {
	for name, values := range sets {
		var given map[string]any
		if err := yaml.Unmarshal([]byte(values), &given); err != nil {
			t.Fatal(err)
		}
		lint := action.NewLint()
		lint.Strict, lint.Namespace = true, "signalbox-system"
		for _, message := range lint.Run([]string{filepath.Join(repository, "charts", "signalbox")}, given).Messages {
			if message.Severity >= support.WarningSev {
				t.Errorf("%s: %s", name, message)
			}
		}
	}
}
