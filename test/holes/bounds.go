package main

// ofPolicies are about the policies of the chart.
var ofPolicies = []hole{
	{
		name: "a Job may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobs\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobs\n  validationActions: [Audit]",
		focus: "children of a TrainJob can't be changed", finds: "altered-child",
	},
	{
		name: "a pod's index may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pods\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pods\n  validationActions: [Audit]",
		focus: "keeps its index", finds: "exceeds-admission", also: "a pod that terminates is replaced",
	},
	{
		name: "a pod's fields may be edited", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pods\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pods\n  validationActions: [Audit]",
		focus: "whatever its users patch",
	},
	{
		name: "a user's pod becomes a TrainJob's", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-pod-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-pod-identities\n  validationActions: [Audit]",
		focus: "no user's pod becomes one|creates from a user's template",
	},
	{
		name: "a user's Job makes pods of a TrainJob", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-job-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-job-identities\n  validationActions: [Audit]",
		focus: "creates from a user's template",
	},
	{
		name: "a user's JobSet makes pods of a TrainJob's Workload", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobset-identities\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobset-identities\n  validationActions: [Audit]",
		focus: "creates from a user's template",
	},
	{
		name: "a runtime's Jobs select pods of others", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-selectors\n  validationActions: [Deny]",
		to:    "policyName: signalbox-selectors\n  validationActions: [Audit]",
		focus: "select no others",
	},
	{
		name: "a JobSet may be kept by a finalizer", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-jobsets\n  validationActions: [Deny]",
		to:    "policyName: signalbox-jobsets\n  validationActions: [Audit]",
		focus: "kept by no user's finalizer",
	},
	{
		name: "anybody makes a TrainJob's Workload", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-workloads\n  validationActions: [Deny]",
		to:    "policyName: signalbox-workloads\n  validationActions: [Audit]",
		focus: "the one that Signalbox has created",
	},
	{
		name: "a TrainJob blocks another's deletion", file: "config/default/signalbox.yaml",
		from:  "policyName: signalbox-trainjobs\n  validationActions: [Deny]",
		to:    "policyName: signalbox-trainjobs\n  validationActions: [Audit]",
		focus: "blocked by no other TrainJob",
	},
}

// ofLimits are about what one TrainJob may ask for.
var ofLimits = []hole{
	{
		name: "nothing limits what a TrainJob asks for", file: "overrides/limits_size.go",
		from: "func (l Limits) CheckSize(job *api.TrainJob, entries []Entry) field.ErrorList {",
		to: "func (l Limits) CheckSize(job *api.TrainJob, entries []Entry) field.ErrorList {\n" +
			"	if job != nil {\n		return nil\n	}",
		focus: "in its pods and in its size",
	},
	{
		name: "a template's finalizers are copied into pods", file: "overrides/limits_pods.go",
		from:  "	if len(meta.Finalizers) > 0 {",
		to:    "	if false && len(meta.Finalizers) > 0 {",
		focus: "harms no other by a finalizer",
	},
	{
		name: "anti-affinity reaches other namespaces", file: "overrides/limits_pods.go",
		from:  "	if affinity == nil || affinity.PodAntiAffinity == nil {",
		to:    "	if true || affinity.PodAntiAffinity == nil {",
		focus: "harms no other by anti-affinity",
	},
	{
		name: "JobSet's exclusive placement reaches other namespaces", file: "overrides/limits_pods.go",
		from:  "	if !exclusive || bySelector {",
		to:    "	if true || !exclusive || bySelector {",
		focus: "harms no other by JobSet's exclusive placement",
	},
	{
		name: "any quantity is counted", file: "overrides/limits_pods.go",
		from:  "	errs := checkContainerQuantities(path, containers)\n",
		to:    "	errs := field.ErrorList{}\n",
		focus: "harms no other by (a negative request|half a GPU)",
	},
	{
		name: "sums of requests overflow", file: "overrides/limits_pods.go",
		from:  "	return Few(append(errs, l.checkSums(effective.ReplicatedJobs)...))",
		to:    "	return Few(errs)",
		focus: "harms no other by more requests",
	},
	{
		name: "a pod that terminates is replaced", file: "trainer/build.go",
		from:  "	if queued(job) {",
		to:    "	if false && queued(job) {",
		focus: "never more pods than were admitted when", finds: "exceeds-admission",
	},
	{
		name: "an entry reaches the files of a node", file: "overrides/limits_entries.go",
		from:  "		case !l.HostPaths && reachesNode(name, value):",
		to:    "		case false && reachesNode(name, value):",
		focus: "doesn't reach a node's files",
	},
	{
		name: "a TrainJob names Secrets although it may not", file: "overrides/limits_entries.go",
		from:  "		case l.NoSecrets && ",
		to:    "		case false && ",
		focus: "reaches what the configuration allows",
	},
}
