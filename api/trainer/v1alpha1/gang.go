package v1alpha1

// Annotations of TrainJobs and of runtimes that set how the pods of a TrainJob are placed. A TrainJob's take precedence
// over its runtime's, and these over the manager's configuration (trainer.gangScheduling).
const (
	// GangModeAnnotation on a TrainJob or its runtime is required, preferred or off (docs/gang-scheduling.md).
	GangModeAnnotation = "signalbox.dev/gang-scheduling"
	// GangPolicyAnnotation on a TrainJob or its runtime is gang (all pods of a group or none) or basic.
	GangPolicyAnnotation = "signalbox.dev/gang-scheduling-policy"
)

// GangMode is whether a TrainJob's pods are placed in groups, by Kubernetes' Workload and PodGroup API.
type GangMode string

const (
	// GangRequired: in groups, or the TrainJob doesn't start.
	GangRequired GangMode = "required"
	// GangPreferred: in groups where that can be done, else one by one.
	GangPreferred GangMode = "preferred"
	// GangOff: one by one.
	GangOff GangMode = "off"
)

// GangModes are all modes.
var GangModes = []GangMode{GangRequired, GangPreferred, GangOff}

// GangPolicy is how kube-scheduler places a group.
type GangPolicy string

const (
	// GangPolicyGang: all of its pods, or none.
	GangPolicyGang GangPolicy = "gang"
	// GangPolicyBasic: each by itself; kube-scheduler knows that they belong together.
	GangPolicyBasic GangPolicy = "basic"
)

// GangPolicies are all policies.
var GangPolicies = []GangPolicy{GangPolicyGang, GangPolicyBasic}
