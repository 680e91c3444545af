// Package overrides holds the override contract of a TrainJob: its entries, their owners, and the pods that they make
// of the runtime. A Dialect reads it as one Trainer does.
//
// Everything here is a pure function of objects. runtimePatches are merged as Kubeflow Trainer v2.2.1 and later merge
// them (Kubernetes' strategic merge patch of the JobSet template, entry after entry), and the ML policies are Trainer's
// own plugins, so that Trainer runs what is computed here.
package overrides
