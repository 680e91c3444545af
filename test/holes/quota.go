package main

import "slices"

// holes are all of them.
var holes = slices.Concat(ofQuota, ofWaits, ofPolicies, ofLimits)

// ofQuota are about what holds quota and what frees it, and about whose that is.
var ofQuota = []hole{
	{
		name: "a deleted TrainJob's quota is free at once", file: "integration/observe.go",
		from:  "	if !holdQuota(o.workloads.own) {\n		o.left.over = true",
		to:    "	if true {\n		o.left.over = true",
		focus: "of a TrainJob that is deleted", finds: "no-quota",
	},
	{
		name: "a TrainJob that has ended gives its quota back while pods run", file: "integration/end.go",
		from:  "	if o.left.active {\n		return nil\n	}\n	var steps",
		to:    "	if o.left.active && !o.ended() {\n		return nil\n	}\n	var steps",
		focus: "exceeds its deadline|success policy ends it", finds: "no-quota",
	},
	{
		name: "a deactivated Workload counts for nothing", file: "integration/webhook/webhook.go",
		from:  "!managed.IsTrainJob(owner) || !podsets.HoldsQuota(before)",
		to:    "!managed.IsTrainJob(owner) || true || !podsets.HoldsQuota(before)",
		focus: "whose Workload is deactivated", finds: "no-quota",
	},
	{
		name: "an initializer's quota is reclaimed though it may run again", file: "podsets/status.go",
		from:  "unbounded || p.MaxRestarts > js.Status.RestartsCountTowardsMax",
		to:    "unbounded && p.MaxRestarts > js.Status.RestartsCountTowardsMax",
		focus: "of an initializer that may run again", finds: "exceeds-admission",
	},
	{
		name: "a user starts a TrainJob that is being deleted", file: "review/review.go",
		from:  "!r.Old.DeletionTimestamp.IsZero() && equality.",
		to:    "!r.Old.DeletionTimestamp.IsZero() || false && equality.",
		focus: "that its user starts",
	},
	{
		name: "a TrainJob is said to be deleted when it is created", file: "review/review.go",
		from:  "return r.Old != nil &&",
		to:    "return r.Old == nil && !r.New.DeletionTimestamp.IsZero() || r.Old != nil &&",
		focus: "as if it were being deleted",
	},
	{
		name: "pods count by their labels", file: "store/pods.go",
		from: "	owner := metav1.GetControllerOfNoCopy(pod)\n	if owner == nil ||",
		to: "	return types.UID(pod.Labels[jobset.JobSetUIDKey]), true, nil\n" +
			"	owner := metav1.GetControllerOfNoCopy(pod)\n	if owner == nil ||",
		focus: "for a TrainJob that is yet to come",
	},
	{
		name: "users evict pods", file: "integration/webhook/webhook.go",
		from:  "	if trainJob == \"\" {",
		to:    "	if true {",
		focus: "those alone who drain nodes", finds: "exceeds-admission", also: "a pod that terminates is replaced",
	},
	{
		name: "a start isn't held against its admission", file: "admission/covers.go",
		from:  "	if wl.Status.Admission == nil {",
		to:    "	if wl.Status.Admission != nil {\n		return nil, nil\n	}\n	if wl.Status.Admission == nil {",
		focus: "not more than an admission counts", finds: "exceeds-admission",
	},
	{
		name: "any Workload fits", file: "podsets/podsets.go",
		from: "func Equal(computed, stored []kueue.PodSet) bool {",
		to: "func Equal(computed, stored []kueue.PodSet) bool {\n" +
			"	if len(computed) > 0 {\n		return true\n	}",
		focus: "a runtime that has grown since", also: "a start isn't held against its admission",
	},
	{
		name: "a started TrainJob without pods keeps its quota", file: "integration/running.go",
		from:  "own != nil && own.Time != nil && !admission.IsNeutral(own)",
		to:    "false && own != nil && own.Time != nil && !admission.IsNeutral(own)",
		focus: "where a started TrainJob has no pods|where a scheduling gate", finds: "quota-for-nothing",
	},
	{
		name: "a TrainJob takes another as its owner", file: "integration/webhook/validate.go",
		from:  "	if after == nil || before != nil && before.UID == after.UID",
		to:    "	if true || after == nil || before != nil && before.UID == after.UID",
		focus: "is decided when it is created",
	},
	{
		name: "anybody's pin is believed", file: "trainer/webhook/trainjob.go",
		from:  "	if !rq.Trusted && rq.AnnotationChanged(store.PinAnnotation) {",
		to:    "	if false && rq.AnnotationChanged(store.PinAnnotation) {",
		focus: "is the manager's alone",
	},
	{
		name: "side objects are taken over", file: "trainer/children.go",
		from:  "		if !metav1.IsControlledBy(there, job) {\n			return false, nil\n		}",
		focus: "takes over nothing of anybody's",
	},
	{
		name: "what can't be built is queued", file: "trainer/startable.go",
		from: "	if err := checkNames(job, effective.ReplicatedJobs); err != nil {",
		to: "	if effective != nil {\n" +
			"		return own, func() (*trial.Needs, error) { return s.needs(ctx, job, runtime, nil) }, nil\n	}\n" +
			"	if err := checkNames(job, effective.ReplicatedJobs); err != nil {",
		focus: "because its names would be too long|because a name is taken",
	},
}

// ofWaits are about users who keep up others, or what stops and frees.
var ofWaits = []hole{
	{
		name: "a reconcile keeps its worker", file: "integration/workers.go",
		from:  "workerTime = 3 * time.Second",
		to:    "workerTime = time.Hour",
		focus: "when the API server fails for a kind",
	},
	{
		name: "anybody's reviews are answered", file: "cmd/signalbox/certificates.go",
		from:  "	if s.clients != nil {",
		to:    "	if false {",
		focus: "ask the API server for its certificate",
	},
	{
		name: "a quantity of any size is decoded", file: "review/measure.go",
		from:  "exponent >= 0 && len(",
		to:    "false && len(",
		focus: "costs the manager more than its bytes",
	},
	{
		name: "a TrainJob is filled", file: "review/review.go",
		from:  "	if n := size(after); n > l.Bytes && n > size(before) {",
		to:    "	if n := size(after); false && n > l.Bytes && n > size(before) {",
		focus: "has room in a TrainJob that its user fills",
	},
	{
		name: "what keeps a JobSet keeps its pods", file: "integration/kept.go",
		from:  "	case js == nil || js.DeletionTimestamp.IsZero():",
		to:    "	case true || js == nil || js.DeletionTimestamp.IsZero():",
		focus: "doesn't wait for what keeps its JobSet",
	},
	{
		name: "any Workload of a TrainJob stands for it", file: "integration/observe.go",
		from:  "	byAuthor(o.job, o.workloads.own)\n",
		focus: "follows the one Workload",
	},
	{
		name: "a pod of nobody counts for years", file: "store/pods.go",
		from:  "p.MaxGraceSeconds > 0 && ",
		to:    "false && ",
		focus: "doesn't count pods of nobody",
	},
}
