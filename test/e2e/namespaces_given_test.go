package e2e

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// amounts are resources of the form "cpu=100m".
func amounts(all ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, one := range all {
		name, amount, _ := strings.Cut(one, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return list
}

// given returns what a namespace of this name has.
type given = func(namespace string) []client.Object

func together(one, other given) given {
	return func(namespace string) []client.Object { return append(one(namespace), other(namespace)...) }
}

func limitRange(items ...corev1.LimitRangeItem) given {
	return func(namespace string) []client.Object {
		return []client.Object{&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "range"},
			Spec: corev1.LimitRangeSpec{Limits: items}}}
	}
}

// quotaOf is a ResourceQuota of amounts of the form "pods=1".
func quotaOf[name ~string](hard ...name) given {
	all := map[corev1.ResourceName]string{}
	for _, one := range hard {
		name, amount, _ := strings.Cut(string(one), "=")
		all[corev1.ResourceName(name)] = amount
	}
	return resourceQuota(all)
}

func resourceQuota(hard map[corev1.ResourceName]string) given {
	return func(namespace string) []client.Object {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: quotaName}}
		q.Spec.Hard = corev1.ResourceList{}
		for name, amount := range hard {
			q.Spec.Hard[name] = resource.MustParse(amount)
		}
		return []client.Object{q}
	}
}

// scoped is a ResourceQuota of no pods in a scope.
func scoped(scope func(namespace string) corev1.ScopedResourceSelectorRequirement) given {
	return func(namespace string) []client.Object {
		q := quotaOf("pods=0")(namespace)[0].(*corev1.ResourceQuota)
		q.Spec.ScopeSelector = &corev1.ScopeSelector{
			MatchExpressions: []corev1.ScopedResourceSelectorRequirement{scope(namespace)}}
		return []client.Object{q}
	}
}

func inScope(scope corev1.ResourceQuotaScope) func(string) corev1.ScopedResourceSelectorRequirement {
	return func(string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}
	}
}

func ofPriorityClass(namespace string) corev1.ScopedResourceSelectorRequirement {
	return corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass,
		Operator: corev1.ScopeSelectorOpIn, Values: []string{namespace}}
}

// onlyIn selects a namespace by its name.
func onlyIn(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
}

// onPods are rules for the creation of pods.
func onPods() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"pods"}},
	}}
}

func podsMatch() *admissionregistrationv1.MatchResources {
	match := &admissionregistrationv1.MatchResources{}
	for _, rule := range onPods() {
		match.ResourceRules = append(match.ResourceRules,
			admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: rule})
	}
	return match
}

// policy refuses the pods of a namespace that don't satisfy a CEL expression.
func policy(message, expression string) given {
	return func(namespace string) []client.Object {
		name := metav1.ObjectMeta{Name: namespace}
		return []client.Object{
			&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: name,
				Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
					MatchConstraints: podsMatch(),
					Validations: []admissionregistrationv1.Validation{
						{Expression: expression, Message: message}},
				}},
			&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name,
				Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: namespace,
					MatchResources:    &admissionregistrationv1.MatchResources{NamespaceSelector: onlyIn(namespace)},
					ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		}
	}
}

func nowRefuses(message string) func(*corev1.Pod, error) bool {
	return func(_ *corev1.Pod, err error) bool { return err != nil && strings.Contains(err.Error(), message) }
}

// sidecar is what both policies add to pods. It requests nothing.
const sidecar = "sidecar"

func injected(pod *corev1.Pod, err error) bool {
	return err == nil && slices.ContainsFunc(append(pod.Spec.InitContainers, pod.Spec.Containers...),
		func(c corev1.Container) bool { return c.Name == sidecar })
}

// injectingPolicy is a MutatingAdmissionPolicy, which Kubernetes serves from v1.36 on; before, a webhook.
func injectingPolicy(namespace string) []client.Object {
	if slices.Contains([]string{"1.34", "1.35"}, os.Getenv("SIGNALBOX_KUBERNETES")) {
		return injectingWebhook(namespace)
	}
	name := metav1.ObjectMeta{Name: namespace}
	return []client.Object{
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: name,
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: podsMatch(), ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
				Mutations: []admissionregistrationv1.Mutation{{
					PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{
						metadata: Object.metadata{labels: {"example.com/team": "a"}},
						spec: Object.spec{containers: [
							Object.spec.containers{name: "sidecar", image: "example.com/sidecar:1"}]}}`},
				}, {
					PatchType: admissionregistrationv1.PatchTypeJSONPatch,
					JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add",
						path: has(object.spec.tolerations) ? "/spec/tolerations/-" : "/spec/tolerations",
						value: has(object.spec.tolerations) ?
							dyn(Object.spec.tolerations{key: "example.com/team", operator: "Exists"}) :
							dyn([Object.spec.tolerations{key: "example.com/team", operator: "Exists"}])}]`},
				}},
			}},
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: name,
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: namespace,
				MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: onlyIn(namespace)}}},
	}
}

// injectingWebhook is a webhook that this process serves, as service meshes have one.
func injectingWebhook(namespace string) []client.Object {
	server := httptest.NewTLSServer(http.HandlerFunc(inject))
	ginkgo.DeferCleanup(server.Close)
	return []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "sidecars.example.com", Rules: onPods(), NamespaceSelector: onlyIn(namespace),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
		}},
	}}
}

// inject adds a container that runs beside the others as an init container, a node label and a toleration.
func inject(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	spec := &pod.Spec
	spec.InitContainers = append(spec.InitContainers, corev1.Container{Name: sidecar, Image: "example.com/sidecar:1",
		RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)})
	spec.Tolerations = append(spec.Tolerations,
		corev1.Toleration{Key: "example.com/team", Operator: corev1.TolerationOpExists})
	if spec.NodeSelector == nil {
		spec.NodeSelector = map[string]string{}
	}
	spec.NodeSelector[zoneLabel] = "a"
	// "add" replaces what is there.
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec/initContainers", "value": spec.InitContainers},
		{"op": "add", "path": "/spec/tolerations", "value": spec.Tolerations},
		{"op": "add", "path": "/spec/nodeSelector", "value": spec.NodeSelector},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: patch,
		PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server sees that the answer is incomplete
}
