package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/admission/after"
	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// simulated is what simulate says.
type simulated struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Verdict   simulate.Verdict `json:"verdict"`
	granted
	Preempt []string `json:"preempts,omitempty"`
	order
	Message string            `json:"message,omitempty"`
	Changes []simulatedChange `json:"changes,omitempty"`
	Start   *estimate         `json:"start,omitempty"`
	Missing []string          `json:"missingRights,omitempty"`
}

// order is whom it waits for.
type order struct {
	After []string `json:"after,omitempty"`
	Ahead []string `json:"ahead,omitempty"`
}

// granted is what it gets.
type granted struct {
	// Flavors are by resource, Nodes are the pods of each PodSet.
	Flavors map[string]string `json:"flavors,omitempty"`
	Nodes   map[string]int32  `json:"nodes,omitempty"`
}

// simulatedChange is a change that would have it admitted.
type simulatedChange struct {
	Set     string            `json:"set"`
	Flavors map[string]string `json:"flavors,omitempty"`
}

// estimate is when it starts.
type estimate struct {
	Earliest time.Time `json:"earliest"`
	Likely   time.Time `json:"likely"`
	Latest   time.Time `json:"latest"`
	Sure     string    `json:"sure"`
}

// viewOf puts an answer into users' terms.
func viewOf(job *api.TrainJob, cluster *simulate.Cluster, a *simulate.Answer) *simulated {
	v := &simulated{
		Namespace: job.Namespace, Name: job.Name, Verdict: a.Verdict, Message: a.Message,
		order:   order{After: cluster.Owners(a.After), Ahead: cluster.Owners(a.Ahead)},
		Preempt: cluster.Owners(a.Victims),
	}
	v.Flavors, v.Nodes = admissionOf(a.Admission)
	for _, c := range a.Changes {
		flavors, _ := admissionOf(c.Admission)
		v.Changes = append(v.Changes, simulatedChange{Set: setOf(c), Flavors: flavors})
	}
	return v
}

// verdictBlocked is for a TrainJob that Kueue doesn't consider before what condition Blocked names is corrected.
const verdictBlocked simulate.Verdict = "Blocked"

// blockedView returns what there is to say of a TrainJob that is Blocked and isn't changed, or that runs after others;
// nil for any other. One that was started and has no pods is Blocked, too, and has its quota.
func blockedView(job *api.TrainJob, changed bool) *simulated {
	if others := runsAfter(job); len(others) > 0 && !changed {
		return &simulated{Namespace: job.Namespace, Name: job.Name, Verdict: verdictBlocked,
			Message: "it runs after " + strings.Join(others, ", ")}
	}
	c := apimeta.FindStatusCondition(job.Status.Conditions, api.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue || changed || !ptr.Deref(job.Spec.Suspend, false) {
		return nil
	}
	return &simulated{
		Namespace: job.Namespace, Name: job.Name, Verdict: verdictBlocked,
		Message: c.Reason + ": " + c.Message,
	}
}

// runsAfter returns the names of those that a TrainJob waits for. One that isn't created yet waits for all that it
// names.
func runsAfter(job *api.TrainJob) []string {
	if !strings.HasPrefix(string(job.UID), simulatedUID) {
		return after.IndexOf(job)
	}
	return utilslices.Map(after.Of(job), func(d *after.Dependency) string { return d.Name })
}

// admissionOf returns the flavor of each resource, and the pods of each PodSet.
func admissionOf(a *kueue.Admission) (flavors map[string]string, nodes map[string]int32) {
	flavors, nodes = map[string]string{}, map[string]int32{}
	for _, assignment := range ptr.Deref(a, kueue.Admission{}).PodSetAssignments {
		nodes[string(assignment.Name)] = ptr.Deref(assignment.Count, 0)
		for name, flavor := range assignment.Flavors {
			if before := flavors[string(name)]; before != "" && before != string(flavor) {
				flavors[string(name)] = before + "," + string(flavor)
				continue
			}
			flavors[string(name)] = string(flavor)
		}
	}
	return flavors, nodes
}

// setOf returns a change as the flags that make it.
func setOf(c simulate.Change) string {
	switch {
	case c.Queue != "":
		return "queue=" + c.Queue
	case c.Nodes > 0:
		return fmt.Sprintf("nodes=%d", c.Nodes)
	}
	return "no node selector for " + strings.Join(c.Selector, ", ")
}

// where returns the flavors that it gets, for messages; "" for none.
func (v *simulated) where() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.Flavors)) {
		parts = append(parts, v.Flavors[name]+" for "+name)
	}
	if len(parts) == 0 {
		return ""
	}
	return " on " + strings.Join(parts, ", ")
}

func (v *simulated) write(s *session) {
	out := s.streams.Out
	fmt.Fprintf(out, "%s/%s %s.\n", v.Namespace, v.Name, v.becomes())
	if v.Verdict == verdictBlocked {
		return
	}
	if len(v.Ahead) > 0 && v.Verdict == simulate.Waits {
		fmt.Fprintf(out, "These precede it: %s.\n", strings.Join(v.Ahead, ", "))
	}
	if v.Message != "" {
		fmt.Fprintf(out, "Kueue says: %s.\n", strings.TrimSuffix(v.Message, "."))
	}
	if e := v.Start; e != nil {
		fmt.Fprintf(out, "It starts at about %s, between %s and %s (%s).\n", clock(e.Likely), clock(e.Earliest),
			clock(e.Latest), e.Sure)
	}
	if len(v.Changes) > 0 {
		fmt.Fprintln(out, "It would be admitted with:")
		for _, c := range v.Changes {
			fmt.Fprintf(out, "  %s\n", c.Set)
		}
	}
}

// becomes returns what becomes of the TrainJob, as the rest of a sentence.
func (v *simulated) becomes() string {
	switch v.Verdict {
	case verdictBlocked:
		return "is Blocked (" + strings.TrimSuffix(v.Message, ".") + "). Kueue considers it when that has changed"
	case simulate.Running:
		return "has quota already" + v.where()
	case simulate.Admitted:
		return "would be admitted now" + v.where()
	case simulate.Preempts:
		return "would be admitted now" + v.where() + ", and preempt " + strings.Join(v.Preempt, ", ")
	case simulate.Waits:
		return "waits" + v.where() + " until " + endOf(v.After)
	case simulate.Stuck:
		return "would get quota, but waits behind " + strings.Join(v.Ahead, ", ") + ", which never get any"
	default: // Never
		return "is never admitted as it is, even if no other Workload requests quota"
	}
}

func endOf(after []string) string {
	switch len(after) {
	case 0:
		return "others have ended"
	case 1:
		return after[0] + " has ended"
	}
	return strings.Join(after, ", ") + " have ended"
}

func clock(t time.Time) string {
	if time.Until(t) < 20*time.Hour {
		return t.Local().Format("15:04")
	}
	return t.Local().Format("2006-01-02 15:04")
}
