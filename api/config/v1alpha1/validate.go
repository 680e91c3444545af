package v1alpha1

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
)

// validate returns an error for each invalid field, with its path.
func (c *Configuration) validate() field.ErrorList {
	return slices.Concat(
		c.validateAddresses(),
		c.Webhook.validate(field.NewPath("webhook")),
		c.validateNumbers(),
		c.validateSwitches(),
		validatePort(field.NewPath("trainer", "progress", "port"), int(c.Trainer.Progress.Port)),
		c.Limits.validate(field.NewPath("limits")),
		c.Trainer.validateGangScheduling(field.NewPath("trainer", "gangScheduling")),
		c.Kueue.validate(field.NewPath("kueue")),
		c.validatePreemption(field.NewPath("preemption", "checkpointWithin")),
		c.validateVictims(field.NewPath("preemption")),
		c.Usage.validate(field.NewPath("usage")),
		c.validateNodes(field.NewPath("nodes")),
		c.Grow.validate(field.NewPath("grow")),
	)
}

func (c *Configuration) validatePreemption(path *field.Path) field.ErrorList {
	within := c.Preemption.CheckpointWithin.Duration
	switch {
	case within < 0 || within > api.MaxCheckpointWithin:
		return field.ErrorList{field.Invalid(path, within.String(), "must be 0s to "+api.MaxCheckpointWithin.String())}
	case within > 0 && !c.Trainer.takesReports():
		return field.ErrorList{field.Invalid(path, within.String(), "needs trainer.enabled and trainer.progress.enabled, by "+
			"which training processes report their checkpoints; set both to true, or this to 0s")}
	}
	return nil
}

// validateVictims checks what decides who is preempted.
func (c *Configuration) validateVictims(path *field.Path) field.ErrorList {
	minimum := path.Child("minimumRuntime")
	errs := validateMinimum(minimum.Child("default"), c.Preemption.MinimumRuntime.Default)
	for _, by := range []struct {
		name      string
		durations map[string]metav1.Duration
	}{
		{"priorityClasses", c.Preemption.MinimumRuntime.PriorityClasses},
		{"clusterQueues", c.Preemption.MinimumRuntime.ClusterQueues},
	} {
		for _, name := range slices.Sorted(maps.Keys(by.durations)) {
			for _, message := range apivalidation.NameIsDNSSubdomain(name, false) {
				errs = append(errs, field.Invalid(minimum.Child(by.name), name, "is no name of an object: "+message))
			}
			errs = append(errs, validateMinimum(minimum.Child(by.name).Key(name), by.durations[name])...)
		}
	}
	if c.Preemption.CheapestVictim && !c.Trainer.takesReports() {
		errs = append(errs, field.Invalid(path.Child("cheapestVictim"), true, "needs trainer.enabled and "+
			"trainer.progress.enabled, by which training processes report their checkpoints; set both to true, or this to "+
			"false"))
	}
	return errs
}

func (g *Grow) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := g.Every.Duration; d < 10*time.Second || d > 24*time.Hour {
		errs = append(errs, field.Invalid(path.Child("every"), d.String(), "must be 10s to 24h"))
	}
	if g.Enabled && g.Policy == "" {
		errs = append(errs, field.Required(path.Child("policy"), "name the ValidatingAdmissionPolicy that rejects "+
			"preemptions for TrainJobs that grow; the chart installs it, and sets this, with config.grow.enabled and "+
			"policies.enabled"))
	}
	return errs
}

func validateMinimum(path *field.Path, d metav1.Duration) field.ErrorList {
	if d.Duration < 0 || d.Duration > MaxMinimumRuntime {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), "must be 0s to "+MaxMinimumRuntime.String())}
	}
	return nil
}

func (u *Usage) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if u.TeamLabel != "" {
		errs = validation.ValidateLabelName(u.TeamLabel, path.Child("teamLabel"))
	}
	if d := u.Retention.Duration; d < 24*time.Hour || d > MaxRetention { // a record is written until its day is over
		errs = append(errs, field.Invalid(path.Child("retention"), d.String(), "must be 24h to 8784h"))
	}
	return errs
}

func (c *Configuration) validateAddresses() field.ErrorList {
	errs := validateAddress(field.NewPath("health", "bindAddress"), c.Health.BindAddress)
	if c.Pprof.BindAddress != "" {
		errs = append(errs, validateAddress(field.NewPath("pprof", "bindAddress"), c.Pprof.BindAddress)...)
	}
	if c.Metrics.BindAddress == "0" {
		return errs
	}
	return append(errs, validateAddress(field.NewPath("metrics", "bindAddress"), c.Metrics.BindAddress)...)
}

func validateAddress(path *field.Path, address string) field.ErrorList {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return field.ErrorList{field.Invalid(path, address, "must be HOST:PORT or :PORT")}
	}
	return nil
}

func validatePort(path *field.Path, port int) field.ErrorList {
	if port < 1 || port > 65535 {
		return field.ErrorList{field.Invalid(path, port, "must be 1 to 65535")}
	}
	return nil
}

