package installed

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

func TestAdopt(t *testing.T) {
	const head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
	const external = head + "integrations: {externalFrameworks: [" + ExternalFramework + "]}\n"
	hour := &metav1.Duration{Duration: time.Hour}
	cases := map[string]struct {
		reason string
		ours   func(*configapi.Kueue)
		theirs string // "" where there is no ConfigMap
		down   string
		args   []string // of Kueue's Deployment; none without them
		// release is Kueue's; the newest by default.
		release string
		// want changes our settings to what is adopted; refused is what the error says instead.
		want    func(*configapi.Kueue)
		refused []string
	}{
		"defaults": {reason: "theirs are known then", theirs: external,
			want: func(*configapi.Kueue) {}},
		"defaults of 0.18": {reason: "it doesn't wait for pods by default", theirs: external, release: "0.18",
			want: func(k *configapi.Kueue) { k.WaitForPodsReady, k.FeatureGates = new(false), defaultGates("0.18") }},
		"of a later Kueue": {reason: "it waits for pods by default", theirs: external, release: "0.21",
			want: func(*configapi.Kueue) {}},
		"no waiting for pods": {reason: "the gate turns the default off",
			theirs: external + "waitForPodsReady: {timeout: 1m}\nfeatureGates: {DisableWaitForPodsReady: true}\n",
			want: func(k *configapi.Kueue) {
				k.WaitForPodsReady, k.FeatureGates = new(false), map[string]bool{"DisableWaitForPodsReady": true}
			}},
		"waiting for pods turned off here": {reason: "Kueue would evict everything", theirs: external,
			ours: func(k *configapi.Kueue) { k.WaitForPodsReady = new(false) },
			refused: []string{"waitForPodsReady is on there: true (by default since Kueue 0.19, unless feature gate " +
				"DisableWaitForPodsReady is on), and kueue.waitForPodsReady is false here; take it out here"}},
		"waiting for pods turned on here": {reason: "the condition may be wanted at once", theirs: external,
			ours: func(k *configapi.Kueue) { k.WaitForPodsReady = new(true) },
			want: func(*configapi.Kueue) {}},
		"theirs": {reason: "nobody repeats them",
			theirs: external[:len(external)-2] + ", labelKeysToCopy: [team]}\nwaitForPodsReady: {timeout: 1m}\n" +
				"objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 1h}}\n" +
				"featureGates: {PartialAdmission: false, GateOfAnotherKueue: true}\n",
			want: func(k *configapi.Kueue) {
				k.WaitForPodsReady, k.LabelKeysToCopy, k.AfterDeactivated = new(true), []string{"team"}, hour
				k.FeatureGates = map[string]bool{"PartialAdmission": false}
			}},
		"of v1beta1": {reason: "Kueue reads it too, in a form of its own",
			theirs: strings.Replace(external, "v1beta2", "v1beta1", 1) + "waitForPodsReady: {enable: true, timeout: 1m}\n" +
				"resources: {excludeResourcePrefixes: [example.com]}\n",
			want: func(k *configapi.Kueue) {
				k.WaitForPodsReady = new(true)
				k.Resources = &kueueconfig.Resources{ExcludeResourcePrefixes: []string{"example.com"}}
			}},
		"defaults of v1beta1": {reason: "it has no default of waitForPodsReady",
			theirs: strings.Replace(external, "v1beta2", "v1beta1", 1),
			want:   func(k *configapi.Kueue) { k.WaitForPodsReady = new(false) }},
		"waiting for pods in v1beta1, not enabled": {reason: "nor without enable",
			theirs: strings.Replace(external, "v1beta2", "v1beta1", 1) + "waitForPodsReady: {timeout: 1m}\n",
			want:   func(k *configapi.Kueue) { k.WaitForPodsReady = new(false) }},
		"TrainJobs in other case": {reason: "Kueue compares kinds by case",
			theirs:  strings.Replace(external, "TrainJob.", "trainjob.", 1),
			refused: []string{"integrations.externalFrameworks does not list \"" + ExternalFramework}},
		"other resources": {reason: "the difference is named",
			ours: func(k *configapi.Kueue) {
				k.Resources = &kueueconfig.Resources{ExcludeResourcePrefixes: []string{"example.com"}}
			},
			theirs: external + "resources: {excludeResourcePrefixes: [example.org]}\n",
			refused: []string{`resources is {"excludeResourcePrefixes":["example.org"]} there and kueue.resources ` +
				`{"excludeResourcePrefixes":["example.com"]} here`}},
		"MultiKueue": {reason: "its queues lead to other clusters",
			theirs: external + "multiKueue: {externalFrameworks: [{name: " + ExternalFramework + "}]}\n",
			want:   func(k *configapi.Kueue) { k.MultiKueue = new(true) }},
		"no MultiKueue": {reason: "Kueue has no adapter for TrainJobs", theirs: external,
			ours:    func(k *configapi.Kueue) { k.MultiKueue = new(true) },
			refused: []string{"multiKueue.externalFrameworks lists " + ExternalFramework + " there: false"}},
		"command line": {reason: "Kueue's chart puts the gates there", theirs: external,
			args: []string{"--zap-log-level=2", "--feature-gates=PartialAdmission=false, GateOfAnotherKueue=true,Odd=1x"},
			want: func(k *configapi.Kueue) {
				k.FeatureGates = map[string]bool{"PartialAdmission": false}
			}},
		"another command line": {reason: "every difference is named", theirs: external,
			ours:    func(k *configapi.Kueue) { k.FeatureGates = map[string]bool{"PartialAdmission": true} },
			args:    []string{"--feature-gates=PartialAdmission=false"},
			refused: []string{"featureGates.PartialAdmission is false there"}},
		"no Deployment": {reason: "it isn't known", theirs: external, down: "Deployment",
			refused: []string{errDown.Error()}},
		"repeated": {reason: "what is the same may be said twice",
			ours: func(k *configapi.Kueue) {
				k.WaitForPodsReady, k.LabelKeysToCopy, k.AfterDeactivated = new(true), []string{"b", "a"}, hour
				k.FeatureGates = map[string]bool{"PartialAdmission": false, "TopologyAwareScheduling": true}
			},
			theirs: external[:len(external)-2] + ", labelKeysToCopy: [a, b]}\nwaitForPodsReady: {timeout: 1m}\n" +
				"objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 1h}}\n" +
				"featureGates: {PartialAdmission: false}\nmanagedJobsNamespaceSelector: {matchExpressions: [" +
				"{key: kubernetes.io/metadata.name, operator: NotIn, values: [kueue-system, kube-system]}]}\n",
			want: func(*configapi.Kueue) {}},
		"other settings": {reason: "every difference is named, with both values",
			ours: func(k *configapi.Kueue) {
				k.WaitForPodsReady, k.LabelKeysToCopy, k.AfterDeactivated = new(false), []string{"a"}, hour
				k.FeatureGates = map[string]bool{"PartialAdmission": true}
			},
			theirs: external + "manageJobsWithoutQueueName: true\nfeatureGates: {PartialAdmission: false}\n" +
				"managedJobsNamespaceSelector: {matchLabels: {team: a}}\n",
			refused: []string{"manageJobsWithoutQueueName is true there and kueue.manageJobsWithoutQueueName false here",
				"waitForPodsReady is on there: true (by default since Kueue 0.19, unless feature gate " +
					"DisableWaitForPodsReady is on), and kueue.waitForPodsReady is false here",
				`managedJobsNamespaceSelector is "team=a" there and kueue.managedJobsNamespaceSelector "kubernetes.io/`,
				"labelKeysToCopy is [] there and kueue.labelKeysToCopy [a] here",
				"afterDeactivated is not set there and kueue.afterDeactivated 1h0m0s here",
				"featureGates.PartialAdmission is false there and kueue.featureGates.PartialAdmission true here"}},
		"another time": {reason: "it is not the same",
			ours:    func(k *configapi.Kueue) { k.AfterDeactivated = hour },
			theirs:  external + "objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 2h}}\n",
			refused: []string{"afterDeactivated is 2h0m0s there and kueue.afterDeactivated 1h0m0s here"}},
		"wrong selectors": {reason: "they can't be compared",
			theirs:  external + "managedJobsNamespaceSelector: {matchLabels: {a b: c}}\n",
			refused: []string{"managedJobsNamespaceSelector: "}},
		"our wrong selector": {reason: "they can't be compared",
			ours: func(k *configapi.Kueue) {
				k.ManagedJobsNamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
			},
			theirs:  external + "managedJobsNamespaceSelector: {matchLabels: {a: c}}\n",
			refused: []string{"kueue.managedJobsNamespaceSelector: "}},
		"built-in": {reason: "two integrations would fight",
			theirs:  head + "integrations: {frameworks: [batch/job, " + builtinFramework + "]}\n",
			refused: []string{`integrations.frameworks lists "trainer.kubeflow.org/trainjob"`, "take it out"}},
		"nothing said": {reason: "Kueue must know that TrainJobs are managed", theirs: head,
			refused: []string{"ConfigMap kueue-system/kueue-manager-config key a.yaml: ",
				"integrations.externalFrameworks does not list", "add it"}},
		"no configuration": {reason: "it may be elsewhere", want: func(*configapi.Kueue) {}},
		"no configuration, 0.18": {reason: "it may be elsewhere", release: "0.18",
			want: func(k *configapi.Kueue) { k.WaitForPodsReady, k.FeatureGates = new(false), defaultGates("0.18") }},
		"no configuration, ours": {reason: "what is said here counts",
			ours: func(k *configapi.Kueue) { k.WaitForPodsReady = new(false) }, want: func(*configapi.Kueue) {}},
		"another configuration": {reason: "it is not Kueue's", theirs: "kind: Other", want: func(*configapi.Kueue) {}},
		"no YAML":               {reason: "it can't be read", theirs: "{", refused: []string{"key a.yaml: "}},
		"unreadable": {reason: "it isn't known", theirs: external, down: "ConfigMap",
			refused: []string{errDown.Error()}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ours := &configapi.Default().Kueue
			if c.ours != nil {
				c.ours(ours)
			}
			before := *ours
			var objects []client.Object
			if c.theirs != "" {
				objects = append(objects, &corev1.ConfigMap{Data: map[string]string{"a.yaml": c.theirs},
					ObjectMeta: metav1.ObjectMeta{Namespace: ours.ConfigMap.Namespace, Name: ours.ConfigMap.Name}})
			}
			if len(c.args) > 0 {
				kueue := &appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: ours.ConfigMap.Namespace, Name: kueueDeployment}}
				kueue.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Args: c.args}}
				objects = append(objects, kueue)
			}
			if c.release == "" {
				c.release = Kueue.Newest
			}
			got, err := Adopt(t.Context(), cluster(c.down, objects...), ours, c.release)
			for _, refused := range c.refused {
				if err == nil || !strings.Contains(err.Error(), refused) {
					t.Errorf("%s: got %v, want %q in it", c.reason, err, refused)
				}
			}
			if c.want == nil {
				return
			}
			want := before
			c.want(&want)
			if diff := cmp.Diff(&want, got); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", c.reason, err, diff)
			}
		})
	}
}

// cluster returns a client of a cluster; reads of a kind fail if down is its name.
func cluster(down string, objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				if reflect.TypeOf(o).Elem().Name() == down {
					return errDown
				}
				return c.Get(ctx, key, o, opts...)
			},
		}).Build()
}
