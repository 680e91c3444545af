package trainer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	authenticateduser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// managerUser is the user of the manager, as the chart installs it.
const managerUser = "system:serviceaccount:signalbox-system:signalbox"

// access is what the chart installs to bound requests: policies, evaluated by the API server's library, and the
// manager's cluster-wide rights.
type access struct {
	policies []policy
	rules    []rbacv1.PolicyRule
}

type policy struct {
	spec      admissionregistrationv1.ValidatingAdmissionPolicySpec
	name      string
	validator validating.Validator
}

// apiRequest is a write of one object. object is nil if it deletes, old if it creates.
type apiRequest struct {
	user        string
	object, old *unstructured.Unstructured
	dryRun      bool
}

// shippedAccess is that of the default installation; test/chart holds that it is what the chart renders.
var shippedAccess = sync.OnceValue(func() *access {
	a := &access{}
	for _, document := range bytes.Split(must(os.ReadFile("../config/default/signalbox.yaml")), []byte("\n---\n")) {
		meta := metav1.PartialObjectMetadata{}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			panic(err)
		}
		switch {
		case meta.Kind == "ValidatingAdmissionPolicy":
			p := admissionregistrationv1.ValidatingAdmissionPolicy{}
			if err := yaml.UnmarshalStrict(document, &p); err != nil {
				panic(err)
			}
			a.policies = append(a.policies, policy{p.Spec, p.Name, compiled(&p)})
		case meta.Kind == "ClusterRole" && (meta.Name == "signalbox-trainer" || meta.Name == "signalbox-integration"):
			role := rbacv1.ClusterRole{}
			if err := yaml.UnmarshalStrict(document, &role); err != nil {
				panic(err)
			}
			a.rules = append(a.rules, role.Rules...)
		}
	}
	return a
})

// compiled compiles a policy as the API server does (k8s.io/apiserver v0.36, validating.compilePolicy).
func compiled(p *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	variables := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler := must(cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))
	var named []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		named = append(named, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(named, variables, environment.StoredExpressions)
	var conditions, validations []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{
			Expression: v.Expression, Message: v.Message, Reason: v.Reason,
		})
	}
	evaluator := func(all []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(all, variables, environment.StoredExpressions)
	}
	matcher := matchconditions.NewMatcher(evaluator(conditions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	return validating.NewValidator(evaluator(validations), matcher, evaluator(nil), evaluator(nil),
		p.Spec.FailurePolicy, nil)
}

// nobodyMay has policies find that the user has no further rights.
var nobodyMay = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (
	authorizer.Decision, string, error,
) {
	return authorizer.DecisionNoOpinion, "", nil
})

// check returns the API server's refusal of a request; nil if it accepts it.
func (a *access) check(r apiRequest) error {
	operation, one := admission.Update, r.object
	switch {
	case r.old == nil:
		operation = admission.Create
	case r.object == nil:
		operation, one = admission.Delete, r.old
	}
	gvk := one.GroupVersionKind()
	gvr, _ := apimeta.UnsafeGuessKindToResource(gvk)
	if r.user == managerUser && !a.grants(strings.ToLower(string(operation)), gvr) {
		return apierrors.NewForbidden(gvr.GroupResource(), one.GetName(), fmt.Errorf("no right to %s it", operation))
	}
	attributes := admission.NewAttributesRecord(unlessNil(r.object), unlessNil(r.old), gvk, one.GetNamespace(),
		one.GetName(), gvr, "", operation, nil, r.dryRun, &authenticateduser.DefaultInfo{Name: r.user})
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: gvk,
		VersionedObject: unlessNil(r.object), VersionedOldObject: unlessNil(r.old)}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: one.GetNamespace()}}
	for _, p := range a.policies {
		if !p.concerns(operation, gvr, r) {
			continue
		}
		result := p.validator.Validate(context.Background(), gvr, versioned, nil, namespace,
			apiservercel.RuntimeCELCostBudget, nobodyMay)
		for _, d := range result.Decisions {
			if d.Action != validating.ActionAdmit {
				return apierrors.NewForbidden(gvr.GroupResource(), one.GetName(), fmt.Errorf("%s: %s", p.name, d.Message))
			}
		}
	}
	return nil
}

// unlessNil returns an untyped nil for an object that isn't there.
func unlessNil(o *unstructured.Unstructured) runtime.Object {
	if o == nil {
		return nil
	}
	return o
}

// grants reports whether the manager's roles have a right.
func (a *access) grants(verb string, gvr schema.GroupVersionResource) bool {
	return slices.ContainsFunc(a.rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, gvr.Group) && slices.Contains(rule.Resources, gvr.Resource) &&
			slices.Contains(rule.Verbs, verb) && len(rule.ResourceNames) == 0
	})
}

// concerns reports whether a policy's constraints match a request for an object, not for a subresource.
func (p *policy) concerns(operation admission.Operation, gvr schema.GroupVersionResource, r apiRequest) bool {
	constraints := p.spec.MatchConstraints
	if !slices.ContainsFunc(constraints.ResourceRules, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(rule.APIGroups, gvr.Group) && slices.Contains(rule.Resources, gvr.Resource) &&
			slices.Contains(rule.Operations, admissionregistrationv1.OperationType(operation))
	}) {
		return false
	}
	selector := labels.Everything()
	if constraints.ObjectSelector != nil {
		selector = must(metav1.LabelSelectorAsSelector(constraints.ObjectSelector))
	}
	return r.object != nil && selector.Matches(labels.Set(r.object.GetLabels())) ||
		r.old != nil && selector.Matches(labels.Set(r.old.GetLabels()))
}

// defaulted returns an object as policies see it: with the API server's default of a Secret's type.
func (h *harness) defaulted(o client.Object) *unstructured.Unstructured {
	h.t.Helper()
	gvk, err := apiutil.GVKForObject(o, h.store.Scheme())
	if err != nil {
		h.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: must(runtime.DefaultUnstructuredConverter.ToUnstructured(o.DeepCopyObject()))}
	u.SetGroupVersionKind(gvk)
	if gvk.Kind == "Secret" && u.Object["type"] == nil {
		u.Object["type"] = string(corev1.SecretTypeOpaque)
	}
	return u
}