func (w *Webhook) validate(path *field.Path) field.ErrorList {
	errs := validatePort(path.Child("port"), w.Port)
	if w.ClientCABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(w.ClientCABundle)) {
		errs = append(errs, field.Invalid(path.Child("clientCABundle"), w.ClientCABundle, "has no certificate in PEM"))
	}
	c := w.Certificates
	if c.Secret == (NamespacedName{}) {
		return errs
	}
	path = path.Child("certificates")
	if c.Secret.Namespace == "" || c.Secret.Name == "" {
		errs = append(errs, field.Invalid(path.Child("secret"), c.Secret.Namespace+"/"+c.Secret.Name,
			"needs both namespace and name"))
	}
	if len(c.DNSNames) == 0 {
		errs = append(errs, field.Required(path.Child("dnsNames"),
			"name the Service of the webhooks, such as signalbox-webhook.signalbox-system.svc"))
	}
	return errs
}

func (c *Configuration) validateNumbers() field.ErrorList {
	client, limits := field.NewPath("clientConnection"), field.NewPath("limits")
	var errs field.ErrorList
	if qps := c.ClientConnection.QPS; qps <= 0 {
		errs = append(errs, field.Invalid(client.Child("qps"), qps, "must be more than 0"))
	}
	for _, number := range []struct {
		path  *field.Path
		value int64
	}{
		{field.NewPath("concurrency"), int64(c.Concurrency)},
		{client.Child("burst"), int64(c.ClientConnection.Burst)},
		{limits.Child("pods"), int64(c.Limits.Pods)},
		{limits.Child("specBytes"), int64(c.Limits.SpecBytes)},
		{limits.Child("elements"), int64(c.Limits.Elements)},
		{limits.Child("terminationGracePeriodSeconds"), c.Limits.TerminationGracePeriodSeconds},
	} {
		if number.value < 1 {
			errs = append(errs, field.Invalid(number.path, number.value, "must be 1 or more"))
		}
	}
	return errs
}

func (c *Configuration) validateSwitches() field.ErrorList {
	var errs field.ErrorList
	for _, s := range []struct {
		path    *field.Path
		enabled *bool
	}{
		{field.NewPath("leaderElection", "enabled"), c.LeaderElection.Enabled},
		{field.NewPath("trainer", "enabled"), c.Trainer.Enabled},
	} {
		if s.enabled == nil {
			errs = append(errs, field.Required(s.path, "leave the line out for the default, true, or write true or false"))
		}
	}
	return errs
}

// maxElements is how many elements the annotation that pins a runtime may have (store, maxPinElements).
const maxElements = 32 << 10

func (l *Limits) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if l.Elements > maxElements {
		errs = append(errs, field.Invalid(path.Child("elements"), l.Elements, fmt.Sprintf("must be at most %d", maxElements)))
	}
	if d := l.PodsWithin.Duration; d < time.Second {
		errs = append(errs, field.Invalid(path.Child("podsWithin"), d.String(), "must be 1s or more"))
	}
	return errs
}

// takesReports reports whether training processes can report to it.
func (t *Trainer) takesReports() bool { return ptr.Deref(t.Enabled, false) && t.Progress.Enabled }

func (t *Trainer) validateGangScheduling(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if g := t.GangScheduling; !slices.Contains(api.GangModes, g.Mode) {
		errs = append(errs, field.NotSupported(path.Child("mode"), g.Mode, api.GangModes))
	} else if g.Mode != api.GangOff && t.Enabled != nil && !*t.Enabled {
		errs = append(errs, field.Invalid(path.Child("mode"), g.Mode,
			"the JobSets of an installed Kubeflow Trainer are not Signalbox's to build, so that their pods can't be put "+
				"into groups; set it to off, or use the bundled Trainer (trainer.enabled)"))
	}
	if p := t.GangScheduling.Policy; !slices.Contains(api.GangPolicies, p) {
		errs = append(errs, field.NotSupported(path.Child("policy"), p, api.GangPolicies))
	}
	return errs
}

func (k *Kueue) validate(path *field.Path) field.ErrorList {
	errs := k.validateSelector(path.Child("managedJobsNamespaceSelector"))
	for i, kind := range k.OwnerKinds {
		if gvk, _ := schema.ParseKindArg(kind); gvk == nil {
			errs = append(errs, field.Invalid(path.Child("ownerKinds").Index(i), kind,
				"must be Kind.version.group, such as AppWrapper.v1beta2.workload.codeflare.dev"))
		}
	}
	if d := k.AfterDeactivated; d != nil && d.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("afterDeactivated"), d.Duration.String(), "must not be negative"))
	}
	return errs
}

func (k *Kueue) validateSelector(path *field.Path) field.ErrorList {
	if k.ManagedJobsNamespaceSelector == nil {
		return field.ErrorList{field.Required(path,
			"leave the line out for the default, or write {} for all namespaces")}
	}
	return validation.ValidateLabelSelector(k.ManagedJobsNamespaceSelector,
		validation.LabelSelectorValidationOptions{}, path)
}

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
