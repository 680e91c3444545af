// Package overrides holds the override contract of a TrainJob: its entries, their owners, and the pods that they make
// of the runtime. A Dialect reads it as one Trainer does.
//
// All functions are pure. They merge runtimePatches as Kubeflow Trainer v2.2.1 and later do: Kubernetes' strategic
// merge patch of the JobSet template, entry after entry. The ML policies are Trainer's own plugins, so Trainer runs
// what is computed here.
package overrides
