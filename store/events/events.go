// Package events has the table of the events about TrainJobs, each with its reason, type, action and text, and sends
// them.
package events

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Event is one row of the table. Its arguments are filled in by Of.
type Event struct {
	// Type is Normal or Warning (k8s.io/api/core/v1).
	Type string
	// Reason is a CamelCase word that users can select events by.
	Reason string
	// Action is what Signalbox was doing.
	Action string
	// Note is what users read: a format for Of, or its result.
	Note string
}

func normal(reason, action, note string) Event {
	return Event{corev1.EventTypeNormal, reason, action, note}
}

func warning(reason, action, note string) Event {
	return Event{corev1.EventTypeWarning, reason, action, note}
}

// The events of TrainJobs. Those that jobframework sends are Kueue's.
var (
	Started = normal("Started", "Started", "%s; in %s, by spec.%s")
	Stopped = normal("Stopped", "Stopped", "%s")

	FailedToStart     = warning("FailedToStart", "Starting", "%s; then delete Workload %s to queue the TrainJob again")
	AdmissionMismatch = warning("AdmissionMismatch", "Starting",
		"%s; Workload %s is deleted and the TrainJob queued again")
	NotSettled = warning("NotSettled", "Starting",
		"Starting %s after its admission, although %s; check Kubeflow Trainer and JobSet")

	Waiting        = normal("Waiting", "Queueing", "%s")
	RuntimeChanged = normal("RuntimeChanged", "Queueing",
		"%s was edited; the TrainJob has not run yet and will run the edited runtime")
	OverridesMigrated = normal("OverridesMigrated", "Queueing",
		"TrainJob CRD replaced; migrated spec.%s to spec.%s, for %s")
	PodLost = warning("PodLost", "Running",
		"Pod %s was lost with its node; if the JobSet fails, the TrainJob is restarted (%d of %d restarts used)")
	CutShort = warning("Restarting", "Restarting",
		"Pod %s was deleted by a drain or a preemption, and has ended with exit code 0, which its Job counts as its "+
			"end; restart %d of %d")
	Restarting = warning("Restarting", "Restarting",
		"Its JobSet has failed after pod %s was lost with its node; restart %d of %d")
	// NodeAvoided is about a node that a TrainJob keeps off, and NodeRestarting about a restart for one.
	NodeAvoided = warning("NodeAvoided", "Running",
		"It keeps off node %s for %s, from its next start on, unless it needs the node: pod %s %s (%s)")
	NodeRestarting = warning("NodeRestarting", "Restarting",
		"Pod %s can't run on node %s; restart %d of %d, on other nodes if there are")
	KeepsOff = normal("KeepsOff", "Starting",
		"Its pods keep off nodes on which others of it, or of its namespace, couldn't run: %s")
	NodesTaken = warning("NodesTaken", "Starting",
		"Its pods may run on nodes on which others of it couldn't, because it keeps off half of those that fit, or "+
			"because the others can't hold all its pods: %s; it keeps off: %s")
	NodesFreed = normal("NodesFreed", "Restarting",
		"It is started again on its quota: its pods wait for nodes, and these are no longer kept off: %s")
	Expired = normal("Expired", "Deleting",
		"It has ended at %s, and is deleted as annotation %s of %s says")
	ExpiryIgnored = warning("InvalidAnnotation", "Deleting", "It isn't deleted after its end: %s")
	// NodeShared is an event of a node.
	NodeShared = warning("AvoidedByTrainJobs", "Scheduling",
		"%d TrainJobs of %d namespaces keep off this node; of the last, a pod %s (%s)")
	ClaimLost = warning("ClaimLost", "Restarting",
		"PersistentVolumeClaim %s is gone; the initializers that had finished run again")
	// Stalled is beside condition Stalled, and StalledIgnored beside one whose annotation is invalid.
	Stalled        = warning("Stalled", "Running", "%s")
	StalledIgnored = warning("InvalidAnnotation", "Running", "%s")
	StalledStopped = warning("StalledStopped", "Stopping",
		"It is stopped, because it has reported nothing since %s; kubectl signalbox resume %s starts it again")
	StalledRestarting = warning("StalledRestarting", "Restarting", "It has reported nothing since %s; restart %d of %d")
	AwaitsCheckpoint  = normal("AwaitsCheckpoint", "Stopping",
		"%s; it is stopped when its next checkpoint is saved, at %s at the latest")
	NoBoost = warning("NoBoost", "Running",
		"Equals may preempt it at any time: a priority in use is at most %d above its own, which leaves no room for "+
			"a boost; set the values of WorkloadPriorityClasses further apart")
	// Grows is of one that is stopped to be started with more nodes, and NotGrown of one that isn't.
	Grows       = normal("Grows", "Restarting", "It is started again with %s")
	NotGrown    = warning("NotGrown", "Running", "It gets no more nodes while it runs, because %s")
	StopOverdue = warning("StopOverdue", "Stopping", "%s")

	FinishedWorkload = normal("FinishedWorkload", "FinishedWorkload", "Workload '%s' is declared finished")
	EndNotWritten    = warning("EndNotWritten", "Finishing",
		"JobSet %s has ended, and the TrainJob's status doesn't say so for a minute; its quota is released. Read the "+
			"log of the Trainer")

	ResourcesCreationFailed = warning("TrainJobResourcesCreationFailed", "Reconciling",
		"TrainJob resources reconciliation failed: %s")

	GangSchedulingSkipped = warning("GangSchedulingSkipped", "Starting", "Its pods are placed one by one: %s")
	GangReleased          = normal("GangReleased", "Running",
		"%s was placed as a whole, and %d of its pods have succeeded; replacements of failed pods are placed "+
			"separately")
	GangUnschedulable = warning("GangUnschedulable", "Scheduling", "%s")
)

