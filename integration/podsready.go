package integration

import (
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	kueueconfigv1beta1 "sigs.k8s.io/kueue/apis/config/v1beta1"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/workload"
)

// podsReadyDefault is the first release of Kueue whose waitForPodsReady is on without being configured: a Workload
// whose condition PodsReady isn't true is evicted half an hour after its admission
// (SetDefaults_Configuration, DefaultWaitForPodsReadyTimeout).
const podsReadyDefault = "0.19"

// podsReadyGate is Kueue's feature gate that turns waitForPodsReady off. Kueue will remove it in 0.21.
const podsReadyGate = "DisableWaitForPodsReady"

// podsReadyAfter is how long after its admission a Workload has condition PodsReady if Kueue waits for pods by default
// only. It must be far less than Kueue's half hour; TrainJobs that end before it cost no write.
const podsReadyAfter = 5 * time.Minute

// podsReadiness says when Workloads have condition PodsReady.
type podsReadiness int

const (
	// podsReadyNever: Kueue doesn't read it.
	podsReadyNever podsReadiness = iota
	// podsReadyLate: Kueue reads it by default, to evict TrainJobs whose pods never get ready.
	podsReadyLate
	// podsReadyAlways: Kueue is configured to wait for pods.
	podsReadyAlways
)

// podsReadinessOf reads a setting that was adopted from Kueue.
func podsReadinessOf(setting *bool) podsReadiness {
	switch {
	case setting == nil:
		return podsReadyLate
	case *setting:
		return podsReadyAlways
	}
	return podsReadyNever
}

// podsReady adopts whether Kueue waits for pods. The feature gates must have been adopted before. The setting stays
// unset if Kueue waits by default only.
// v1beta1 of Kueue's configuration has no such default.
func (a *adoption) podsReady(configuration *kueueconfig.Configuration, release string) {
	theirs := configuration.WaitForPodsReady
	byDefault := !newer(podsReadyDefault, release) &&
		configuration.APIVersion != kueueconfigv1beta1.SchemeGroupVersion.String()
	waits := (theirs != nil || byDefault) && !a.FeatureGates[podsReadyGate]
	switch ours := a.WaitForPodsReady; {
	case ours != nil && *ours != waits:
		why := ""
		if waits && theirs == nil {
			why = fmt.Sprintf(" (by default since Kueue %s, unless feature gate %s is on)", podsReadyDefault, podsReadyGate)
		}
		a.errs = append(a.errs, fmt.Errorf("waitForPodsReady is on there: %t%s, and kueue.waitForPodsReady is %t here; "+
			"take it out here", waits, why, *ours))
	case ours == nil && (theirs != nil || !waits):
		a.WaitForPodsReady = &waits
	}
}

// due returns after how long the Workload of a TrainJob gets condition PodsReady: 0 if it is due, and false if it isn't
// to have one.
func (p podsReadiness) due(wl *kueue.Workload, now time.Time) (time.Duration, bool) {
	switch p {
	case podsReadyAlways:
		return 0, true
	case podsReadyNever:
		return 0, false
	case podsReadyLate:
	}
	if wl == nil {
		return 0, false
	}
	if apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadPodsReady) != nil {
		return 0, true // it must not stay as it was before an eviction
	}
	if !workload.IsAdmitted(wl) {
		return 0, false
	}
	if wl.Status.RequeueState != nil {
		return 0, true // Kueue may have evicted it for this, after a shorter time than is known here
	}
	admitted := apimeta.FindStatusCondition(wl.Status.Conditions, kueue.WorkloadAdmitted)
	return max(podsReadyAfter-now.Sub(admitted.LastTransitionTime.Time), 0), true
}

// awaited reports whether the Workload gets condition PodsReady now, and if it gets one later, after how long.
func (p podsReadiness) awaited(o *observed) (now bool, later time.Duration) {
	if p == podsReadyLate && o.ended() {
		return false, 0
	}
	after, has := p.due(o.match(), o.now)
	return has && after == 0, after
}
