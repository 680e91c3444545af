// Package trainer is the bundled Trainer: the side of Kubeflow Trainer that Signalbox depends on, as a role of the
// manager that is switched off beside an installed Kubeflow Trainer. It builds the JobSet of a TrainJob that was
// started, deletes that of one that was stopped, and keeps the TrainJob's status. A reconcile observes (observe.go),
// decides on steps (decide.go, loss.go) and carries them out (act.go).
//
// ML policies, pod network, pod groups and their side objects come from Kubeflow Trainer's own plugins; the JobSet and
// the merge are Signalbox's. A TrainJob that waits has none of these objects.
package trainer
