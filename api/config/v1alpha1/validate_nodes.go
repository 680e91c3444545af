package v1alpha1

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// validateNodes checks what follows where a node is broken.
func (c *Configuration) validateNodes(path *field.Path) (errs field.ErrorList) {
	n := c.Nodes
	if d := n.AvoidFor.Duration; d < 0 || d > MaxAvoidFor {
		errs = append(errs, field.Invalid(path.Child("avoidFor"), d.String(), "must be 0s to "+MaxAvoidFor.String()))
	}
	if d := n.FailedWithin.Duration; d < 0 || d > time.Hour {
		errs = append(errs, field.Invalid(path.Child("failedWithin"), d.String(), "must be 0s to 1h"))
	}
	if n.AtMost < 1 || n.AtMost > MaxAvoided {
		errs = append(errs, field.Invalid(path.Child("atMost"), n.AtMost, fmt.Sprintf("must be 1 to %d", MaxAvoided)))
	}
	const least = 2
	if n.Namespaces < least {
		errs = append(errs, field.Invalid(path.Child("namespaces"), n.Namespaces,
			"must be 2 or more: no namespace may have a node avoided by all"))
	}
	if n.AvoidFor.Duration > 0 && !ptr.Deref(c.Trainer.Enabled, true) {
		errs = append(errs, field.Invalid(path.Child("avoidFor"), n.AvoidFor.Duration.String(), "needs trainer.enabled: the "+
			"CRD of an installed Kubeflow Trainer has no field that remembers nodes; set this to 0s, or use the bundled "+
			"Trainer"))
	}
	if n.Taint && n.AvoidFor.Duration == 0 {
		errs = append(errs, field.Invalid(path.Child("taint"), true, "needs nodes.avoidFor; set that, or this to false"))
	}
	return errs
}