// Blocked returns the event beside condition Blocked; its reason is the condition's.
func Blocked(reason string) Event { return warning(reason, "Queueing", "%s") }

// Of returns the event with its text. Arguments that are text or errors are cut to what an event has room for.
func (e Event) Of(args ...any) Event {
	for i, arg := range args {
		switch a := arg.(type) {
		case error:
			args[i] = cut(a.Error())
		case string:
			args[i] = cut(a)
		}
	}
	e.Note = cutTo(fmt.Sprintf(e.Note, args...), maxNote)
	return e
}

// maxNote is an event's limit in bytes.
const maxNote = 1024

// cut keeps a message within an event's limit, with room for the text around it.
func cut(message string) string { return cutTo(message, 850) }

func cutTo(message string, limit int) string {
	const more = "…"
	if len(message) <= limit {
		return message
	}
	return strings.ToValidUTF8(message[:limit-len(more)], "") + more // the cut may be within a character
}

// Recorder sends events of the table.
type Recorder struct{ sink events.EventRecorder }

// NewRecorder returns a Recorder that sends to sink.
func NewRecorder(sink events.EventRecorder) *Recorder { return &Recorder{sink: sink} }

// Send sends an event about an object.
func (r *Recorder) Send(about client.Object, e Event) {
	r.sink.Eventf(about, nil, e.Type, e.Reason, e.Action, "%s", e.Note)
}

// quiet drops events by their reason.
type quiet struct {
	events.EventRecorder
	reasons map[string]bool
}

// Quiet returns a recorder for a Trainer whose TrainJobs have conditions for queued, started and finished. It drops the
// events of the same, including Kueue's.
func Quiet(sink events.EventRecorder) events.EventRecorder {
	return quiet{sink, map[string]bool{"CreatedWorkload": true, Started.Reason: true, FinishedWorkload.Reason: true}}
}

// Eventf implements events.EventRecorder.
func (q quiet) Eventf(about, related runtime.Object, kind, reason, action, note string, args ...any) {
	if !q.reasons[reason] {
		q.EventRecorder.Eventf(about, related, kind, reason, action, note, args...)
	}
}
